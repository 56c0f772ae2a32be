"""Learning curves of several trainings in one figure and one table: from their ``metrics.csv``, without any weights."""

import io
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from moeprobe.errors import UserError
from moeprobe.models import grid
from moeprobe.models.config import TrainConfig, load, parse
from moeprobe.results.columns import CURVE_COLUMNS
from moeprobe.results.packed import find_cell, read_pack
from moeprobe.runtime.arguments import several
from moeprobe.runtime.catalog import did_you_mean
from moeprobe.runtime.csv import write_csv
from moeprobe.runtime.filenames import CELLS
from moeprobe.runtime.files import read_bytes, read_json
from moeprobe.runtime.folders import RunFolder
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.records import Family, look
from moeprobe.runtime.replacing import check_family, check_replaceable

_METRICS, _CSV = "metrics.csv", "curves.csv"
# Bytes of a training's curve.
_LONGEST = 2**26
_FAMILY = Family(
    "curves",
    is_ours=lambda path: _is_table(path / _CSV),
    known=(_CSV, "curves.png", "curves.svg"),
)


@dataclass(frozen=True)
class Curves:
    """Learning curves.

    Attributes:
        table: a row per training and evaluation; the columns are ``columns.CURVE_COLUMNS``.
        by: the key that tells panels apart; empty without.
        x: what the horizontal axis is.
        files: what was written; empty where no folder was named.
    """

    table: pd.DataFrame
    by: str
    x: Literal["step", "epoch"]
    files: tuple[Path, ...] = ()

    def last(self) -> pd.DataFrame:
        """Return a line per panel and group: the mean of the seeds' last values with their range.

        ``difference`` is the mean over seeds of the difference from the panel's first group at the same seed, with its
        range; empty of that group, and where no seed is in both.
        """
        ends = self.table.drop_duplicates("run", keep="last")
        lines = []
        for panel, here in ends.groupby("panel", sort=False, dropna=False):
            first = here[here["group"] == here["group"].iloc[0]].drop_duplicates("train_seed")
            reference = first.set_index("train_seed")["value"]
            for number, (group, rows) in enumerate(here.groupby("group", sort=False)):
                apart = (
                    (rows["value"] - rows["train_seed"].map(reference)).dropna()
                    if number
                    else rows["value"][:0]
                )
                lines.append(
                    {"panel": panel, "group": group, "runs": len(rows), "step": int(rows["step"].min())}
                    | _range("value", rows["value"])
                    | _range("difference", apart)
                )
        return pd.DataFrame(lines)

    def plot(self) -> Any:
        """Return the figure; nothing is written."""
        from moeprobe.results.figures.curves import draw

        return draw(self.table, by=self.by, x=self.x)

    def __repr__(self) -> str:
        return f"Curves(runs={self.table['run'].nunique()}, metric={self.table['metric'].iloc[0]!r})"


@dataclass(frozen=True)
class _Training:
    name: str
    path: Path
    config: TrainConfig
    metrics: pd.DataFrame


@checked
def curves(
    runs: str | Path | Sequence[str | Path],
    *,
    metric: str = "val_accuracy",
    by: str | None = None,
    x: Literal["step", "epoch"] = "step",
    out: str | Path | None = None,
    overwrite: bool = False,
    svg: bool = False,
) -> Curves:
    """Put the learning curves of several trainings together.

    Args:
        runs: folders of trainings, finished or not; of a trade-off, all of its cells. Stages of pipelines, which
            are called the same, have the pipeline's name before theirs.
        metric: a column of ``metrics.csv``: val_accuracy, val_loss, train_main_loss, ...
        by: a key of the configuration, e.g. ``model.top_k``: a panel for each of its values.
        x: step or epoch.
        out: folder for ``curves.csv`` and ``curves.png``; None = nothing is written.
        overwrite: replace what an earlier call left there.
        svg: write the figure as SVG too.

    Raises:
        UserError: a folder is no training, none of them has the metric, the key is none, or ``out`` is taken.
    """
    folder = None if out is None else Path(out)
    if folder is not None:
        _check(folder, overwrite=overwrite)
    trainings = _distinct([one for source in several(runs) for one in _read(Path(source))])
    if not trainings:
        raise UserError("Name the folders of trainings, e.g. checkpoints/digits-baseline.")
    table = _table(trainings, metric=metric, by=by)
    found = Curves(table, by or "", x)
    if folder is None:
        return found
    from moeprobe.results.figures import save

    with RunFolder(folder, _FAMILY) as own:
        _check(folder, overwrite=overwrite)
        if overwrite:
            own.clear()
        write_csv(own.path / _CSV, table)
        files = save(found.plot(), own.path / "curves", svg=svg)
        own.check()
    return Curves(table, by or "", x, (folder / _CSV, *(folder / path.name for path in files)))


def _check(folder: Path, *, overwrite: bool) -> None:
    contents = look(folder, _FAMILY)
    check_family(folder, contents, _FAMILY)
    if contents.foreign and not contents.own:
        raise UserError(f"{folder} is not empty and holds no curves of moeprobe; choose another --out.")
    if contents.own and not overwrite:
        raise UserError(
            f"{folder} holds curves already; add --overwrite to replace them, or choose another --out."
        )
    if overwrite:
        check_replaceable(folder, contents, _FAMILY)


