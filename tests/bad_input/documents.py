"""Documents that are right, and what reads each: to be tried with one thing wrong."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.commands import run
from tests.recordings.serving import DEEPSEEK, routing, vllm
from tests.security.slots import CHECKPOINT, ROOT

SWEEP = {
    "base": "digits-prc", "name": "s", "seeds": [0, 1], "fixed": {"steps": 6, "epochs": None},
    "cells": [{"model.top_k": [1, 2], "fixed": {"batch_size": 16}}],
    "measure": {"limit": 40, "views": ["random_crop"], "sigmas": [0.1]},
}  # fmt: skip
SETTINGS = {
    "name": "mine", "image_size": 32, "patch_size": 8, "num_prefix_tokens": 1, "mean": [0, 0, 0], "std": [1, 1, 1],
    "routers": "*.router", "read": {"logits": 0, "indices": 1}, "activation": "softmax", "top_k": 2,
    "crop_fraction": 0.9, "classes": ["a", "b"], "output": 0, "weights": "a.pt",
}  # fmt: skip
ROW = {
    "id": "r17", "layer": "blocks.3", "num_experts": 8, "experts": [[3, 5], [0, 1]], "gates": [[0.6, 0.3], [0.5, 0.4]],
    "processed": [[True, True], [True, False]], "valid": [True, True], "num_prefix_tokens": 0, "ordered_by": "gates",
    "generated": [False, True], "token_ids": [3, 4], "router": "r", "token_local": True,
}  # fmt: skip


@dataclass(frozen=True)
class Document:
    """A document, and what reads it as a command does.

    Attributes:
        content: what is right.
        read: takes what is wrong; raises ``UserError``.
        least: how many kinds are refused, at least.
        every: in the quick tests, one kind of so many.
    """

    content: Any
    read: Callable[[Any], object]
    least: int
    every: int = 1


def configuration(folder: Path) -> Document:
    """The configuration of a training."""
    from moeprobe.models import config

    def read(content: Any) -> None:
        if isinstance(content, dict):
            config.parse(content)

    return Document(config.load("digits-prc").model_dump(), read, 1000)


def _file(folder: Path, load: Callable[[Path], object]) -> Callable[[Any], object]:
    """Return what writes a document as JSON, which is YAML too, and loads it."""

    def read(content: Any) -> None:
        path = folder / "document.yaml"
        path.write_text(json.dumps(content), encoding="utf-8")
        load(path)

    return read


def sweep(folder: Path) -> Document:
    """A sweep of trainings."""
    from moeprobe.models import grid

    return Document(SWEEP, _file(folder, lambda path: grid.load(str(path))), 300, every=9)


def pipeline(folder: Path) -> Document:
    """Trainings in a row."""
    from moeprobe.models import pipeline

    content = yaml.safe_load((ROOT / "configs/pipelines/dense-to-sparse-digits.yaml").read_text("utf-8"))
    return Document(content, _file(folder, lambda path: pipeline.load(str(path))), 800, every=30)


def settings(folder: Path) -> Document:
    """The settings of the user's own module."""
    from moeprobe.adapters.hooks import factory

    return Document(SETTINGS, _file(folder, factory.load), 250)


def response(folder: Path) -> Document:
    """A server's response."""
    from moeprobe.recordings.import_experts import import_routed_experts

    config = folder / "config.json"
    config.write_text(json.dumps(DEEPSEEK))
    content = vllm(routing()) | {"prompt_token_ids": [1, 2, 3, 4, 5, 6]}
    content["choices"][0]["token_ids"] = list(range(8))

    def load(path: Path) -> None:
        import_routed_experts([path], folder / "out.parquet", model_config=config, overwrite=True)

    return Document(content, _file(folder, load), 150, every=15)


def model_config(folder: Path) -> Document:
    """What says which layers of a served model have experts."""
    from moeprobe.recordings.model_config import read_moe_shape

    return Document(DEEPSEEK, _file(folder, read_moe_shape), 100)


