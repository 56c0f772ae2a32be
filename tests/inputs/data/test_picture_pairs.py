"""Pairs of pictures with a given correspondence: the published formats, and partners that are known."""

import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.batches import Loading, batches
from moeprobe.inputs.data.picture_pairs import PicturePairs
from moeprobe.inputs.data.readers.flows import read_flow
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.images import Framing
from moeprobe.inputs.open import open_training_view
from moeprobe.inputs.picture_partners import PARTNER, PicturePartner, flow_of_homography, mark_hidden
from moeprobe.inputs.views.second_picture import SecondPicture
from moeprobe.runtime.seeds import generator
from tests.commands import refused, run
from tests.inputs.data.making import pairs

WIDTH, HEIGHT = 24, 16
CHECKPOINT = Path(__file__).parents[3] / "checkpoints" / "reference" / "digits-baseline-k2-seed0"
# One number is not known, and one is further than the frame.
DISPARITY = np.arange(WIDTH * HEIGHT, dtype=np.float32).reshape(HEIGHT, WIDTH) / 256
DISPARITY[3, 5] = np.nan


def write_flo(path: Path, flow: NDArray[np.floating]) -> None:
    content = np.where(np.isfinite(flow), flow, 2e9).astype("<f4").tobytes()
    path.write_bytes(struct.pack("<fii", 202021.25, flow.shape[1], flow.shape[0]) + content)


def write_pfm(path: Path, disparity: NDArray[np.floating]) -> None:
    rows = np.where(np.isfinite(disparity), disparity, np.inf)[::-1].astype(">f4")
    path.write_bytes(f"Pf\n{disparity.shape[1]} {disparity.shape[0]}\n1.0\n".encode() + rows.tobytes())


@pytest.mark.parametrize("ending", ["flo", "npy", "npz", "pfm", "png"])
def test_every_format_says_the_same(ending: str, tmp_path: Path) -> None:
    name = "flow" if ending == "flo" else "disparity"
    path = tmp_path / f"{name}.{ending}"
    if ending == "flo":
        write_flo(path, np.stack([-DISPARITY, np.where(np.isnan(DISPARITY), np.nan, 0)], axis=-1))
    elif ending == "pfm":
        write_pfm(path, DISPARITY)
    elif ending == "png":
        # Zero is "unknown" there, so the first pixel is unknown too.
        steps = np.nan_to_num(DISPARITY * 256).astype(np.uint16)
        Image.fromarray(steps).save(path)
    else:
        (np.save if ending == "npy" else np.savez)(path, DISPARITY)
    flow = read_flow(tmp_path, WIDTH, HEIGHT)
    assert flow.shape == (HEIGHT, WIDTH, 2) and flow.dtype == np.float32
    assert np.isnan(flow[3, 5]).all()
    known = np.isfinite(DISPARITY) & (DISPARITY > 0)
    np.testing.assert_array_equal(flow[known], np.stack([-DISPARITY, 0 * DISPARITY], axis=-1)[known])


def test_a_disparity_leads_to_the_pixels_that_look_the_same(tmp_path: Path) -> None:
    """Views as large as the pictures' longer side, so that a patch of four pixels moves by half of one."""
    data = PicturePairs(split="test", location=str(pairs(tmp_path)))
    framing = Framing(WIDTH)
    loaded = next(
        batches(data, [0, 1], lambda image, _: list(view(image, framing)), loading=Loading(batch_size=2))
    )
    grid = PatchGrid(6, 6, 4)
    found = loaded.correspond(1, grid)
    columns = np.arange(36) % 6
    # A center at 4 c + 2 is seen at 4 c: the left edge of the same column, which is its own.
    expected = np.where(4 * columns + 2 - 2 >= 0, np.arange(36), -1)
    for image in range(2):
        np.testing.assert_array_equal(found.view[image], expected)
    assert not found.view_first.any()
    fine = loaded.correspond(1, PatchGrid(12, 12, 2))
    columns = np.arange(144) % 12
    np.testing.assert_array_equal(fine.view[0], np.where(columns > 0, np.arange(144) - 1, -1))


def view(image: Image.Image, framing: Framing) -> tuple[object, ...]:
    return SecondPicture().pair(image, framing=framing, rng=generator(0, "test"))


