"""The training loop: what it refuses, what it reports, and what it leaves when the loss is no number."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.checkpoint import load
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.training import start, tasks
from moeprobe.models.training.loop import Trainer
from moeprobe.models.training.objectives.prc import Prc
from moeprobe.models.training.reporting import Report
from tests.models.training.tiny import Noise, results, tiny_config, trainer


def spoil_loss(one: Trainer, when: int) -> None:
    """The loss of step ``when`` is no number, and so is what follows."""
    one.model.head.register_forward_hook(
        lambda module, _, out: out * math.nan if module.training and one.step == when else None
    )


def spoil_update(one: Trainer, when: int) -> None:
    """The update of step ``when`` leaves a parameter that is no number; the loss before it is fine."""
    update = one.optimizer.step

    def step(*_: Any) -> None:
        update()
        if one.step == when:
            with torch.no_grad():
                one.model.pos_embed[0, 0, 0] = math.inf

    one.optimizer.step = step  # type: ignore[assignment, method-assign]


def spoil_unused(one: Trainer, when: int) -> None:
    """As ``spoil_update``, in a parameter that no validation image needs, such as an expert's that none chooses."""
    update = one.optimizer.step

    def step(*_: Any) -> None:
        update()
        if one.step == when:
            one.model.register_parameter("unused", nn.Parameter(torch.tensor(math.nan)))

    one.optimizer.step = step  # type: ignore[assignment, method-assign]


def spoil_validation(one: Trainer, when: int) -> None:
    one.model.head.register_forward_hook(
        lambda module, _, out: out * math.inf if not module.training and one.step == when else None
    )


