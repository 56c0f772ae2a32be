"""Requests with pictures: a model repeats a server's input, and differences are found in the tokens that have them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from tests.commands import refused
from tests.recordings import serving_pictures

pytest.importorskip("transformers")

import torch
import transformers
from PIL import Image
from torch import Tensor

from moeprobe.adapters.huggingface.sequence_pictures import SequencePictures
from moeprobe.adapters.open import load_model
from moeprobe.inputs.texts import TokenBatch
from moeprobe.recorded.mismatch import Mismatch
from moeprobe.recorded.mismatch.figure import draw
from moeprobe.recordings.reading import TraceFile
from moeprobe.studies.server.run import word_ids
from tests.adapters import tiny_pictures

REQUESTS = 8


def move_image_tokens(logits: Tensor, layer: int, is_image: Tensor) -> Tensor:
    """Half of the image tokens choose the worst experts in the first layer."""
    moved = is_image & (torch.arange(len(is_image)) % 2 == 0)
    return torch.where(moved[:, None], -logits, logits) if layer == 0 else logits


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server that routes as the model does, and the model's own recording of its requests."""
    return prepared(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server that routes image tokens of the first layer otherwise."""
    return prepared(tmp_path_factory.mktemp("faulty"), change=move_image_tokens)


def prepared(folder: Path, **more: Any) -> Path:
    serving_pictures.serve(folder, REQUESTS, **more)
    api.import_routed_experts(
        folder / "responses.jsonl", folder / "served.parquet", model_config=folder / "model" / "config.json"
    )
    api.record([f"hf:{folder}/model"], **sequences(folder), out=folder / "own")
    return folder


def sequences(folder: Path) -> dict[str, Any]:
    return {"tokens": folder / "responses.jsonl", "images": folder / "images"}


def analyzed(folder: Path) -> pd.DataFrame:
    table = api.analyze_trace([folder / "served.parquet", folder / "own" / "model" / "tokens.parquet"]).table
    return table[table["checkpoint"] == "model"]


def by_kind(table: pd.DataFrame, metric: str, **wanted: str) -> pd.Series:
    rows = table[table["metric"] == metric]
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    return rows.set_index("tokens")["value"]


def test_the_model_repeats_a_server_with_pictures_exactly(sound: Path) -> None:
    table = analyzed(sound)
    differ = by_kind(table, "pairs_differ")
    assert {"token", "image", "text", "special", "before"} <= set(differ.index) and set(differ) == {0.0}
    trials = table[table["metric"] == "pairs_differ"].set_index("tokens")["trials"]
    image_tokens = sum(
        np.sum(TraceFile(sound / "served.parquet").read("layers.0", [f"r{number}"]).kinds == 1)
        for number in range(REQUESTS)
    )
    assert trials["image"] == 3 * image_tokens > 150
    served, own = (TraceFile(sound / name) for name in ("served.parquet", "own/model/tokens.parquet"))
    for side in (served, own):
        assert side.read("layers.0", ["r3"]).kinds is not None
    np.testing.assert_array_equal(
        served.read("layers.0", ["r3"]).kinds,
        own.read("layers.0", ["r3"]).kinds[:, :-1],  # type: ignore[index]
    )


def test_a_server_that_differs_in_image_tokens_is_found_there(faulty: Path) -> None:
    table = analyzed(faulty)
    first = by_kind(table, "choice_differs", layer="layers.0")
    assert 0.3 < first["image"] < 0.7 and first[["text", "special", "before"]].eq(0).all()
    # Words before the picture see nothing of it in any layer.
    assert by_kind(table, "tokens_touched")["before"] == 0
    assert by_kind(table, "tokens_touched")["text"] > 0
    kappa = by_kind(table[table["null"] == "pooled"], "set_jaccard_kappa", layer="layers.0")
    assert kappa["text"] == 1 and kappa["image"] < 0.8


def test_the_mismatch_is_of_the_image_tokens_alone(faulty: Path) -> None:
    result = api.mismatch(f"hf:{faulty}/model", routing=faulty / "served.parquet", **sequences(faulty))
    whole, rest = (by_kind(result.table, metric) for metric in ("mismatch", "mismatch_rest"))
    assert set(whole.index) == {"", "image", "text", "special", "before"} and whole.nunique() == 1
    assert whole[""] > 1e-3
    # With the server's choices for image tokens alone, everything behind them follows.
    assert rest[["", "image"]].max() < 1e-5
    assert rest["before"] == whole[""]
    assert by_kind(result.table, "mismatch_routing_share")["image"] == pytest.approx(1, abs=0.01)
    [sentence] = Mismatch.conclusions(result.table)
    assert sentence.count("a share of") == 1
    assert (
        " for image tokens" in sentence and "0.000 (few requests) for tokens before the picture" in sentence
    )
    assert set(draw(result)) == {"mismatch"}


def test_batches_change_nothing(sound: Path, tmp_path: Path) -> None:
    api.record([f"hf:{sound}/model"], **sequences(sound), batch_size=3, limit=7, out=tmp_path / "again")
    whole, again = (
        TraceFile(path / "model" / "tokens.parquet") for path in (sound / "own", tmp_path / "again")
    )
    for layer in again.layers:
        first, second = (trace.read(layer, again.ids) for trace in (whole, again))
        np.testing.assert_array_equal(first.experts, second.experts)


def edited(folder: Path, sound: Path, **changes: Any) -> dict[str, Any]:
    """The responses with another first one."""
    folder.mkdir(exist_ok=True)
    first, *others = (sound / "responses.jsonl").read_text().splitlines()
    lines = [json.dumps(json.loads(first) | changes), *others]
    (folder / "responses.jsonl").write_text("\n".join(lines))
    return {"tokens": folder / "responses.jsonl", "images": sound / "images"}


def test_a_picture_that_does_not_fit_is_refused(sound: Path, tmp_path: Path) -> None:
    model = f"hf:{sound}/model"
    out: dict[str, Any] = {"out": tmp_path / "out"}
    with pytest.raises(UserError, match=r"^r0 holds tokens of a picture.* name the folder .* images\.$"):
        api.record([model], tokens=sound / "responses.jsonl", **out)
    with pytest.raises(UserError, match=r"^images holds the pictures of tokens"):
        api.record([model], images=sound / "images", **out)
    with pytest.raises(UserError, match=r"^There is no folder .* for images"):
        api.record([model], tokens=sound / "responses.jsonl", images=tmp_path / "none", **out)
    with pytest.raises(UserError, match=r"^other has a picture, and .* holds none of its name"):
        api.record([model], **edited(tmp_path, sound, id="other"), **out)
    # A choice of request r7, whose picture has more tokens.
    other_size = edited(tmp_path, sound, id="r7/0", prompt_token_ids=[20, *[4] * 7, 21])
    with pytest.raises(
        UserError, match=r"^r7/0 has 7 image tokens, and the processor of model makes \d+ of its"
    ):
        api.record([model], **other_size, limit=1, **out)
    with pytest.raises(
        UserError, match=r"^r0 holds tokens of video, and sequences are repeated with pictures"
    ):
        api.record([model], **edited(tmp_path, sound, prompt_token_ids=[20, 5, 5]), **out)
    words = edited(tmp_path, sound, prompt_token_ids=[20, 21, 22])
    with pytest.raises(UserError, match=r"^No sequence holds tokens of a picture; leave images out"):
        api.record([model], **words, limit=1, **out)
    command = ("trace", "mismatch", model, "--tokens", str(sound / "responses.jsonl"), "--routing")
    assert "--images" in refused(*command, str(sound / "served.parquet"))


def test_several_pictures_of_a_request_stand_in_their_order(sound: Path, tmp_path: Path) -> None:
    """Two pictures in a folder of the request's name; in the other order they are other sequences."""
    processor = transformers.AutoProcessor.from_pretrained(sound / "model")
    chosen = [Image.open(sound / "images" / f"r{number}.png") for number in (0, 1)]
    asked = [serving_pictures.ask(processor, picture) for picture in chosen]
    prompt = [number for one in asked for number in one["input_ids"][0].tolist()]
    folder = tmp_path / "images" / "pair"
    folder.mkdir(parents=True)
    for number, picture in enumerate(chosen):
        picture.save(folder / f"{number}.png")
    line = {"id": "pair", "prompt_token_ids": prompt, "choices": [{"index": 0, "token_ids": [30, 31]}]}
    (tmp_path / "responses.jsonl").write_text(json.dumps(line))
    api.record([f"hf:{sound}/model"], **sequences(tmp_path), out=tmp_path / "own")
    model = load_model(f"hf:{sound}/model", device="cpu")
    ids = torch.tensor([[*prompt, 30, 31]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        outputs: list[Tensor] = []
        router = model.model.router_modules()[-1]  # type: ignore[attr-defined]
        hook = router.register_forward_hook(lambda module, args, output: outputs.append(output[2]))
        model.model.model(  # type: ignore[attr-defined]
            input_ids=ids,
            attention_mask=mask.long(),
            pixel_values=torch.cat([one["pixel_values"] for one in asked]),
            image_grid_thw=torch.cat([one["image_grid_thw"] for one in asked]),
            mm_token_type_ids=(ids == 4).long(),
        )
        hook.remove()
    recorded = TraceFile(tmp_path / "own" / "model" / "tokens.parquet").read("layers.2", ["pair"])
    np.testing.assert_array_equal(np.sort(recorded.experts[0]), np.sort(outputs[0].numpy()))


def test_random_prompts_hold_no_placeholder(sound: Path) -> None:
    checkpoint = load_model(f"hf:{sound}/model", device="cpu")
    config = json.loads((sound / "model" / "config.json").read_text())
    placeholders = {config[name] for name in config if name.endswith("_token_id")}
    ends = {config["text_config"][f"{name}_token_id"] for name in ("bos", "eos", "pad")}
    assert len(placeholders) == 4
    assert set(range(96)) - set(word_ids(checkpoint, 96).tolist()) == placeholders | ends


FAMILIES = [name for name in tiny_pictures.PLACED if name != "dots3_note"]


@pytest.mark.parametrize(
    "family", [FAMILIES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES[1:])]
)
def test_pixels_are_those_of_the_models_processor(family: str, tmp_path: Path) -> None:
    pytest.importorskip(f"transformers.models.{family}")
    folder = tiny_pictures.save(tmp_path / "model", family)
    processor = transformers.AutoProcessor.from_pretrained(folder)
    picture = Image.open(next(tiny_pictures.photographs(tmp_path / "photos", 1, size=(112, 112)).iterdir()))
    asked = serving_pictures.ask(processor, picture)
    ids = torch.cat([asked["input_ids"], torch.tensor([[30, 31]])], 1)
    mask = torch.ones_like(ids, dtype=torch.bool)
    reader = SequencePictures(load_model(f"hf:{folder}", device="cpu"))
    batch = reader.read(TokenBatch(ids, mask, mask, 0), {"r": [picture]}, names=["r"])
    given: dict[str, Tensor] = batch.pictures  # type: ignore[attr-defined]
    expected = {name: value for name, value in asked.items() if name not in ("input_ids", "attention_mask")}
    assert given.keys() == expected.keys()
    for name, value in expected.items():
        padded = (
            value if value.shape[:2] != asked["input_ids"].shape else torch.nn.functional.pad(value, (0, 2))
        )
        assert torch.equal(given[name].float(), padded.float()), name
