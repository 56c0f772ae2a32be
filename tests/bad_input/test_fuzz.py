"""Bytes of small files changed at random: each reader takes a file or says what is wrong, and raises nothing else."""

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from moeprobe.inputs.data.readers.naming import open_data
from tests.bad_input.documents import ROW
from tests.bad_input.trying import tried
from tests.commands import run
from tests.inputs.data import making
from tests.models.checkpoints import making as checkpoints
from tests.models.checkpoints.test_orbax import written
from tests.recordings import serving
from tests.security.slots import CHECKPOINT

# Of each reader; all of them take two minutes.
TRIES = 200
# ``datasets`` takes a third of a second to open a file.
FEWER = {"huggingface_stream": 20}
DATA = (
    "cifar10",
    "cifar100",
    "cifar10_c",
    "mnist",
    "flowers102",
    "folder",
    "webdataset",
    "huggingface_stream",
)
# What a number, a word or a bracket in a text may become.
EXTREMES = (
    b"-1",
    b"0",
    b"1e999",
    b"9" * 400,
    b"1e-400",
    b"NaN",
    b"null",
    b'""',
    b"[]",
    b"{}",
    b"[" * 5000,
    b"\xff",
    b"\0",
)
# A folder of files, and what reads it.
Reader = tuple[Path, Callable[[], object]]


