"""Which images a training takes, in which order: each epoch is a fresh permutation."""

from collections.abc import Iterator
from functools import partial

from moeprobe.inputs.batches import Batch, Loading, batches
from moeprobe.inputs.data.base import ImageDataset
from moeprobe.inputs.images import Framing
from moeprobe.inputs.views.base import PairView
from moeprobe.models.config import TrainConfig
from moeprobe.models.training.inputs import training_views
from moeprobe.runtime.seeds import generator


def epoch_batches(
    config: TrainConfig,
    data: ImageDataset,
    view: PairView,
    framing: Framing,
    *,
    first: int,
    last: int,
    pin_memory: bool,
) -> Iterator[Batch]:
    """Yield the batches of an epoch from step ``first`` on, up to step ``last`` of the run or the epoch's end.

    An incomplete last batch is dropped.
    """
    size, steps = config.batch_size, len(data) // config.batch_size
    epoch, offset = divmod(first, steps)
    order = generator(config.seed, "order", draw=epoch).permutation(len(data))
    count = min(steps - offset, last - first)
    recipe = partial(
        training_views,
        view=view,
        framing=framing,
        seed=config.seed,
        epoch=epoch,
        count=config.views_per_image,
    )
    yield from batches(
        data,
        order[offset * size : (offset + count) * size].tolist(),
        recipe,
        loading=Loading(size, config.data.workers, pin_memory=pin_memory),
    )
