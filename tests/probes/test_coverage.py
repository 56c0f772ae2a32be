"""Coverage of experts by a model's inputs: against loops, beside the same of recordings, and of several data sets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from moeprobe import api
from moeprobe.cli.front.screen import footing
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError
from moeprobe.inputs.data.readers.joined import Joined
from moeprobe.probes.coverage import Coverage
from moeprobe.probes.coverage.measure import tokens_of_experts
from moeprobe.probes.coverage.sentences import sentences
from moeprobe.probes.engine.batch_sums import load_batches
from moeprobe.probes.engine.run import prepare
from moeprobe.results.layouts.expert_coverage import coverage_table
from moeprobe.runtime.progress import Progress
from tests.commands import run
from tests.routing.routings import checkpoint, digits

IMAGES = 24


def measured(need: int, **fields: Any) -> Any:
    options = Options(limit=IMAGES, batch_size=5)
    work = prepare(Coverage(need=need, **fields), [checkpoint()], data="digits", options=options)
    return work, work.execute(Progress())


def whole(result: Any, metric: str, **columns: str) -> float:
    """The number of all layers together."""
    rows = result.table[(result.table["metric"] == metric) & (result.table["layer"] == "")]
    for name, word in columns.items():
        rows = rows[rows[name] == word]
    (value,) = rows["value"]
    return float(value)


def test_experts_have_the_tokens_of_loops(tmp_path: Path) -> None:
    subset_file = tmp_path / "subset.jsonl"
    work, result = measured(40, write=subset_file)
    model = work.models[0].model
    totals: dict[tuple[str, int], list[int]] = {}
    of_image: dict[str, dict[tuple[str, int], int]] = {}
    for batch in load_batches(work.spec, work.models[0], work.spec.indices, masks=False):
        for name, layer in model.trace(batch.views[0], logits=False)[1].layers.items():
            for image_id, choices in zip(batch.image_ids, layer.selected.tolist(), strict=True):
                for expert in range(layer.num_experts):
                    count = sum(expert in token for token in choices[layer.num_prefix_tokens :])
                    totals.setdefault((name, expert), []).append(count)
                    of_image.setdefault(image_id, {})[name, expert] = count
    rows = result.table[result.table["metric"] == "expert_tokens"]
    assert {
        (row["layer"], int(row["expert"])): row["value"] for row in rows.to_dict("records")
    } == pytest.approx({key: np.mean(counts) for key, counts in totals.items()})
    lacking = {key for key, counts in totals.items() if sum(counts) < 40}
    assert whole(result, "experts_below") == len(lacking)
    noted = " ".join(result.sidecar["notes"])
    assert all(f"expert {expert} of {layer} has " in noted for layer, expert in lacking)
    # All experts that have enough in all images have it in the subset.
    lines = [json.loads(line) for line in subset_file.read_text().splitlines()]
    assert len(lines) == whole(result, "subset_inputs") <= IMAGES
    for key, counts in totals.items():
        if sum(counts) >= 40:
            assert sum(of_image[line["id"]][key] for line in lines) >= 40
    assert {(line["checkpoint"], line["data"]) for line in lines} == {("a", "digits")}


def test_what_has_no_differences_has_no_file_of_them(tmp_path: Path) -> None:
    """Experts of two models are no relatives; the finished run is read as any other."""
    models = [f"checkpoints/reference/digits-{name}-k2-seed0" for name in ("baseline", "prc")]
    command = ("coverage", *models, "--limit", 4, "--need", 2, "--out", tmp_path / "c", "--json")
    first, again = run(*command), run(*command)
    assert json.loads(first.stdout)["comparison"] is None and not (tmp_path / "c/comparison.csv").exists()
    assert again.exit_code == 0 and "is finished" in again.stderr
    assert len(json.loads(again.stdout)["table"]) == len(json.loads(first.stdout)["table"])


def test_a_recording_of_the_model_needs_as_many(tmp_path: Path) -> None:
    """One computation, two doors: the table of all layers is that of what trace record wrote."""
    model = checkpoint()
    asked: Any = {"data": "digits", "limit": IMAGES, "figures": False}
    result = api.coverage(model, need=8, **asked)
    files = api.record(model, out=tmp_path, **asked).files
    recorded = api.trace_coverage(files, need=8).table
    recorded = recorded[recorded["layer"] == ""].reset_index(drop=True)
    own = result.table[result.table["layer"] == ""].reset_index(drop=True)
    # Recordings of images are of images, and not of texts.
    compared = ["metric", "severity", "tokens", "images", "trials", "value", "ci_low", "ci_high"]
    assert len(own) and own[compared].equals(recorded[compared])


def test_what_exceeds_the_capacity_reaches_no_expert() -> None:
    layer = checkpoint().model.trace(torch.rand(2, 3, 32, 32), logits=False)[1].layers["blocks.1"]
    processed = layer.processed.clone()
    processed[0, :, 0] = False
    counted = tokens_of_experts(replace(layer, processed=processed))
    before = tokens_of_experts(layer)
    patches = layer.gates.shape[1] - layer.num_prefix_tokens
    assert counted.tokens.tolist() == [patches] * 2
    assert int(before.uses[0].sum()) == patches * layer.top_k
    assert int(counted.uses[0].sum()) == patches * (layer.top_k - 1)
    assert torch.equal(counted.uses[1], before.uses[1])


def test_a_recording_knows_what_exceeds_the_capacity(tmp_path: Path) -> None:
    models = [checkpoint(trained_capacity=True, eval_capacity_factor=0.5)]
    settings: dict[str, Any] = {"data": "digits", "limit": 5, "trained_capacity": True}
    own = api.coverage(models, need=8, figures=False, **settings).table
    recording = api.record(models, out=tmp_path / "traces", **settings)
    brought = [
        table.loc[table["metric"] == "expert_tokens", "value"].to_list()
        for table in (own, api.trace_coverage(recording.files, need=8).table)
    ]
    assert sum(brought[0]) < 2 * 2 * 16, "some have no room"
    assert brought[0] == pytest.approx(brought[1])


def test_of_two_data_sets_the_one_with_more_of_a_rare_expert_covers_more(tmp_path: Path) -> None:
    """Digits, and one digit again and again, which uses few experts."""
    folder = tmp_path / "same" / "test" / "zero"
    folder.mkdir(parents=True)
    image: Image.Image = digits().example(0).image
    for number in range(IMAGES):
        image.save(folder / f"{number}.png")
    name = f"folder:{tmp_path / 'same'}"
    _, result = measured(30, other_data=[name])
    assert set(result.table["dataset"]) == {"digits", name} and set(result.table["view"]) == {"clean"}
    covered = result.table[(result.table["metric"] == "experts_covered")]
    last = covered[covered["severity"] == covered["severity"].max()].set_index("dataset")["value"]
    assert last["digits"] > last[name]
    images = result.table.groupby("dataset")["images"].max()
    assert images.to_dict() == {"digits": IMAGES, name: IMAGES}
    (sentence,) = [text for text in result.leading(result) if text.startswith("With ")]
    assert sentence.index("digits covers") < sentence.index(f"{name} covers")
    # Alone it has the same numbers.
    alone = measured(30)[1].table
    own = result.table[result.table["dataset"] == "digits"]
    assert own["value"].to_list() == pytest.approx(alone["value"].to_list(), nan_ok=True)


def test_joined_data_name_each_image_by_its_data() -> None:
    joined = Joined({"a": digits(), "b": digits()})
    assert len(joined) == 2 * len(digits()) and joined.starts() == [0, len(digits())]
    assert joined.example(len(digits())).image_id == f"b/{digits().image_ids[0]}"
    assert joined.source_of[joined.image_ids[-1]] == ("b", digits().image_ids[-1])


def test_joined_data_share_no_name() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.image_ids, self.modality, self.is_encoded = [name], digits().modality, False

        def __len__(self) -> int:
            return 1

    with pytest.raises(UserError, match=r"both hold folder:d/test/0\.png"):
        Joined({"folder:d": Named("test/0.png"), "folder:d/test": Named("0.png")})  # type: ignore[dict-item]


def test_units_are_of_one_data_set() -> None:
    options = Options(limit=3, unit="folder")
    with pytest.raises(UserError, match="unit is of one data set"):
        prepare(Coverage(other_data=["shapes"]), [checkpoint()], data="digits", options=options)


@pytest.mark.parametrize(
    ("fields", "model", "message"),
    [
        ({"other_data": ["digits"]}, {}, "digits is named twice"),
        ({"other_data": ["digitz"]}, {}, "There is no data set"),
        ({}, {"router": "softmax_expert_choice"}, "tokens do not choose some of several experts"),
        (
            {"other_data": ["shapes"]},
            {"group_images": 2, "trained_capacity": True, "eval_capacity_factor": 1.0},
            "routes several inputs together",
        ),
    ],
)
def test_what_has_no_coverage_is_refused(fields: Any, model: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare(Coverage(**fields), [checkpoint(**model)], data="digits", options=Options(limit=3))


def test_units_are_added_as_a_whole(tmp_path: Path) -> None:
    """With all images in one unit, one unit is enough where any order of images is."""
    names = [digits().image_ids[index] for index in range(len(digits()))]
    units = tmp_path / "units.csv"
    units.write_text("image_id,patient\n" + "".join(f"{name},{row % 3}\n" for row, name in enumerate(names)))
    asked: Any = {"data": "digits", "limit": IMAGES, "figures": False, "need": 1}
    result = api.coverage(checkpoint(), unit=str(units), **asked)
    assert whole(result, "inputs_needed") <= 3 < whole(api.coverage(checkpoint(), **asked), "inputs_needed")
    said = coverage_table(result.table)
    assert said is not None and "random orders of the patients" in said.note
    assert footing(result).startswith("3 patients of digits test")
    assert f"of its {IMAGES} images with" in sentences(result.table)[0]


@pytest.mark.slow
def test_texts_are_counted_by_their_tokens(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.adapters.tiny_texts import olmoe, texts

    folder = olmoe(tmp_path / "model", num_hidden_layers=2, num_experts_per_tok=3)
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(texts(20)), encoding="utf-8")
    result = api.coverage(f"hf:{folder}", data=f"text:{lines}", need=2, figures=False)
    brought = result.table[result.table["metric"] == "expert_tokens"]
    trials = set(result.table.loc[result.table["metric"] == "tokens_needed", "trials"])
    # Each token reaches three experts of each layer.
    for _, of_layer in brought.groupby("layer"):
        assert {round(20 * of_layer["value"].sum())} == {3 * int(tokens) for tokens in trials}
    assert any("texts" in sentence for sentence in result.leading(result))
