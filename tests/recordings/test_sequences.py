"""A model reads the tokens that a server was sent: its trace is that of a plain forward pass over each sequence."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeprobe import api
from moeprobe.recordings.reading import TraceFile
from tests.commands import refused, run
from tests.recordings import serving

pytest.importorskip("transformers")

import torch

from tests.adapters.families import small
from tests.adapters.tiny_texts import tokenizer

REFERENCE = Path(__file__).parents[2] / "checkpoints/reference/digits-prc-k2-seed0"
LENGTHS = ((4, 9), (7, 3), (1, 12), (5, 5))


def saved_model(folder: Path, family: str) -> Path:
    """A random model of a family with a tokenizer."""
    model = small(family, vocab_size=320)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(("gate.weight", "router.weight")):
                value.normal_(0, 1.0)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def plain(folder: Path, ids: list[int]) -> np.ndarray:
    """The experts ``(T, L, K)`` of highest router logits, by the library alone."""
    return plain_with_scores(folder, ids)[0]


def plain_with_scores(folder: Path, ids: list[int]) -> tuple[np.ndarray, list[float]]:
    """What ``plain`` says, and the log-probability of each token but the first."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        found = model(torch.tensor([ids]), output_router_logits=True)
    top_k = model.config.num_experts_per_tok
    chosen = [layer.reshape(len(ids), -1).topk(top_k).indices.numpy() for layer in found.router_logits]
    scores = found.logits[0, :-1].log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return np.stack(chosen, axis=1), scores.tolist()


def responses(model: Path, *, off: int = 0) -> list[dict[str, Any]]:
    """What vLLM would answer of a server that runs the model; ``off`` rows of the last layer are wrong."""
    random = np.random.default_rng(0)
    found = []
    for number, (prompt, generated) in enumerate(LENGTHS):
        ids = random.integers(3, 320, prompt + generated).tolist()
        whole, scores = plain_with_scores(model, ids)
        experts = whole[:-1]
        experts[:off, -1] = (experts[:off, -1] + 1) % 8
        choice = {
            "index": 0,
            "token_ids": ids[prompt:],
            "logprobs": {"token_logprobs": scores[prompt - 1 :]},
            "routed_experts": serving.npy(experts.astype("uint8")),
        }
        found.append({"id": f"r{number}", "prompt_token_ids": ids[:prompt], "choices": [choice],
                      "usage": serving.usage(prompt, generated)})  # fmt: skip
    return found


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("family", ["olmoe", "qwen3_moe", "mixtral"])
def test_server_and_model_agree_where_they_are_the_same(family: str, tmp_path: Path) -> None:
    model = saved_model(tmp_path / family, family)
    file = written(tmp_path / "responses.jsonl", responses(model, off=2))
    result = run(
        "trace", "record", f"hf:{model}", "--tokens", file, "--out", tmp_path / "traces", "--batch-size", 3
    )
    assert result.exit_code == 0, result.output
    assert "4 sequences of tokens" in result.output
    path = tmp_path / "traces" / family / "tokens.parquet"
    trace = TraceFile(path)
    assert trace.ids == ["r0", "r1", "r2", "r3"]
    block = trace.read(list(trace.layers)[-1], ["r1"])
    assert block.generated is not None and block.token_ids is not None
    assert block.generated.tolist() == [[0] * 7 + [1] * 3] and block.num_tokens.tolist() == [10]
    line = json.loads(file.read_text().splitlines()[1])
    assert block.token_ids[0].tolist() == line["prompt_token_ids"] + line["choices"][0]["token_ids"]
    served = tmp_path / "served.parquet"
    api.import_routed_experts([file], served, model_config=model / "config.json")
    assert TraceFile(served).layers.keys() == trace.layers.keys()
    compared = api.analyze_trace([served, path])
    differs = compared.table[
        (compared.table["metric"] == "choice_differs") & (compared.table["tokens"] == "token")
    ]
    *same, last = differs["value"].tolist()
    # Two rows of each sequence but the first of a prompt of one token, all in the last layer.
    assert same == [0] * len(same) and last == pytest.approx(
        2 * len(LENGTHS) / sum(p + g - 1 for p, g in LENGTHS)
    )
    [ignored] = compared.sidecar["ignored"]
    assert re.fullmatch(r"4 extra tokens of \S+", ignored), ignored


def test_what_cannot_be_recorded_is_said(tmp_path: Path) -> None:
    model = saved_model(tmp_path / "olmoe", "olmoe")
    command = ("trace", "record", f"hf:{model}", "--out", tmp_path / "t", "--tokens")
    without = written(tmp_path / "none.jsonl", [{"id": "r", "choices": [{"text": "x"}]}])
    assert "none.jsonl holds no token ids; ask the server to return them" in refused(*command, without)
    strange = written(tmp_path / "high.jsonl", [{"id": "r", "input_ids": [1], "output_ids": [5000]}])
    assert "the ids come from another tokenizer" in refused(*command, strange)
    long = written(tmp_path / "long.jsonl", [{"id": "r", "input_ids": [1] * 200, "output_ids": [5]}])
    assert "are longer than the 128 tokens that olmoe reads" in refused(*command, long)
    twice = written(tmp_path / "twice.jsonl", [{"id": "r", "input_ids": [1], "output_ids": [5]}] * 2)
    assert "line 2: request 'r' was there before" in refused(*command, twice)
    odd = written(tmp_path / "odd.jsonl", [{"id": "r", "input_ids": "text", "output_ids": [5]}])
    assert "line 1: input_ids takes a list of token ids" in refused(*command, odd)
    fine = written(tmp_path / "fine.jsonl", [{"id": "r", "input_ids": [1], "output_ids": [5]}])
    assert "leave --view and --severities out" in refused(*command, fine, "--view", "typos")
    assert "takes the place of --data" in refused(*command, fine, "--data", "digits")
    images = refused("trace", "record", REFERENCE, "--tokens", fine, "--out", tmp_path / "t")
    assert "digits-prc-k2-seed0 reads images; leave --tokens out" in images
    assert not (tmp_path / "t").exists() or not any((tmp_path / "t").rglob("*.parquet"))
