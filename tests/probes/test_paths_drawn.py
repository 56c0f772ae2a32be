"""Which paths of the output are drawn, and how: a line that is upright at every switch."""

import numpy as np
import pytest

from moeprobe import api
from moeprobe.metrics.discontinuity import Path
from moeprobe.probes.discontinuity import Discontinuity, figure
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
