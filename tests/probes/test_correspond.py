"""``moeprobe correspond``: the pairs are those of the probes, and the picture shows them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from moeprobe import api
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.probes.correspond import figure as figure_of
from moeprobe.results.palette import COLORS
from tests.commands import Trained, refused, run
from tests.results.drawn import words


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)).save(path)
    return path


@pytest.mark.parametrize("view", ["random_crop", "randaugment"])
def test_the_pairs_are_those_that_a_probe_counts(trained: Trained, view: str) -> None:
    shown = api.correspond(trained["prc"], view=view, count=25, seed=7)
    measured = api.match_ratio([trained["prc"]], view=view, limit=25, seed=7, layers=("blocks.1",))
    images = measured.images.to_pandas()
    trials = images[images["tokens"] == "patch"].set_index("image_id")["trials"]
    counted = shown.table.groupby("image_id")["partner_row"].count()
    assert counted.to_dict() == trials.to_dict()
    assert 0 < counted.sum() < 25 * 16
    assert {item.pixels[0].shape for item in shown.pairs} == {(32, 32, 3)}


@pytest.mark.pictures
def test_it_writes_what_it_says(trained: Trained, tmp_path: Path) -> None:
    arguments = ("correspond", trained["prc"], "--view", "prc_crops", "--count", 3)
    result = run(*arguments, "--svg", "--out", tmp_path / "one")
    assert result.exit_code == 0, result.output
    files = ("figures/correspond.png", "figures/correspond.svg", "pairs.csv", "table.json")
    assert all(name in result.output for name in files)
    assert "the same expert in blocks.1 of prc" in result.output
    pairs = pd.read_csv(tmp_path / "one" / "pairs.csv")
    assert len(pairs) == 3 * 16 and pairs["image_id"].nunique() == 3
    there = pairs.dropna(subset="partner_row")
    # The point lies in the cell of the partner (8 pixels), and nowhere is a partner without its point.
    assert (np.floor(there["y"] / 8) == there["partner_row"]).all()
    assert (np.floor(there["x"] / 8) == there["partner_column"]).all()
    request = json.loads((tmp_path / "one" / "table.json").read_text())["request"]
    assert request["kind"] == "correspond" and request["view"]["name"] == "prc_crops"
    assert (request["image_size"], request["patch_size"]) == (32, 8)
    assert len(request["checkpoints"]["prc"]["sha256"]) == 64
    assert "is finished" in run(*arguments, "--out", tmp_path / "one").output
    run(*arguments, "--svg", "--out", tmp_path / "two")
    for name in files[:3]:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_own_files_without_a_checkpoint(photo: Path) -> None:
    result = run("correspond", "--file", photo, "--view", "gaussian_noise", "--severity", 0.1, "--json")
    pairs = pd.DataFrame(json.loads(result.stdout)["pairs"])
    assert len(pairs) == 49 and set(pairs["image_id"]) == {str(photo)}
    # Noise moves nothing: every patch is its own partner, at its own center.
    assert (pairs["row"] == pairs["partner_row"]).all() and (pairs["column"] == pairs["partner_column"]).all()
    np.testing.assert_allclose(pairs["x"], (pairs["column"] + 0.5) * 32)
    np.testing.assert_allclose(pairs["y"], (pairs["row"] + 0.5) * 32)
    assert set(pairs["view_1"]) == {"clean image"}


def test_own_files_may_be_mirrored_and_digits_are_not(photo: Path) -> None:
    def directions(**what: object) -> set[int]:
        found = set()
        for seed in range(8):
            for item in api.correspond(view="prc_crops", seed=seed, count=1, **what).pairs:  # type: ignore[arg-type]
                found.add(int(np.sign(item.points[1, 0] - item.points[0, 0])))
        return found

    assert directions(files=[photo]) == {-1, 1}
    assert directions(data="digits") == {1}


def test_grid_and_named_image() -> None:
    arguments = (
        "--images",
        "digits/0003",
        "--image-size",
        48,
        "--patch-size",
        8,
        "--split",
        "train",
        "--data",
        "digits",
        "--json",
    )
    digits = ("--data", "digits")
    name = json.loads(run("correspond", *digits, "--count", 1, "--split", "train", "--json").stdout)["pairs"][
        0
    ]
    arguments = ("--images", name["image_id"], *arguments[2:])
    pairs = json.loads(run("correspond", *arguments).stdout)["pairs"]
    assert len(pairs) == 36 and {pair["image_id"] for pair in pairs} == {name["image_id"]}


def test_what_does_not_fit_is_refused(trained: Trained, photo: Path) -> None:
    # Without a checkpoint nothing says which data are meant.
    assert "Name the data" in refused("correspond", "--json")
    digits = ("--data", "digits")
    assert "omit --severity" in refused("correspond", *digits, "--severity", 0.2, "--json")
    assert "--severity 0.4" in refused("correspond", *digits, "--view", "gaussian_noise", "--json")
    assert "must fill the image" in refused("correspond", *digits, "--image-size", 50, "--json")
    assert "from 1 up" in refused("correspond", *digits, "--patch-size", 0, "--json")
    assert "The checkpoint says" in refused("correspond", trained["prc"], "--patch-size", 8, "--json")
    assert "--file" in refused("correspond", photo, "--json")
    assert "There is no image 'x' in this split of digits" in refused(
        "correspond", *digits, "--images", "x", "--json"
    )
    assert "a number of images from 1 up" in refused("correspond", *digits, "--count", 0, "--json")
    assert "a whole number from 1 up" in refused("correspond", *digits, "--lines", 0, "--json")
    assert "Did you mean 'random_crop'" in refused("correspond", *digits, "--view", "random_crops", "--json")
    assert run("correspond").exit_code == 2


def test_the_picture_shows_every_pair() -> None:
    shown = api.correspond(
        data="digits", view="random_crop", count=3, image_size=96, patch_size=16, seed=1
    ).pairs
    figure = figure_of.draw(shown, title="t", lines=36)
    assert any((item.partner < 0).any() for item in shown)
    for axes, item in zip(figure.axes, shown, strict=True):
        matched = np.flatnonzero(item.partner >= 0)
        (lines,) = [part for part in axes.collections if isinstance(part, LineCollection)]
        segments = np.array(lines.get_segments())
        np.testing.assert_allclose(segments[:, 0], item.grid.centers()[matched, :2])
        second = np.array(axes.get_images()[1].get_extent())[[0, 3]]
        np.testing.assert_allclose(segments[:, 1] - second, item.points[matched])
        boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        pale = [box for box in boxes if box.get_fill()]
        assert len(pale) == sum(int((~side).sum()) for side in item.matched)
        assert axes.get_title().startswith(f"{item.image_id}: {len(matched)} of 36")
        # All of it is inside the frame.
        (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
        assert left <= segments[..., 0].min() and segments[..., 0].max() <= right
        assert low <= segments[..., 1].min() and segments[..., 1].max() <= high


def test_neighbors_differ_in_color() -> None:
    for row, column in np.ndindex(9, 9):
        around = {
            to_hex(figure_of.color(row + down, column + right))
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
            if (down, right) != (0, 0)
        }
        assert to_hex(figure_of.color(row, column)) not in around


def segments(figure: Figure) -> list[LineCollection]:
    return [part for axes in figure.axes for part in axes.collections if isinstance(part, LineCollection)]


@pytest.mark.parametrize("side", [4, 7, 14, 24])
def test_few_lines_are_spread_evenly(side: int) -> None:
    grid = PatchGrid(side, side, 8)
    partner = np.arange(side * side)
    partner[:side] = -1
    chosen = figure_of.spread(partner, grid, 16)
    assert len(set(chosen)) == min(16, side * (side - 1)) and chosen == figure_of.spread(partner, grid, 16)
    assert all(partner[patch] >= 0 for patch in chosen)
    # Each quarter of the rest has some.
    rows, columns = np.divmod(chosen, side)
    for top in (rows < (side + 1) / 2, rows >= (side + 1) / 2):
        for left in (columns < side / 2, columns >= side / 2):
            assert (top & left).sum() >= 2


@pytest.mark.slow
@pytest.mark.promise
def test_lines_of_a_fine_grid_are_few_and_the_table_holds_all() -> None:
    found = api.correspond(data="digits", view="random_crop", count=1, image_size=192, patch_size=8, lines=12)
    (lines,) = segments(found.plot()["correspond"])
    assert len(lines.get_segments()) == 12 < (found.pairs[0].partner >= 0).sum()
    assert len(found.table) == 576
    assert "12 pairs are drawn" in words(found.plot()["correspond"])


def test_lines_have_the_color_of_same_and_other_experts(trained: Trained) -> None:
    found = api.correspond(trained["prc"], view="random_crop", count=4, seed=3)
    figure = found.plot()["correspond"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["same expert", "another expert"]
    assert "Experts: blocks.1 of prc." in words(figure).replace("\n", " ")
    colors: set[str] = set()
    for item, lines in zip(found.pairs, segments(figure), strict=True):
        assert item.experts is not None and item.same_expert is not None
        valid = np.flatnonzero(item.partner >= 0)
        expected = [item.experts[0][patch] == item.experts[1][item.partner[patch]] for patch in valid]
        drawn = [to_hex(one) for one in np.asarray(lines.get_colors())]
        assert drawn == [COLORS[0].lower() if same else COLORS[1].lower() for same in expected]
        colors |= set(drawn)
    assert len(colors) == 2
    # The experts are those that an overlay draws: here of a clean image.
    clean = api.correspond(trained["prc"], view="gaussian_noise", severity=0.2, count=2)
    overlaid = api.overlay([trained["prc"]], severity=0.2, count=2, layers=("blocks.1",))
    for item, shown in zip(clean.pairs, overlaid.overlays, strict=True):
        assert item.experts is not None
        np.testing.assert_array_equal(item.experts[0], shown.clean_expert.ravel())
        np.testing.assert_array_equal(item.experts[1], shown.perturbed_expert.ravel())
