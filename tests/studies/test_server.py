"""A server beside its model: every dialect and every fault of a stub, and what is kept of an interrupted run."""

import base64
import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeprobe import api
from moeprobe.errors import RunWarning, UserError
from moeprobe.recordings.faults import Finding
from moeprobe.results.numbers import interval
from moeprobe.studies.server.result import page_html, page_text
from tests.commands import run
from tests.studies.server_stub import Answer, StatusError, Stub, late, running

pytest.importorskip("transformers")

from tests.adapters.tiny_texts import texts
from tests.recordings.test_sequences import saved_model

# Intervals are asserted.
pytestmark = [pytest.mark.resamples, pytest.mark.usefixtures("impatient")]


def check(stub: Stub, out: Path, **changes: Any) -> api.ServerResult:
    settings: dict[str, Any] = {"requests": 24, "batches": (1, 4), "max_tokens": 4, "figures": False}
    return api.check_server(stub.address, out=out, **settings | {"model": str(stub.folder)} | changes)


@pytest.mark.parametrize(
    "dialect",
    [
        pytest.param("vllm", marks=pytest.mark.pictures),
        pytest.param("sglang", marks=[pytest.mark.slow, pytest.mark.promise]),
    ],
)
def test_a_server_that_routes_as_its_model(dialect: str, model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(texts(24)))
    with running(Stub(model, dialect)) as stub:
        result = run(
            "server", stub.address, "--model", model, "--texts", prompts, "--batches", "1,4", "--max-tokens", 4,
            "--out", tmp_path / "out",
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "The server routes exactly as the model does, and as itself, in all that was sent." in said
    assert "24 requests excludes shares above 0.151" in said and "about 383 requests are needed" in said
    assert "This is rounding, so no share of it is routing." in said
    # Alone, again, and four at a time; each request has a name and shares no cache with another run's.
    assert len(stub.asked) == 3 * 24 and 1 < stub.most_at_once <= 4
    keys = ("request_id", "cache_salt") if dialect == "vllm" else ("rid", "rid")
    assert len({body[keys[1]] for body in stub.asked}) == 3 * 24
    assert len({body[keys[0]] for body in stub.asked}) == (24 if dialect == "vllm" else 3 * 24)
    out = tmp_path / "out"
    assert sorted(path.name for path in (out / "responses").iterdir()) == [
        "again.jsonl", "alone.jsonl", "batch-4.jsonl",
    ]  # fmt: skip
    assert len((out / "responses" / "alone.jsonl").read_text().splitlines()) == 24
    assert "random tokens" not in said
    page = (out / "server.html").read_text()
    assert "Agreement with the model" in page and ("data:image/png" in page) == (dialect == "vllm")
    assert "**The server routes exactly" in (out / "tables.md").read_text()
    # A finished check is read, and asks nothing.
    with running(Stub(model, dialect)) as other:
        json_path = out / "run.json"
        request = json.loads(json_path.read_text())
        json_path.write_text(json.dumps(request | {"address": other.address}))
        again = run(
            "server", other.address, "--model", model, "--texts", prompts, "--batches", "1,4", "--max-tokens", 4,
            "--out", out,
        )  # fmt: skip
    assert again.exit_code == 0 and not other.asked, again.output
    assert "routes exactly as the model does" in again.output


def _moved(stub: Stub, answer: Answer) -> Answer:
    """Another expert for the third token, in the first layer."""
    choice = answer["choices"][0]
    content = base64.b64decode(choice["routed_experts"])
    header, experts = content[:128], np.frombuffer(content[128:], np.uint8).copy()
    size = len(experts) // (len(choice["prompt_token_ids"]) + len(choice["token_ids"]) - 1)
    first, second = experts[2 * size : 2 * size + 2]
    experts[2 * size] = next(expert for expert in range(8) if expert not in (first, second))
    choice["routed_experts"] = base64.b64encode(header + experts.tobytes()).decode()
    return answer


@pytest.mark.slow
@pytest.mark.promise
def test_a_server_that_differs_from_its_model_and_not_from_itself(model: Path, tmp_path: Path) -> None:
    with running(Stub(model, spoil=_moved)) as stub:
        result = check(stub, tmp_path / "out")
    assert result.sentences[0].startswith("The server does not route like the model")
    assert "Its own repeated runs agree exactly." in result.sentences[0]
    assert result.sentences[0].endswith(
        "The prompts were random tokens: your own texts may give other shares."
    )
    assert result.sentences[1].startswith("From the model in float32, ")
    [row] = (
        result.runs["agreement"]
        .table.query("metric == 'pairs_differ' and tokens == 'token'")
        .to_dict("records")
    )
    assert 0 < row["ci_low"] < row["value"] < row["ci_high"] < 0.1


@pytest.mark.slow
@pytest.mark.promise
def test_precision_alone_stands_beside_the_server_and_all_is_said_in_one_order(
    model: Path, tmp_path: Path
) -> None:
    """The stub runs in float32: it differs from the model in bfloat16 as the model in float32 does."""
    with running(Stub(model)) as stub:
        result = check(stub, tmp_path / "out", dtype="bfloat16", batches=(1,))
    rows = result.runs["agreement"].table.query("metric == 'pairs_differ' and tokens == 'token'")
    served, alone = rows.to_dict("records")
    assert (served["checkpoint"], alone["checkpoint"]) == ("alone", "small,dtype=float32")
    # Nothing routes the last token at the server.
    assert 0 < served["value"] == pytest.approx(alone["value"], rel=0.1)
    assert result.sentences[1:3] == [
        f"From the model in bfloat16, {interval(served)} of the pairs of token and layer differ.",
        f"Precision alone changes {interval(alone)} of them: the model in float32 against itself in bfloat16.",
    ]
    assert result.sidecar["checkpoints"]["small,dtype=bfloat16"]["dtype"] == "bfloat16"
    # Findings stand in one order wherever they are said.
    found = dataclasses.replace(
        result,
        checked=dataclasses.replace(
            result.checked, findings=[Finding("odd", 1, "Something is odd.", fault=False)]
        ),
        left_out=["Something was not measured."],
    )
    assert found.details[-2:] == ["Note, odd: Something is odd.", "Something was not measured."]
    text = [line.removeprefix("* ") for line in page_text(found).splitlines() if line.startswith("* ")]
    page = [html.unescape(line) for line in re.findall(r"<li>(.*)</li>", page_html(found))]
    assert text == page == found.details


@pytest.mark.slow
@pytest.mark.promise
def test_a_server_that_differs_between_its_runs(model: Path, tmp_path: Path) -> None:
    def spoil(stub: Stub, answer: Answer) -> Answer:
        return _moved(stub, answer) if stub.now > 1 or len(stub.asked) > 24 else answer

    with running(Stub(model, spoil=spoil)) as stub:
        result = check(stub, tmp_path / "out")
    assert "no more than its own runs may differ. Its own repeated runs differ." in result.sentences[0]


@pytest.mark.slow
@pytest.mark.promise
def test_another_model_is_named(model: Path, tmp_path: Path) -> None:
    other = saved_model(tmp_path / "other", "olmoe")
    import torch
    import transformers

    weights = transformers.AutoModelForCausalLM.from_pretrained(other)
    with torch.no_grad():
        for value in weights.parameters():
            value.normal_(0, 0.5)
    weights.save_pretrained(other)
    with running(Stub(model)) as stub, pytest.warns(RunWarning, match="hardly better than by chance"):
        result = check(stub, tmp_path / "out", model=str(other))
    assert "by chance alone: it serves another model" in result.sentences[0]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda stub, answer: answer["choices"][0].update(routed_experts=None) or answer,
         r"answers without routed experts; start vLLM 0\.32\.0 with --enable-return-routed-experts"),
        (lambda stub, answer: _refuse(400), r"refuses request r0 \(HTTP 400.*as it was told"),
        (lambda stub, answer: _refuse(503), r"no answer to request r0 in 3 tries \(HTTP 503.*run the command again"),
        (lambda stub, answer: answer | {"cut off": True}, r"no JSON, or was cut off"),
        (late(1.5), r"none came within 0\.3 s"),
    ],
    ids=["without routing", "refused", "busy", "cut off", "hangs"],
)  # fmt: skip
def test_a_faulty_server_ends_in_one_sentence(spoil: Any, sentence: str, model: Path, tmp_path: Path) -> None:
    with running(Stub(model, spoil=spoil)) as stub, pytest.raises(UserError, match=sentence):
        check(stub, tmp_path / "out", timeout=0.3 if "0\\.3" in sentence else 30)


