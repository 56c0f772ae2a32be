"""Every place where a file of somebody else's is read, and the command that reads it.

A slot puts bytes where a file is expected and returns a command line. ``made`` is what other commands have left:
``run`` (a finished probe), ``shard`` (half of one), ``trace``, ``training`` (unfinished), ``hf`` (a small language
model), each copied before something in it is replaced.
"""

import base64
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.inputs.data import making
from tests.recordings.serving import DEEPSEEK

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "checkpoints/reference/digits-prc-k2-seed0"
Line = list[str | Path]
Made = dict[str, Path]
Slot = Callable[[Path, bytes, Made], Line]

SETTINGS = "name: mine\nimage_size: 32\nnum_prefix_tokens: 1\nmean: [0, 0, 0]\nstd: [1, 1, 1]\nweights: {}\n"
BLUEPRINT = "torch.nn:Identity"


def _put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _probe(data: str | Path) -> Line:
    return ["confidence", CHECKPOINT, "--data", str(data), "--limit", "4"]


def _file(name: str, *before: str, after: tuple[str, ...] = ()) -> Slot:
    """A command that takes the file itself."""
    return lambda folder, content, made: [*before, _put(folder / name, content), *after]


def _data(name: str, file: str, maker: Callable[[Path], Path]) -> Slot:
    """A data set of ``maker``, one file of which is replaced."""

    def slot(folder: Path, content: bytes, made: Made) -> Line:
        root = maker(folder)
        [target] = root.rglob(file)
        target.write_bytes(content)
        return _probe(f"{name}:{root}")

    return slot


def _in(kind: str, file: str, *command: str, after: tuple[str, ...] = ()) -> Slot:
    """A copy of what another command has left, one file of which is replaced."""

    def slot(folder: Path, content: bytes, made: Made) -> Line:
        copy = folder / kind
        shutil.copytree(made[kind], copy)
        for path in copy.rglob("*"):
            if path.name == ".moeprobe.lock":
                path.unlink()
        _put(copy / file, content)
        return [*command, copy, *after]

    return slot


def _shards(file: str) -> Slot:
    def slot(folder: Path, content: bytes, made: Made) -> Line:
        copy = folder / "shard"
        shutil.copytree(made["shard"], copy)
        _put(copy / file, content)
        return ["merge", copy, made["other shard"], "--out", folder / "merged"]

    return slot


def _member(name: str) -> Slot:
    """A tar shard with an image whose other member, or itself, is the file."""

    def slot(folder: Path, content: bytes, made: Made) -> Line:
        path = folder / "test-0.tar"
        with tarfile.open(path, "w") as tar:
            members = {"a.png": making.encoded(0), name: content}
            for member, held in members.items():
                about = tarfile.TarInfo(member)
                about.size = len(held)
                tar.addfile(about, io.BytesIO(held))
        return _probe(f"webdataset:{path}")

    return slot


def _response(*, npy: bool) -> Slot:
    """A server's response that holds the bytes in base64."""

    def slot(folder: Path, content: bytes, made: Made) -> Line:
        text = base64.b64encode(content).decode()
        meta = {"routed_experts": text, "prompt_tokens": 3, "completion_tokens": 2}
        response = (
            {"id": "r", "choices": [{"index": 0, "text": "", "routed_experts": text}]}
            if npy
            else {"text": "", "meta_info": meta}
        )
        _put(folder / "responses.jsonl", json.dumps(response).encode())
        config = _put(folder / "config.json", json.dumps(DEEPSEEK).encode())
        out = folder / "out.parquet"
        line: Line = ["trace", "import", folder / "responses.jsonl", out, "--model-config", config]
        return line

    return slot


def _model_config(folder: Path, content: bytes, made: Made) -> Line:
    responses = _put(folder / "responses.jsonl", b"{}\n")
    config = _put(folder / "config.json", content)
    return ["trace", "import", responses, folder / "out.parquet", "--model-config", config]


