"""Where the images of a run are cut: into blocks, batches of each block, and shards of whole batches.

A shard never cuts a batch, so its forward passes are those that one process does, down to their rounding; and a batch
is made of whole groups, so that images which compete for a capacity stay together.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moeprobe.declarations.options import Options
from moeprobe.declarations.question import Question
from moeprobe.errors import UserError, option


@dataclass(frozen=True, order=True)
class Shard:
    """One of ``of`` parts of a run; ``number`` counts from 1."""

    of: int
    number: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def read(cls, text: str) -> "Shard":
        """Return the shard that is called ``2/8``.

        Raises:
            UserError: it is called otherwise, or there is no such shard.
        """
        match = re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,8})", text)
        if match is None or int(match[1]) > int(match[2]):
            raise UserError(
                f"{option('shard')} is NUMBER/OF, counted from 1, e.g. 2/8 for the second of eight; got {text!r}."
            )
        return cls(of=int(match[2]), number=int(match[1]))


@dataclass(frozen=True)
class ImageRange:
    """Images ``start`` to ``stop`` of a run's list, all of one block; blocks are counted from 0."""

    block: int
    start: int
    stop: int


@dataclass(frozen=True)
class BlockSizes:
    """Images of a block, which part files hold, and of a batch; each block begins with a batch of its own."""

    block: int
    batch: int

    @classmethod
    def of_groups(cls, group: int, *, block: int, batch: int) -> "BlockSizes":
        """Return the largest sizes of whole groups up to these, or of one group."""
        return cls(max(block // group, 1) * group, max(batch // group, 1) * group)


def image_ranges(count: int, sizes: BlockSizes, shard: Shard | None = None) -> Iterator[ImageRange]:
    """Yield the images to run, block by block: of all ``count`` images, or of a shard's part of them."""
    block, batch = sizes.block, sizes.batch
    first, last = 0, count
    if shard is not None:
        blocks = ((begun, min(begun + block, count)) for begun in range(0, count, block))
        starts = [at for begun, end in blocks for at in range(begun, end, batch)]
        starts.append(count)
        batches = len(starts) - 1
        first = starts[batches * (shard.number - 1) // shard.of]
        last = starts[batches * shard.number // shard.of]
    for number, begun in enumerate(range(0, count, block)):
        start, stop = max(begun, first), min(begun + block, last)
        if start < stop:
            yield ImageRange(number, start, stop)


def shard_note(sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the sidecar of a merged run says of a shard."""
    keys = ("shard", "run", "images", "images_per_second", "wall_seconds", "device", "workers")
    return {key: sidecar[key] for key in keys if key in sidecar}


def check_splits(probe: Question[Any]) -> None:
    """Raise ``UserError`` unless a probe can be measured in shards."""
    if not probe.splits:
        raise UserError(
            f"{probe.name} is done by one process: its files are not put together of parts; leave "
            f"{option('shard')} out."
        )


def check_batches(options: Options) -> None:
    """Raise ``UserError`` where shards, which are cut at batches, might be measured with batches of other sizes."""
    if options.retry:
        raise UserError(
            f"All parts of a run need batches of one size; leave {option('retry')} out, and give a "
            f"{option('batch_size')} that fits."
        )
