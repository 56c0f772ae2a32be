"""What the part ``sweep`` runs: ours and the notebook agree, and a notebook that computes something else is refused."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.speed.measure import Clock, measure
from benchmarks.speed.parts import sweep
from benchmarks.speed.parts.base import Settings
from benchmarks.speed.parts.sweep import (
    BARE,
    FROM_FILES,
    MANY,
    NOTEBOOK,
    OURS,
    SIGMAS,
    SMALL,
    TINY,
    Sweep,
)
from benchmarks.speed.race import DisagreementError
from benchmarks.speed.sweeps import CLASSES, Matches, Notebook, Subject
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.inputs.modality import IMAGE
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.runtime.catalog import VIEWS
from moeprobe.runtime.progress import Progress
from tests.benchmarks.test_parts import measured


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(TINY, tmp_path_factory.mktemp("photographs"), "cpu")


@pytest.mark.slow
def test_sweeps(tmp_path: Path) -> None:
    table = measured("sweep", tmp_path / "out").set_index(["race", "contestant"])
    races = list(dict.fromkeys(table.index.get_level_values("race")))
    assert [name.partition(",")[0] for name in races[:2]] == ["noise-sweep", "match-ratio"]
    for name in races[:2]:
        assert dict(zip(*table.loc[(name, OURS), ["against", "target"]].to_numpy().T, strict=True)) == {
            BARE: "≥ 0.93",
            FROM_FILES: "≥ 0.93",
            NOTEBOOK: "≥ 1.5",
        }
    kinds = {name: VIEWS.get(name) for name in VIEWS.names()}
    images = {name for name, kind in kinds.items() if kind.modality is IMAGE and not kind.needs}
    views = table.loc[races[2]]
    assert set(views[views["target"] == "≤ 1"].index) == images and set(views.index) == images | {TINY.name}
    assert (table["median"] > 0).all()


def test_what_is_measured_has_the_sizes_that_were_asked_for() -> None:
    assert SMALL.model == {"name": "vmoe_small_patch32_224"}
    many = Vmoe(build_model(ModelConfig(num_classes=CLASSES, **MANY.model)), mean=[0.5] * 3, std=[0.5] * 3)
    assert [grid.num_patches for grid in many.grids.values()] == [144] * 4
    assert SMALL.images >= 256 and MANY.images >= 256 and len(SIGMAS) == 10


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("race", ["noise-sweep", "match-ratio"])
def test_a_notebook_that_computes_something_else_is_refused(
    race: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(Notebook):
        def sweep(self, sigmas: Sequence[float]) -> dict[float, Matches]:
            return {sigma: super(Other, self).sweep([2 * sigma])[2 * sigma] for sigma in sigmas}

        def match_ratio(self, view_name: str) -> Matches:
            return super().match_ratio("prc_crops")

    monkeypatch.setattr(sweep, "Notebook", Other)
    races = (one for one in Sweep().races(Settings(quick=True)) if one.name.startswith(race))
    with pytest.raises(DisagreementError, match=f"{NOTEBOOK} and {OURS} differ in"):
        measure(next(races), rounds=1, clock=Clock(0, lambda: None), watcher=Progress())


def test_the_passes_are_those_that_the_run_makes(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that reach the first block and the last one: as many in the passes alone as in the run."""
    seen: dict[int, int] = {}

    def count(number: int) -> None:
        def hook(_module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
            seen[number] = seen.get(number, 0) + len(arguments[0])

        subject.net.blocks[number].register_forward_pre_hook(hook)

    for number in (0, len(subject.net.blocks) - 1):
        count(number)
    swept = sweep._noise_sweep(subject, measured=SIGMAS[4:5])
    for one, looks in ((swept, 2), (sweep._match_ratio(subject), 1)):
        counted = {}
        for contestant in one.contestants:
            if contestant.name in (OURS, BARE, FROM_FILES):
                seen.clear()
                contestant.work()
                counted[contestant.name] = {key: value * contestant.scale for key, value in seen.items()}
        # A run looks at one black image first, to learn of what kind the routing is; one with a noise floor looks once
        # more, to learn whether the model runs in another format.
        assert counted[OURS] == {key: value + looks for key, value in counted[BARE].items()}
        assert counted[FROM_FILES] == counted[BARE]
