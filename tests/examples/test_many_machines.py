"""Every command of the page on many machines is run: on fewer images, for fewer steps, by two processes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from moeprobe import api
from tests.commands import PATIENCE
from tests.docs.pages import ROOT, blocks
from tests.inputs.data.making import parquet_files
from tests.recordings.test_parts import log_lines

PAGE = ROOT / "docs/guide/many-machines.md"
COMMANDS = [block for block in blocks("bash", PAGE) if not block.startswith("#!")]
JOBS = [block for block in blocks("bash", PAGE) if block.startswith("#!")]
[KUBERNETES] = blocks("yaml", PAGE)
[RAY] = blocks("python", PAGE)
_PROBE = " --limit 6 --batch-size 2 --sigmas 0,0.1"
_TRAIN = " epochs=null steps=2 evaluate_every=1 batch_size=16 schedule.warmup_steps=1 data.workers=0"
_TRAIN += " optimizer.name=momentum model.expert_dropout=0"


def small(script: str) -> str:
    """The same with less to do."""
    lines = script.replace("--nproc-per-node 8", "--nproc-per-node 2").replace("/8", "/2").splitlines()
    more = {"noise-sweep": _PROBE, "train": _TRAIN}
    return "\n".join(
        line + "".join(one for word, one in more.items() if f"moeprobe {word} " in line) for line in lines
    )


@pytest.fixture
def working(tmp_path: Path) -> Path:
    """A folder with the checkpoints, and the programs that are typed."""
    for name in ("baseline", "prc"):
        kept = ROOT / f"checkpoints/reference/digits-{name}-k2-seed0"
        shutil.copytree(kept, tmp_path / f"checkpoints/demo-{name}")
    (tmp_path / "bin").mkdir()
    for name, module in (("moeprobe", "moeprobe"), ("torchrun", "torch.distributed.run --standalone")):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        program.chmod(0o755)
    return tmp_path


def run(script: str, working: Path, **variables: str) -> None:
    path = {
        "PATH": f"{working / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=working,
        env=os.environ | path | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("block", COMMANDS, ids=[block.split(" -m ")[-1][:40].strip() for block in COMMANDS])
def test_commands_run(block: str, working: Path) -> None:
    parquet_files(working / "birds", splits=("test",))
    log = working / "log.jsonl"
    log.write_text("\n".join(log_lines(seed=0)))
    api.import_trace(log, working / "traces/served.parquet")
    run(small(block), working)
    made = [one for one in working.glob("[cr]*/*") if not one.name.startswith("demo-")]
    marks = ("finished.json", "table.json", "shard.json")
    assert made and all(any((one / mark).exists() for mark in marks) for one in made), made


@pytest.mark.slow
def test_the_jobs_of_slurm_and_kubernetes_end_with_a_run(working: Path) -> None:
    measure, merge = JOBS
    for number in "12":
        run(
            small(measure).replace("OMP_NUM_THREADS=8", "OMP_NUM_THREADS=1"),
            working,
            SLURM_ARRAY_TASK_ID=number,
        )
    run(merge, working)
    [container] = yaml.safe_load(KUBERNETES)["spec"]["template"]["spec"]["containers"]
    shutil.move(working / "reports", working / "slurm")
    for number in "01":
        [typed] = container["args"]
        run(small(typed), working, JOB_COMPLETION_INDEX=number)
    run(merge, working)
    for name in ("table.csv", "images.parquet"):
        assert (working / "reports/sweep" / name).read_bytes() == (
            working / "slurm/sweep" / name
        ).read_bytes()


class EagerTask:
    """A task of Ray that runs when it is asked for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function


def test_the_tasks_of_ray_end_with_a_run(working: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(working)
    ray = SimpleNamespace(remote=EagerTask, get=list)
    monkeypatch.setitem(sys.modules, "ray", ray)
    names: dict[str, Any] = {}
    # Batches of 64 images: three shards of 360 have some each.
    exec(compile(RAY.replace("/8", "/3").replace("range(1, 9)", "range(1, 4)"), PAGE.name, "exec"), names)
    shards = names["result"].sidecar["shards"]
    assert [shard["images"] > 0 for shard in shards] == [True] * 3
    assert (working / "reports/confidence/table.json").exists()
