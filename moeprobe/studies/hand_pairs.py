"""Pairs of checkpoints given by hand, ``REFERENCE=CHECKPOINT``, in the place of pairs found by seed and group.

A side is a checkpoint, a finished run of one checkpoint, or the name of a checkpoint in a run that is given beside.
Where a folder has such a name too, the run's checkpoint is meant; ``./NAME`` is the folder.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moeprobe.errors import UserError
from moeprobe.runtime.catalog import did_you_mean, is_foreign
from moeprobe.runtime.files import is_there

if TYPE_CHECKING:
    from moeprobe.adapters.base import Model

# Reference and checkpoint, as tables with two sides have them.
HandPair = tuple[str, str]


def read_pairs(arguments: Sequence[str]) -> tuple[list[str], list[HandPair]]:
    """Return what a command line names: checkpoints and runs, and the pairs that it makes of them.

    >>> from moeprobe.studies.hand_pairs import read_pairs
    >>> read_pairs(["hf:one=hf:other", "hf:third,top_k=4=hf:fourth"])[1]
    [('hf:one', 'hf:other'), ('hf:third,top_k=4', 'hf:fourth')]

    Args:
        arguments: checkpoints, runs, or ``REFERENCE=CHECKPOINT``.

    Raises:
        UserError: a side is empty, or stands in two pairs.
    """
    sources, pairs = [], []
    for argument in arguments:
        pair = _split(argument)
        if pair is None:
            sources.append(argument)
            continue
        if not all(pair):
            raise UserError(f"{argument} lacks a side; give a pair as REFERENCE=CHECKPOINT.")
        pairs.append(pair)
    _check_once(pairs)
    # A name is looked up in the runs that are given beside, first: checkpoints often lie beside the run of them.
    names = _names_in_runs(sources) if pairs else set()
    sides = [
        side for pair in pairs for side in pair if not sources or (side not in names and _can_be_opened(side))
    ]
    return [*sources, *(side for side in sides if side not in sources)], pairs


def _split(argument: str) -> HandPair | None:
    """Return the two sides of an argument; None where it is no pair.

    Settings of a checkpoint hold equals signs too: the sides are those that can be opened.
    """
    splits = [(argument[:index], argument[index + 1 :]) for index, sign in enumerate(argument) if sign == "="]
    if is_there(Path(argument)):
        return None
    openable = [pair for pair in splits if all(map(_can_be_opened, pair))]
    if openable:
        return openable[0]
    # Otherwise the whole is a checkpoint with settings, or a pair of names.
    return None if not splits or _can_be_opened(argument) else splits[0]


def _can_be_opened(side: str) -> bool:
    """Whether a side is a path or a model of a scheme, with settings after a comma or without."""
    path, *settings = side.split(",")
    if not all("=" in text for text in settings):
        return False
    if not path or is_foreign(path) or is_there(Path(path)):
        return bool(path)
    from moeprobe.results.finished import is_run  # not before it is needed: it brings pandas

    return is_run(Path(path))


def _names_in_runs(sources: Sequence[str]) -> set[str]:
    """Return the names of the checkpoints in those sources that are finished runs."""
    # Not before they are needed: they bring pandas.
    from moeprobe.results.finished import is_finished
    from moeprobe.results.sidecars import read_sidecar

    runs = [Path(source) for source in sources if is_finished(Path(source))]
    return {name for run in runs for name in read_sidecar(run).checkpoints}


def _check_once(pairs: Sequence[HandPair]) -> None:
    for side, number in Counter(side for pair in pairs for side in pair).items():
        if number > 1:
            raise UserError(
                f"{side} is a side {number} times, and pairs that share one are not independent; name each once. "
                "Several checkpoints are compared with one reference by naming it first, without pairs."
            )


def names_of_pairs(
    pairs: Sequence[HandPair], models: Sequence["Model"], checkpoints: Sequence[str]
) -> list[HandPair]:
    """Return (checkpoint, reference) of each pair, by the names that tables have.

    Args:
        pairs: as given.
        models: checkpoints, or folders of finished runs.
        checkpoints: the names of all of them, in the order in which they were given.

    Raises:
        UserError: a side is none of these, holds several checkpoints, or stands in two pairs.
    """
    by_source = _names_by_source(models, checkpoints)
    by_name = [tuple(_name(side, by_source, checkpoints) for side in pair) for pair in pairs]
    # A path and a name may be of one checkpoint.
    _check_once([(reference, checkpoint) for reference, checkpoint in by_name])
    return [(checkpoint, reference) for reference, checkpoint in by_name]


def _names_by_source(models: Sequence["Model"], checkpoints: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the checkpoints that each source holds."""
    from moeprobe.results.sidecars import read_sidecar

    remaining = list(checkpoints)
    is_each_one = len(models) == len(checkpoints)
    names = {}
    for source in models:
        number = 1 if is_each_one else len(read_sidecar(Path(str(source))).checkpoints)
        key = str(source) if isinstance(source, str | Path) else source.name
        names[key], remaining = remaining[:number], remaining[number:]
    return names


def _name(side: str, by_source: Mapping[str, Sequence[str]], checkpoints: Sequence[str]) -> str:
    names = by_source.get(side, [side] if side in checkpoints else [])
    if not names:
        raise UserError(
            f"{side} is no checkpoint of this comparison.{did_you_mean(side, checkpoints)} There are: "
            f"{', '.join(checkpoints)}."
        )
    if len(names) > 1:
        raise UserError(
            f"{side} holds {len(names)} checkpoints; give the run as it is and the pairs by name, e.g. "
            f"{side} {names[0]}={names[1]}."
        )
    return names[0]
