"""Pictures beside others: padded batches with texts of their own, and routing that is repeated on other pictures."""

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.huggingface.files import load_processor
from moeprobe.adapters.huggingface.picture_model import PictureModel
from moeprobe.adapters.huggingface.pictures import PicturedBatch
from moeprobe.adapters.open import load_model
from moeprobe.errors import UserError
from moeprobe.routing.record import RoutingTrace
from tests.adapters import families, tiny_pictures

PROMPTS = ("what is this ?", "describe the picture of a cat in the picture .", "a dog ?")
# Merged patches, one tile of a fixed size, and rows of tokens that end with a special one.
FAMILIES = ("qwen3_vl_moe", "llama4", "mistral_large4")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batches")
    tiny_pictures.photographs(folder / "photos")
    for family in FAMILIES:
        if find_spec(f"transformers.models.{family}"):
            tiny_pictures.save(folder / family, family)
    return folder


def opened(here: Path, family: str = "qwen3_vl_moe") -> tuple[Checkpoint, PictureModel]:
    pytest.importorskip(f"transformers.models.{family}")  # older releases have fewer
    checkpoint = load_model(f"hf:{here / family}", device="cpu", prompt=PROMPTS[0])
    assert isinstance(checkpoint.model, PictureModel)
    return checkpoint, checkpoint.model


def pictures(count: int, size: int) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def padded(processor: Any, images: Tensor, prompts: tuple[str, ...], *, side: str) -> PicturedBatch:
    """What the processor makes of pictures that each have a prompt of their own."""
    texts = [
        processor.apply_chat_template(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt}]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        for prompt in prompts
    ]
    outputs = dict(
        processor(
            text=texts, images=[[image] for image in images], padding=True, padding_side=side,
            return_tensors="pt", do_rescale=False, add_special_tokens=False,
        )
    )  # fmt: skip
    ids, present = outputs.pop("input_ids"), outputs.pop("attention_mask").bool()
    rest = {name: value for name, value in outputs.items() if isinstance(value, Tensor)}
    return PicturedBatch(ids, present, present, 0, pictures=rest)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", families.parameters(FAMILIES))
def test_a_picture_alone_and_in_a_padded_batch_of_other_prompts_is_routed_alike(
    family: str, side: str, here: Path
) -> None:
    model, processor = opened(here, family)[1], load_processor(str(here / family))
    images = pictures(3, model.size)
    batch = padded(processor, images, PROMPTS, side=side)
    lengths = batch.present.sum(1)
    assert len(set(lengths.tolist())) == 3 and (~batch.present[lengths.argmin()])[0 if side == "left" else -1]
    scores, together = model.texts.trace(batch)
    for number, prompt in enumerate(PROMPTS):
        own_scores, alone = model.texts.trace(
            padded(processor, images[number : number + 1], (prompt,), side=side)
        )
        assert scores is not None and own_scores is not None
        torch.testing.assert_close(own_scores[0], scores[number], atol=2e-5, rtol=0)
        for name, layer in alone.layers.items():
            beside = together.layers[name]
            is_present = batch.present[number]
            torch.testing.assert_close(layer.gates[0], beside.gates[number][is_present], atol=2e-5, rtol=0)
            assert torch.equal(layer.selected[0], beside.selected[number][is_present])
        # Another picture in its place would be seen.
        other = padded(processor, images[[(number + 1) % 3]], (prompt,), side=side)
        first = next(iter(alone.layers))
        assert not torch.equal(
            model.texts.trace(other)[1].layers[first].selected, alone.layers[first].selected
        )


@pytest.mark.parametrize("family", families.parameters(FAMILIES))
def test_a_picture_with_its_own_routing_gets_its_own_scores(family: str, here: Path) -> None:
    _, model = opened(here, family)
    images = pictures(2, model.size)
    scores, routing = model.trace(images)
    assert scores is not None
    torch.testing.assert_close(model.replay(images, routing), scores, atol=1e-5, rtol=0)
    _, other = model.trace(images.flip(-1))
    assert float((model.replay(images, other) - scores).abs().max()) > 1e-2