@pytest.mark.parametrize("seed", range(5))
def test_a_plane_has_the_partners_of_its_homography(seed: int) -> None:
    """The maps of views of one plane, and its flow, give the same partners but for half a pixel."""
    rng = np.random.default_rng(seed)
    homography = geometry.around(geometry.rotation(rng.uniform(-20, 20)), 40, 30)
    homography = geometry.translation(*rng.uniform(-5, 5, 2)) @ homography @ geometry.shearing(0.1, 0)
    framing, grid = Framing(56), PatchGrid(7, 7, 8)
    first = framing.to_source(Image.new("RGB", (80, 60)))
    given = PicturePartner(Image.new("RGB", (70, 90)), flow_of_homography(homography, 80, 60))
    second = framing.to_source(given.image)
    found = geometry.correspond_displaced(given.displacement(first, second, 56)[None], grid=grid)
    # The homography is about whole numbers, maps of views about centers of pixels at a half.
    centered = geometry.translation(0.5, 0.5) @ homography @ geometry.translation(-0.5, -0.5)
    in_second = geometry.apply(centered @ first, grid.centers())
    points = geometry.apply(geometry.inverse(second) @ centered @ first, grid.centers())
    points[((in_second < 0) | (in_second >= given.image.size)).any(-1)] = -1
    clear = (np.abs(points / 8 - np.round(points / 8)) > 0.5 / 8).all(-1)
    assert clear.sum() > 30
    np.testing.assert_array_equal(found.view[0][clear], grid.locate(points)[clear])


def test_what_does_not_come_home_is_hidden() -> None:
    """An object two pixels wide moves three to the right, over what was seen beside it."""
    flow = np.zeros((1, 10, 2), dtype=np.float32)
    flow[0, 2:4, 0] = 3
    back = np.zeros((1, 10, 2), dtype=np.float32)
    back[0, 5:7, 0] = -3
    kept = np.isfinite(mark_hidden(flow, back)[0, :, 0])
    assert kept.tolist() == [True] * 5 + [False] * 2 + [True] * 3
    assert np.isnan(mark_hidden(flow + 20, back)).all(), "beyond the frame"


def test_a_still_pair_keeps_every_patch_and_every_expert(tmp_path: Path) -> None:
    root = pairs(tmp_path)
    for folder in root.iterdir():
        (folder / "second.png").write_bytes((folder / "first.png").read_bytes())
        np.save(folder / "disparity.npy", np.zeros((HEIGHT, WIDTH), dtype=np.float32))
    result = run(
        "match-ratio", str(CHECKPOINT), "--data", f"picture_pairs:{root}", "--view", "second_picture",
        "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "out" / "table.csv")
    matches = table[(table["metric"] == "top1_match") & (table["tokens"] == "patch") & table["null"].isna()]
    assert len(matches) and (matches["value"] == 1).all()


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    root = pairs(tmp_path)
    first = root / "pair0"
    data = PicturePairs(split="test", location=str(root))
    np.save(first / "flow.npy", np.zeros((HEIGHT, WIDTH, 2), dtype=np.float32))
    with pytest.raises(UserError, match=r"flow\.npy and disparity\.npy say"):
        data.example(0)
    (first / "disparity.npy").unlink()
    np.save(first / "flow.npy", np.zeros((3, 3, 2), dtype=np.float32))
    with pytest.raises(UserError, match=r"about 3 x 3 pixels.*24 x 16"):
        data.example(0)
    (first / "flow.npy").write_bytes(b"no array")
    with pytest.raises(UserError, match="cannot be read as npy"):
        data.example(0)
    (first / "flow.npy").unlink()
    with pytest.raises(UserError, match="nothing says"):
        data.example(0)
    (first / "homography.txt").write_text("1 0 0\n0 1 0\n")
    with pytest.raises(UserError, match="nine numbers"):
        data.example(0)
    (first / "homography.txt").write_text("1 0 1\n0 1 0\n0 0 1\n")
    assert (data.example(0).image.info[PARTNER].flow == (1, 0)).all()
    (first / "second.png").unlink()
    with pytest.raises(UserError, match="no second picture"):
        data.example(0)
    with pytest.raises(UserError, match="no pairs"):
        PicturePairs(split="test", location=str(first))
    with pytest.raises(UserError, match="no random views"):
        open_training_view("second_picture")
    assert "take picture_pairs:PATH" in refused(
        "match-ratio", str(CHECKPOINT), "--data", "digits", "--view", "second_picture", "--limit", "20"
    )


def test_what_lies_behind_the_second_camera_is_nowhere() -> None:
    """The third coordinate is 1 − x / 10: from column 10 on the plane is behind it."""
    homography = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-0.1, 0.0, 1.0]])
    flow = flow_of_homography(homography, 20, 3)
    assert np.isfinite(flow[:, :10]).all() and np.isnan(flow[:, 10:]).all()
    assert flow[2, 5].tolist() == [5.0, 2.0], "(5, 2) / 0.5 = (10, 4)"
