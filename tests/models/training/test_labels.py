"""Training with few labels: which images keep theirs, and what the losses are taken over."""

from pathlib import Path

import numpy as np
import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.inputs.data.digits import Digits
from moeprobe.models import grid
from moeprobe.models.config import load
from moeprobe.models.training.objectives.base import BatchViews
from moeprobe.models.training.start import PartlyLabeled, choose_labeled
from moeprobe.studies.train import make_trainer

TINY = [
    "model.image_size=16", "model.width=16", "model.depth=2", "model.num_heads=2", "model.hidden_width=16",
    "model.layers=every-2", "batch_size=16", "steps=2", "schedule.warmup_steps=0",
]  # fmt: skip


def test_the_same_share_of_each_class_keeps_its_labels() -> None:
    data = Digits(split="train")
    labels = data.labels()
    small, large = (choose_labeled(labels, share, seed=3) for share in (0.05, 0.25))
    for label in range(10):
        there = int((labels == label).sum())
        assert int((labels[small] == label).sum()) == int(there * 0.05 + 0.5)
        assert int((labels[large] == label).sum()) == int(there * 0.25 + 0.5)
    assert set(small) <= set(large) and (np.diff(small) > 0).all()
    assert set(small) != set(choose_labeled(labels, 0.05, seed=4))
    np.testing.assert_array_equal(small, choose_labeled(labels, 0.05, seed=3))
    # Of a class with few images one has a label; images without one have none to keep.
    few = np.array([0, 0, 0, 1, -1, -1])
    assert [int(few[one]) for one in choose_labeled(few, 0.1, seed=0)] == [0, 1]


@pytest.mark.parametrize("unlabeled", [True, False])
def test_the_others_are_there_without_labels_or_not_at_all(unlabeled: bool) -> None:
    data = Digits(split="train")
    labeled = np.array([2, 5, 7])
    some = PartlyLabeled(data, labeled, unlabeled=unlabeled)
    kept = list(range(len(data))) if unlabeled else [2, 5, 7]
    assert list(some.image_ids) == [data.image_ids[number] for number in kept] and not some.flippable
    for place, number in enumerate(kept[:10]):
        example, whole = some.example(place), data.example(number)
        assert example.label == (whole.label if number in labeled else None)
        assert example.image_id == whole.image_id and example.image.tobytes() == whole.image.tobytes()
        assert some.labels()[place] == (-1 if example.label is None else example.label)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_supervised_over_labeled_rows_and_prc_over_all_by_a_loop(loss: str, tmp_path: Path) -> None:
    trainer = make_trainer(
        load("digits-prc", [*TINY, "data.labeled=0.3", f"loss={loss}"]), folder=tmp_path, device="cpu"
    )
    seen = {}

    measure = trainer.task.measure

    def spied(rows: tuple[torch.Tensor, ...], views: BatchViews) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            seen["logits"], seen["labels"] = trainer.model(rows[0]).double().numpy(), rows[1].numpy()
        return measure(rows, views)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.task, "measure", spied)
        batch = next(iter(trainer.batches()))
        trainer.model.eval()
        values = trainer.train_step(batch)
    labels = seen["labels"]
    known = [row for row in range(len(labels)) if labels[row] >= 0]
    assert 0 < len(known) < len(labels) == 32
    losses, hits = [], 0
    for row in known:
        scores = seen["logits"][row]
        target = np.eye(10)[labels[row]]
        if loss == "softmax":
            losses.append(-np.log(np.exp(scores)[labels[row]] / np.exp(scores).sum()))
        else:
            share = 1 / (1 + np.exp(-scores))
            losses.append(-(target * np.log(share) + (1 - target) * np.log(1 - share)).sum())
        hits += int(scores.argmax() == labels[row])
    assert float(values["main_loss"]) == pytest.approx(np.mean(losses), rel=1e-5)
    assert float(values["accuracy"]) == pytest.approx(hits / len(known))
    total = values["main_loss"] + 0.05 * values["prc_diagonal"] + 0.5 * values["prc_offdiagonal"]
    assert float(values["loss"]) == pytest.approx(float(total))
    # PRC is that of all rows: the same where nothing is labeled at all.
    trainer = make_trainer(load("digits-prc", [*TINY, f"loss={loss}"]), folder=tmp_path, device="cpu")
    trainer.model.eval()
    all_labeled = trainer.train_step(next(iter(trainer.batches())))
    for name in ("prc_diagonal", "prc_offdiagonal"):
        assert float(values[name]) == pytest.approx(float(all_labeled[name]), rel=1e-6)


def test_a_batch_without_any_label_adds_nothing_but_prc(tmp_path: Path) -> None:
    trainer = make_trainer(load("digits-prc", [*TINY, "data.labeled=0.01"]), folder=tmp_path, device="cpu")
    batch = next(iter(trainer.batches()))
    batch.labels[:] = -1
    values = trainer.train_step(batch)
    assert float(values["main_loss"]) == 0 and float(values["loss"]) > 0
    assert all(bool(torch.isfinite(one).all()) for one in trainer.model.parameters())


def test_labels_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match=r"set mixup to 0"):
        load("digits-baseline", ["data.labeled=0.1", "mixup=0.2"])
    with pytest.raises(UserError, match=r"data\.unlabeled"):
        load("digits-baseline", ["data.unlabeled=false"])
    with pytest.raises(UserError, match="labeled"):
        load("digits-baseline", ["data.labeled=1.5"])


def test_the_sweep_has_three_ways_at_three_shares() -> None:
    cells = grid.load("labels-digits").cells
    assert len(cells) == 27
    ways = {(cell.objective.name, cell.data.unlabeled) for cell in cells}
    assert ways == {("balanced", False), ("prc", False), ("prc", True)}
    assert {cell.data.labeled for cell in cells} == {0.05, 0.1, 0.25}
    assert len({(cell.steps, cell.batch_size) for cell in cells}) == 1
