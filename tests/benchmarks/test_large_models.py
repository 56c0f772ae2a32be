"""The benchmark of large models runs, on small ones."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from benchmarks import large_models

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_experts": 8,
    "vocab_size": 64,
}


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone says what a process has had in memory.")
def test_cases_say_time_and_memory(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    large_models.make(folder, texts=3, words=6, num_key_value_heads=4, **SIZES)
    assert len((folder / "lines.txt").read_text(encoding="utf-8").splitlines()) == 3
    bare, one, two = (large_models.run_case(folder, case) for case in large_models.CASES)
    # 64 words of 32 numbers come in and go out; 8 experts have three matrices of 32 x 1,024; the rest is small.
    assert 1.0 < bare["weights"] / (4 * (2 * 64 * 32 + 8 * 3 * 32 * 1024)) < 1.02
    for case in (bare, one, two):
        assert case["seconds"] > 0 and case["peak"] >= case["own"] > 0