@pytest.mark.parametrize(
    ("spoil", "when"),
    [
        (spoil_loss, 4),
        (spoil_loss, 7),
        (spoil_update, 4),
        (spoil_update, 7),
        (spoil_unused, 7),
        (spoil_validation, 8),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_loss_that_is_no_number_ruins_nothing(
    spoil: Callable[[Trainer, int], None], when: int, tmp_path: Path
) -> None:
    one = trainer(tmp_path)
    spoil(one, when)
    with pytest.raises(UserError, match="stopped being a number by step 8"):
        one.run()
    assert not (tmp_path / "finished.json").exists()
    assert list(pd.read_csv(tmp_path / "metrics.csv")["step"]) == [4]
    for which in ("last", "best"):
        model, info = load(tmp_path / f"{which}.safetensors")
        assert info.training["step"] == 4
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    again = trainer(tmp_path)
    again.resume()
    assert again.step == 4 and all(torch.isfinite(p).all() for p in again.model.parameters())


def test_it_is_found_within_ten_steps(tmp_path: Path) -> None:
    one = trainer(tmp_path, evaluate_every=12)
    spoil_loss(one, 2)
    with pytest.raises(UserError, match="by step 10"):
        one.run()
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml"}


@pytest.mark.parametrize("spoil", [spoil_loss, spoil_update])
def test_ctrl_c_after_it_does_not_save_it(spoil: Callable[[Trainer, int], None], tmp_path: Path) -> None:
    one = trainer(tmp_path)
    spoil(one, 5)

    def press(*_: Any) -> None:
        if one.step == 6:
            raise KeyboardInterrupt

    one.model.register_forward_pre_hook(press)
    with pytest.raises(UserError, match="stopped being a number"):
        one.run()
    again = trainer(tmp_path)
    again.resume()
    assert again.step == 4


def test_what_is_reported_and_written(tmp_path: Path) -> None:
    reports: list[Report] = []
    one = trainer(tmp_path, name="named", group="grouped", seed=3)
    summary = one.run(reports.append)
    assert [report.step for report in reports if not report.evaluated] == [10, 12]
    assert [report.step for report in reports if report.evaluated] == [4, 8, 12]
    assert all(report.total_steps == 12 and report.images_per_second > 0 for report in reports)
    assert {"loss", "main_loss", "accuracy", "prc_diagonal", "learning_rate"} <= set(reports[2].values)
    metrics = pd.read_csv(tmp_path / "metrics.csv")
    last = metrics.iloc[-1]
    weighted = 0.1 * last["train_prc_diagonal"] + 0.05 * last["train_prc_offdiagonal"]
    assert last["train_loss"] == pytest.approx(last["train_main_loss"] + weighted, rel=1e-5)
    assert list(metrics["epoch"]) == pytest.approx([4 / 5, 8 / 5, 12 / 5])
    assert summary["val_accuracy"] == pytest.approx(last["val_accuracy"])
    assert summary["best_val_accuracy"] == pytest.approx(metrics["val_accuracy"].max())
    assert summary["validated_on"] == "11 images of noise val"
    results(tmp_path)
    _, info = load(tmp_path)
    assert info.class_names == ("dark", "gray", "light") and info.model.num_classes == 3
    assert {"name": "named", "group": "grouped", "seed": 3, "step": 12}.items() <= info.training.items()
    _, best = load(tmp_path / "best.safetensors")
    assert best.training["step"] == metrics["step"][metrics["val_accuracy"].idxmax()]


def test_the_first_update_of_a_warm_up_changes_nothing(tmp_path: Path) -> None:
    """Its learning rate is 0, as in the released programs; the second is peak / warm-up."""
    one = trainer(tmp_path)
    before = {name: value.detach().clone() for name, value in one.model.named_parameters()}
    rates = []
    for batch in one.batches():
        one.train_step(batch)
        rates.append(one.optimizer.param_groups[0]["lr"])
        if one.step == 1:
            assert all(torch.equal(value, before[name]) for name, value in one.model.named_parameters())
        if one.step == 3:
            break
    assert rates == pytest.approx([0, 1e-2 / 3, 2e-2 / 3])


def test_an_epoch_shows_every_image_at_most_once_and_the_next_shows_it_otherwise(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    seen = []
    for batch in one.batches():
        seen.append((list(batch.image_ids), batch.to_source[0]))
        one.step += 1
    first = [image_id for ids, _ in seen[:5] for image_id in ids]
    second = [image_id for ids, _ in seen[5:10] for image_id in ids]
    assert len(seen) == 12 and len(first) == len(set(first)) == 40
    assert first != second and len(set(second)) == 40
    maps = [
        {image_id: one for ids, maps in part for image_id, one in zip(ids, maps, strict=True)}
        for part in (seen[:5], seen[5:10])
    ]
    common = set(maps[0]) & set(maps[1])
    assert common and all((maps[0][name] != maps[1][name]).any() for name in common)


def test_router_noise_belongs_to_the_step(tmp_path: Path) -> None:
    """Another step draws other noise; the same step of another process draws the same."""
    drawn: list[torch.Tensor] = []
    for _ in range(2):
        one = trainer(tmp_path)
        layer = moe_layers(one.model)["blocks.1"]
        layer.router.register_forward_pre_hook(lambda _m, inputs: drawn.append(inputs[1].clone()))
        batch = next(one.batches())
        one.train_step(batch)
        torch.randn(3)
        one.train_step(batch)
    assert torch.equal(drawn[0], drawn[2]) and torch.equal(drawn[1], drawn[3])
    assert not torch.equal(drawn[0], drawn[1])
    assert drawn[0].std() == pytest.approx(1, abs=0.2)


def test_updates_are_clipped(tmp_path: Path) -> None:
    plain = {"name": "momentum", "learning_rate": 1.0, "momentum": 0.0, "clip_norm": 1e-3}
    one = trainer(tmp_path, optimizer=plain, schedule={"name": "cosine"})
    before = [value.detach().clone() for value in one.model.parameters()]
    one.train_step(next(one.batches()))
    moved = sum(
        float((new.detach() - old).square().sum())
        for new, old in zip(one.model.parameters(), before, strict=True)
    )
    assert moved**0.5 == pytest.approx(1e-3, rel=1e-3)


def test_mixup_reaches_the_loss(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"objective": "balanced", "schedule__warmup_steps": 0}
    losses = []
    for strength in (0.0, 5.0):
        one = trainer(tmp_path, mixup=strength, **settings)
        batch = next(one.batches())
        # The head starts at zero, so the first loss is that of any input.
        losses.append([one.train_step(batch)["main_loss"].item() for _ in range(2)])
    assert losses[0][0] == losses[1][0] == pytest.approx(math.log(3))
    assert losses[0][1] != losses[1][1]


def test_mixup_is_told_of_the_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    def spy(images: torch.Tensor, targets: torch.Tensor, *, num_views: int, **_: Any) -> Any:
        told.append(num_views)
        return images, targets

    monkeypatch.setattr(tasks, "mixup", spy)
    for num_views in (1, 2):
        one = trainer(tmp_path, mixup=0.2, objective="balanced", views_per_image=num_views)
        one.train_step(next(one.batches()))
    assert told == [1, 2]


def test_a_balanced_run_can_mix_pairs_and_a_pair_objective_cannot(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'prc' compares patches of one image: set mixup to 0"):
        trainer(tmp_path, mixup=0.2)
    with pytest.raises(UserError, match="set views_per_image to 2"):
        trainer(tmp_path, views_per_image=1)
    trainer(tmp_path, mixup=0.2, objective="balanced")


def test_bfloat16_leaves_the_router_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    original = Prc.terms

    def terms(self: Prc, decisions: Any, views: Any) -> Any:
        for decision in decisions.values():
            seen.extend((decision.logits.dtype, decision.gates.dtype, decision.clean_gates.dtype))
        return original(self, decisions, views)

    monkeypatch.setattr(Prc, "terms", terms)
    losses: dict[bool, float] = {}
    dtypes: dict[bool, torch.dtype] = {}
    for amp in (False, True):
        one = trainer(tmp_path, amp=amp)
        one.model.blocks[0].mlp.fc1.register_forward_hook(
            lambda _m, _i, out, amp=amp: dtypes.__setitem__(amp, out.dtype)
        )
        losses[amp] = one.train_step(next(one.batches()))["loss"].item()
    assert set(seen) == {torch.float32}
    assert dtypes == {False: torch.float32, True: torch.bfloat16}
    assert losses[True] != losses[False]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compiled_runs_are_the_same_runs(tmp_path: Path) -> None:
    """But for rounding: without dropout, whose random numbers are the compiler's own."""
    metrics = {}
    for compiled in (False, True):
        folder = tmp_path / str(compiled)
        one = trainer(folder, compile=compiled, model__expert_dropout=0.0, steps=4, evaluate_every=2)
        one.run()
        metrics[compiled] = pd.read_csv(folder / "metrics.csv")
        load(folder)
    pd.testing.assert_frame_equal(metrics[True], metrics[False], rtol=1e-3)


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    for changes, sentence in [
        ({"num": 7}, "7 images, fewer than one batch of 8"),
        ({"num_val": 0}, "validation split of noise has no images"),
        ({"batch_size": 5}, "5 images x 2 views cannot be cut into groups of 4"),
        ({"model__num_classes": 4}, "3 classes and model.num_classes is 4"),
        ({"objective__wieght": 1}, "called 'wieght'"),
        ({"objective__diagonal_weight": -1}, "objective.diagonal_weight must be a number from 0; got -1"),
        ({"objective": "prk"}, "Did you mean 'prc'"),
        ({"schedule__warmup_steps": 12}, "warm-up of 12 steps does not fit a run of 12"),
        ({"initialise": "nowhere"}, "no checkpoint 'nowhere'"),
        ({"model__capacity_factor": 0}, "leaves no room"),
    ]:
        with pytest.raises(UserError, match=sentence):
            trainer(tmp_path, **changes).run()  # type: ignore[arg-type]


def test_splits_of_different_classes_are_refused() -> None:
    train, val = Noise(), Noise(split="val")
    val.class_names = ("dark", "light", "gray")
    with pytest.raises(UserError, match="name different classes"):
        start.check_data(tiny_config(), train, val)
    val.class_names = None
    with pytest.raises(UserError, match="no labels"):
        start.check_data(tiny_config(), train, val)


@pytest.mark.parametrize("num_val", [1, 3, 6, 11])
def test_validation_with_a_capacity_takes_any_number_of_images(tmp_path: Path, num_val: int) -> None:
    """Groups of 4 with room for the deployed capacity; what is left over at the end is one group."""
    one = trainer(tmp_path, num_val=num_val, evaluate_every=12)
    sizes: set[int] = set()

    def look(_module: Any, inputs: Any) -> None:
        if not one.model.training:
            sizes.add(tuple(inputs[0].shape)[1])

    moe_layers(one.model)["blocks.1"].router.register_forward_pre_hook(look)
    one.run()
    tokens = 5  # 4 patches and the class token
    left = num_val % 4
    assert sizes == ({4 * tokens} if num_val >= 4 else set()) | ({left * tokens} if left else set())


def test_validation_does_not_depend_on_its_batch_size(tmp_path: Path) -> None:
    found = []
    for size in (1, 4, 7, 100):
        trainer(tmp_path / str(size), eval_batch_size=size, steps=4).run()
        found.append(pd.read_csv(tmp_path / str(size) / "metrics.csv")[["val_accuracy", "val_loss"]])
    for other in found[1:]:
        pd.testing.assert_frame_equal(other, found[0], rtol=1e-5)
