"""Models of which each process holds a part: the training of one process, its evaluations, its checkpoints."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeprobe.errors import UserError
from moeprobe.runtime.distributed import Alone
from tests.commands import PATIENCE, run
from tests.models.training.parallel.laid_out import CASES
from tests.models.training.parallel.sharing import COMMON, outcome
from tests.models.training.parallel.test_sharing import assert_alike
from tests.models.training.starting import by_processes
from tests.models.training.tiny import tiny_config, trainer

FIRST = ("experts: objective prc",)
REST = [
    f"{parallel}: {name}"
    for parallel in ("experts", "fsdp")
    for name in CASES
    # What fully_shard cannot do, see below.
    if f"{parallel}: {name}" not in FIRST
    and (parallel, name) not in {("fsdp", "mae"), ("fsdp", "router soft_moe")}
]


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes find; they are started once."""
    out = tmp_path_factory.mktemp("spread")
    by_processes("laid_out", str(out), *FIRST)
    return out


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of all other cases."""
    out = tmp_path_factory.mktemp("spread")
    by_processes("laid_out", str(out), *REST)
    return out


def assert_as_one(name: str, out: Path, folder: Path) -> None:
    """Losses, gradients, parameters after five steps, and an evaluation: uneven, so that one runs an empty image."""
    case = name.partition(": ")[2]
    # Steps that divide by the size of a gradient, or round it, magnify what is left of a sum that is all but 0.
    magnified = case.startswith(("optimizer", "bfloat16")) and case not in (
        "optimizer momentum",
        "optimizer sgd",
    )
    for double, allowed in ((True, 1e-6), (False, 1e-5)):
        alone = outcome(folder, double=double, **CASES[case])
        with np.load(out / f"{name}-{double}.npz") as found:
            if double or not magnified:
                assert_alike(alone, dict(found), tolerance=allowed)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("name", FIRST)
def test_parts_of_a_model_are_trained_as_the_whole(name: str, spread: Path, tmp_path: Path) -> None:
    assert_as_one(name, spread, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_parts_of_a_model_in_other_trainings(name: str, others: Path, tmp_path: Path) -> None:
    assert_as_one(name, others, tmp_path)


def refused(folder: Path, said: str, **changes: Any) -> None:
    class Six(Alone):
        size = 6

    with pytest.raises(UserError, match=said):
        trainer(folder, ranks=Six(), **COMMON | {"batch_size": 36, "parallel": "experts"} | changes)


def test_what_cannot_be_spread_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "4 experts of a layer cannot be spread over groups of 4 of 6 processes", expert_ranks=4)
    refused(tmp_path, "4 experts of a layer cannot be spread over groups of 3 of 6", expert_ranks=3)
    refused(tmp_path, "'lamb' may need whole parameters", optimizer__name="lamb")
    dense = {"model": {"layers": "none", "image_size": 16}, "objective": {"name": "balanced"}}
    refused(tmp_path, "a dense model has none", **dense)
    refused(tmp_path, "cuts no single number", parallel="fsdp", **CASES["router soft_moe"])
    for changes, said in (
        ({"compile": True, "parallel": "experts"}, "set compile to false"),
        (CASES["mae"] | {"parallel": "fsdp"}, "parallel=fsdp needs whole passes"),
        ({"expert_ranks": 2}, "expert_ranks is about parallel=experts"),
    ):
        with pytest.raises(UserError, match=said):
            tiny_config(**changes)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("parallel", ["experts", "fsdp"])
def test_torchrun_leaves_checkpoints_that_every_probe_reads(parallel: str, tmp_path: Path) -> None:
    """Two processes with a half each; one process measures what they leave, as what one process left."""
    asked = ["train", "--config", "digits-prc", "steps=4", "epochs=null", "schedule.warmup_steps=1"]
    asked += ["evaluate_every=2", "batch_size=32", "--json"]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    matches = []
    for name, launcher, more in (("one", [], []), ("two", torchrun, [f"parallel={parallel}"])):
        folder = str(tmp_path / name)
        command = [sys.executable, "-m", *launcher, "moeprobe", *asked, *more, "--folder", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        found = json.loads(run("confidence", folder, "--limit", "60", "--json").stdout)["table"]
        matches.append([row["value"] for row in found])
    assert matches[0] == pytest.approx(matches[1], abs=1e-3)
    assert {one.name for one in (tmp_path / "one").iterdir()} == {
        one.name for one in (tmp_path / "two").iterdir()
    }
    # A finished run is taken as it is.
    done = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert json.loads(done.stdout)["kept"], done.stderr


@pytest.mark.slow
def test_parts_of_four_processes(tmp_path: Path) -> None:
    """Two replicas of the experts, each spread over two processes; or a quarter of everything in each."""
    names = ("experts: objective prc", "experts: router soft_moe", "fsdp: two passes")
    by_processes("laid_out", str(tmp_path), *names, number=4)
    for name in names:
        assert_as_one(name, tmp_path, tmp_path)
