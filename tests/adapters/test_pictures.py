"""Vision-language models: pictures reach the routers as they are, and image tokens have the places that are said."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.huggingface.files import load_processor
from moeprobe.adapters.huggingface.picture_layout import NUMBERED, find_layout, unmixed
from moeprobe.adapters.huggingface.picture_model import PictureModel
from moeprobe.adapters.huggingface.pictures import PicturedBatch, PictureReader
from moeprobe.adapters.open import load_model
from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.batches import Batch
from moeprobe.probes.routes.tables import sentences
from moeprobe.results.folder import Result
from moeprobe.routing.correspondence import pair_up
from tests.adapters import families, tiny_pictures
from tests.adapters.tiny_texts import olmoe
from tests.commands import refused, run

PROMPT = "what is this ?"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pictures.with_photographs(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def data(here: Path) -> str:
    return f"folder:{here / 'photos'}"


@pytest.fixture
def one(here: Path) -> Checkpoint:
    return load_model(f"hf:{here / 'one'}", device="cpu", prompt=PROMPT)


def model_of(checkpoint: Checkpoint) -> PictureModel:
    assert isinstance(checkpoint.model, PictureModel)
    return checkpoint.model


def noise(count: int, size: int, *, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def values(result: Result, **wanted: Any) -> pd.Series:
    rows = result.table[result.table["draw"].isna()]
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    assert len(rows)
    return rows["value"]


# Each lays its tokens out in another way; the others are for CI.
QUICK = ("qwen3_vl_moe", "llama4", "gemma4")


@pytest.mark.parametrize("family", families.parameters(tiny_pictures.PLACED, quick=QUICK))
def test_a_family_is_opened_with_its_image_tokens_in_their_places(
    family: str, data: str, tmp_path: Path
) -> None:
    pytest.importorskip(f"transformers.models.{family}")  # older releases have fewer
    folder = tiny_pictures.save(tmp_path / family, family)
    checkpoint = load_model(f"hf:{folder}", device="cpu", prompt=PROMPT)
    model = model_of(checkpoint)
    layout, size = model.layout, model.size
    grid = layout.grid
    assert not layout.doubt and grid.rows == grid.columns and grid.columns * grid.patch_size == size

    # One cell alone: the trial of the layout changes whole rows and columns.
    picture, cell = noise(1, size), grid.num_patches // 2 + 1
    row, column = divmod(cell, grid.columns)
    changed = picture.clone()
    side = grid.patch_size
    changed[..., row * side : (row + 1) * side, column * side : (column + 1) * side] = 0
    reader = PictureReader(load_processor(str(folder)), prompt=PROMPT, size=size, dtype=torch.float32)
    blocks = model.texts.blocks
    assert blocks is not None
    with unmixed(model.texts.body, blocks):
        before, after = (model.texts.embeddings(reader.read(pixels)) for pixels in (picture, changed))
    differs = (before - after).abs().flatten(2).amax(-1)[0][layout.order] > 1e-6
    around = sum(count for _, count in layout.leading)
    assert differs.nonzero().flatten().tolist() == [around + cell]

    table = api.match_ratio(checkpoint, data=data, limit=4).table
    kinds = {"patch"} | {kind for kind, _ in layout.leading}
    assert set(table[table["layer"] != ""]["tokens"]) == kinds
    assert set(table[table["tokens"] == "before"].query("metric == 'top1_match'")["value"]) == {1.0}


def test_a_picture_that_does_not_change_is_routed_alike(one: Checkpoint, data: str) -> None:
    whole = "random_crop,first_area=[1,1],second_area=[1,1]"
    result = api.match_ratio(one, view=whole, data=data, limit=6)
    assert set(values(result, metric="top1_match_kappa", tokens="patch")) == {1.0}
    # Without: what else the tables say is not 1 by itself.
    moved = values(api.match_ratio(one, data=data, limit=6), metric="top1_match", tokens="patch")
    assert (moved < 0.9).all()


def test_a_shift_by_one_token_moves_every_pair_by_one_column(one: Checkpoint) -> None:
    model = model_of(one)
    side, size = model.layout.grid.patch_size, model.size
    wide = noise(1, size + side)[:, :, :size]
    views = [wide[..., :size], wide[..., side:]]
    batch = Batch(
        ["a"],
        torch.tensor([-1]),
        views,
        [np.stack([geometry.identity()]), np.stack([geometry.translation(side, 0)])],
        np.array([[size + side, size]], dtype=np.float64),
        None,
        [],
    )
    reference, view = (model.trace(pixels)[1].layers["layers.0"] for pixels in views)
    pair = pair_up(batch, reference, view, 1, aligned=False, symmetric=True)
    columns = model.layout.grid.columns
    pairs = [
        (first, second)
        for first, second in zip(pair.reference_patch[0].tolist(), pair.view_patch[0].tolist(), strict=True)
        if first >= 0
    ]
    assert len(pairs) == columns * (columns - 1)
    assert {(first - second, first // columns - second // columns) for first, second in pairs} == {(1, 0)}


def test_a_router_that_reads_places_is_told_from_one_that_reads_content(one: Checkpoint, data: str) -> None:
    model = model_of(one)
    length = model.layout.order.numel()
    places = torch.randn(length, model.texts.width, generator=torch.Generator().manual_seed(3))

    def read_places(router: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        rows = inputs[0].numel() // model.texts.width // length
        return (places.repeat(rows, 1).reshape(inputs[0].shape), *inputs[1:])

    handles = [router.register_forward_pre_hook(read_places) for router in model.router_modules()]
    small = "random_crop,first_area=[1,1],second_area=[0.05,0.1]"
    crops = api.match_ratio(one, view=small, data=data)
    blurred = api.noise_sweep(one, data=data, limit=6, sigmas=[0, 0.4], floor_images=0)
    assert (values(crops, metric="top1_match_kappa", null="pooled", tokens="patch").abs() < 0.1).all()
    noisy = {"metric": "top1_match_kappa", "null": "pooled", "tokens": "patch", "severity": 0.4}
    assert set(values(blurred, **noisy)) == {1.0}
    for handle in handles:
        handle.remove()
    reading = api.noise_sweep(one, data=data, limit=6, sigmas=[0, 0.4], floor_images=0)
    assert (values(reading, **noisy) < 0.9).all()


def test_a_picture_alone_and_beside_others_is_routed_alike(one: Checkpoint) -> None:
    model = model_of(one)
    pictures = noise(3, model.size)
    together = model.trace(pictures)[1].layers
    alone = model.trace(pictures[1:2])[1].layers
    for name, layer in alone.items():
        torch.testing.assert_close(layer.gates[0], together[name].gates[1], atol=1e-5, rtol=0)


def test_padding_behind_a_prompt_changes_nothing(here: Path, one: Checkpoint) -> None:
    model = model_of(one)
    processor = load_processor(str(here / "one"))
    reader = PictureReader(processor, prompt=PROMPT, size=model.size, dtype=torch.float32)
    batch = reader.read(noise(2, model.size))
    length = batch.ids.shape[1]

    def longer(values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values, (0, 5)) if values.shape == batch.ids.shape else values

    padded = PicturedBatch(
        longer(batch.ids),
        longer(batch.present),
        longer(batch.ordinary),
        0,
        pictures={name: longer(value) for name, value in batch.pictures.items()},
    )
    scores, plain = model.texts.trace(batch)
    same_scores, behind = model.texts.trace(padded)
    assert scores is not None and same_scores is not None
    torch.testing.assert_close(scores, same_scores, atol=1e-5, rtol=0)
    for name, layer in plain.layers.items():
        torch.testing.assert_close(layer.gates, behind.layers[name].gates[:, :length], atol=1e-5, rtol=0)


def test_the_command_line_says_how_pictures_were_read(here: Path, data: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ("match-ratio", f"hf:{here / 'one'}", "--data", data, "--limit", 3, "--out", out)
    shown = run(*arguments, "--prompt", "a cat ?", "--image-size", 56)
    assert shown.exit_code == 0, shown.output
    sidecar = json.loads((out / "table.json").read_text(encoding="utf-8"))
    pictures = sidecar["checkpoints"]["one"]["pictures"]
    assert (pictures["prompt"], pictures["image_size"], pictures["image_tokens"]) == ("a cat ?", 56, "2 x 2")
    assert pictures["layout"].startswith("patches merged")
    # Another prompt is another question.
    assert "holds a finished run of something else" in refused(*arguments)


def test_scores_are_of_the_next_token(one: Checkpoint, data: str) -> None:
    result = api.sweep(one, view="gaussian_noise", data=data, limit=6, severities=[0, 0.3])
    metrics = set(result.table["metric"])
    assert "prediction_agreement" in metrics and "accuracy" not in metrics
    assert set(values(result, metric="prediction_agreement", severity=0.0)) == {1.0}


def test_an_overlay_draws_the_grid_of_image_tokens(here: Path, data: str, tmp_path: Path) -> None:
    out = tmp_path / "drawn"
    arguments = (
        "overlay",
        f"hf:{here / 'one'}",
        "--data",
        data,
        "--count",
        2,
        "--prompt",
        PROMPT,
        "--out",
        out,
    )
    shown = run(*arguments)
    assert shown.exit_code == 0, shown.output
    table = pd.read_csv(out / "patches.csv")
    assert set(table["row"]) == set(table["column"]) == {0, 1, 2, 3}
    assert set(table["layer"]) == {"layers.0", "layers.1", "layers.2"}


def test_tokens_without_a_place_are_numbered(data: str, tmp_path: Path) -> None:
    folder = tiny_pictures.save(tmp_path / "step", "step3p7")
    checkpoint = load_model(f"hf:{folder}", device="cpu", prompt=PROMPT)
    assert model_of(checkpoint).layout.name == NUMBERED
    for ask in (api.match_ratio, api.overlay):
        with pytest.raises(UserError, match="Where the image tokens of step are in the picture is not known"):
            ask(checkpoint, data=data, limit=2)
    still = api.noise_sweep(checkpoint, data=data, limit=3, sigmas=[0, 0.2], floor_images=0)
    assert set(values(still, metric="top1_match", tokens="patch", severity=0.0)) == {1.0}


def test_what_cannot_be_read_is_said(here: Path, data: str, tmp_path: Path) -> None:
    olmoe(tmp_path / "text")
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in (here / "one").iterdir():
        if "processor" not in path.name:
            (bare / path.name).write_bytes(path.read_bytes())
    tiny_pictures.save(tmp_path / "ernie", "ernie4_5_vl_moe")
    one = f"hf:{here / 'one'}"
    asked = {
        (f"hf:{tmp_path / 'text'}", "--data", data): "'olmoe' reads texts and no images",
        (f"hf:{bare}", "--data", data): "has no processor of pictures; put the files",
        (
            f"hf:{tmp_path / 'ernie'}",
            "--data",
            data,
        ): "saw 6 tokens where the batch has 2.* probe it on texts",
        (one, "--data", data, "--image-size", 100): "by more than a normalization.* use --image-size 112",
        (one, "--data", f"text:{here}", "--prompt", "hi"): "--prompt is for vision-language models",
        (
            "checkpoints/reference/digits-prc-k2-seed0",
            "--image-size",
            8,
        ): "--image-size is for vision-language",
    }
    for arguments, sentence in asked.items():
        assert re.search(sentence, refused("confidence", *arguments)), arguments


def test_without_a_template_the_picture_stands_before_the_prompt(here: Path, tmp_path: Path) -> None:
    folder = tiny_pictures.save(tmp_path / "plain", "minimax_m3_vl", chat=False)
    checkpoint = load_model(f"hf:{folder}", device="cpu", prompt=PROMPT)
    assert model_of(checkpoint).layout.leading == (("before", 1), ("text", 4), ("special", 1))


class Changed:
    """A processor that changes pixels before it reads them."""

    def __init__(self, processor: Any, change: Any) -> None:
        self._processor, self._change = processor, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)

    def __call__(self, *, images: list[list[Tensor]], **more: Any) -> Any:
        return self._processor(images=[[self._change(picture)] for (picture,) in images], **more)


@pytest.mark.parametrize(
    "change",
    [
        lambda pixels: pixels.clamp(max=0.5) if pixels.is_floating_point() else pixels,
        lambda pixels: pixels**2 if pixels.is_floating_point() else pixels,
        lambda pixels: pixels * 0.5 if pixels.is_floating_point() else pixels,
        lambda pixels: pixels.flip(-1) if pixels.is_floating_point() else pixels,
    ],
)
def test_a_processor_that_changes_pixels_is_refused(here: Path, change: Any) -> None:
    processor = load_processor(str(here / "one"))
    PictureReader(Changed(processor, lambda pixels: pixels), prompt=PROMPT, size=112, dtype=torch.float32)
    with pytest.raises(UserError, match="by more than a normalization"):
        PictureReader(Changed(processor, change), prompt=PROMPT, size=112, dtype=torch.float32)


def cells(pixels: Tensor, side: int) -> Tensor:
    """Each token is the mean of its cell, between two tokens of text: ``(B, 2 + P, 1)``."""
    means = torch.nn.functional.avg_pool2d(pixels, side).mean(1).flatten(1)
    return torch.nn.functional.pad(means, (1, 1))[..., None]


@pytest.mark.parametrize(
    ("name", "embed", "is_placed"),
    [
        ("rows first", lambda pixels: cells(pixels, 4), True),
        ("columns first", lambda pixels: cells(pixels.transpose(2, 3), 4), False),
        ("two exchanged", lambda pixels: cells(pixels, 4)[:, [0, 2, 1, *range(3, 18)]], False),
        ("neighbors mixed", lambda pixels: cells(pixels, 4) + 0.1 * cells(pixels, 4).roll(1, 1), False),
        ("one token blind", lambda pixels: cells(pixels, 4) * (torch.arange(18) != 5)[:, None], False),
        ("shifted by a pixel", lambda pixels: cells(pixels.roll(1, 2), 4), False),
        (
            "the text sees the picture",
            lambda pixels: (
                cells(pixels, 4) + 10 * pixels.mean((1, 2, 3))[:, None, None] * torch.eye(18)[:, :1]
            ),
            False,
        ),
    ],
)
def test_a_layout_is_believed_only_where_it_is_proved(name: str, embed: Any, is_placed: bool) -> None:
    ids = torch.tensor([3, *[9] * 16, 4])
    layout = find_layout(ids, {}, image_id=9, special_ids={4}, size=16, embed=embed)
    assert (layout.doubt == "") == is_placed and (layout.grid.patch_size == 4) == is_placed, name
    assert layout.leading == (("before", 1), ("special", 1)) and layout.order.tolist()[:2] == [0, 17]


def test_more_image_tokens_than_patches_are_numbered() -> None:
    """As of a processor that ends each row with one."""
    ids = torch.tensor([1, *[9] * 20, 2])
    outputs = {"image_grid_thw": torch.tensor([[1, 4, 4]])}
    layout = find_layout(ids, outputs, image_id=9, special_ids={1}, size=56, embed=None)
    assert layout.name == NUMBERED and layout.doubt == "20 image tokens make no square grid"


@pytest.mark.slow
@pytest.mark.promise
def test_an_audit_reads_pictures_too(here: Path, data: str) -> None:
    plan = run("audit", f"hf:{here / 'one'}", "--data", data, "--limit", 3, "--dry-run", "--json")
    assert plan.exit_code == 0, plan.output
    assert "match-ratio" in plan.output


@pytest.mark.slow
@pytest.mark.promise
def test_tokens_around_a_picture_fail_no_comparison_and_take_no_row_of_the_patches(
    here: Path, data: str, tmp_path: Path
) -> None:
    tiny_pictures.save(tmp_path / "other", "minimax_m3_vl")
    models = [f"hf:{here / 'one'}", f"hf:{tmp_path / 'other'}"]
    api.match_ratio(models, data=data, limit=12, layers="first", out=tmp_path / "run", figures=False)
    # So few images allow no verdict, which only the input's own tokens must have.
    comparison = api.compare(tmp_path / "run", fail_if_worse="top1_match_kappa")
    assert set(comparison.table["tokens"]) > {"patch", "text"} and set(comparison.failures["tokens"]) == {
        "patch"
    }
    rows = api.routes(models[0], data=data, figures=False).table
    assert set(rows["tokens"]) > {"patch", "text"}
    assert sentences(rows) == sentences(rows[rows["tokens"] == "patch"])


def test_a_template_may_be_with_the_tokenizer(here: Path, one: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "older"
    folder.mkdir()
    for path in (here / "one").iterdir():
        if path.name != "chat_template.jinja":
            (folder / path.name).write_bytes(path.read_bytes())
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = (here / "one" / "chat_template.jinja").read_text(encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    older = load_model(f"hf:{folder}", device="cpu", prompt=PROMPT)
    assert model_of(older).layout.leading == model_of(one).layout.leading


@pytest.mark.parametrize("family", families.parameters(["llama4"]))
def test_tiles_with_a_thumbnail_are_numbered(family: str, tmp_path: Path) -> None:
    folder = tiny_pictures.save(tmp_path / "tiles", family)
    path = folder / "processor_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["image_processor"]["max_patches"] = 4
    path.write_text(json.dumps(settings), encoding="utf-8")
    # By default a picture is one tile.
    assert not model_of(load_model(f"hf:{folder}", device="cpu", prompt=PROMPT)).layout.doubt
    tiled = model_of(load_model(f"hf:{folder}", device="cpu", prompt=PROMPT, image_size=224))
    assert tiled.layout.doubt == "80 image tokens make no square grid"


def test_a_trace_keeps_the_kinds_around_a_picture(one: Checkpoint, data: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"data": data, "limit": 20, "layers": ("layers.0",)}
    direct = api.sweep([one], view="gaussian_noise", severities=[0.0, 0.1], floor_images=0, **arguments).table
    api.record([one], view="gaussian_noise", severities=[0.1], out=tmp_path / "traces", **arguments)
    traces = [tmp_path / "traces" / "one" / f"{name}.parquet" for name in ("clean", "gaussian_noise-0.1")]
    recorded = api.analyze_trace(traces).table
    key = ["tokens", "metric", "null", "expert"]
    tables = [
        table[
            (table["layer"] == "layers.0")
            & (table["severity"] == 0.1)
            & table["metric"].str.contains("match")
        ]
        for table in (direct, recorded)
    ]
    first, second = (table.fillna({"null": "", "expert": -1}).set_index(key)["value"] for table in tables)
    assert {tokens for tokens, *_ in first.index} == {"patch", "before", "text", "special"}
    pd.testing.assert_series_equal(first.sort_index(), second[first.index].sort_index())
    assert "prefix" not in set(recorded["tokens"])
