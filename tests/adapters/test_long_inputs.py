"""Long texts are read in chunks: the same routing, scores and probabilities, and less memory."""

import json
from pathlib import Path

import pytest
import torch

from moeprobe import api
from moeprobe.adapters.huggingface import HuggingfaceAdapter, replay
from moeprobe.adapters.open import load_model
from moeprobe.errors import UserError
from moeprobe.inputs.texts import TokenBatch
from tests.adapters import families, tiny_texts
from tests.commands import run

# Rounding of other sums in attention.
CLOSE = 1e-5


@pytest.fixture(scope="module")
def olmoe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    return tiny_texts.olmoe(tmp_path_factory.mktemp("long") / "olmoe")


def model_of(folder: Path) -> HuggingfaceAdapter:
    model = load_model(f"hf:{folder}").model
    assert isinstance(model, HuggingfaceAdapter)
    return model


def noisy_texts() -> TokenBatch:
    """Three texts with a prefix token and noise; the second and third end in the second and the first chunk."""
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 320, (3, 41), generator=draw)
    present = torch.ones_like(ids, dtype=torch.bool)
    present[1, 12:] = False
    present[2, 5:] = False
    ordinary = present.clone()
    ordinary[:, 0] = False
    noise = torch.randn(3, 41, 32, generator=draw)
    return TokenBatch(ids.where(present, 0), present, ordinary, 1, noise, torch.tensor([0.0, 0.1, 0.2]))


@pytest.mark.parametrize("length", [1, 8, 40])
def test_chunks_change_nothing(length: int, olmoe: Path) -> None:
    model, texts = model_of(olmoe), noisy_texts()
    scores, whole = model.trace(texts)
    log_probs = model.log_probabilities(texts)
    model.read_in_chunks(length)
    in_chunks, routing = model.trace(texts)
    assert scores is not None and in_chunks is not None
    torch.testing.assert_close(in_chunks, scores, rtol=0, atol=CLOSE)
    for name, layer in whole.layers.items():
        other = routing.layers[name]
        torch.testing.assert_close(other.gates, layer.gates, rtol=0, atol=CLOSE)
        assert bool((other.selects_the_same(layer) | ~texts.present).all())
        assert (
            torch.equal(other.valid, layer.valid) and other.num_prefix_tokens == layer.num_prefix_tokens == 1
        )
    torch.testing.assert_close(model.log_probabilities(texts), log_probs, rtol=0, atol=CLOSE, equal_nan=True)
    # Without scores, passes end with the last router.
    again = model.trace(texts, layers=["layers.1"], logits=False)[1]
    assert list(again.layers) == ["layers.1"]
    assert torch.equal(again.layers["layers.1"].gates, routing.layers["layers.1"].gates)
    # Choices are repeated in whole texts.
    replayed = model.replayed_log_probabilities(texts, routing)
    torch.testing.assert_close(replayed, log_probs, rtol=0, atol=CLOSE, equal_nan=True)


def test_no_scores_of_all_tokens_are_widened_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers in parts of one token, against double precision."""
    logits = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    tokens = torch.arange(10).reshape(2, 5)
    expected = logits.double().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    monkeypatch.setattr(replay, "SCORES_AT_ONCE", 22)
    torch.testing.assert_close(replay.score_tokens(logits, tokens), expected.float())


def test_the_head_sees_a_chunk_at_most(olmoe: Path) -> None:
    model, texts = model_of(olmoe), noisy_texts()
    model.read_in_chunks(8)
    seen: list[int] = []
    head = model.body.get_output_embeddings()  # type: ignore[operator]
    head.register_forward_hook(lambda module, args, output: seen.append(output.shape[1]))
    model.log_probabilities(texts)
    assert seen == [8] * 5 + [1]
    seen.clear()
    model.trace(texts)
    assert set(seen) == {1}
    seen.clear()
    model.trace(texts, logits=False)
    assert seen == []


def test_a_model_that_reads_in_both_directions_is_refused(tmp_path: Path) -> None:
    family = families.small("switch_transformers")
    family.save_pretrained(tmp_path)
    tiny_texts.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"reads no texts in chunks: .*leave chunk_length out"):
        model_of(tmp_path).read_in_chunks(4)


def test_changed_routing_is_refused(olmoe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that forgets: each chunk sees itself alone."""
    from transformers import DynamicCache

    model = model_of(olmoe)
    monkeypatch.setattr(
        DynamicCache, "update", lambda self, keys, values, layer, *rest, **more: (keys, values)
    )
    with pytest.raises(UserError, match="reads no texts in chunks"):
        model.read_in_chunks(4)
    assert model.chunk_length is None


def test_a_sweep_in_chunks(olmoe: Path, tmp_path: Path) -> None:
    """From the option to the table; other models refuse it, and texts longer than the model's positions are refused."""
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(tiny_texts.texts(6)) + "\n", encoding="utf-8")
    asked = ["confidence", f"hf:{olmoe}", "--data", f"text:{lines}", "--json"]
    whole, chunked = run(*asked), run(*asked, "--chunk-length", "4")
    assert whole.exit_code == chunked.exit_code == 0, chunked.stderr
    tables = [json.loads(result.stdout)["table"] for result in (whole, chunked)]
    values = [[row["value"] for row in table] for table in tables]
    assert values[1] == pytest.approx(values[0], abs=CLOSE)
    refused = run(*asked, "--max-length", "65", "--chunk-length", "4")
    assert refused.exit_code == 2 and "is at most 64; got 65" in refused.stderr


def test_chunks_are_for_texts() -> None:
    result = run("confidence", "checkpoints/reference/digits-prc-k2-seed0", "--chunk-length", "4")
    assert result.exit_code == 2 and "--chunk-length is for texts in language models of hf:" in result.stderr


def test_the_model_of_a_caller_reads_whole_texts_afterwards(olmoe: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(tiny_texts.texts(21)))
    loaded = api.load_model(f"hf:{olmoe}", device="cpu")
    api.confidence(loaded, data=f"text:{tmp_path / 'lines.txt'}", chunk_length=4)
    assert loaded.model.chunk_length is None  # type: ignore[attr-defined]