def _refuse(status: int) -> Answer:
    raise StatusError(status)


def test_addresses_where_no_such_server_is(model: Path, tmp_path: Path) -> None:
    with running(Stub(model, dialect="other")) as stub, pytest.raises(UserError, match="neither vLLM"):
        check(stub, tmp_path / "out")
    with pytest.raises(UserError, match="No server answers at http"):
        check(stub, tmp_path / "out")
    stub.address = "ftp://there"
    with pytest.raises(UserError, match="address is like"):
        check(stub, tmp_path / "out")
    with running(Stub(model)) as stub, pytest.raises(UserError, match=r"has no config\.json"):
        check(stub, tmp_path / "out", model=str(tmp_path))


@pytest.mark.slow
@pytest.mark.promise
def test_an_interrupted_check_goes_on_and_a_busy_server_is_asked_again(model: Path, tmp_path: Path) -> None:
    def spoil(stub: Stub, answer: Answer) -> Answer:
        if len(stub.asked) == 3:
            raise StatusError(503)
        return _refuse(400) if len(stub.asked) == 33 else answer

    with running(Stub(model, spoil=spoil)) as stub, pytest.raises(UserError, match="refuses request r7"):
        check(stub, tmp_path / "out")
    # The third was busy and sent again; 24 of the first run and 7 of the second are kept.
    assert len(stub.asked) == 33
    assert len(list((tmp_path / "out" / "parts" / "again").iterdir())) == 7
    stub.spoil = lambda stub, answer: answer
    # At the same address, or it would be another run.
    with running(stub):
        result = check(stub, tmp_path / "out")
    assert len(stub.asked) == 33 + 17 + 24 and result.sentences[0].startswith("The server routes exactly")
