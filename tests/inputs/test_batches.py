"""Batches: the same views for any batch size and worker count, cut at groups; a bad image is one sentence."""

import numpy as np
import pytest
import torch
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.batches import Batch, Loading, batches, batches_of_recipes
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.inputs.images import Sample, to_tensor
from moeprobe.runtime.seeds import generator

BAD = {4, 9}


class Pictures(ImageDataset):
    """Twelve pictures of different sizes, some of which cannot be read."""

    def __init__(
        self, *, split: str = "test", location: str | None = None, bad: frozenset[int] = frozenset()
    ) -> None:
        self.image_ids = [f"p/{index}" for index in range(12)]
        self.class_names = ("a", "b")
        self.bad = bad

    def example(self, index: int) -> Example:
        if index in self.bad:
            raise UserError(f"Cannot read p/{index}.")
        return Example(
            Image.new("RGB", (10 + index, 20)), self.image_ids[index], label=None if index == 3 else 1
        )


def recipe(image: Image.Image, image_id: str) -> list[Sample]:
    noise = generator(0, "test", image_id).random((8, 8, 3)) * 255
    drawn = Image.fromarray(noise.astype(np.uint8))
    return [Sample(to_tensor(drawn), np.eye(3) * image.width), Sample(to_tensor(drawn), np.eye(3))]


def unwilling(image: Image.Image, image_id: str) -> list[Sample]:
    raise UserError("A severity must be positive.")


def made(
    *,
    batch_size: int,
    workers: int = 0,
    bad: frozenset[int] = frozenset(),
    skip: bool = False,
    group_images: int = 1,
) -> list[Batch]:
    order = [3, 0, 1, 2, 4, 5, 6, 7, 8, 9, 11]
    loading = Loading(batch_size, workers)
    return list(
        batches(
            Pictures(bad=bad), order, recipe, loading=loading, skip_bad_images=skip, group_images=group_images
        )
    )


def joined(found: list[Batch]) -> list[tuple[object, ...]]:
    return [
        (
            name,
            int(batch.labels[row]),
            [view[row].numpy().tobytes() for view in batch.views],
            [maps[row].tobytes() for maps in batch.to_source],
            batch.source_size[row].tolist(),
        )
        for batch in found
        for row, name in enumerate(batch.image_ids)
    ]


def test_any_batch_size_and_worker_count_gives_the_same_views() -> None:
    one = joined(made(batch_size=1))
    assert [item[0] for item in one] == [f"p/{i}" for i in (3, 0, 1, 2, 4, 5, 6, 7, 8, 9, 11)]
    assert one[0][1] == -1 and one[1][1] == 1
    assert one[1][4] == [10, 20]
    assert joined(made(batch_size=4)) == joined(made(batch_size=64)) == one
    assert joined(made(batch_size=3, workers=2)) == one


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_image_is_one_sentence_or_skipped(workers: int) -> None:
    with pytest.raises(UserError) as error:
        made(bad=frozenset(BAD), batch_size=4, workers=workers)
    assert str(error.value) == "Cannot read p/4."
    found = made(bad=frozenset(BAD), skip=True, batch_size=4, workers=workers)
    assert sorted(name for batch in found for name in batch.skipped) == ["p/4", "p/9"]
    assert len(joined(found)) == 9


@pytest.mark.parametrize("workers", [0, 1])
def test_a_view_that_refuses_is_one_sentence_too(workers: int) -> None:
    for skip in (False, True):
        with pytest.raises(UserError) as error:
            list(batches(Pictures(), [0], unwilling, loading=Loading(4, workers), skip_bad_images=skip))
        assert str(error.value) == "A severity must be positive."


def test_only_bad_images_make_a_batch_of_none() -> None:
    found = made(bad=frozenset(range(12)), skip=True, batch_size=64)
    assert [(batch.image_ids, batch.views, len(batch.skipped)) for batch in found] == [([], [], 11)]


@pytest.mark.parametrize("batch_size", [1, 3, 4, 7, 64])
@pytest.mark.parametrize("group_images", [1, 2, 3, 4, 20])
def test_groups_belong_to_the_list(batch_size: int, group_images: int) -> None:
    found = made(bad=frozenset(BAD), skip=True, batch_size=batch_size, group_images=group_images)
    order = [3, 0, 1, 2, 4, 5, 6, 7, 8, 9, 11]
    cut = [order[start : start + group_images] for start in range(0, len(order), group_images)]
    expected = [[f"p/{i}" for i in group if i not in BAD] for group in cut]
    groups = []
    for batch in found:
        # What the model does with a batch: one group if it is smaller than a group, else whole groups.
        assert len(batch.image_ids) % group_images == 0 or len(batch.image_ids) < group_images
        size = min(group_images, len(batch.image_ids)) or 1
        groups += [batch.image_ids[start : start + size] for start in range(0, len(batch.image_ids), size)]
        assert len(batch.image_ids) <= max(batch_size, group_images)
    assert groups == [group for group in expected if group]
    assert sorted(name for batch in found for name in batch.skipped) == ["p/4", "p/9"]


def test_short_groups_stand_alone() -> None:
    found = made(bad=frozenset({4}), skip=True, batch_size=8, group_images=2)
    assert [len(batch.image_ids) for batch in found] == [4, 1, 2, 2, 1]
    assert all(torch.equal(batch.views[0], batch.views[1]) for batch in found)


@pytest.mark.parametrize("group_images", [1, 3])
def test_several_recipes_see_the_same_batches_and_read_each_image_once(
    monkeypatch: pytest.MonkeyPatch, group_images: int
) -> None:
    calls, read = [], Pictures.example

    def counted(self: Pictures, index: int) -> Example:
        calls.append(index)
        return read(self, index)

    monkeypatch.setattr(Pictures, "example", counted)
    order, bad = range(12), frozenset(BAD)
    found: list[list[Batch]] = [[], []]
    numbers = []
    for number, batch in batches_of_recipes(
        Pictures(bad=bad),
        order,
        [recipe, lambda image, name: recipe(image, name)[::-1]],
        loading=Loading(6),
        skip_bad_images=True,
        group_images=group_images,
    ):
        found[number].append(batch)
        numbers.append(number)
    assert sorted(set(numbers[: len(numbers) // 2])) == [0, 1] and sorted(calls) == sorted([*order, *BAD])
    first, second = found
    assert [batch.image_ids for batch in first] == [batch.image_ids for batch in second]
    assert all(torch.equal(a.views[0], b.views[1]) for a, b in zip(first, second, strict=True))
