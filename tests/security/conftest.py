"""What other commands have left, for what is put in its place."""

import shutil
from pathlib import Path

import pytest

from tests.adapters.tiny_texts import olmoe, texts
from tests.commands import run
from tests.security.slots import CHECKPOINT


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run, two shards, an unfinished training, a trace, a small language model and its texts."""
    from moeprobe import api
    from moeprobe.models.config import dump, load

    root = tmp_path_factory.mktemp("made")
    overrides = ["name=training", "steps=4", "epochs=null", "evaluate_every=2", "batch_size=16"]
    config = load("digits-prc", [*overrides, "schedule.warmup_steps=1", "data.workers=0"])
    (root / "config.yaml").write_text(dump(config), encoding="utf-8")
    api.train(str(root / "config.yaml"), folder=root / "checkpoint", device="cpu")
    shutil.copytree(root / "checkpoint", root / "training")
    (root / "training/finished.json").unlink()
    (root / "hf").mkdir()
    olmoe(root / "hf")
    (root / "lines.txt").write_text("\n".join(texts(22)), encoding="utf-8")
    for line in (
        ("match-ratio", CHECKPOINT, "--limit", 4, "--out", root / "run"),
        (
            "confidence",
            CHECKPOINT,
            "--limit",
            4,
            "--shard",
            "1/2",
            "--batch-size",
            2,
            "--out",
            root / "shard",
        ),
        (
            "confidence",
            CHECKPOINT,
            "--limit",
            4,
            "--shard",
            "2/2",
            "--batch-size",
            2,
            "--out",
            root / "shard2",
        ),
        ("trace", "record", CHECKPOINT, "--limit", 4, "--out", root / "trace"),
    ):
        done = run(*line)
        assert done.exit_code == 0, done.output
    return {
        "run": root / "run",
        "shard": root / "shard",
        "other shard": root / "shard2",
        "training": root / "training",
        "checkpoint": root / "checkpoint",
        "config": root / "config.yaml",
        "trace": root / "trace/digits-prc-k2-seed0/clean.parquet",
        "hf": root / "hf",
        "texts": root / "lines.txt",
    }