def _is_table(path: Path) -> bool:
    try:
        return path.read_text(encoding="utf-8").startswith(",".join(CURVE_COLUMNS))
    except (OSError, ValueError):
        return False


def _read(path: Path) -> list[_Training]:
    """Return the training of a folder, or those of a trade-off's."""
    packed = read_pack(path)
    unpacked = sorted(one.parent.name for one in (path / CELLS).glob(f"*/{_METRICS}"))
    cells = [*packed, *(name for name in unpacked if name not in packed)]
    if cells:
        return [_cell(path / CELLS / name) for name in cells]
    if find_cell(path) is not None:
        return [_cell(path)]
    if not os.path.lexists(path / _METRICS) or not (path / "config.yaml").is_file():
        raise UserError(
            f"{path} holds no learning curve: a training's folder has config.yaml and {_METRICS}"
            f"{', from its first evaluation on' if path.is_dir() else ''}."
        )
    return [_training(path.resolve().name, load(str(path / "config.yaml")), _text(path / _METRICS), path)]


def _cell(folder: Path) -> _Training:
    """Return a cell of a trade-off, packed or not."""
    packed = find_cell(folder)
    about = read_json(folder / "cell.json") if packed is None else packed.about
    text = _text(folder / _METRICS) if packed is None else packed.metrics
    return _training(folder.name, parse(about["config"]), text or "", folder)


def _text(path: Path) -> str:
    return read_bytes(path, limit=_LONGEST).decode("utf-8", errors="replace")


def _training(name: str, config: TrainConfig, text: str, path: Path) -> _Training:
    try:
        metrics = pd.read_csv(io.StringIO(text))
        if metrics.empty or not {"step", "epoch"} <= set(metrics):
            raise ValueError("it has no steps")
    except ValueError as error:
        raise UserError(f"The {_METRICS} of {path} cannot be read: {error}.") from None
    return _Training(name, path.resolve(), config, metrics)


def _distinct(trainings: list[_Training]) -> list[_Training]:
    """Return them with the folder above in the name where several are called the same, as stages of pipelines are."""
    counts = Counter(one.name for one in trainings)
    longer = Counter(f"{one.path.parent.name}/{one.name}" for one in trainings)
    return [
        replace(one, name=name)
        if counts[one.name] > 1 and longer[name := f"{one.path.parent.name}/{one.name}"] == 1
        else one
        for one in trainings
    ]


def _table(trainings: Sequence[_Training], *, metric: str, by: str | None) -> pd.DataFrame:
    names = [one.name for one in trainings]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            places = {one.path for one in trainings if one.name == name}
            cure = "name it once" if len(places) == 1 else "draw them in separate calls, or rename a folder"
            raise UserError(
                f"{names.count(name)} trainings are called {name}; the table could not tell them apart, so {cure}."
            )
    known = dict.fromkeys(
        column for one in trainings for column in one.metrics if column not in ("step", "epoch")
    )
    if metric not in known:
        raise UserError(
            f"No training has a metric {metric!r}; there are {', '.join(known)}.{did_you_mean(metric, known)}"
        )
    parts = []
    for one in trainings:
        value = None if by is None else _value(one, by)
        rows = one.metrics.reindex(columns=["step", "epoch", metric]).rename(columns={metric: "value"})
        group = one.config.group or one.name
        about = {
            "run": one.name, "group": group if by is None else _without(group, by, value),
            "train_seed": one.config.seed, "panel": "" if by is None else _said(by, value), "metric": metric,
        }  # fmt: skip
        parts.append(rows.assign(**about)[rows["value"].notna()])
    table = pd.concat([part for part in parts if len(part)], ignore_index=True)
    return table.reindex(columns=list(CURVE_COLUMNS))


def _value(training: _Training, key: str) -> Any:
    """Return the value of a key of a training's configuration."""
    value: Any = training.config.model_dump()
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = list(value) if isinstance(value, Mapping) else []
            prefix = key.rpartition(".")[0]
            raise UserError(
                f"No key {key!r} in the configuration of {training.name}."
                f"{did_you_mean(part, known, prefix=f'{prefix}.' if prefix else '')}"
            )
        value = value[part]
    return value


def _said(key: str, value: Any) -> str:
    """Return a value as text; a plug-in is its name and its parameters."""
    return grid.part(key, value) if isinstance(value, Mapping) else str(value)


def _without(group: str, key: str, value: Any) -> str:
    """Return a group's name without the part that says the value of a key: that is above its panel."""
    return re.sub(rf"(^|-){re.escape(grid.part(key, value))}(?=-|$)", "", group).lstrip("-") or group


def _range(name: str, values: pd.Series) -> dict[str, float]:
    low, high = (values.min(), values.max()) if len(values) else (float("nan"),) * 2
    return {
        name: float(values.mean()) if len(values) else float("nan"),
        f"{name}_low": low,
        f"{name}_high": high,
    }
