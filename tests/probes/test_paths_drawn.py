"""Which paths of the output are drawn, and how: a line that is upright at every switch."""

import numpy as np
import pytest

from moeprobe import api
from moeprobe.metrics.analyses.discontinuity import Path
from moeprobe.probes.discontinuity import Discontinuity, figure
from moeprobe.results.tables import frame
from tests.commands import Trained, refused
from tests.results.drawn import words


def test_a_line_with_jumps_meets_every_step_and_is_upright_at_every_switch() -> None:
    """A line of slope 2 that falls by 0.5 at 0.25 and rises by 0.2 at 0.3, between two steps, and falls at a step."""
    severity = np.linspace(0, 1, 6)
    falls = {0.25: -0.5, 0.3: 0.2, 1.0: -0.3}

    def output(x: float) -> float:
        return 0.1 + 2 * x + sum(jump for place, jump in falls.items() if x >= place)

    path = Path(
        image_id="i",
        checkpoint="a",
        target=0,
        severity=severity,
        probability=np.array([output(x) for x in severity]),
        switch=np.array(list(falls)),
        jump=np.array(list(falls.values())),
        tokens=np.ones((3, 1), dtype=np.int64),
    )
    x, y = figure.with_jumps(path)
    assert x.tolist() == pytest.approx([0, 0.2, 0.25, 0.25, 0.3, 0.3, 0.4, 0.6, 0.8, 1, 1, 1])
    for place, jump in falls.items():
        first = int(np.flatnonzero(np.isclose(x, place))[0])
        assert (y[first], y[first + 1]) == pytest.approx((output(place) - jump, output(place)))
    for step in severity:
        assert y[np.flatnonzero(np.isclose(x, step))[-1]] == pytest.approx(output(step))


@pytest.mark.slow
@pytest.mark.promise
def test_images_are_picked_for_their_jump_when_asked(trained: Trained) -> None:
    models = [api.load_model(path) for path in trained.values()]
    found = {
        pick: api.probe(Discontinuity(pick=pick, count=2, until=0.3), models, limit=4)
        for pick in ("random", "largest-jump")
    }
    sums = found["random"].images.select(["image_id", "jump_largest"]).to_pandas()
    largest = sums.groupby("image_id")["jump_largest"].max()
    ordered = largest.sort_values(ascending=False).index.tolist()
    drawn = {pick: list(dict.fromkeys(path.image_id for path in one.paths)) for pick, one in found.items()}
    assert drawn["largest-jump"] == ordered[:2] != drawn["random"]
    assert found["random"].table.equals(found["largest-jump"].table)
    pictures = {pick: one.plot()["paths"] for pick, one in found.items()}
    said = {pick: " ".join(words(picture).split()) for pick, picture in pictures.items()}
    assert "images chosen for their jump, among 4" in said["largest-jump"] and "chosen" not in said["random"]
    insets = {pick: sum(len(axes.child_axes) for axes in one.axes) for pick, one in pictures.items()}
    assert insets == {"random": 0, "largest-jump": 2}


def test_another_choice_is_refused(trained: Trained) -> None:
    said = refused("discontinuity", trained["prc"], "--pick", "best")
    assert "--pick is random or largest-jump; got 'best'" in said


@pytest.mark.parametrize("level", [0.05, 0.95])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_the_enlarged_jump_covers_no_line_where_there_is_room(level: float, place: float) -> None:
    """A line that falls by 0.04 at a place, at the bottom or at the top of the panel."""
    severity = np.linspace(0, 1, 201)
    path = Path(
        "i", "a", 0, severity, np.where(severity >= place, level - 0.04, level), np.array([place]), np.array([-0.04]),
        np.ones((1, 1), dtype=np.int64),
    )  # fmt: skip
    drawn = figure.draw(
        frame([{"checkpoint": "a", "view": "noise", "metric": "switches_above_0.01", "tokens": "", "images": 1,
                "value": 1.0, "dataset": "d", "split": "test"}]),
        [path], colors={"a": "red"}, unit="u", class_names={}, selection="image chosen for its jump, among 1",
    )["paths"]  # fmt: skip
    drawn.draw_without_rendering()
    (axes,) = (one for one in drawn.axes if one.child_axes)
    (inset,) = axes.child_axes
    points = axes.transData.transform(np.column_stack([path.severity, path.probability]))
    box = inset.get_window_extent()
    assert not any(box.contains(x, y) for x, y in points)
    low, high = inset.get_xlim()
    assert low < place < high