def _weights(file: str) -> Slot:
    """Weights of the user's own module."""

    def slot(folder: Path, content: bytes, made: Made) -> Line:
        _put(folder / file, content)
        settings = _put(folder / "mine.yaml", SETTINGS.format(file).encode())
        return ["confidence", f"py:{BLUEPRINT}@{settings}", "--data", "digits"]

    return slot


def _settings(folder: Path, content: bytes, made: Made) -> Line:
    return ["confidence", f"py:{BLUEPRINT}@{_put(folder / 'mine.yaml', content)}", "--data", "digits"]


def _cell(file: str) -> Slot:
    """A folder of a trade-off, one file of which is replaced."""

    def slot(folder: Path, content: bytes, made: Made) -> Line:
        _put(folder / "out" / file, content)
        return ["tradeoff", "--out", folder / "out"]

    return slot


def _masks(folder: Path, content: bytes, made: Made) -> Line:
    for number in range(4):
        _put(folder / f"images/{number}.png", making.encoded(number))
        _put(folder / f"masks/{number}.png", content)
    return ["match-ratio", CHECKPOINT, "--data", f"folder:{folder / 'images'}", "--masks", folder / "masks"]


def _synonyms(folder: Path, content: bytes, made: Made) -> Line:
    path = _put(folder / "words.txt", content)
    return ["sweep", f"hf:{made['hf']}", "--data", f"text:{made['texts']}", "--view", f"synonyms:{path}"]


def _start(folder: Path, content: bytes, made: Made) -> Line:
    weights = _put(folder / "a.safetensors", content)
    return ["train", "--config", "digits-prc", "--folder", folder / "new", f"initialise={weights}"]


def _resumed(file: str) -> Slot:
    def slot(folder: Path, content: bytes, made: Made) -> Line:
        line = _in("training", file)(folder, content, made)
        return ["train", "--config", made["config"], "--resume", "--folder", *line, "--device", "cpu"]

    return slot


def _of_hf(file: str, *, without: tuple[str, ...] = ()) -> Slot:
    def slot(folder: Path, content: bytes, made: Made) -> Line:
        copy = folder / "hf"
        shutil.copytree(made["hf"], copy)
        for name in without:
            (copy / name).unlink()
        _put(copy / file, content)
        return ["confidence", f"hf:{copy}", "--data", f"text:{made['texts']}"]

    return slot


def _hub(file: str) -> Slot:
    def slot(folder: Path, content: bytes, made: Made) -> Line:
        root = making.huggingface(folder)
        _put(root / file, content)
        return _probe(f"huggingface:{root}")

    return slot


