"""``moeprobe s-matrix``: its table, its figure, its screen."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from moeprobe import api
from moeprobe.probes.s_matrix import figure as s_matrix
from moeprobe.results.numbers import interval
from moeprobe.results.tables import frame
from tests.commands import Trained, refused, run


@pytest.mark.pictures
@pytest.mark.slow
def test_it_writes_what_it_says(trained: Trained, tmp_path: Path) -> None:
    arguments = ("s-matrix", *trained.values(), "--limit", 25)
    result = run(*arguments, "--out", tmp_path / "one" / "s")
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "one" / "s" / "table.csv")
    entries = table[table["metric"] == "s"]
    assert len(entries) == 2 * 2 * 64 and set(entries["tokens"]) == {"patch"}
    assert entries["expert"].tolist()[:64] == [i for i in range(8) for _ in range(8)]
    assert entries["expert_b"].tolist()[:64] == list(range(8)) * 8
    assert set(table[table["expert"].notna()]["metric"]) == {"s", "expert_share", "expert_share_first"}
    for _, rows in entries.groupby(["checkpoint", "layer"]):
        assert abs(rows["value"].sum() - 8) < 1e-5
        # Both loss terms follow from the entries that are written.
        matrix = rows["value"].to_numpy().reshape(8, 8)
        place = (table["checkpoint"] == rows["checkpoint"].iloc[0]) & (
            table["layer"] == rows["layer"].iloc[0]
        )
        written = table[place].set_index("metric")["value"]
        assert abs(written["prc_diagonal"] - np.mean((1 - np.diag(matrix)) ** 2)) < 1e-8
        assert abs(written["prc_offdiagonal"] - (matrix[~np.eye(8, dtype=bool)] ** 2).mean()) < 1e-8
    comparison = pd.read_csv(tmp_path / "one" / "s" / "comparison.csv")
    # S_ij of one model is about other experts than S_ij of another; the means are about none.
    assert set(comparison["metric"]) == {
        *("s_diagonal", "s_offdiagonal", "prc_diagonal", "prc_offdiagonal", "load_entropy", "dead_experts"),
        *("load_entropy_first", "dead_experts_first"),
    }
    # The screen shows means and loss terms, with intervals, and not the matrix.
    assert len(result.output.splitlines()) < 25
    row = table.query("checkpoint == 'prc' and layer == 'blocks.3' and metric == 's_diagonal'").iloc[0]
    assert interval(row.fillna({"flag": ""})) in result.output
    run(*arguments, "--out", tmp_path / "two" / "s")
    names = {path.name for path in (tmp_path / "one" / "s").rglob("*") if path.is_file()}
    assert "s-matrix.png" in names and "s-matrix.svg" not in names
    for path in (tmp_path / "one" / "s").rglob("*"):
        if path.suffix in (".csv", ".parquet", ".png"):
            again = tmp_path / "two" / "s" / path.relative_to(tmp_path / "one" / "s")
            assert again.read_bytes() == path.read_bytes(), path


def test_experts_are_whole_numbers_in_json(trained: Trained) -> None:
    found = json.loads(run("s-matrix", trained["prc"], "--limit", 20, "--json").stdout)["table"]
    experts = {(row["expert"], row["expert_b"]) for row in found if row["metric"] == "s"}
    assert experts == set(itertools.product(range(8), repeat=2))
    assert all(isinstance(number, int) for pair in experts for number in pair)
    assert {row["expert"] for row in found if row["metric"] == "load_entropy"} == {None}


def test_a_view_without_pairs_is_refused(trained: Trained) -> None:
    sentence = refused("s-matrix", trained["prc"], "--view", "gaussian_noise")
    assert "makes no pairs" in sentence and "moeprobe sweep --view gaussian_noise" in sentence


def test_from_python(trained: Trained) -> None:
    result = api.s_matrix([trained["prc"]], limit=20, layers=("blocks.3",))
    assert (result.table["metric"] == "s").sum() == 64


def table(num_experts: dict[str, int], *, empty: bool = False) -> pd.DataFrame:
    """One layer per checkpoint; the second has one of its own besides."""
    rows = []
    for number, (checkpoint, experts) in enumerate(num_experts.items()):
        for layer in ("blocks.1", "blocks.3")[: number + 1]:
            place = {
                "checkpoint": checkpoint,
                "layer": layer,
                "dataset": "d",
                "split": "test",
                "view": "crops",
            }
            common = place | {"tokens": "patch", "images": 30}
            for i, j in itertools.product(range(experts), repeat=2):
                value = np.nan if empty else (number + 1) * (0.4 * (i == j) + 0.01 * j)
                rows.append(common | {"metric": "s", "expert": i, "expert_b": j, "value": value})
            for metric in ("s_diagonal", "s_offdiagonal"):
                value = np.nan if empty else 0.3
                rows.append(
                    common | {"metric": metric, "value": value, "ci_low": value - 0.1, "ci_high": value}
                )
    return frame(rows)


def drawn(**num_experts: int) -> Figure:
    return s_matrix.draw(table(num_experts))["s-matrix"]


def test_the_figure_shows_the_matrix_on_one_scale_from_zero() -> None:
    figure = drawn(a=4, b=12)
    maps = {axes.get_title().splitlines()[0]: axes for axes in figure.axes if axes.get_images()}
    assert set(maps) == {"a, blocks.1", "b, blocks.1", "b, blocks.3"}
    for name, axes in maps.items():
        (image,) = axes.get_images()
        assert image.get_clim() == (0, 2 * (0.4 + 0.11))
        factor = 1 if name.startswith("a") else 2
        shown = np.asarray(image.get_array())
        # Rows are view 1: the value rises along view 2.
        np.testing.assert_allclose(shown[0, 1:], factor * 0.01 * np.arange(1, len(shown)))
        assert "view 1" in axes.get_ylabel() and "view 2" in axes.get_xlabel()
        assert "0.30 [0.20, 0.30]" in axes.get_title()
    # Numbers stand in the cells where there is room for them.
    assert [text.get_text() for text in maps["a, blocks.1"].texts][:2] == ["0.40", "0.01"]
    assert not maps["b, blocks.1"].texts


def test_a_matrix_without_a_pair_is_drawn_empty() -> None:
    figure = s_matrix.draw(table({"a": 4}, empty=True))["s-matrix"]
    figure.canvas.draw_idle()
    assert not figure.axes[0].texts


@pytest.mark.parametrize(
    "checkpoints",
    [
        {"a": 8},
        pytest.param({"a": 8, "b": 8}, marks=[pytest.mark.slow, pytest.mark.promise]),
        {"a": 32, "b": 32, "c": 4},
    ],
)
def test_nothing_is_cut_off_or_written_over(checkpoints: dict[str, int]) -> None:
    figure = drawn(**checkpoints)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = canvas.get_width_height()
    heading = figure._suptitle.get_window_extent()  # type: ignore[attr-defined]
    assert heading.x0 >= 0 and heading.x1 <= width and heading.y1 <= height
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box is not None
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= heading.y0
