"""What the part ``train`` runs: it is what it says, and its race refuses a step that computes something else."""

import copy
from pathlib import Path

import pytest
import torch

from benchmarks.speed.measure import Clock, measure
from benchmarks.speed.parts import train
from benchmarks.speed.parts.base import Settings
from benchmarks.speed.parts.train import DENSE, FULL, OURS, QUICK, Train
from benchmarks.speed.race import Contestant, DisagreementError, Race
from benchmarks.speed.trainings import Waiting, dense_like, digits, plainly, trainer
from moeprobe.models.nn.capture import moe_layers
from moeprobe.runtime.progress import Progress
from tests.benchmarks.test_parts import measured


@pytest.mark.slow
def test_training(tmp_path: Path) -> None:
    table = measured("train", tmp_path / "out").set_index(["race", "contestant"])
    targets = table[table["target"] != ""]
    assert {(race, one): row["target"] for (race, one), row in targets.iterrows()} == {
        ("forward", OURS): "≥ 0.9",
        ("training step, balanced", OURS): "≥ 0.88",
        ("training step on the same views", "prc"): "≤ 1.05",
        ("update of the parameters", "update"): "≤ 0.1",
        (f"input of {QUICK.model}, 2 processes", "waiting"): "≤ 0.05",
        ("digits step", "of 1 image"): "≤ 0.2",
        ("input of digits, 2 processes", "waiting"): "≤ 0.05",
    }
    assert set(targets.loc[["forward", "training step, balanced"], "against"]) == {DENSE}
    assert (table["median"] > 0).all()


def test_the_dense_model_has_the_sizes_of_ours_and_its_flops_are_counted() -> None:
    model = trainer(QUICK, "balanced", "cpu").model
    dense, scale = dense_like(model, 10)
    ours, theirs = (
        {name: tuple(p.shape) for name, p in one.named_parameters() if ".mlp." not in name}
        for one in (model, dense)
    )
    assert ours == theirs
    # 17 tokens of width 64, hidden width 128, four blocks, 16 patches of 8 x 8 pixels; two layers of 8 experts, k = 2.
    block = 4 * 17 * 64**2 + 2 * 17**2 * 64 + 2 * 17 * 64 * 128
    assert scale == pytest.approx(
        1 + 2 * (2 * 17 * 64 * 128 + 17 * 64 * 8) / (16 * 3 * 64 * 64 + 4 * block + 64 * 10)
    )


def test_the_released_size_is_what_is_measured() -> None:
    assert FULL.model == "vmoe_small_patch32_224" and FULL.rows == 32


def test_a_step_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The written-out step with the noise of another seed: the loss and the parameters differ."""
    real = train.PlainStep

    class Other(real):  # type: ignore[valid-type, misc]
        def __call__(self) -> dict[str, object]:
            self._seed = 1
            return super().__call__()

    monkeypatch.setattr(train, "PlainStep", Other)
    races = (race for race in Train().races(Settings(quick=True)) if race.name.startswith("training step, "))
    with pytest.raises(DisagreementError, match="differ in"):
        measure(next(races), rounds=1, clock=Clock(0, lambda: None), watcher=Progress())


def test_layers_written_as_a_loop_share_the_parameters_and_leave_ours_alone() -> None:
    model = trainer(QUICK, "balanced", "cpu").model.eval()
    before = copy.deepcopy(model.state_dict())
    images = torch.randn(3, 3, 32, 32)
    plain = plainly(model)
    assert not moe_layers(plain) and len(moe_layers(model)) == 2
    with torch.inference_mode():
        torch.testing.assert_close(plain(images), model(images))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_waiting_is_a_part_of_all_and_both_are_of_the_same_steps() -> None:
    one = digits(8, "cpu")
    waiting = Waiting(one, steps=3, ready=1)
    for first, second in (("waiting", "all"), ("all", "waiting")):
        taken = {first: waiting.take(first), second: waiting.take(second)}  # type: ignore[arg-type]
        assert 0 < taken["waiting"] < taken["all"]
    assert one.step == 2 * (1 + 3)


def test_what_does_less_counts_more() -> None:
    """Made-up times of 2 and 2: the one with a scale of 1.5 is shown with 3."""
    contestants = [Contestant("whole", lambda: 2.0), Contestant("part", lambda: 2.0, "limit", scale=1.5)]
    race = Race("race", contestants, tolerance=None, meter=float)  # type: ignore[arg-type]
    found = measure(race, rounds=2, clock=Clock(0, lambda: None), watcher=Progress()).taken
    assert found["whole"].tolist() == [2.0, 2.0] and found["part"].tolist() == [3.0, 3.0]
