"""How the inputs of recordings are divided among processes, and where each leaves its part of the sums.

The sums of a run are computed in parts of whole clusters, each in blocks of inputs. A shard is a sequence of whole
blocks that begins and ends between clusters, so one process would have the same blocks. What it measured of a part is
one file; the pieces of all shards, one after the other, are the part as one process has it.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from moeprobe.errors import option
from moeprobe.probes.engine.shard import Shard
from moeprobe.results.own_files import STRICT, not_as_written, validate
from moeprobe.results.stored import SumsStore, concat, of_file, write
from moeprobe.runtime.files import atomic_file, check_regular, read_json, write_json


class ShardFacts(BaseModel):
    """What a shard says of its sums: which parts it has, and how many tokens of each trace it left out."""

    model_config = STRICT

    parts: list[int]
    left_out: dict[str, list[int]] = {}


@dataclass
class Division:
    """What is measured here, and what other processes have measured.

    Attributes:
        shard: which inputs are measured here; None = all of them.
        parts: folder for what the shard measures.
        measured: the folders of all shards, whose sums take the place of measuring.
        inputs: how many inputs the shard has, as soon as it is measured.
    """

    shard: Shard | None = None
    parts: Path | None = None
    measured: Sequence[Path] = ()
    inputs: int = field(default=0, compare=False)

    def write(
        self, name: str, stores: Iterator[tuple[int, SumsStore]], left_out: Mapping[str, Sequence[int]]
    ) -> SumsStore:
        """Write the sums of the shard, and return them.

        Args:
            name: of the sums, where a run has several.
            stores: the number of each part with the sums that the shard has of it.
            left_out: of each trace, tokens of the first one and of it; filled while ``stores`` are computed.
        """
        assert self.parts is not None
        numbers = []
        for number, store in stores:
            write(_path(self.parts, name, number), store)
            numbers.append(number)
        facts = ShardFacts(
            parts=numbers, left_out={label: list(counts) for label, counts in left_out.items()}
        )
        write_json(self.parts / name / _FACTS, facts.model_dump())
        return concat(of_file(_path(self.parts, name, number)) for number in numbers)

    def write_arrays(self, arrays: Mapping[str, NDArray[np.integer[Any]]]) -> None:
        """Write what the shard has counted, by name."""
        assert self.parts is not None
        with atomic_file(self.parts / _ARRAYS) as temporary:
            save_file(dict(arrays), temporary)

    def add_arrays(self, arrays: Mapping[str, NDArray[np.integer[Any]]]) -> None:
        """Add what all shards have counted to arrays of zeros, by name.

        Raises:
            UserError: the file of a shard is missing or damaged.
        """
        for folder in self.measured:
            path = folder / _ARRAYS
            check_regular(path)
            mend = f"measure the shard again with {option('overwrite')}"
            try:
                counts = load_file(path)
            except SafetensorError as error:
                raise not_as_written(path, f"{error}", mend=mend) from None
            shapes = {name: (array.shape, array.dtype) for name, array in counts.items()}
            if shapes != {name: (array.shape, array.dtype) for name, array in arrays.items()}:
                raise not_as_written(path, "it counts other layers or experts", mend=mend)
            for name, array in arrays.items():
                np.add(array, counts[name], out=array)

    def facts(self, name: str) -> list[ShardFacts]:
        """Return what each shard says of its sums.

        Raises:
            UserError: a shard lacks them, or they are damaged.
        """
        return [_facts_of(folder, name) for folder in self.measured]

    def read(self, name: str, num_parts: int) -> Iterator[SumsStore]:
        """Yield the parts of the sums that the shards have measured together.

        Raises:
            UserError: a file of a shard is missing or damaged.
        """
        facts = self.facts(name)
        for number in range(num_parts):
            yield concat(
                of_file(_path(folder, name, number))
                for folder, of_shard in zip(self.measured, facts, strict=True)
                if number in of_shard.parts
            )


_FACTS, _ARRAYS = "facts.json", "counts.safetensors"


def _path(folder: Path, name: str, number: int) -> Path:
    return folder / name / f"{number:05d}.parquet"


def _facts_of(folder: Path, name: str) -> ShardFacts:
    path = folder / name / _FACTS
    content: Any = read_json(path)
    validate(ShardFacts, content, path, mend=f"measure the shard again with {option('overwrite')}")
    return ShardFacts(**content)


def share_of(starts: Sequence[int], count: int, shard: Shard) -> tuple[int, int]:
    """Return the first input of a shard, and the one after its last.

    Args:
        starts: where a shard may begin, in order, the first being 0.
        count: of all inputs.
        shard: which one.
    """
    bounds = [*starts, count]
    first, last = (len(starts) * number // shard.of for number in (shard.number - 1, shard.number))
    return bounds[first], bounds[last]


def blocks_of(parts: Sequence[tuple[int, int]], size: int) -> list[int]:
    """Return where blocks of a size begin in parts of the inputs."""
    return list(itertools.chain.from_iterable(range(start, stop, size) for start, stop in parts))
