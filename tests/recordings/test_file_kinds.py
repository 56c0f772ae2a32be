"""Files of other kinds in the place of responses, logs and traces are named, whatever their names say."""

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from moeprobe.recordings.file_kinds import kind_of
from tests.commands import refused
from tests.recordings import counting, serving
from tests.recordings.test_counts import imported, model, numbers, refusal


def picture(path: Path, form: str) -> Path:
    content = io.BytesIO()
    Image.new("RGB", (4, 4)).save(content, form)
    path.write_bytes(content.getvalue())
    return path


def saved(path: Path) -> Path:
    torch.save({"a": torch.zeros(2)}, path)
    return path


def parquet(path: Path) -> Path:
    pd.DataFrame({"a": [1, 2]}).to_parquet(path)
    return path


def safetensors(path: Path) -> Path:
    save_file({"a": np.zeros(3, np.float32)}, path)
    return path


def npy(path: Path) -> Path:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    return path


def old_imatrix(path: Path) -> Path:
    """As llama-imatrix saved it before GGUF: sums over all experts of a layer, and one number of calls."""
    entries = [(f"blk.{layer}.ffn_down_exps.weight", 24) for layer in range(300)]
    content = struct.pack("<i", len(entries))
    for name, size in entries:
        content += (
            struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 7, size) + bytes(4 * size)
        )
    path.write_bytes(content)
    return path


