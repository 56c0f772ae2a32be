"""Looks of a series: new checkpoints that are compared with one reference, one after the other, as in CI.

Each comparison may call an equal checkpoint worse by chance, so a series of them does sooner or later. How many looks
there will be is therefore decided on first, and each has its share of the level (``families.confidence_of``). A
history file keeps count. A look is one comparison: of the reference and one new checkpoint. Nothing else may change
from look to look: another reference, other data, another margin or another metric of the gate would be a choice made
after looking.

Source: a level divided among looks, Bonferroni; Dunn 1961.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import pandas as pd
from pydantic import BaseModel

from moeprobe.errors import UserError, option
from moeprobe.results.finished import Measured
from moeprobe.results.own_files import STRICT, validate
from moeprobe.results.stored import SumsStore
from moeprobe.runtime.files import display_path, is_there, read_json, write_json
from moeprobe.runtime.locks import Lock
from moeprobe.studies.gate import Gate

_NEW_SERIES = f"restore it, or begin another series with another {option('history')}"
# Seconds for which a comparison waits for another one that writes the history.
_PATIENCE = 10.0


class _LookSchema(BaseModel):
    model_config = STRICT

    look: int
    checkpoints: dict[str, str]
    failures: int


class _HistorySchema(BaseModel):
    model_config = STRICT

    looks: int
    references: dict[str, str]
    fixed: dict[str, Any]
    entries: list[_LookSchema]


@dataclass(frozen=True)
class LookSeries:
    """A series of looks and the file that counts them.

    Attributes:
        looks: number of looks that were decided on.
        history: the file; it is made at the first look.
    """

    looks: int
    history: Path

    @classmethod
    def of(cls, looks: int | None, history: str | Path | None) -> Self | None:
        """Return the series of two options; None where neither was given.

        Raises:
            UserError: one of them is missing, or there are no looks.
        """
        if looks is None and history is None:
            return None
        if looks is None or history is None:
            name, missing = (
                ("looks", option("history", "FILE")) if history is None else ("history", option("looks", "N"))
            )
            raise UserError(
                f"{option(name)} takes {missing} beside it: the file counts the looks of a series."
            )
        if looks < 1:
            raise UserError(f"{option('looks')} takes a whole number from 1 up; got {looks}.")
        return cls(looks, Path(history))

    def check(self, checkpoints: Mapping[str, str | None], fixed: Mapping[str, Any]) -> None:
        """Raise ``UserError`` where a comparison is no look of this series, before anything is measured.

        Args:
            checkpoints: name -> hash, the reference first.
            fixed: what no look may change.
        """
        # The level is divided by the number of looks, so each of them is one comparison.
        if len(checkpoints) != 2:
            raise UserError(
                f"A look compares the reference with one new checkpoint, and these are {len(checkpoints)} checkpoints; "
                f"compare each new one by a command of its own, with the same {option('history')}."
            )
        for name, digest in checkpoints.items():
            if digest is None:
                raise UserError(
                    f"Nobody can tell {name} from other checkpoints, since it has no hash; measure it first, and give "
                    f"the finished runs with {option('looks')}."
                )
        history = self._read()
        if history is None:
            return
        self._check_fixed(history, fixed)
        # Which of them are references is known when they are compared, and one of them is.
        if not {*checkpoints.values()} & {*history.references.values()}:
            raise self._other_reference(history, next(iter(checkpoints)))
        self._number(history, [*map(str, checkpoints.values())])

    def take(
        self,
        checkpoints: Mapping[str, str],
        references: Sequence[str],
        fixed: Mapping[str, Any],
        *,
        failures: int,
    ) -> int:
        """Write a look into the history and return its number, from 1; a look that was taken keeps its number.

        Args:
            checkpoints: name -> hash.
            references: names of those that others were compared with.
            fixed: what no look may change.
            failures: number of comparisons that failed.

        Raises:
            UserError: it is no look of this series.
        """
        path = self.history
        path.parent.mkdir(parents=True, exist_ok=True)
        hashes = {name: checkpoints[name] for name in references}
        # Two comparisons at once must not take the same look.
        with Lock(path.with_name(f"{path.name}.lock"), patience=_PATIENCE):
            history = self._read()
            if history is None:
                history = _HistorySchema(
                    looks=self.looks, references=hashes, fixed=_as_json(fixed), entries=[]
                )
            self._check_fixed(history, fixed)
            if {*hashes.values()} != {*history.references.values()}:
                raise self._other_reference(history, ", ".join(references))
            number = self._number(history, [*checkpoints.values()])
            if number > len(history.entries):
                new = {name: digest for name, digest in checkpoints.items() if name not in references}
                history.entries.append(_LookSchema(look=number, checkpoints=new, failures=failures))
                write_json(path, history.model_dump())
        return number

    def _read(self) -> _HistorySchema | None:
        if not is_there(self.history):
            return None
        history = validate(_HistorySchema, read_json(self.history), self.history, mend=_NEW_SERIES)
        if history.looks != self.looks:
            raise UserError(
                f"{display_path(self.history)} counts a series of {history.looks} looks, not {self.looks}: their "
                f"number is decided on before the first one. Use {option('looks', history.looks)}, or begin another "
                f"series with another {option('history')}."
            )
        return history

    def _number(self, history: _HistorySchema, hashes: Sequence[str]) -> int:
        """Return the number of the look at these checkpoints: the one it had, or the next."""
        new = {*hashes} - {*history.references.values()}
        for entry in history.entries:
            if {*entry.checkpoints.values()} == new:
                return entry.look
        if len(history.entries) >= self.looks:
            raise UserError(
                f"All {self.looks} looks of {display_path(self.history)} are taken, so one more would have no share of "
                f"the level; begin another series with another {option('history')}."
            )
        return len(history.entries) + 1

    def _check_fixed(self, history: _HistorySchema, fixed: Mapping[str, Any]) -> None:
        before, now = history.fixed, _as_json(fixed)
        # Before measuring, less is known than after.
        for key in now:
            if before.get(key) != now.get(key):
                raise UserError(
                    f"The looks of {display_path(self.history)} have {key} {json.dumps(before.get(key))}, and not "
                    f"{json.dumps(now.get(key))}; use the same, or begin another series with another "
                    f"{option('history')}."
                )

    def _other_reference(self, history: _HistorySchema, name: str) -> UserError:
        return UserError(
            f"{name} is not the reference of the looks in {display_path(self.history)}, "
            f"{', '.join(history.references)}; compare with that one, or begin another series with another "
            f"{option('history')}."
        )


@dataclass(frozen=True)
class Look:
    """A comparison that is a look of a series.

    Attributes:
        series: which one.
        hashes: of the checkpoints by name.
        fixed: what no look may change: all that is measured, the margins of verdicts, and what fails.
    """

    series: LookSeries
    hashes: Mapping[str, str]
    fixed: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        series: LookSeries,
        measured: Measured,
        request: Mapping[str, Any],
        gate: Gate,
        *,
        is_finished: bool,
    ) -> Self:
        """Return the look that a comparison would be.

        Args:
            series: that it belongs to.
            measured: the runs to compare.
            request: of the comparison, with its margin of equivalence.
            gate: what fails.
            is_finished: whether its sums are there, which tell recorded routing apart.

        Raises:
            UserError: it is no look of the series.
        """
        hashes: dict[str, str | None] = {
            name: info["sha256"] for name, info in request["checkpoints"].items()
        }
        if is_finished:
            hashes = {name: digest or digest_of_sums(measured.sums, name) for name, digest in hashes.items()}
        fixed = {key: content for key, content in measured.request.items() if key != "figures"}
        fixed |= {
            "unit": request.get("unit"),
            "margin": request["margin"],
            "equivalent_within": request["equivalent_within"],
            "fail_if_worse": gate.metric,
            "fail_unless_no_worse_than": gate.allowed,
        }
        series.check(hashes, fixed)
        return cls(series, {name: str(digest) for name, digest in hashes.items()}, fixed)

    def take(self, measured: Measured, table: pd.DataFrame, failures: int) -> int:
        """Write it into the history, now that everything is measured and compared; returns its number."""
        references = list(dict.fromkeys(table["reference"]))
        fixed = {**self.fixed, "names of inputs": digest_of_names(measured.sums.names())}
        return self.series.take(self.hashes, references, fixed, failures=failures)


def digest_of_sums(sums: SumsStore, checkpoint: str) -> str:
    """Return a hash of the sums per input of a checkpoint; recorded routing has no other."""
    digest = sha256()
    for stored in sums.select(lambda cell: cell.checkpoint == checkpoint):
        digest.update(repr((stored.cell.key(), stored.names())).encode())
        for _, columns in stored.blocks():
            for name, values in sorted(columns.items()):
                # Numbers of different lengths are objects, whose bytes are their places in memory.
                content = repr(values.tolist()).encode() if values.dtype == object else values.tobytes()
                digest.update(name.encode() + content)
    return digest.hexdigest()


def digest_of_names(names: Iterable[str]) -> str:
    """Return a hash of the names of inputs, whatever their order."""
    return sha256("\n".join(sorted(names)).encode()).hexdigest()


def _as_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return content as it reads from a file."""
    read: dict[str, Any] = json.loads(json.dumps(content))
    return read
