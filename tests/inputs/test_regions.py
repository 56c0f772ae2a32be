"""Foreground, boundary and background: pixels by a loop, patches by counting, and matches that add up."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from moeprobe.inputs import geometry, regions
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.results.tables import FLOORS
from tests.commands import Trained, refused, run

MAPS = {
    "whole": geometry.crop(0, 0, 40, 30, 16),
    "crop": geometry.crop(7.3, 2.1, 11.9, 20.4, 16),
    "mirrored": geometry.crop(3, 4, 20, 20, 16, flip=True),
    "turned": geometry.crop(0, 0, 40, 30, 16) @ geometry.around(geometry.rotation(33), 8, 8),
    "beyond the source": geometry.crop(-10, -5, 60, 45, 16),
}


@pytest.mark.parametrize("name", MAPS)
def test_pixels_by_a_loop(name: str) -> None:
    mask = np.random.default_rng(0).random((30, 40)) < 0.4
    found = regions.foreground(mask, MAPS[name], 16)
    for row in range(16):
        for column in range(16):
            x, y, w = MAPS[name] @ [column + 0.5, row + 0.5, 1.0]
            x, y = x / w, y / w
            inside = 0 <= x < 40 and 0 <= y < 30
            assert found[row, column] == (inside and mask[int(y), int(x)])
    assert 0 < found.mean() < 1


def test_the_mask_moves_with_the_picture() -> None:
    """The view of a picture of its own mask shows the mask of the view."""
    from moeprobe.inputs.data.shapes import Shapes
    from moeprobe.inputs.images import render

    example = Shapes(split="test").example(4)
    assert example.mask is not None
    picture = Image.fromarray((example.mask[..., None] * 255).astype(np.uint8).repeat(3, axis=-1))
    to_source = geometry.crop(0, 0, 64, 64, 64) @ geometry.around(geometry.rotation(20), 32, 32)
    shown = np.asarray(render(picture, to_source, 64))[..., 0] > 127
    found = regions.foreground(example.mask, to_source, 64)
    inside = geometry.apply(to_source, PatchGrid(64, 64, 1).centers()).reshape(64, 64, 2)
    content = ((inside > 1) & (inside < 63)).all(-1)
    assert (found != shown)[content].mean() < 0.02


def test_regions_of_patches() -> None:
    pixels = np.zeros((1, 20, 20), dtype=bool)
    pixels[0, :10, :10] = True  # all
    pixels[0, 0, :5] = False  # less 5 %
    pixels[0, 10:, :10] = True
    pixels[0, 10, :6] = False  # less 6 %
    pixels[0, :5, 10] = True  # 5 % of nothing else
    pixels[0, 10:16, 10] = True  # 6 %
    codes = regions.regions(pixels, PatchGrid(2, 2, 10))[0]
    assert [regions.REGIONS[code] for code in codes] == ["foreground", "background", "boundary", "boundary"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("match-ratio",),
        ("noise-sweep", "--sigmas", "0.2"),
        ("sweep", "--view", "affine", "--severities", "1"),
    ],
)
def test_the_regions_add_up_to_the_patches(trained: Trained, command: tuple[str, ...]) -> None:
    result = run(command[0], trained["prc"], *command[1:], "--data", "shapes", "--limit", 25, "--json")
    assert result.exit_code == 0, result.output
    table = pd.DataFrame(json.loads(result.stdout)["table"])
    table = table[~table["view"].isin(FLOORS)]
    match = table[(table["metric"] == "top1_match") & (table["layer"] == "blocks.3")].set_index("tokens")
    assert set(match.index) == {"patch", "prefix", *regions.REGIONS}
    parts = match.loc[list(regions.REGIONS)]
    assert parts["trials"].sum() == match.loc["patch", "trials"] and (parts["trials"] > 0).all()
    hits = (parts["value"] * parts["trials"]).sum()
    assert hits == pytest.approx(match.loc["patch", "value"] * match.loc["patch", "trials"])
    full = run(command[0], trained["prc"], *command[1:], "--data", "shapes", "--limit", 25, "--full")
    assert "foreground" in full.output


def test_without_masks_there_are_no_regions(trained: Trained) -> None:
    table = pd.DataFrame(
        json.loads(run("match-ratio", trained["prc"], "--limit", 20, "--json").stdout)["table"]
    )
    assert set(table["tokens"]) == {"patch", "prefix"}


@pytest.fixture
def pictures(tmp_path: Path) -> tuple[Path, Path]:
    """Images whose left half is the object, and their masks."""
    images, masks = tmp_path / "images", tmp_path / "masks"
    for folder in (images, masks):
        folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(images / f"{number}.jpg")
        mask = np.zeros((32, 32), dtype=np.uint8)
        mask[:, :20] = 1  # any value but black; the third column of patches is half object
        Image.fromarray(mask).save(masks / f"{number}.png")
    return images, masks


def test_masks_of_the_users_own(trained: Trained, pictures: tuple[Path, Path]) -> None:
    images, masks = pictures
    arguments = (
        "noise-sweep",
        trained["prc"],
        "--data",
        f"folder:{images}",
        "--sigmas",
        "0.1",
        "--masks",
        masks,
    )
    table = pd.DataFrame(json.loads(run(*arguments, "--json").stdout)["table"])
    table = table[~table["view"].isin(FLOORS)]
    trials = table[(table["metric"] == "top1_match") & (table["layer"] == "blocks.1")].set_index("tokens")[
        "trials"
    ]
    assert trials.to_dict() == {"patch": 48, "prefix": 3, "foreground": 24, "boundary": 12, "background": 12}


def test_masks_that_do_not_fit(trained: Trained, pictures: tuple[Path, Path]) -> None:
    images, masks = pictures
    arguments = ("noise-sweep", trained["prc"], "--data", f"folder:{images}", "--sigmas", "0.1", "--masks")
    assert "There is no folder" in refused(*arguments, masks / "nowhere")
    Image.new("L", (31, 32)).save(masks / "1.png")
    assert "has 31 x 32 pixels, its image 32 x 32" in refused(*arguments, masks)
    (masks / "1.png").unlink()
    assert "There is no mask" in refused(*arguments, masks)
