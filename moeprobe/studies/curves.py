"""Learning curves of several trainings in one figure and one table: from their ``metrics.csv``, without any weights."""

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
from moeprobe.results.packed import CELLS, find_cell, read_pack
from moeprobe.runtime.arguments import check_arguments, several
from moeprobe.runtime.catalog import did_you_mean
from moeprobe.runtime.files import is_file, is_folder, is_there, read_bytes, read_json, resolve, write_csv
from moeprobe.runtime.table_folders import check_table_folder, family_of_table, table_folder
from moeprobe.studies.training_files import CURVE, LONGEST_CURVE, read_curve

_CSV = "curves.csv"
_FAMILY = family_of_table("curves", CURVE_COLUMNS, files=("curves.png", "curves.svg"))


@dataclass(frozen=True)
class Curves:
    """Learning curves.

    Attributes:
        table: a row per training and evaluation; the columns are ``columns.CURVE_COLUMNS``.
        by: the key that tells panels apart; empty without.
        x: what the horizontal axis is.
        files: written files; empty where no folder was named.
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
        # The last row of a run is its latest evaluation.
        ends = self.table.drop_duplicates("run", keep="last")
        lines = []
        for panel, panel_ends in ends.groupby("panel", sort=False, dropna=False):
            first = panel_ends[panel_ends["group"] == panel_ends["group"].iloc[0]].drop_duplicates(
                "train_seed"
            )
            reference = first.set_index("train_seed")["value"]
            for number, (group, rows) in enumerate(panel_ends.groupby("group", sort=False)):
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
        from moeprobe.results.figures.curves import draw_curves

        return draw_curves(self.table, by=self.by, x=self.x)

    def __repr__(self) -> str:
        return f"Curves(runs={self.table['run'].nunique()}, metric={self.table['metric'].iloc[0]!r})"


@dataclass(frozen=True)
class _Training:
    name: str
    path: Path
    config: TrainConfig
    metrics: pd.DataFrame


@check_arguments
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
    # Checked before reading, since there may be hundreds of trainings.
    if folder is not None:
        check_table_folder(folder, _FAMILY, overwrite=overwrite)
    trainings = _distinct([training for source in several(runs) for training in _read(Path(source))])
    if not trainings:
        raise UserError("Name the folders of trainings, e.g. checkpoints/digits-baseline.")
    table = _table(trainings, metric=metric, by=by)
    curves = Curves(table, by or "", x)
    if folder is None:
        return curves
    from moeprobe.results.figures import save

    with table_folder(folder, _FAMILY, overwrite=overwrite) as path:
        write_csv(path / _CSV, table)
        files = save(curves.plot(), path / "curves", svg=svg)
    return replace(curves, files=(folder / _CSV, *(folder / path.name for path in files)))


def _read(path: Path) -> list[_Training]:
    """Return the training of a folder, or all trainings of a trade-off's."""
    packed = read_pack(path)
    unpacked = sorted(file.parent.name for file in (path / CELLS).glob(f"*/{CURVE}"))
    # The folder of a packed cell is a leftover of a killed process.
    cells = [*packed, *(name for name in unpacked if name not in packed)]
    if cells:
        return [_cell(path / CELLS / name) for name in cells]
    if find_cell(path) is not None:
        return [_cell(path)]
    if not is_there(path / CURVE) or not is_file(path / "config.yaml"):
        raise UserError(
            f"{path} holds no learning curve: a training's folder has config.yaml and {CURVE}"
            f"{', from its first evaluation on' if is_folder(path) else ''}."
        )
    return [_training(resolve(path).name, load(str(path / "config.yaml")), _text(path / CURVE), path)]


def _cell(folder: Path) -> _Training:
    """Return a cell of a trade-off, packed or not."""
    packed = find_cell(folder)
    info = read_json(folder / "cell.json") if packed is None else packed.about
    text = _text(folder / CURVE) if packed is None else packed.metrics
    return _training(folder.name, parse(info["config"]), text or "", folder)


def _text(path: Path) -> str:
    return read_bytes(path, limit=LONGEST_CURVE).decode("utf-8", errors="replace")


def _training(name: str, config: TrainConfig, text: str, path: Path) -> _Training:
    metrics = read_curve(text, path, needed=("step", "epoch"))
    if metrics.empty:
        raise UserError(f"The {CURVE} of {path} cannot be read: it has no steps.")
    return _Training(name, resolve(path), config, metrics)


def _distinct(trainings: list[_Training]) -> list[_Training]:
    """Return them with the folder above in the name where several are called the same, as stages of pipelines are."""
    counts = Counter(training.name for training in trainings)
    longer = Counter(f"{training.path.parent.name}/{training.name}" for training in trainings)
    return [
        replace(training, name=name)
        if counts[training.name] > 1 and longer[name := f"{training.path.parent.name}/{training.name}"] == 1
        else training
        for training in trainings
    ]


def _table(trainings: Sequence[_Training], *, metric: str, by: str | None) -> pd.DataFrame:
    names = [training.name for training in trainings]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            paths = {training.path for training in trainings if training.name == name}
            cure = "name it once" if len(paths) == 1 else "draw them in separate calls, or rename a folder"
            raise UserError(
                f"{names.count(name)} trainings are called {name}; the table could not tell them apart, so {cure}."
            )
    metrics = dict.fromkeys(
        column for training in trainings for column in training.metrics if column not in ("step", "epoch")
    )
    if metric not in metrics:
        raise UserError(
            f"No training has a metric {metric!r}; there are {', '.join(metrics)}.{did_you_mean(metric, metrics)}"
        )
    parts = []
    for training in trainings:
        value = None if by is None else _value(training, by)
        rows = training.metrics.reindex(columns=["step", "epoch", metric]).rename(columns={metric: "value"})
        group = training.config.group or training.name
        columns = {
            "run": training.name, "group": group if by is None else _without(group, by, value),
            "train_seed": training.config.seed, "panel": "" if by is None else _as_text(by, value), "metric": metric,
        }  # fmt: skip
        # Not every evaluation has every metric.
        parts.append(rows.assign(**columns)[rows["value"].notna()])
    table = pd.concat([part for part in parts if len(part)], ignore_index=True)
    return table.reindex(columns=list(CURVE_COLUMNS))


def _value(training: _Training, key: str) -> Any:
    """Return the value of a key of a training's configuration."""
    value: Any = training.config.model_dump()
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            keys = list(value) if isinstance(value, Mapping) else []
            prefix = key.rpartition(".")[0]
            raise UserError(
                f"No key {key!r} in the configuration of {training.name}."
                f"{did_you_mean(part, keys, prefix=f'{prefix}.' if prefix else '')}"
            )
        value = value[part]
    return value


def _as_text(key: str, value: Any) -> str:
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
