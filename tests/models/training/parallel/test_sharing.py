"""A step shared by processes, by passes, or by both is the step of one process with the whole batch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeprobe.errors import UserError
from moeprobe.models.training.parallel.layouts import ProcessLayout
from moeprobe.runtime.distributed import Alone
from tests.commands import PATIENCE
from tests.models.training.parallel.sharing import CASES, COMMON, outcome
from tests.models.training.starting import by_processes
from tests.models.training.tiny import trainer

# Each of these takes a process a second or two; the others take longer together.
FIRST = ("objective prc", "objective balanced, all terms", "router priority")
REST = [name for name in CASES if name not in FIRST]


def assert_alike(one: dict[str, np.ndarray], other: dict[str, np.ndarray], *, tolerance: float) -> None:
    """Equal relative to the largest value of each; of what is all but zero, to the largest gradient."""
    assert one.keys() == other.keys()
    for name, wanted in one.items():
        largest = max(np.abs(wanted).max(), 1e-3)
        assert np.abs(other[name] - wanted).max() <= tolerance * largest, name


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes find; they are started once."""
    out = tmp_path_factory.mktemp("shared")
    by_processes("sharing", str(out), *FIRST)
    return out


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of all other cases."""
    out = tmp_path_factory.mktemp("shared")
    by_processes("sharing", str(out), *REST)
    return out


def assert_as_one(name: str, out: Path, folder: Path) -> None:
    """Losses, gradients, parameters and an evaluation; in two passes each as well."""
    for double, tolerance in ((True, 1e-6), (False, 2e-5)):
        alone = outcome(folder, double=double, **CASES[name])
        for passes in (1, 2):
            path = out / f"{name}-{passes}-{double}.npz"
            if path.exists():
                with np.load(path) as found:
                    assert_alike(alone, dict(found), tolerance=tolerance)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("name", FIRST)
def test_steps_of_two_processes_are_those_of_one(name: str, shared: Path, tmp_path: Path) -> None:
    assert_as_one(name, shared, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_steps_of_two_processes_in_other_trainings(name: str, others: Path, tmp_path: Path) -> None:
    assert_as_one(name, others, tmp_path)


@pytest.mark.parametrize("name", ["objective prc", "objective jsd", "objective balanced"])
def test_the_comparison_sees_a_mistake_of_a_thousandth(name: str, tmp_path: Path) -> None:
    alone = outcome(tmp_path, double=True, **CASES[name])
    with pytest.raises(AssertionError):
        assert_alike(alone, {key: value * 1.001 for key, value in alone.items()}, tolerance=1e-6)


@pytest.mark.parametrize("passes", [2, 4])
@pytest.mark.parametrize("name", ["objective prc", "objective prc_released", "objective jsd", "router hash"])
def test_passes_of_one_process_are_its_step(name: str, passes: int, tmp_path: Path) -> None:
    alone = outcome(tmp_path, double=True, **CASES[name])
    assert_alike(alone, outcome(tmp_path, double=True, accumulate=passes, **CASES[name]), tolerance=1e-6)


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    class Three(Alone):
        size = 3

    with pytest.raises(
        UserError, match="16 images cannot be shared by 3 processes; make batch_size a multiple of 3"
    ):
        trainer(tmp_path, ranks=Three(), **COMMON)
    with pytest.raises(UserError, match="leaves 2 each, which cannot be cut into groups of 4"):
        trainer(tmp_path, **COMMON | {"accumulate": 16})
    dropout = {"model__whole_expert_dropout": 0.1, "model__expert_dropout": 0.1}
    with pytest.raises(UserError, match=r"set either model\.whole_expert_dropout or all other dropout"):
        trainer(tmp_path, **COMMON | dropout | {"accumulate": 2})


def test_evaluations_of_several_are_those_of_one(tmp_path: Path) -> None:
    """Eleven images in batches of four are three, so that of four processes one has none; one alone is unchanged."""

    class One(Alone):
        def __init__(self, rank: int, said: list[dict[str, float]]) -> None:
            self.rank, self.size, self.said = rank, 4, said

        def exchange(self, what: Any) -> list[Any]:
            self.said.append(what)
            return self.said

    one = trainer(tmp_path, **COMMON)

    def found(ranks: Alone) -> dict[str, float]:
        return one.task.validate(
            one.val_data, one.framing, normalise=one.normalise, device=one.device, layout=ProcessLayout(ranks)
        )

    said: list[dict[str, float]] = []
    together = [found(One(rank, said)) for rank in range(4)][-1]
    assert sorted(map(len, said)) == [0, 2, 2, 2]
    assert together == pytest.approx(found(Alone()), rel=1e-12)


def test_dropout_draws_are_not_those_of_another_part(tmp_path: Path) -> None:
    """Parts of one shape would drop the same places from the same seed."""
    one = trainer(tmp_path, accumulate=2, **COMMON | {"model__expert_dropout": 0.5})
    assert one.share.drops
    assert not trainer(tmp_path, **COMMON).share.drops


@pytest.mark.slow
@pytest.mark.promise
def test_a_training_by_torchrun_resumes_with_another_number(tmp_path: Path) -> None:
    """Two processes train three evaluations; what they leave is what one leaves, and either goes on with the other."""
    asked = ["train", "--config", "digits-prc", "steps=4", "epochs=null", "schedule.warmup_steps=1"]
    asked += ["evaluate_every=2", "batch_size=32", "--json"]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    summaries = []
    for name, launcher in (("one", []), ("two", torchrun)):
        command = [sys.executable, "-m", *launcher, "moeprobe", *asked, "--folder", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        summaries.append(json.loads(done.stdout))
    assert summaries[0]["val_accuracy"] == pytest.approx(summaries[1]["val_accuracy"], abs=0.01)
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names == {path.name for path in (tmp_path / "two").iterdir()}
    rows = [(tmp_path / name / "metrics.csv").read_text().splitlines() for name in ("one", "two")]
    assert rows[0][0] == rows[1][0] and len(rows[0]) == len(rows[1])