# What must be refused: exit code 2 and a sentence.
READ: dict[str, Slot] = {
    "checkpoint": _file("last.safetensors", "inspect"),
    "checkpoint's folder": _in("checkpoint", "last.safetensors", "confidence"),
    "start of a training": _start,
    "state of a training": _resumed("state.safetensors"),
    "configuration of a training": _resumed("config.yaml"),
    "configuration": _file("mine.yaml", "train", "--config"),
    "sweep": _file("mine.yaml", "tradeoff", after=("--out", "never")),
    "settings": _settings,
    "weights .pt": _weights("mine.pt"),
    "weights .safetensors": _weights("mine.safetensors"),
    "V-MoE's index": lambda folder, content, made: [
        "import",
        "vmoe",
        _put(folder / "a.index", content).with_suffix(""),
        folder / "out",
    ],
    "flax": _file("state.msgpack", "import", "vmoe", after=("never",)),
    "orbax": lambda folder, content, made: [
        "import",
        "vmoe",
        _put(folder / "a/params.cls/.zarray", content).parents[1],
        folder / "out",
    ],
    "orbax, described": lambda folder, content, made: [
        "import",
        "vmoe",
        _put(folder / "a/_METADATA", content).parent,
        folder / "out",
    ],
    "Swin-MoE's rank": _file("swin.rank0", "import", "swin-moe", after=("never",)),
    "Swin-MoE's file": _file("swin.pth", "import", "swin-moe", after=("never",)),
    "image": lambda folder, content, made: _probe(f"folder:{_put(folder / 'a/0.png', content).parent}"),
    "image file": lambda folder, content, made: [
        "overlay",
        CHECKPOINT,
        "--file",
        _put(folder / "mine.jpg", content),
        "--json",
    ],
    "mask": _masks,
    "cifar10, python": _data("cifar10", "test_batch", making.cifar10_python),
    "cifar10, names": _data("cifar10", "batches.meta", making.cifar10_python),
    "cifar10, binary": _data("cifar10", "test_batch.bin", making.cifar10_binary),
    "cifar100, python": _data("cifar100", "test", making.cifar100_python),
    "cifar100, names": _data("cifar100", "meta", making.cifar100_python),
    "mnist": _data(
        "mnist", "t10k-images-idx3-ubyte.gz", lambda folder: making.mnist(folder, stems=("train", "t10k"))
    ),
    "flowers, labels": _data("flowers102", "imagelabels.mat", making.flowers102),
    "flowers, lists": _data("flowers102", "setid.mat", making.flowers102),
    "stream": _data("huggingface_stream", "test-00000-*.parquet", making.parquet_files),
    "tar": lambda folder, content, made: _probe(f"webdataset:{_put(folder / 'test-0.tar', content)}"),
    "tar, image": _member("b.png"),
    "tar, label": _member("a.json"),
    "tar, class": _member("a.cls"),
    "texts": lambda folder, content, made: [
        "confidence",
        f"hf:{made['hf']}",
        "--data",
        f"text:{_put(folder / 'a.jsonl', content)}",
    ],
    "language model, configuration": _of_hf("config.json"),
    "language model, weights": _of_hf("model.safetensors"),
    "language model, pickled": _of_hf("pytorch_model.bin", without=("model.safetensors",)),
    "language model, tokenizer": _of_hf("tokenizer.json"),
    "trace": _file("clean.parquet", "trace", "analyze"),
    "trace to check": _file("clean.parquet", "trace", "check"),
    "log": _file("log.jsonl", "trace", "import", after=("never.parquet",)),
    "responses": lambda folder, content, made: [
        "trace",
        "import",
        _put(folder / "r.jsonl", content),
        folder / "o.parquet",
        "--model-config",
        _put(folder / "c.json", json.dumps(DEEPSEEK).encode()),
    ],
    "response, npy": _response(npy=True),
    "response, bytes": _response(npy=False),
    "tokens": lambda folder, content, made: [
        "trace",
        "record",
        f"hf:{made['hf']}",
        "--tokens",
        _put(folder / "r.jsonl", content),
        "--out",
        folder / "out",
    ],
    "configuration of a model": _model_config,
    "run, sidecar": _in("run", "table.json", "report", after=("--out", "never")),
    "run, sums": _in("run", "images.parquet", "compare"),
    "shard, sidecar": _shards("shard.json"),
    "shard, part": _shards("parts/digits-prc-k2-seed0-00000.parquet"),
    "cell": _cell("cells/a/cell.json"),
    "cells": _cell("cells.json"),
    "curve": _in("training", "metrics.csv", "curves"),
    "curve's configuration": _in("training", "config.yaml", "curves"),
}

# What is never looked at, or may be anything: nothing of it runs.
IGNORED: dict[str, Slot] = {
    "checkpoint's description": _in("checkpoint", "last.json", "inspect"),
    "checkpoint's other file": _in("checkpoint", "last.pt", "inspect"),
    "run, record": _in("run", ".moeprobe.files", "compare"),
    "run, lock": _in("run", ".moeprobe.lock", "compare"),
    "run, request": _in("run", "run.json", "report", after=("--out", "never")),
    "synonyms": _synonyms,
    "run, picture": _in("run", "figures/match-ratio.png", "report", after=("--out", "never")),
    "tar, pickle": _member("a.pickle"),
    "tar, pth": _member("a.pth"),
    "language model, code": _of_hf("modeling_mine.py"),
    "data set's code": _hub("hub.py"),
    "data set's pickle": _hub("state.pkl"),
    "folder of images, pickle": lambda folder, content, made: _probe(
        f"folder:{_put(making.image_folder(folder) / 'test/a.pkl', content).parents[1]}"
    ),
}
