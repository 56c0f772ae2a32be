"""The order of the images of a run, and the one loader that they come from."""

from typing import Any

import numpy as np
import pytest
import torch

from moeprobe.inputs import batches as loading
from moeprobe.inputs.images import Framing
from moeprobe.inputs.views.random_crop import RandomCrop
from moeprobe.models.training.loop import _Order, training_batches
from moeprobe.models.training.tasks import training_views
from moeprobe.runtime.seeds import generator
from tests.models.training.tiny import Noise, tiny_config

SIZE, PER_EPOCH, NUM = 8, 5, 44
VIEW, FRAMING = RandomCrop(), Framing(16)


def loaded(first: int, last: int, part: tuple[int, int] = (0, 1), **settings: Any) -> list[Any]:
    config, steps = tiny_config(**settings), range(first, last)
    return list(
        training_batches(config, Noise(num=NUM), VIEW, FRAMING, steps=steps, part=part, pin_memory=False)
    )


def order(epoch: int) -> list[str]:
    """The images of an epoch: the last 4 of its permutation fill no batch."""
    drawn = generator(0, "order", draw=epoch).permutation(NUM)
    return [f"train/{number}" for number in drawn[: SIZE * PER_EPOCH]]


@pytest.mark.parametrize(("first", "last"), [(0, 12), (3, 12), (5, 7), (7, 12)])
def test_epochs_follow_one_another_from_any_step(first: int, last: int) -> None:
    made = loaded(first, last)
    everything = order(0) + order(1) + order(2)
    assert [name for batch in made for name in batch.image_ids] == everything[first * SIZE : last * SIZE]


@pytest.mark.parametrize("of", [2, 4])
def test_parts_of_a_step_are_its_batch(of: int) -> None:
    """Images and views of all parts, one after the other, are those of the whole batch."""
    parts = [loaded(3, 8, part=(number, of)) for number in range(of)]
    for whole, *shared in zip(loaded(3, 8), *parts, strict=True):
        assert [name for one in shared for name in one.image_ids] == whole.image_ids
        for number, view in enumerate(whole.views):
            assert view.equal(torch.cat([one.views[number] for one in shared]))


def test_views_belong_to_the_epoch() -> None:
    data = Noise(num=NUM)
    for number, batch in enumerate(loaded(4, 6), start=4):
        example = data.example(data.image_ids.index(batch.image_ids[0]))
        views = training_views(
            example.image, example.image_id, view=VIEW, framing=FRAMING, seed=0, epoch=number // 5, count=2
        )
        for view, to_source, pixels in zip(views, batch.to_source, batch.views, strict=True):
            np.testing.assert_array_equal(view.to_source, to_source[0])
            assert view.pixels.equal(pixels[0])


def test_processes_start_once_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    kind = loading.DataLoader

    def counted(*args: Any, **kwargs: Any) -> Any:
        started.append(kwargs["num_workers"])
        return kind(*args, **kwargs)

    monkeypatch.setattr(loading, "DataLoader", counted)
    alone, shared = loaded(2, 12), loaded(2, 12, data={"name": "noise", "workers": 2})
    assert started == [0, 2]
    for one, other in zip(alone, shared, strict=True):
        assert one.image_ids == other.image_ids
        assert all(a.equal(b) for a, b in zip(one.views, other.views, strict=True))


def test_a_long_run_is_not_held_in_memory() -> None:
    places = _Order(0, NUM, SIZE, steps=range(10**12), part=(0, 1))
    assert len(places) == 8 * 10**12
    assert places[0] == generator(0, "order", draw=0).permutation(NUM)[0]
    assert places[len(places) - 1] == generator(0, "order", draw=10**12 // 5 - 1).permutation(NUM)[39]
