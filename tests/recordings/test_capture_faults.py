"""Faults of capture that are known, planted: each is named, and none becomes a number."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeprobe import api
from tests.commands import refused, run
from tests.recordings import serving
from tests.recordings.serving import GENERATED, PROMPT, ROWS, Ids, routing, with_dense

ONE = serving.DEEPSEEK | {"num_experts_per_tok": 1}


def command(folder: Path, *responses: Any, config: dict[str, Any] | None = None) -> tuple[Any, ...]:
    path, model = serving.write(folder, *responses, config=config)
    return ("trace", "import", path, folder / "t.parquet", "--model-config", model)


def said(folder: Path, *responses: Any, config: dict[str, Any] | None = None) -> str:
    result = run(*command(folder, *responses, config=config))
    assert result.exit_code == 0, result.output
    return result.output


def planted(ids: Ids, where: Any, value: Any) -> Ids:
    """A copy in which some ids are others."""
    changed = ids.copy()
    changed[where] = value
    return changed


IDS, SINGLE = routing(), routing(top_k=1)
WITH_MTP = serving.DEEPSEEK | {"num_nextn_predict_layers": 1}
MTP = "known as the layer of multi-token prediction (MTP), captured behind the model's own"
REFUSED = {
    "all zero": (serving.vllm(IDS * 0), None, "every expert is 0, which is known as an all-zero capture"),
    "all zero with k = 1": (serving.vllm(SINGLE * 0), ONE, "every expert is 0, which is known as an all-zero"),
    "all -1": (serving.vllm_lists(IDS * 0 - 1), None, "known as an all -1 capture or 255 fill"),
    "all -1 with k = 1": (serving.vllm_lists(SINGLE * 0 - 1), ONE, "known as an all -1 capture or 255 fill"),
    "255": (serving.vllm(IDS * 0 + 255), None, "known as an all -1 capture or 255 fill"),
    "nulls": ({"id": "r", "choices": [{"routed_experts": None}]}, None, "of all 1 sequences are null"),
    "too high": (
        serving.vllm(planted(IDS, (3, 2, 1), 8)), None,
        "line 1: request 'r': row 3 of layers.3 has expert 8, and the model has experts 0 to 7: known as physical ids",
    ),
    "negative": (serving.vllm_lists(planted(IDS, (3, 2, 1), -2)), None, "row 3 of layers.3 has expert -2"),
    "twice": (
        serving.vllm(planted(IDS, (5, 0), 6)), None,
        "row 5 of layers.1 has expert 6 twice, which no router chooses: known as a duplicate expert",
    ),
    "a dense layer with experts": (
        serving.vllm(planted(with_dense(IDS), (7, 0), [2, 1])), None,
        "layers.0 has experts, and is dense by the model's config.json: known as layers shifted by one",
    ),
    "a sparse layer of zeros": (
        serving.vllm(np.roll(with_dense(IDS), 1, axis=1)), None, "known as layers shifted by one",
    ),
    "a layer of MTP": (serving.vllm(with_dense(routing(layers=5), layers=6, sparse=(1, 2, 3, 4, 5))), WITH_MTP, MTP),
    "a layer of MTP that the configuration does not count": (
        serving.vllm(with_dense(routing(layers=5), layers=6, sparse=(1, 2, 3, 4, 5))), None,
        f"{MTP}, or another model's config.json",
    ),
    "a layer of MTP in place of the dense one": (
        serving.vllm(routing(layers=5)), WITH_MTP,
        f"layers.0 has experts, and is dense by the model's config.json: {MTP}",
    ),
    "a layer of MTP in rows without a shape": (
        serving.sglang(with_dense(routing(layers=5), layers=6, sparse=(1, 2, 3, 4, 5))), WITH_MTP,
        f"routed_experts holds whole rows of 6 layers, and the model has 5: {MTP}",
    ),
    "two layers of MTP": (
        serving.vllm(routing(layers=6)), serving.DEEPSEEK | {"mtp_num_hidden_layers": 2},
        "there are 6 layers, and the model has 5 hidden layers, 4 of them with experts; known as the 2 layers of",
    ),
    "a layer of zeros": (
        serving.vllm(planted(IDS, (slice(None), 2), 0)), None, "layers.3 is zero in all rows, and has experts",
    ),
}  # fmt: skip
NAMED = {
    "prompt rows zero": (
        serving.vllm(planted(IDS, slice(PROMPT), 0)), None,
        ["1 sequences are zero for every token of the prompt: known as prompt rows zero", f"{PROMPT} tokens are zero"],
    ),
    "prompt rows zero with k = 1": (
        serving.vllm(planted(SINGLE, slice(PROMPT), 0)), ONE,
        ["1 sequences are zero for every token of the prompt: known as prompt rows zero", f"{PROMPT} tokens are zero"],
    ),
    "rows missing": (
        {"choices": [{"routed_experts": serving.shaped(IDS[:-3])}], "usage": serving.usage()}, None,
        ["1 sequences have fewer rows than stated tokens less one, 3 in all: known as"],
    ),
    "one off": (
        serving.vllm(routing(rows=ROWS + 1)), None, ["1 sequences have more rows than stated tokens less one: known"],
    ),
    "prefix": (serving.vllm_lists(planted(IDS, slice(2), -1)), None, ["2 tokens are -1 (or 255"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_what_no_router_chose_is_refused(fault: str, tmp_path: Path) -> None:
    response, config, words = REFUSED[fault]
    assert words in refused(*command(tmp_path, response, config=config))
    assert not (tmp_path / "t.parquet").exists()


@pytest.mark.parametrize("fault", NAMED)
def test_what_is_missing_is_named(fault: str, tmp_path: Path) -> None:
    response, config, words = NAMED[fault]
    output = said(tmp_path, response, config=config)
    for one in words:
        assert one in output
    known = [line for line in output.splitlines() if "known as" in line]
    assert len(known) == 1, "another fault was named"
    # A check of the trace, and an audit of it, still know what its import lacked.
    checked = api.check_trace(tmp_path / "t.parquet")
    noted = [finding.sentence for finding in checked.findings if finding.name == "incomplete"]
    assert checked.sound and all(any(one in sentence for sentence in noted) for one in words)
    audited = api.audit(tmp_path / "t.parquet").verdicts.set_index("property")
    assert audited.loc["recording", "verdict"] == "no known fault, but incomplete"
    assert audited.loc["load", "verdict"] == "no verdict: fewer than 20 inputs"


def test_a_capture_without_faults_has_no_finding(tmp_path: Path) -> None:
    for ids, config in ((IDS, None), (SINGLE, ONE)):
        output = said(tmp_path, serving.vllm(ids), config=config)
        assert "known as" not in output and len(output.splitlines()) <= 4
        (tmp_path / "t.parquet").unlink()


def test_one_request_without_capture_is_left_out(tmp_path: Path) -> None:
    empty = serving.vllm(IDS * 0) | {"id": "empty"}
    short = serving.vllm(IDS[:0]) | {"id": "short", "usage": serving.usage(1, 0)}
    output = said(tmp_path, serving.vllm(IDS), empty, short)
    assert "1 requests, 4 layers" in output
    assert "2 sequences have no token with an expert" in output and f"{ROWS} tokens are zero" in output


def test_few_zeros_of_one_expert_per_token_may_be_chance(tmp_path: Path) -> None:
    """Two tokens, four layers of 8 experts: zeros by chance once in 2 ** 24; one layer: once in 64."""
    config = ONE | {"num_hidden_layers": 2}
    response = serving.vllm(routing(rows=2, layers=1, top_k=1) * 0) | {"usage": serving.usage(1, 2)}
    assert "1 requests, 1 layers" in said(tmp_path, response, config=config)
    (tmp_path / "t.parquet").unlink()
    many = [response | {"id": str(number)} for number in range(4)]
    assert "every expert is 0" in refused(*command(tmp_path, *many, config=config))


def test_lists_may_have_a_row_of_the_last_token(tmp_path: Path) -> None:
    """Lists hold as many rows as tokens were generated, or one less; two more are too many."""
    for more, words in ((1, False), (2, True)):
        output = said(tmp_path, serving.vllm_lists(routing(rows=ROWS + more)))
        assert ("known as one off" in output) == words
        (tmp_path / "t.parquet").unlink()


def test_rows_are_counted_of_one_choice_alone(tmp_path: Path) -> None:
    """``completion_tokens`` is of all choices together."""
    response = serving.vllm(IDS)
    response["choices"] = response["choices"] * 2
    response["usage"] = serving.usage(PROMPT, 2 * GENERATED)
    assert "known as" not in said(tmp_path, response)
