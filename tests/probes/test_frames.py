"""``frames`` against a slow count over its frames, on clips of digits that move."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.cli.front.screen import footing
from moeprobe.errors import UserError
from moeprobe.inputs.images import to_tensor
from moeprobe.probes.frame_flips import BEFORE, FIRST, OTHER
from moeprobe.results.folder import Result
from moeprobe.routing.record import RoutingTrace
from moeprobe.runtime.catalog import DATA
from tests.commands import Trained, refused, run
from tests.routing.routings import checkpoint

# Intervals are asserted.
pytestmark = pytest.mark.resamples


CLIPS, FRAMES = 21, 4


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of a digit that moves to the right; clip 0 stands still, clip 1 has a frame more."""
    folder = tmp_path_factory.mktemp("clips")
    digits = DATA.get("digits")(split="test")
    for number in range(CLIPS):
        (folder / f"clip{number:02d}").mkdir()
        pixels = np.asarray(digits.example(number).image)
        for frame in range(FRAMES + (number == 1)):
            moved = np.roll(pixels, 0 if number == 0 else frame, axis=1)
            Image.fromarray(moved).save(folder / f"clip{number:02d}" / f"{frame}.png")
    return folder


@pytest.fixture(scope="module")
def measured(trained: Trained, clips: Path) -> Result:
    return api.frames(list(trained.values()), data=f"frames:{clips}", batch_size=3)


def chosen(trained: Trained, clips: Path) -> dict[str, np.ndarray]:
    """First experts of all patches ``(F, P)`` of ``blocks.1``, by clip, frame by frame."""
    model = api.load_model(trained["prc"])
    by_clip = {}
    for folder in sorted(clips.iterdir()):
        files = sorted(folder.iterdir())
        pixels = torch.stack([to_tensor(Image.open(path).convert("RGB")) for path in files])
        layer = api.trace(model, pixels)[1].layers["blocks.1"]
        by_clip[folder.name] = layer.selected[:, layer.num_prefix_tokens :, 0].cpu().numpy()
    return by_clip


def test_matches_are_those_of_a_loop_over_frames(trained: Trained, clips: Path, measured: Result) -> None:
    by_clip = chosen(trained, clips)
    order = [measured.sums.table()["image_id"][0].as_py()]  # any clip's name, to see that they are clips
    assert order[0] in by_clip
    before = [(a == b) for of_clip in by_clip.values() for a, b in itertools.pairwise(of_clip)]
    first = [(of_clip[0] == b) for of_clip in by_clip.values() for b in of_clip[1:]]
    table = measured.table
    rows = table[
        (table["checkpoint"] == "prc")
        & (table["layer"] == "blocks.1")
        & (table["tokens"] == "patch")
        & (table["metric"] == "top1_match")
    ].set_index("view")
    assert rows.loc[BEFORE, "value"] == pytest.approx(np.mean(before))
    assert rows.loc[FIRST, "value"] == pytest.approx(np.mean(first))
    assert rows.loc[BEFORE, "trials"] == np.size(before) and rows.loc[BEFORE, "images"] == CLIPS
    assert rows.loc[OTHER, "value"] < rows.loc[FIRST, "value"] <= rows.loc[BEFORE, "value"] < 1


def test_intervals_are_over_clips(trained: Trained, clips: Path, measured: Result) -> None:
    """A clip's frames vary together: the error over clips, not that of independent frames."""
    by_clip = chosen(trained, clips)
    shares = np.array([np.mean(of_clip[0] == of_clip[1:]) for of_clip in by_clip.values()])
    table = measured.table
    row = table[
        (table["checkpoint"] == "prc")
        & (table["layer"] == "blocks.1")
        & (table["tokens"] == "patch")
        & (table["metric"] == "top1_match")
        & (table["view"] == FIRST)
    ].iloc[0]
    error = shares.std(ddof=1) / np.sqrt(len(shares))
    assert (row["ci_high"] - row["ci_low"]) / (2 * error) == pytest.approx(2.1, rel=0.15)
    assert footing(measured).startswith(f"{CLIPS} clips of frames:") and "interval over clips" in footing(
        measured
    )
    [figure] = measured.plot().values()
    written = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert f"{CLIPS} clips; bars: 95 % over clips." in written


def test_a_still_clip_never_flips(clips: Path, trained: Trained, tmp_path: Path) -> None:
    still = tmp_path / "still"
    still.mkdir()
    for name in ("a", "b"):
        (still / name).symlink_to(clips / "clip00")
    table = api.frames(trained["prc"], data=f"frames:{still / 'a'}").table
    matches = table[table["metric"].isin(["top1_match", "top2_set_match", "prediction_agreement"])]
    assert len(matches) > 4 and (matches["value"] == 1).all()
    # A single clip has no other one.
    assert set(table["view"]) == {BEFORE, FIRST}


class Overflown(Vmoe):
    """A model whose class scores are no numbers."""

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        scores, routing = super().trace(images, layers=layers, logits=logits)
        return None if scores is None else scores + torch.inf, routing


def test_scores_that_are_no_numbers_are_refused(clips: Path) -> None:
    with pytest.raises(UserError, match="The class scores of overflown are not finite"):
        api.frames(checkpoint("overflown", adapter=Overflown), data=f"frames:{clips}", limit=2)


@pytest.mark.pictures
@pytest.mark.slow
def test_shards_and_batches_change_nothing(
    trained: Trained, clips: Path, measured: Result, tmp_path: Path
) -> None:
    options = ["--data", f"frames:{clips}"]
    for number in (1, 2):
        done = run(
            "frames", trained["prc"], *options, "--shard", f"{number}/2", "--out", tmp_path / str(number)
        )
        assert done.exit_code == 0, done.output
    merged = run("merge", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "merged")
    assert merged.exit_code == 0, merged.output
    table = pd.read_csv(tmp_path / "merged/table.csv", keep_default_na=False)
    own = measured.table[measured.table["checkpoint"] == "prc"]
    assert len(table) == len(own)
    assert np.allclose(pd.to_numeric(table["value"]), own["value"].astype(float), equal_nan=True)
    assert "flip rate in blocks.1" in merged.stdout.replace("\n", " ")


def test_what_holds_no_clips_is_refused(trained: Trained, clips: Path, tmp_path: Path) -> None:
    assert "holds no clips; use --data frames:PATH" in refused("frames", trained["prc"], "--data", "digits")
    (tmp_path / "one").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "one/0.png")
    with pytest.raises(UserError, match="single frame"):
        api.frames(trained["prc"], data=f"frames:{tmp_path}")