def mutations(content: bytes, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield what was done to a file, and the file."""
    words = [match.span() for match in re.finditer(rb'[\w.+-]+|[\[\]{}(),:"]', content[: 2**14])]
    for number in range(TRIES):
        start, end = sorted(draw.choices(range(len(content) + 1), k=2))
        end = min(end, start + draw.choice((1, 4, 64, 4096)))
        kind = draw.choice(("cut", "flip", "delete", "double", "extreme", "extreme"))
        changed = bytearray(content)
        if kind == "cut":
            del changed[start:]
        elif kind == "flip":
            for place in draw.choices(range(len(content)), k=draw.choice((1, 2, 8))):
                changed[place] ^= 1 << draw.randrange(8)
        elif kind == "delete":
            del changed[start:end]
        elif kind == "double":
            changed[start:start] = changed[start:end]
        elif words:
            start, end = draw.choice(words)
            changed[start:end] = draw.choice(EXTREMES)
        yield f"{number} ({kind} at {start})", bytes(changed)


def data(name: str) -> Callable[[Path], Reader]:
    def make(folder: Path) -> Reader:
        location = making.MAKERS[name](folder)

        def read() -> None:
            opened = open_data(f"{name}:{location}")
            opened.example(0)
            opened.example(len(opened.image_ids) - 1)

        return folder, read

    return make


def safetensors(folder: Path) -> Reader:
    from moeprobe.models.checkpoints.checkpoint import load

    shutil.copy(CHECKPOINT / "last.safetensors", folder)
    return folder, lambda: load(folder / "last.safetensors")


def torch_save(folder: Path) -> Reader:
    from moeprobe.models.checkpoints.swin_moe_files import read_ranks

    torch.save({"model": {"a": torch.ones(3)}}, folder / "a.pth")
    return folder, lambda: read_ranks(folder / "a.pth")


def read_arrays(path: Path) -> None:
    from moeprobe.models.checkpoints.vmoe_files import read_vmoe

    for array in read_vmoe(path).arrays.values():
        array.read()


TREE = {"a": {"kernel": np.ones((3, 2), "f4")}, "b": np.arange(6, dtype="f4")}


def flax(folder: Path) -> Reader:
    (folder / "state.msgpack").write_bytes(checkpoints.flax(TREE))
    return folder, lambda: read_arrays(folder / "state.msgpack")


def sharded(folder: Path) -> Reader:
    checkpoints.write(folder / "v", *checkpoints.content(TREE, shards=2))
    return folder, lambda: read_arrays(folder / "v")


def orbax(folder: Path) -> Reader:
    written(folder / "c", {"a/kernel": np.ones(4, "f4")}, "folders", "zarr3")
    return folder / "c/a.kernel", lambda: read_arrays(folder / "c")


def trace(folder: Path) -> Reader:
    from moeprobe.recordings.check_trace import check_trace

    assert run("trace", "record", CHECKPOINT, "--limit", 4, "--out", folder / "trace").exit_code == 0
    [path] = (folder / "trace").rglob("clean.parquet")
    return path.parent, lambda: check_trace(path)


def finished_run(folder: Path) -> Reader:
    from moeprobe.results.finished import read, read_result
    from moeprobe.studies.report.reading import read_runs

    assert run("match-ratio", CHECKPOINT, "--limit", 4, "--out", folder / "run").exit_code == 0

    def read_all() -> None:
        read_result(folder / "run").summary()
        read_runs([folder / "run"])
        for cell in read(folder / "run").sums:
            cell.load_all()

    return folder / "run", read_all


def log(folder: Path) -> Reader:
    from moeprobe.recordings.import_log import import_trace

    (folder / "log").mkdir()
    (folder / "log/log.jsonl").write_text(json.dumps(ROW) + "\n")
    return folder / "log", lambda: import_trace(
        folder / "log/log.jsonl", folder / "o.parquet", overwrite=True
    )


def responses(folder: Path) -> Reader:
    from moeprobe.recordings.import_experts import import_routed_experts

    (folder / "in").mkdir()
    path, config = serving.write(folder / "in", serving.vllm(serving.routing()))
    return folder / "in", lambda: import_routed_experts(
        [path], folder / "o.parquet", model_config=config, overwrite=True
    )


def configuration(folder: Path) -> Reader:
    from moeprobe.models import config

    (folder / "mine.yaml").write_text(config.dump(config.load("digits-prc")), encoding="utf-8")
    return folder, lambda: config.load(str(folder / "mine.yaml"))


def texts(folder: Path) -> Reader:
    (folder / "a.jsonl").write_text('{"text": "one two", "label": 0}\n{"text": "three", "label": 1}\n')

    def read() -> None:
        from moeprobe.inputs.data.text import Text

        Text(split="test", location=str(folder / "a.jsonl"))

    return folder, read


def records(folder: Path) -> Reader:
    from moeprobe.results.folder import RUN
    from moeprobe.runtime.locks import Lock
    from moeprobe.runtime.records import LOCK, RECORD, scan

    (folder / "run.json").write_text('{"kind": "eval"}')
    (folder / RECORD).write_text('{"of": "probe"}\n"run.json"\n"parts/a"\n')

    def read() -> None:
        scan(folder, RUN)
        # What is left by a process that was killed holds nobody out.
        Lock(folder / LOCK).release()

    return folder, read


READERS: dict[str, Callable[[Path], Reader]] = {name: data(name) for name in DATA} | {
    make.__name__: make
    for make in (
        safetensors, torch_save, flax, sharded, orbax, trace, finished_run, log, responses, configuration, texts,
        records,
    )
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_fuzz_readers(name: str, tmp_path: Path) -> None:
    folder, read = READERS[name](tmp_path)
    read()  # the file is right
    draw = random.Random(name)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = {path: path.read_bytes() for path in paths}
    kinds = {path: mutations(content, draw) for path, content in contents.items() if content}

    def replaced(item: tuple[Path, bytes]) -> None:
        path, content = item
        path.write_bytes(content)
        try:
            read()
        finally:
            path.write_bytes(contents[path])

    chosen = draw.choices(list(kinds), k=FEWER.get(name, TRIES))
    named = ((path, next(kinds[path])) for path in chosen)
    found = tried(((f"{path.name}: {kind}", (path, content)) for path, (kind, content) in named), replaced)
    # What is no name of a file in a record is no part of it, and a lock that nobody holds may say anything.
    found.check(least=0 if name == "records" else 1)