KINDS: dict[str, tuple[Callable[[Path], Path], str | None]] = {
    "csv": (lambda path: counting.by_count(path, numbers()), None),
    "torch": (saved, None),
    "gguf": (lambda path: counting.imatrix(path, numbers()), None),
    "png": (lambda path: picture(path, "PNG"), "is a PNG picture"),
    "jpeg": (lambda path: picture(path, "JPEG"), "is a JPEG picture"),
    "gif": (lambda path: picture(path, "GIF"), "is a GIF picture"),
    "parquet": (parquet, "is a Parquet file, and no trace of moeprobe"),
    "safetensors": (safetensors, "is a file of safetensors"),
    "npy": (npy, "is a NumPy array"),
    "imatrix_dat": (
        old_imatrix,
        "is an older importance matrix (imatrix.dat), which has no counts per expert",
    ),
}
NAMES = {"csv": "a CSV", "torch": "a file of torch", "gguf": "a GGUF file"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_say_the_kind(kind: str, tmp_path: Path) -> None:
    write, problem = KINDS[kind]
    path = write(tmp_path / "answers.jsonl")
    assert kind_of(path.read_bytes()[:256]) == kind
    if problem is not None:
        assert problem in refusal(tmp_path, path)
    refusal_of_log = refused("trace", "import", path, tmp_path / "t.parquet")
    expected = f"is {NAMES[kind]}, and no log; add --model-config" if problem is None else problem
    assert expected in " ".join(refusal_of_log.split())


@pytest.mark.parametrize("kind", ["csv", "torch", "gguf", "png", "npy"])
def test_what_is_no_trace_is_named(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind][0](tmp_path / "served.parquet")
    problem = " ".join(refused("trace", "analyze", path).split())
    if kind in NAMES:
        assert f"is {NAMES[kind]}, and no trace; make one: moeprobe trace import" in problem
    else:
        assert "and no trace" in problem


def test_a_trace_in_place_of_responses_is_named(tmp_path: Path) -> None:
    imported(tmp_path, counting.by_count(tmp_path / "a.csv", numbers()))
    trace = (tmp_path / "t.parquet").rename(tmp_path / "renamed.jsonl")
    assert "is a trace already; run moeprobe trace analyze" in refusal(tmp_path, trace)
    assert "is a trace already" in refused("trace", "import", trace, tmp_path / "u.parquet")


@pytest.mark.parametrize(
    "text",
    ['{"id": "r", "choices": []}\n', '[1, 2, 3]\n', '  {"a": 1}\n', 'data: {"a": [1, 2]}\n\n', '"a"\n', "", "\n1,2\n",
     "hello\n", '{"layer": "a,b", "experts": [[1, 2]]}\n'],
)  # fmt: skip
def test_json_and_other_text_is_no_csv(text: str) -> None:
    assert kind_of(text.encode()) is None


def test_responses_are_read_as_before(tmp_path: Path) -> None:
    path, _ = serving.write(tmp_path, serving.vllm(serving.routing()))
    assert kind_of(path.read_bytes()[:256]) is None


# GGUF.


def header(*, tensors: int = 0, entries: bytes = b"", count: int = 1, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, count) + entries


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


IMATRIX = text(b"general.type") + struct.pack("<I", 8) + text(b"imatrix")
HOSTILE = {
    "no header": b"GGUF",
    "other version": header(version=1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "entries that are not there": header(count=2**62),
    "a text that is not there": header(entries=struct.pack("<Q", 2**63)),
    "a long array": header(entries=text(b"a") + struct.pack("<IIQ", 9, 4, 2**61)),
    "a long array of texts": header(entries=text(b"a") + struct.pack("<IIQ", 9, 8, 2**61)),
    "arrays of arrays": header(entries=text(b"a") + struct.pack("<IIQ", 9, 9, 2**40)),
    "unknown type": header(entries=text(b"a") + struct.pack("<I", 99)),
    "a model": header(entries=text(b"general.type") + struct.pack("<I", 8) + text(b"model")),
    "tensors that are not there": header(entries=IMATRIX, tensors=2**62),
    "many axes": header(entries=IMATRIX + text(b"t") + struct.pack("<I", 2**31), tensors=1),
    "a large tensor": header(
        entries=IMATRIX + text(b"blk.0.ffn_up_exps.weight.counts") + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0),
        tensors=1,
    ),
    "data that is not there": header(
        entries=IMATRIX + text(b"blk.0.ffn_up_exps.weight.counts") + struct.pack("<IQQIQ", 2, 1, 8, 0, 2**62),
        tensors=1,
    ),
    "alignment 0": header(
        entries=IMATRIX + text(b"general.alignment") + struct.pack("<II", 4, 0), count=2
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_what_a_gguf_file_claims_is_not_believed(case: str, tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    path.write_bytes(HOSTILE[case])
    problem = refusal(tmp_path, path)
    assert "GGUF" in problem or "importance matrix" in problem or "takes up to" in problem


def test_an_importance_matrix_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    content = counting.imatrix(tmp_path / "whole.gguf", numbers()).read_bytes()
    path = tmp_path / "cut.gguf"
    for size in range(8, len(content) - 4 * 24, 97):
        path.write_bytes(content[:size])
        assert "truncated" in refusal(tmp_path, path)


def test_importance_matrices_without_counts_per_expert_are_refused(tmp_path: Path) -> None:
    converted = counting.imatrix(tmp_path / "a.gguf", np.ones((4, 1), np.int64))
    assert "has one count for all experts" in refusal(tmp_path, converted)
    dense = counting.imatrix(tmp_path / "b.gguf", np.zeros((0, 6)), layers=())
    assert "has no counts of experts" in refusal(tmp_path, dense)
    weights = counting.imatrix(tmp_path / "c.gguf", numbers(), general_type="model")
    assert "is of the type model, and no importance matrix" in refusal(tmp_path, weights)
    behind = counting.imatrix(tmp_path / "d.gguf", numbers(), layers=(1, 2, 3, 5))
    assert "known as the layer of multi-token prediction" in refusal(tmp_path, behind)
    swapped = tmp_path / "e.gguf"
    first, second = (numbers(seed)[0].astype("<f4").tobytes() for seed in (0, 1))
    content = counting.imatrix(tmp_path / "whole.gguf", numbers()).read_bytes()
    swapped.write_bytes(content.replace(first, second, 1))
    assert "ffn_gate_exps and ffn_up_exps of layer 1 have different counts" in refusal(tmp_path, swapped)


def test_an_importance_matrix_of_another_model_is_refused(tmp_path: Path) -> None:
    path = counting.imatrix(tmp_path / "a.gguf", numbers(experts=8))
    assert "expert 7 is none of the 6 experts" in refusal(tmp_path, path)
    config = model(tmp_path, dense=0)
    assert "layers.0 has no choices" in refusal(tmp_path, counting.imatrix(path, numbers()), config=config)
    assert json.loads(config.read_text())["first_k_dense_replace"] == 0