def row_of_a_log(folder: Path) -> Document:
    """A line of a log."""
    from moeprobe.recordings.import_log import import_trace

    def load(path: Path) -> None:
        import_trace(path, folder / "out.parquet", overwrite=True)

    return Document(ROW, _file(folder, load), 250, every=9)


def run_to_compare(folder: Path) -> Document:
    """The sidecar of a finished run."""
    from moeprobe.results import finished

    assert run("match-ratio", CHECKPOINT, "--limit", 4, "--out", folder / "run").exit_code == 0
    content = json.loads((folder / "run/table.json").read_text("utf-8"))

    def read(content: Any) -> None:
        (folder / "run/table.json").write_text(json.dumps(content), encoding="utf-8")
        finished.read(folder / "run")

    return Document(content, read, 450, every=9)


def audit_plan(folder: Path) -> Document:
    """The plan of an interrupted audit."""
    from moeprobe.studies.audit.plan import PLAN, read_plan

    step = {"probe": "match-ratio", "images": 8, "passes": 2, "seconds": 1.5}
    content = {"steps": [step, step], "left_out": {"confidence": "takes long"}, "available": 8}

    def read(content: Any) -> None:
        (folder / PLAN).write_text(json.dumps(content), encoding="utf-8")
        read_plan(folder, modality="image", minutes=1.0)

    return Document(content, read, 200)


def audit(folder: Path) -> Document:
    """The sidecar of a finished audit, whose verdicts are printed."""
    from moeprobe.api import read_audit
    from moeprobe.cli.commands.audit import print_audit

    line = ("audit", CHECKPOINT, "--probes", "confidence", "--limit", 20, "--layers", "blocks.1")
    assert run(*line, "--out", folder / "audit").exit_code == 0
    content = json.loads((folder / "audit/table.json").read_text("utf-8"))

    def read(content: Any) -> None:
        (folder / "audit/table.json").write_text(json.dumps(content), encoding="utf-8")
        print_audit(read_audit(folder / "audit"), as_json=False)

    return Document(content, read, 400, every=36)


def shard(folder: Path) -> Document:
    """The sidecar of a shard."""
    from moeprobe.probes.engine import merging

    for number in (1, 2):
        line = ("confidence", CHECKPOINT, "--limit", 4, "--batch-size", 2, "--shard", f"{number}/2")
        assert run(*line, "--out", folder / f"shard{number}").exit_code == 0
    content = json.loads((folder / "shard1/shard.json").read_text("utf-8"))

    def read(content: Any) -> None:
        (folder / "shard1/shard.json").write_text(json.dumps(content), encoding="utf-8")
        merging.read_shards([folder / "shard1", folder / "shard2"])

    return Document(content, read, 600, every=12)


def checkpoint(folder: Path) -> Document:
    """What a checkpoint says of itself."""
    import torch
    from safetensors.torch import save_file

    from moeprobe.models.checkpoints import header

    content = header.read_header(CHECKPOINT / "last.safetensors").description

    def read(content: Any) -> None:
        path = folder / "a.safetensors"
        save_file({"a": torch.zeros(1)}, path, metadata={"description": json.dumps(content)})
        header.read_info(path)

    return Document(content, read, 500, every=9)


def trace(folder: Path) -> Document:
    """The metadata of a trace."""
    import pyarrow.parquet as pq

    from moeprobe.recordings.format import KEY
    from moeprobe.recordings.reading import TraceFile

    assert run("trace", "record", CHECKPOINT, "--limit", 4, "--out", folder / "trace").exit_code == 0
    [recorded] = (folder / "trace").rglob("clean.parquet")
    table = pq.read_table(recorded)

    def read(content: Any) -> None:
        path = folder / "a.parquet"
        pq.write_table(table.replace_schema_metadata({KEY: json.dumps(content)}), path)
        file = TraceFile(path)
        for layer in file.layers:
            file.read(layer, file.ids)

    return Document(json.loads(table.schema.metadata[KEY]), read, 300, every=12)


DOCUMENTS = {
    make.__name__: make
    for make in (
        configuration, sweep, pipeline, settings, response, model_config, row_of_a_log, run_to_compare, audit_plan,
        audit, shard,
        checkpoint, trace,
    )
}  # fmt: skip
