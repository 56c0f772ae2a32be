"""Two forms of one language model, compared with loops over the library's own models."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from moeprobe import api
from moeprobe.adapters import residence
from moeprobe.adapters.residence import Residence
from moeprobe.errors import UserError
from tests.adapters.tiny_texts import olmoe, texts, tokenizer
from tests.commands import few_resamples  # noqa: F401  # a fixture

pytestmark = pytest.mark.usefixtures("few_resamples")
COUNT = 22


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forms")
    (folder / "lines.txt").write_text("\n".join(texts(COUNT)), encoding="utf-8")
    return olmoe(folder / "one")


def agree(folder: Path, *models: str, **more: Any) -> Any:
    options: dict[str, Any] = {
        "data": f"text:{folder.parent / 'lines.txt'}",
        "figures": False,
        "batch_size": 1,
    }
    return api.agree([f"hf:{model}" for model in models], **(options | more))


def by_the_library(folder: Path, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Of each text, the sets of its tokens ``(L, T, K)`` and the log-probabilities ``(T - 1,)``."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    read = AutoTokenizer.from_pretrained(folder)
    sets, scores = [], []
    for text in texts(COUNT):
        ids = read(text, return_tensors="pt").input_ids
        with torch.no_grad():
            output = model(ids, output_router_logits=True)
        top = [logits.float().softmax(-1).topk(2).indices.sort(-1).values for logits in output.router_logits]
        sets.append(torch.stack(top))
        log_probs = output.logits[0, :-1].float().log_softmax(-1)
        scores.append(log_probs.gather(1, ids[0, 1:, None])[:, 0].double())
    return sets, scores


@pytest.mark.slow
@pytest.mark.promise
def test_a_bfloat16_copy_differs_as_loops_over_both_say(folder: Path) -> None:
    result = agree(folder, str(folder), f"{folder},dtype=bfloat16")
    table = result.table[result.table["checkpoint"] == "one,dtype=bfloat16"]
    found = {
        (row["layer"], row["metric"]): row["value"]
        for row in table[table["tokens"].isin(["token", ""]) & table["null"].eq("")].to_dict("records")
    }
    (sets, scores), (other_sets, other_scores) = (
        by_the_library(folder, dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    # Without the beginning of the sequence, which is no token of the text.
    differs = torch.cat(
        [(one != other).any(-1)[:, 1:] for one, other in zip(sets, other_sets, strict=True)], dim=1
    )
    assert differs.any()
    for number, layer in enumerate(("layers.0", "layers.1")):
        assert found[layer, "choice_differs"] == pytest.approx(differs[number].double().mean().item())
    assert found["", "tokens_touched"] == pytest.approx(differs.any(0).double().mean().item())
    first = differs[0].sum() / differs.any(0).sum()
    assert found["layers.0", "first_layer_share"] == pytest.approx(first.item())
    change = torch.cat([other - one for one, other in zip(scores, other_scores, strict=True)])
    assert found["", "loss_rise"] == pytest.approx(-change.mean().item(), rel=1e-4, abs=1e-7)
    assert found["", "loss_gap"] == pytest.approx(change.abs().mean().item(), rel=1e-4)
    # Most of it is arithmetic: few tokens choose other experts.
    assert found["", "loss_gap_arithmetic"] > found["", "loss_gap_choices"]


def test_kernels_and_precision_are_settings_of_a_model(folder: Path) -> None:
    eager = api.load_model(
        f"hf:{folder},experts_implementation=eager,attn_implementation=eager", device="cpu"
    )
    config = eager.model.model.config  # type: ignore[attr-defined]
    assert (config._experts_implementation, config._attn_implementation) == ("eager", "eager")
    assert eager.name == "one,attn_implementation=eager,experts_implementation=eager"
    narrow = api.load_model(f"hf:{folder},dtype=bfloat16", device="cpu", dtype="bfloat16")
    assert (narrow.name, narrow.provenance["dtype"]) == ("one,dtype=bfloat16", "bfloat16")
    with pytest.raises(UserError, match="dtype=bfloat16 follows the model, and the run asks for float32"):
        api.load_model(f"hf:{folder},dtype=bfloat16", device="cpu", dtype="float32")


def test_another_tokenizer_is_refused(folder: Path) -> None:
    other = olmoe(folder.parent / "other")
    tokenizer(size=280).save_pretrained(other)
    with pytest.raises(UserError, match="other reads other tokens than one, since their tokenizers differ"):
        agree(folder, str(folder), str(other))


def test_large_forms_are_read_in_turn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other is opened, then the first, which reads the inputs; the other does; the first repeats its choices."""
    monkeypatch.setattr(residence, "SMALL", 0)
    residences: list[Residence] = []
    original = Residence.admit

    def admit(self: Residence, *args: Any) -> None:
        residences.append(self)
        original(self, *args)

    monkeypatch.setattr(Residence, "admit", admit)
    agree(folder, str(folder), f"{folder},experts_implementation=eager", batch_size=8)
    assert residences[0].num_loads == 4


@pytest.mark.slow
@pytest.mark.promise
def test_a_layer_by_its_place_can_be_repeated(folder: Path) -> None:
    result = agree(folder, str(folder), f"{folder},dtype=bfloat16", layers=["last"])
    assert not any("cannot be repeated" in note for note in result.sidecar.get("notes", ()))
