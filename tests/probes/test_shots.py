"""Which training images are shown, and what planted features come to."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.inputs.images import Framing
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses.fewshot import FewshotAnalysis
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.fewshot import ridge
from moeprobe.probes.fewshot.measure import HELD_OUT, Shots, choose_shots, judge
from moeprobe.results.stored import concat
from moeprobe.results.summaries import About
from moeprobe.routing.capabilities import Featured
from moeprobe.routing.record import RoutingTrace
from tests.results.stores import cells

# Intervals are asserted.
pytestmark = pytest.mark.resamples


CLASSES = ("ant", "bee", "cat")
ABOUT = About("r", "made up", "test", 0, aligned=False, train_seeds={}, groups={})
SIZE = 8


class MadeUp(ImageDataset):
    """Noise; the first pixel tells the class, and no other one does."""

    def __init__(
        self,
        labels: NDArray[np.int64],
        *,
        split: str = "train",
        location: str | None = None,
        bad: Sequence[int] = (),
    ) -> None:
        self.own, self.bad = labels, bad
        self.image_ids = [f"{split}/{index:04d}" for index in range(len(labels))]
        self.class_names = CLASSES

    def example(self, index: int) -> Example:
        if index in self.bad:
            raise UserError(f"Cannot read {self.image_ids[index]}.")
        number = int(self.image_ids[index].split("/")[1]) + (
            0 if self.image_ids[index].startswith("train") else 10**6
        )
        pixels = np.random.default_rng(number).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
        pixels[0, 0] = 40 * self.own[index]
        return Example(Image.fromarray(pixels), self.image_ids[index], label=int(self.own[index]))


def split(per_class: int, name: str, **more: Any) -> MadeUp:
    return MadeUp(np.arange(per_class * len(CLASSES)) % len(CLASSES), split=name, **more)


class Reader:
    """A model whose features are read off the pixels."""

    layer_names: tuple[str, ...] = ("blocks.1",)
    group_images = 1

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        self.read, self.seen = read, 0

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        raise AssertionError("features need no trace")

    def features(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return self.read(images)


def planted(images: Tensor) -> Tensor:
    """Two features of the class among some of noise."""
    own = images[:, :1, 0, 0]
    return torch.cat([own, (own - 0.16).abs(), images[:, 0, 4, :4]], dim=1)


def noise(images: Tensor) -> Tensor:
    return images[:, 0, 4:].flatten(1)


def reader(read: Callable[[Tensor], Tensor], name: str = "a") -> Checkpoint:
    return Checkpoint(
        name,
        Reader(read),
        Framing(SIZE),
        provenance={"sha256": f"hash of {name}", "training": {"data": "digits"}},
    )


def asked(dataset: ImageDataset, **changes: Any) -> RunSpec:
    fields: dict[str, Any] = {
        "dataset": dataset, "indices": list(range(len(dataset))), "view_name": "clean", "view": None,
        "severities": (), "analyses": (FewshotAnalysis(),), "seed": 0, "batch_size": 32,
    }  # fmt: skip
    return RunSpec(**(fields | changes))


def chosen(train: ImageDataset, counts: Sequence[int] = (5,), draws: int = 3, seed: int = 0) -> Shots:
    return choose_shots(train, counts=counts, draws=draws, seed=seed, data="made up")


def names(shots: Shots, images: NDArray[np.int64]) -> list[str]:
    return [shots.train.image_ids[index] for index in images.ravel().tolist()]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(2, 30)] * len(CLASSES)),
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True),
    draws=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_shots_are_of_their_class_nested_and_apart_from_what_is_held_out(
    sizes: tuple[int, ...], counts: list[int], draws: int, seed: int
) -> None:
    labels = np.repeat(np.arange(len(CLASSES)), sizes)
    train = MadeUp(labels)
    if min(sizes) < max(counts) or (min(sizes) == max(counts) and min(counts) == 1):
        with pytest.raises(UserError, match=r"The class '(ant|bee|cat)' has"):
            chosen(train, counts, draws, seed)
        return
    shots = chosen(train, counts, draws, seed)
    assert shots.drawn.shape == (draws, len(CLASSES), max(counts))
    assert shots.held_out.shape == (len(CLASSES), min(HELD_OUT, min(sizes) - max(counts)))
    for count, draw in shots.cases:
        shown = shots.images_of(count, draw)
        assert len(set(shown)) == len(shown)
        assert np.bincount(labels[shown]).tolist() == [count] * len(CLASSES)
        assert not set(shown) & set(shots.held_out.ravel())
        assert set(shown) <= set(shots.images_of(max(counts), draw))
    assert (labels[shots.held_out] == np.arange(len(CLASSES))[:, None]).all()
    assert set(shots.indices) == set(shots.drawn.ravel()) | set(shots.held_out.ravel())
    assert len(set(shots.indices)) == len(shots.indices)


def test_draws_belong_to_the_seed_and_the_names_not_to_the_order_on_disk() -> None:
    train = split(30, "train")
    turned = MadeUp(train.own[::-1])
    turned.image_ids = train.image_ids[::-1]
    one, other = chosen(train), chosen(turned)
    assert names(one, one.drawn) == names(other, other.drawn)
    assert names(one, one.held_out) == names(other, other.held_out)
    run = [names(shots, np.array(shots.indices)) for shots in (one, other)]
    assert run[0] == run[1] != sorted(run[0])
    assert not np.array_equal(one.drawn[0], one.drawn[1]), "two draws are one"
    assert not np.array_equal(one.drawn, chosen(train, seed=1).drawn)
    # What else is asked for changes nothing.
    more = chosen(train, counts=(1, 5, 10), draws=4)
    assert np.array_equal(more.images_of(5, 2), chosen(train, counts=(5, 10)).images_of(5, 2))
    assert np.array_equal(more.images_of(5, 2), one.images_of(5, 2))


def test_images_without_a_label_are_never_shown() -> None:
    labels = np.arange(90) % 3
    labels[::5] = -1
    shots = chosen(MadeUp(labels))
    assert (labels[shots.indices] >= 0).all()


@pytest.mark.parametrize(
    ("sizes", "counts", "said"),
    [
        (
            (9, 4, 9),
            (1, 5),
            r"'bee' has 4 images in made up train, fewer than the 5 shots.*at most shots=4\.",
        ),
        (
            (9, 0, 9),
            (5,),
            r"'bee' has 0 images in made up train, fewer than the 5 shots requested; give it some\.",
        ),
        ((9, 9, 5), (1, 5), r"'cat' has 5 images .* none remains .* at most shots=4\."),
        ((1, 9, 5), (1,), r"'ant' has 1 image in .* give it a second one\."),
    ],
)
def test_a_class_with_too_few_images_is_one_sentence(
    sizes: tuple[int, ...], counts: tuple[int, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        chosen(MadeUp(np.repeat(np.arange(3), sizes)), counts)


def table_of(images: pa.Table) -> pd.DataFrame:
    return summarize(images, analyses=(FewshotAnalysis(),), run_info=ABOUT)[0]


def test_a_planted_feature_is_found_by_five_shots() -> None:
    table = table_of(judge(asked(split(40, "test")), reader(planted), shots=chosen(split(40, "train")))[0])
    accuracy = table[table["metric"] == "fewshot_accuracy"]
    assert (accuracy["value"] == 1).all() and (accuracy["ci_low"] > 0.9).all()
    assert (table[table["metric"] == "fewshot_accuracy_kappa"]["value"] == 1).all()
    # All draws together, then each.
    assert accuracy["draw"].fillna(0).tolist() == [0, 1, 2, 3]
    assert accuracy["trials"].tolist() == [360, 120, 120, 120] and (accuracy["images"] == 120).all()


def test_features_that_know_nothing_reach_chance() -> None:
    shots = chosen(split(60, "train"), counts=(1, 10), draws=5)
    table = table_of(judge(asked(split(200, "test")), reader(noise), shots=shots)[0])
    together = table[table["draw"].isna()].set_index(["severity", "metric"])
    for count in (1.0, 10.0):
        accuracy, chance, kappa = (
            together.loc[(count, f"fewshot_accuracy{what}")] for what in ("", "_chance", "_kappa")
        )
        assert accuracy["ci_low"] < 1 / 3 < accuracy["ci_high"]
        assert accuracy["ci_high"] - accuracy["ci_low"] < 0.1
        assert kappa["ci_low"] < 0 < kappa["ci_high"]
        assert chance["ci_low"] < chance["value"] < chance["ci_high"]
        # Classes are even: another image is of the same class 199 times in 599.
        assert chance["value"] == pytest.approx(199 / 599, abs=0.002)


def test_a_draw_by_plain_loops() -> None:
    """Features, regression, choice of the strength and accuracy without any of the library's own."""
    train, test = split(25, "train"), split(20, "test")
    shots = chosen(train, counts=(4,), draws=2)
    table, _, strengths = judge(asked(test), reader(lambda images: images[:, 0, :3].flatten(1)), shots=shots)

    def read(data: MadeUp, images: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        pixels = [np.asarray(data.example(i).image, dtype=np.float64)[:3, :, 0] / 255 for i in images]
        return np.array(pixels).reshape(len(images), -1), data.own[list(images)]

    for draw in (1, 2):
        shown, classes = read(train, shots.images_of(4, draw).tolist())
        mean, scale = shown.mean(0), shown.std(0) + 1e-5

        def scores(
            features: np.ndarray,
            strength: float,
            *,
            shown: np.ndarray = shown,
            classes: np.ndarray = classes,
            mean: np.ndarray = mean,
            scale: np.ndarray = scale,
        ) -> np.ndarray:
            one, other = (
                np.hstack([(side - mean) / scale, np.full((len(side), 1), 100.0)])
                for side in (shown, features)
            )
            wanted = 2.0 * (classes[:, None] == np.arange(3)) - 1
            return other @ np.linalg.solve(one.T @ one + strength * np.eye(one.shape[1]), one.T @ wanted)

        held_out, own = read(train, shots.held_out.ravel().tolist())
        ranked = []
        for strength in ridge.STRENGTHS:
            found = scores(held_out, strength)
            error = ((found - (2.0 * (own[:, None] == np.arange(3)) - 1)) ** 2).mean()
            ranked.append(((found.argmax(1) == own).mean(), -error, strength))
        assert strengths[4, draw] == max(ranked)[2]
        features, labels = read(test, range(len(test)))
        right = scores(features, strengths[4, draw]).argmax(1) == labels
        (columns,) = (c for _, cell, _, c in cells(table) if cell.draw == draw)
        np.testing.assert_array_equal(columns["fewshot_accuracy"], right)


def test_without_an_image_to_spare_each_shot_is_left_out_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    shots = chosen(split(6, "train"), counts=(3, 6))
    assert shots.held_out.size == 0
    used: list[ridge.Ridge] = []
    real = ridge.Ridge.left_out

    def counted(self: ridge.Ridge) -> Iterator[tuple[float, NDArray[np.float64]]]:
        used.append(self)
        return real(self)

    monkeypatch.setattr(ridge.Ridge, "left_out", counted)
    table = table_of(judge(asked(split(40, "test")), reader(planted), shots=shots)[0])
    assert len(used) == 6
    assert table[table["metric"] == "fewshot_accuracy"]["value"].min() > 0.9


def test_only_needed_images_are_run_once_each_whatever_the_batch_size() -> None:
    shots, test = chosen(split(50, "train"), counts=(1, 5)), split(15, "test")
    found = []
    for changes in ({}, {"batch_size": 7}, {"workers": 2}):
        model = reader(planted)
        found.append(judge(asked(test, **changes), model, shots=shots)[0])
        assert isinstance(model.model, Reader) and model.model.seen == len(shots.indices) + len(test)
    assert len(shots.indices) <= 3 * (HELD_OUT + 3 * 5) < 150
    assert all(found[0].table().equals(other.table()) for other in found[1:])


def test_every_checkpoint_is_shown_the_same_images() -> None:
    shots, test = chosen(split(50, "train")), split(30, "test")
    seen: dict[str, list[bytes]] = {}

    def noted(name: str) -> Checkpoint:
        def read(images: Tensor) -> Tensor:
            seen.setdefault(name, []).extend(image.numpy().tobytes() for image in images)
            return planted(images)

        return reader(read, name)

    tables = [judge(asked(test), noted(name), shots=shots)[0] for name in "ab"]
    assert seen["a"] == seen["b"]
    _, comparison = summarize(concat(tables), analyses=(FewshotAnalysis(),), run_info=ABOUT)
    assert comparison is not None and len(comparison) == 3 * 4
    assert (comparison["value"] == 0).all() and (comparison["ci_low"] == -comparison["ci_high"]).all()


def test_parts_of_an_interrupted_run_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "BLOCK_IMAGES", 16)
    shots, test = chosen(split(30, "train")), split(20, "test")
    whole, again = reader(planted), reader(planted)
    assert isinstance(whole.model, Reader) and isinstance(again.model, Reader)
    first = judge(asked(test), whole, shots=shots, parts=tmp_path)[0]
    for path in sorted(tmp_path.glob("a-*.parquet"))[2:]:
        path.unlink()
    second = judge(asked(test), again, shots=shots, parts=tmp_path)[0]
    assert again.model.seen == len(test) - 32
    assert second.table().equals(first.table())


def test_images_that_cannot_be_read_are_skipped_where_they_are_judged_alone() -> None:
    shots = chosen(split(30, "train"))
    test = split(20, "test", bad=[3])
    _, skipped, _ = judge(asked(test, skip_bad_images=True), reader(planted), shots=shots)
    assert skipped == ["test/0003"]
    damaged = dataclasses.replace(shots, train=split(30, "train", bad=[shots.indices[0]]))
    with pytest.raises(UserError, match="Cannot read train/"):
        judge(asked(test, skip_bad_images=True), reader(planted), shots=damaged)


def test_unlabeled_images_are_no_trials() -> None:
    labels = np.arange(60) % 3
    labels[:9] = -1
    table = table_of(
        judge(asked(MadeUp(labels, split="test")), reader(planted), shots=chosen(split(30, "train")))[0]
    )
    assert set(table["images"]) == {51}


def test_features_that_are_no_numbers_are_one_sentence() -> None:
    assert isinstance(reader(noise).model, Featured)
    with pytest.raises(UserError, match="a gives features that are no numbers"):
        judge(
            asked(split(5, "test")), reader(lambda x: noise(x) * torch.nan), shots=chosen(split(30, "train"))
        )
