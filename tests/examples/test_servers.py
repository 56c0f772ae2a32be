"""The page that goes from a server's responses to a verdict: every command of it runs, on small random models."""

import gzip
import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from moeprobe.recordings.log_probs import read_log_probabilities
from tests.commands import run
from tests.docs.pages import ROOT, blocks

pytest.importorskip("transformers")

from tests.recordings.test_sequences import responses, saved_model, written

PAGE = ROOT / "docs" / "guide" / "servers.md"
SERVERS = ROOT / "tests" / "recordings" / "servers"
OFFLINE, MIXTRAL = SERVERS / "offline.jsonl.gz", SERVERS / "mixtral.json"


@pytest.mark.parametrize("family", ["olmoe", "qwen3_moe", "mixtral"])
def test_every_command_of_the_page(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved_model(tmp_path / "model", family)
    written(tmp_path / "responses.jsonl", responses(model))
    monkeypatch.chdir(tmp_path)
    first, *commands = [line for block in blocks("bash", PAGE) for line in block.splitlines()]
    # A running server is what tests/studies/test_server.py has.
    assert first.startswith("moeprobe server") and len(commands) == 7
    said = []
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "moeprobe"
        result = run(*arguments)
        assert result.exit_code == 0, (command, result.output)
        said.append(" ".join(result.output.split()))
    assert "No fault of capture is known" in said[1]
    assert "1.000 (chance" in said[3] and "no shift of layers" in said[3]
    assert "tokens are affected in at least one layer" in said[4]
    assert "This is rounding, so no share of it is routing." in said[6], said[6]
    table = pd.read_csv(tmp_path / "reports/served/table.csv")
    differ = table[table["metric"] == "pairs_differ"].set_index("tokens")["value"]
    assert (differ[["token", "prompt", "generated"]] == 0).all(), "the server runs the same model"
    assert "pairs of token and layer" in (tmp_path / "reports/served-page/report.md").read_text()


def as_object(output: dict[str, Any]) -> SimpleNamespace:
    """An output as Python's ``LLM.generate`` has it: an array, and log-probabilities by token."""
    steps = [
        {token: SimpleNamespace(logprob=value)}
        for token, value in zip(output["token_ids"], output["logprobs"], strict=True)
    ]
    return SimpleNamespace(
        **output | {"routed_experts": np.array(output["routed_experts"]), "logprobs": steps}
    )


def test_outputs_in_python_are_written_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What real requests returned, as objects: the lines of the page and the reader give it back."""
    real = gzip.decompress(OFFLINE.read_bytes())
    requests = [json.loads(line) for line in real.splitlines()]
    outputs = [
        SimpleNamespace(**request | {"outputs": [as_object(one) for one in request["outputs"]]})
        for request in requests
    ]
    monkeypatch.chdir(tmp_path)
    Path("offline.jsonl").write_bytes(real)
    [_, code] = blocks("python", PAGE.with_name("other-forms.md"))
    exec(code, {"outputs": outputs})
    api.import_routed_experts("responses.jsonl", "served.parquet", model_config=MIXTRAL)
    api.import_routed_experts("offline.jsonl", "kept.parquet", model_config=MIXTRAL)
    written, kept = (pd.read_parquet(name) for name in ("served.parquet", "kept.parquet"))
    pd.testing.assert_frame_equal(written, kept)
    scores, known = (
        read_log_probabilities(Path("responses.jsonl")),
        read_log_probabilities(Path("offline.jsonl")),
    )
    assert {name: list(values) for name, values in scores.items()} == {
        name: list(values) for name, values in known.items()
    }


def test_the_response_on_the_page_is_one() -> None:
    [example] = blocks("json", PAGE)
    response = json.loads(example)
    assert response["prompt_token_ids"] and response["choices"][0]["token_ids"]
