"""The benchmark of the readers: its files are what the readers take, and memory does not grow with the file."""

from pathlib import Path

import pytest

from benchmarks.imports import NAMES, Size, imported, write
from moeprobe.recordings.import_experts import import_routed_experts

SMALL = Size(tokens=120, layers=3, experts=16, top_k=2, request=50)


@pytest.mark.parametrize("name", NAMES)
def test_each_file_is_read_whole(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, SMALL)
    found = import_routed_experts(
        path, tmp_path / "t.parquet", model_config=path.parent / "config.json", overwrite=True
    )
    assert found.readers == [name.removesuffix("-lists")]
    if found.counted:
        assert found.counted == SMALL.tokens * SMALL.layers * SMALL.top_k
    else:
        assert found.tokens == SMALL.tokens and not found.left_out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vllm", "sglang", "llama_cpp"])
def test_memory_does_not_grow_with_the_file(name: str, tmp_path: Path) -> None:
    few, many = (
        imported(write(tmp_path / str(tokens), name, Size(tokens=tokens))) for tokens in (8_000, 40_000)
    )
    assert many.bytes > 4.5 * few.bytes and many.bytes - few.bytes > 12e6
    # Five times the file; MiB beside what any import takes.
    assert many.most - many.before < few.most - few.before + 60, (few, many)
