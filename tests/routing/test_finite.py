"""Gates and scores that are no numbers: refused with layer and image, or left out and flagged; never perfect."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import UserError
from moeprobe.results.stored import of_table, write
from moeprobe.routing.record import RoutingTrace
from moeprobe.studies import compare as comparing
from tests.commands import Trained, refused
from tests.results.stores import read_images
from tests.routing.routings import checkpoint

LIMIT = 40


@pytest.fixture(scope="module")
def spoiled(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The baseline with a parameter in front of its last MoE layer that is no number."""
    folder = tmp_path_factory.mktemp("made") / "spoiled"
    shutil.copytree(trained["baseline"], folder)
    path = folder / "last.safetensors"
    with safe_open(path, "pt") as file:
        description = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    tensors["blocks.2.norm1.weight"][0] = torch.nan
    save_file(tensors, path, description)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ("confidence",),
        ("match-ratio",),
        ("contagion",),
        ("overlay", "--out", "x"),
        ("trace", "record", "--out", "x"),
        ("discontinuity",),
    ],
)
def test_gates_that_are_no_numbers_are_refused_with_layer_and_image(
    command: tuple[str, ...], spoiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images = [] if command[0] == "overlay" else ["--limit", 8]
    said = refused(*command, spoiled, *images)
    assert "The gates of blocks.3 of spoiled are not finite (NaN or infinity) for image digits/" in said
    assert "--allow-not-finite" in said


@pytest.mark.slow
@pytest.mark.promise
def test_a_model_without_numbers_never_passes_a_gate(trained: Trained, spoiled: Path) -> None:
    """Its top-5 accuracy and its agreement were 1.000, on either side."""
    for pair in ((trained["baseline"], spoiled), (spoiled, trained["baseline"])):
        said = refused("compare", *pair, "--probe", "eval", "--limit", 30, "--fail-if-worse", "top5_accuracy")
        assert "The class scores of spoiled are not finite" in said or "The gates of blocks.3" in said
        found = api.compare(
            list(pair),
            probe="noise-sweep",
            severities=[0.0, 0.1],
            fail_if_worse="prediction_agreement",
            allow_not_finite=True,
            limit=30,
        )
        assert len(found.failures) == 2 and set(found.failures["verdict"]) == {"not finite"}
        rows = found.table[found.table["layer"] == "blocks.3"]
        assert set(rows["verdict"]) == {"not finite"} and set(rows["flag"]) == {"not_finite"}
        assert set(rows["collapsed"]) == {""} and set(rows["judgement"]) == {""}
        assert "not finite" not in set(found.table.query("layer == 'blocks.1'")["verdict"])


def test_it_cannot_be_allowed_where_every_image_is_needed(trained: Trained) -> None:
    said = refused("fewshot", trained["baseline"], "--allow-not-finite")
    assert "fewshot needs finite gates and scores" in said and "match-ratio" in said


BRIGHT = 0.33
BLURRED: dict[str, Any] = {"data": "digits", "view": "gaussian_blur", "severities": [1.0], "limit": LIMIT}


class Blinded(Vmoe):
    """A model to which bright images give no numbers."""

    @torch.inference_mode()
    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        scores, found = super().trace(images, layers=layers, logits=logits)
        bright = images.mean((1, 2, 3)) > BRIGHT
        for layer in found.layers.values():
            layer.gates[bright] = torch.nan
        if scores is not None:
            scores[bright, 0] = torch.inf
        return scores, found


def test_what_is_left_out_is_no_trial_and_flagged() -> None:
    blinded, whole = checkpoint("a", adapter=Blinded), checkpoint("a")
    with pytest.raises(UserError, match="for image digits/"):
        api.sweep([blinded], **BLURRED)
    found = api.sweep([blinded], **BLURRED, allow_not_finite=True)
    reference = api.sweep([whole], **BLURRED)
    assert (
        found.sidecar["request"]["allow_not_finite"]
        and "allow_not_finite" not in reference.sidecar["request"]
    )
    left_out = found.images.to_pandas().query("view == 'gaussian_blur' and not_finite == 1")["image_id"]
    assert 0 < left_out.nunique() < LIMIT - 20
    keys = ["layer", "tokens", "metric", "null", "expert"]
    both = [table[table["view"] == "gaussian_blur"] for table in (found.table, reference.table)]
    merged = both[0].merge(both[1], on=keys, suffixes=("", "_whole"), how="outer")
    assert len(merged) == len(both[0]) == len(both[1]) > 50
    assert set(both[0]["flag"]) == {"not_finite"} and "not_finite" not in set(both[1]["flag"])
    assert (merged["images"] <= LIMIT - left_out.nunique()).all() and both[0]["value"].notna().mean() > 0.9
    # The sums of all others are those of the model that sees.
    sums = [result.images.to_pandas().query("view == 'gaussian_blur'") for result in (found, reference)]
    seen = [table[~table["image_id"].isin(left_out)] for table in sums]
    assert len(seen[0]) == len(seen[1]) > 0
    for name in ("top1_match", "trials", "weight_cosine", "gate_highest", "accuracy", "loss", "labelled"):
        np.testing.assert_array_equal(seen[0][name].to_numpy(), seen[1][name].to_numpy(), err_msg=name)
    blind = sums[0][sums[0]["image_id"].isin(left_out)]
    for name in ("trials", "tokens_counted", "labelled", "predicted", "set_pairs", "weight_pairs"):
        assert (blind[name].dropna() == 0).all(), name


def test_runs_from_before_are_not_trusted_either(tmp_path: Path) -> None:
    """What is no number was in the sums themselves; an accuracy beside such a loss is no accuracy."""
    classes = tuple(str(digit) for digit in range(10))
    for name in ("a", "b"):
        model = dataclasses.replace(checkpoint(name), class_names=classes)
        api.evaluate([model], data="digits", limit=30, out=tmp_path / name)
    images = read_images(tmp_path / "b" / "images.parquet")
    place = images.column_names.index("loss")
    lost = images.set_column(place, "loss", [np.full(images.num_rows, np.nan)])
    write(tmp_path / "b" / "images.parquet", of_table(lost))
    table = comparing.compare([tmp_path / "a", tmp_path / "b"]).table
    assert isinstance(table, pd.DataFrame) and set(table["metric"]) >= {"accuracy", "top5_accuracy", "loss"}
    assert set(table["verdict"]) == {"not finite"} and set(table["collapsed"]) == {""}
