"""A real vLLM routes as the library's models do, and moeprobe sees that it does.

    make test-vllm

No name of a test, so that other runs leave it alone.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import moeprobe.models.timm  # noqa: F401  # before transformers: it does without a torchvision that does not fit
from moeprobe import api
from moeprobe.metrics.analyses.touched import PAIRS_DIFFER

PYTHON = Path(os.environ["VLLM_PYTHON"])
SETTINGS = {
    "TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
REQUESTS, VOCABULARY = 24, 1024
ALL = {
    "vocab_size": VOCABULARY, "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "tie_word_embeddings": False, "initializer_range": 0.06, "hidden_size": 128, "num_attention_heads": 4,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "olmoe": {"intermediate_size": 64, "num_hidden_layers": 4, "num_key_value_heads": 4, "num_experts": 64,
              "num_experts_per_tok": 8, "norm_topk_prob": False},
    "qwen3_moe": {"intermediate_size": 256, "moe_intermediate_size": 64, "num_hidden_layers": 4, "head_dim": 32,
                  "num_key_value_heads": 2, "num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": True,
                  "mlp_only_layers": [1], "decoder_sparse_step": 1},
    "mixtral": {"intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32, "num_key_value_heads": 2,
                "num_local_experts": 8, "num_experts_per_tok": 2},
}  # fmt: skip


@pytest.fixture(scope="module", params=SIZES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, whose routers are spread as trained ones are."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder: Path = tmp_path_factory.mktemp("vllm") / request.param
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(request.param, **ALL | SIZES[request.param]))
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith(("gate.weight", "router.weight")):
                weight.normal_(0, 0.5)
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def answers(request: pytest.FixtureRequest, model: Path) -> Path:
    """What vLLM answers to prompts of 5 to 97 random tokens."""
    random = np.random.default_rng(0)
    prompts = [random.integers(3, VOCABULARY, 5 + 4 * number).tolist() for number in range(REQUESTS)]
    (model / "prompts.json").write_text(json.dumps(prompts))
    path = model / f"{request.param}.jsonl"
    command = [
        PYTHON,
        Path(__file__).with_name("generate.py"),
        model,
        request.param,
        model / "prompts.json",
        path,
    ]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | SETTINGS
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return path


def test_vllm_routes_as_the_model(model: Path, answers: Path) -> None:
    served = answers.with_suffix(".parquet")
    summary = api.import_routed_experts(answers, served, model_config=model / "config.json")
    assert summary.requests == REQUESTS and not summary.missing
    again = api.record(f"hf:{model}", tokens=answers, out=model / f"again-{answers.stem}")
    checked = api.check_trace(served, against=again.files[0])
    assert checked.sound and checked.overlap is not None and not checked.overlap.is_chance
    table = api.analyze_trace([served, *again.files], figures=False).table
    [differ] = table[(table["metric"] == PAIRS_DIFFER.name) & (table["tokens"] == "token")].to_dict("records")
    tokens = sum(len(json.loads(line)["prompt_token_ids"]) + 11 for line in answers.read_text().splitlines())
    layers = table.loc[table["layer"].str.startswith("layers."), "layer"].nunique()
    assert differ["trials"] == tokens * layers and differ["images"] == REQUESTS
    if answers.stem == "float32":
        assert differ["value"] == 0
    else:
        # bfloat16 keeps 8 bits: ties are decided otherwise, and most choices stay.
        assert 0 < differ["value"] < 0.3
