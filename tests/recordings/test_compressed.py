"""Compressed files are read as what they hold; damage and files that expand to far more are a sentence."""

import gzip
import json
import resource
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.recordings import compressed
from moeprobe.recordings.compressed import open_expanded
from moeprobe.recordings.import_experts import import_routed_experts
from moeprobe.recordings.import_log import import_trace
from moeprobe.recordings.responses import responses
from tests.commands import refused, run
from tests.recordings import serving
from tests.recordings.serving import routing


def zstd(content: bytes) -> bytes:
    return pa.compress(content, "zstd", asbytes=True)


BOTH = pytest.mark.parametrize("compress", [gzip.compress, zstd], ids=["gzip", "zstd"])


def lines(count: int = 7) -> bytes:
    answers = [serving.vllm(routing(seed)) | {"id": f"q{seed}"} for seed in range(count)]
    return "".join(f"{json.dumps(answer)}\n" for answer in answers).encode()


@BOTH
def test_a_compressed_file_gives_the_same_trace(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    content = lines()
    plain, config = serving.write(tmp_path)
    plain.write_bytes(content)
    # Two members one behind the other, as shells and log rotation make them; the name says nothing.
    packed = tmp_path / "responses.old"
    packed.write_bytes(compress(content[:900]) + compress(content[900:]))
    read: list[int] = []
    assert len(list(responses(packed, progress=read.append))) == 7
    assert sum(read) == packed.stat().st_size
    traces = []
    for path in (plain, packed):
        summary = import_routed_experts(
            path, tmp_path / f"{path.name}.parquet", model_config=config, name="m"
        )
        traces.append((summary.tokens, summary.path.read_bytes()))
    assert traces[0] == traces[1]


@BOTH
def test_a_log_may_be_compressed(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    line = {"id": "a", "layer": "blocks.1", "num_experts": 4, "experts": [[3, 1], [0, 2]]}
    (tmp_path / "log").write_bytes(compress(json.dumps(line).encode()))
    assert import_trace(tmp_path / "log", tmp_path / "t.parquet").tokens == 2


@BOTH
def test_a_damaged_file_is_a_sentence(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    content, (path, config) = compress(lines()), serving.write(tmp_path)
    for damaged in (
        content[:-9],
        content[: len(content) // 2],
        content[:40] + b"\x00\xff" * 20 + content[80:],
    ):
        path.write_bytes(damaged)
        said = refused("trace", "import", path, tmp_path / "t.parquet", "--model-config", config)
        assert "is compressed, and damaged or cut off" in said
        assert not (tmp_path / "t.parquet").exists()


@BOTH
def test_what_expands_to_far_more_is_refused(
    compress: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "FREE_BYTES", 2**20)
    path = tmp_path / "bomb"
    path.write_bytes(compress(bytes(2**28)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open_expanded(path) as file, pytest.raises(UserError, match="expands to more than 200 times"):
        deque(iter(lambda: file.read(2**16), b""), maxlen=0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16, "kilobytes: 64 MiB"


def test_a_compressed_file_of_torch_is_to_be_decompressed(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "a.pt")
    (tmp_path / "a.pt.gz").write_bytes(gzip.compress((tmp_path / "a.pt").read_bytes()))
    _, config = serving.write(tmp_path)
    said = refused("trace", "import", tmp_path / "a.pt.gz", tmp_path / "t.parquet", "--model-config", config)
    assert "a.pt.gz is a compressed file of torch; decompress it first" in said


def test_the_command_reads_it(tmp_path: Path) -> None:
    path, config = serving.write(tmp_path)
    path.write_bytes(zstd(lines(3)))
    result: Any = run("trace", "import", path, tmp_path / "t.parquet", "--model-config", config)
    assert result.exit_code == 0 and "3 requests, 4 layers" in result.output