def test_repeated_routing_reaches_the_tokens_that_it_is_about(here: Path) -> None:
    """A model whose routers have a bias for image tokens does what one without does with its routing and weights."""
    model, biased = opened(here)[1], opened(here)[1]
    tiny_pictures.with_bias(biased, 10, expert=0)
    images = pictures(2, model.size)
    expected, routing = biased.trace(images)
    plain, _ = model.trace(images)
    assert expected is not None and plain is not None
    assert float((plain - expected).abs().max()) > 0.1
    torch.testing.assert_close(model.replay(images, routing, gates="replayed"), expected, atol=1e-4, rtol=0)


def images_read(model: PictureModel, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The pictures that the model is run on from here on."""
    seen, trace = [], model.trace

    def watched(images: Tensor, **options: Any) -> Any:
        seen.append(images)
        return trace(images, **options)

    monkeypatch.setattr(model, "trace", watched)
    return seen


def log_probabilities(model: PictureModel, images: Tensor) -> Tensor:
    scores, _ = model.trace(images)
    assert scores is not None
    return scores.double().log_softmax(-1)


@pytest.mark.slow
@pytest.mark.promise
def test_an_expert_costs_what_the_own_answer_loses_without_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, model = opened(here)
    seen = images_read(model, monkeypatch)
    table = api.experts(
        checkpoint, data=f"folder:{here / 'photos'}", limit=3, draws=1, layers=["layers.1"], figures=False
    ).table
    images = next(batch for batch in seen if len(batch) == 3)
    before = log_probabilities(model, images)
    answer = before.argmax(-1, keepdim=True)
    wanted = table[(table["metric"] == "experts_price_without") & (table["layer"] == "layers.1")]
    measured = wanted.dropna(subset="expert").sort_values("expert")["value"].tolist()
    assert len(measured) == 8 and max(measured) > 0.001
    for expert, price in [*enumerate(measured)][::3]:
        # A router that never takes the expert weighs the others as ever.
        banned = tiny_pictures.with_bias(
            opened(here)[1], -60, expert=expert, image_tokens=False, layers=["layers.1"]
        )
        by_hand = (before - log_probabilities(banned, images)).gather(1, answer).mean()
        assert price == pytest.approx(float(by_hand), abs=2e-4)
    assert not table["metric"].str.contains("accuracy").any()


@pytest.mark.slow
@pytest.mark.promise
def test_flips_cost_what_the_own_answer_loses_by_kind_of_token(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, model = opened(here)
    seen = images_read(model, monkeypatch)
    result = api.flips(
        checkpoint, data=f"folder:{here / 'photos'}", limit=2, layers=["layers.1"], patches=16, figures=False
    )
    rows = result.table[result.table["metric"] == "flip_fall_runner_up"].set_index("tokens")["value"]
    assert set(rows.index) >= {"patch", "before", "text", "special"}
    images = next(batch for batch in seen if len(batch) == 2)
    scores, routing = model.trace(images)
    assert scores is not None
    answer = scores.argmax(-1, keepdim=True)
    layer = routing.layers["layers.1"]
    later = {name: routing.layers[name] for name in ("layers.1", "layers.2")}
    kinds = {"before": range(2), "text": range(2, 7), "special": range(7, 8), "patch": range(8, 24)}
    for kind, tokens in kinds.items():
        falls = []
        for token in tokens:
            selected = layer.selected.clone()
            selected[:, token, -1] = layer.gates[:, token].argsort(-1, descending=True)[:, 2].to(torch.int16)
            flipped = RoutingTrace(later | {"layers.1": dataclasses.replace(layer, selected=selected)})
            change = scores.double().log_softmax(-1) - model.replay(images, flipped).double().log_softmax(-1)
            falls.append(change.gather(1, answer))
        assert rows[kind] == pytest.approx(float(torch.cat(falls).mean()), abs=2e-6), kind


def test_an_attack_that_needs_a_gradient_says_what_works_instead(here: Path) -> None:
    checkpoint, _ = opened(here)
    with pytest.raises(UserError, match=r"gives no gradient of its loss.*direction"):
        api.attack(checkpoint, data=f"folder:{here / 'photos'}", limit=2)
    result = api.attack(
        checkpoint,
        data=f"folder:{here / 'photos'}",
        limit=2,
        direction="random",
        epsilons=[0.1],
        figures=False,
    )
    assert "prediction_agreement" in set(result.table["metric"])
