"""The words in which claims of pages are checked: rows of committed tables, and what is counted of them.

What selects nothing raises, so that no claim holds of nothing.
"""

import functools
import io
import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks import mutants
from moeprobe.inputs.data.digits import Digits
from moeprobe.models import grid
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.training.start import choose_labeled
from moeprobe.results.packed import read_pack
from moeprobe.results.tables import with_shown_intervals
from reports.scripts import flips_tables, kappa_reference, thesis_tables
from tests.docs.pages import ROOT

REPORTS = ROOT / "reports"
# A value and the ends of its interval.
Ends = tuple[float, float, float]
WORDS = ("layer", "tokens", "null", "view", "reference", "which")


def rows(table: str | pd.DataFrame, query: str = "", **equal: Any) -> pd.DataFrame:
    """Rows of a table, or of a file in reports: of a pandas query, and of columns that equal (None: are empty)."""
    found = read(table) if isinstance(table, str) else table
    for column, wanted in equal.items():
        own = found[column]
        if wanted is None:
            found = found[own.isna()]
        else:
            found = found[own.isin(wanted) if isinstance(wanted, list | set | tuple) else own == wanted]
    found = found.query(query, engine="python") if query else found
    if found.empty:
        raise LookupError(f"no row has {query or 'all of'} {equal}")
    return found


@functools.cache
def read(name: str) -> pd.DataFrame:
    """A file in reports; the cells of columns of words are never missing, and differences have the shown interval."""
    table = pd.read_csv(REPORTS / name, dtype=dict.fromkeys(WORDS, str), low_memory=False)
    table = with_shown_intervals(table) if "sim_low" in table else table
    return table.fillna({word: "" for word in WORDS if word in table})


def changes(
    table: str | pd.DataFrame, number: str, *groups: str, layer: str = "", by: str = "group"
) -> pd.DataFrame:
    """What groups differ in from their references in a layer ("" = the output): a row per group and seed."""
    where: dict[str, Any] = {"number": number, "layer": layer, by: groups}
    found = rows(table, **where)
    if len(found) != 3 * len(groups):
        raise LookupError(f"{len(found)} rows of {number} are not three seeds each of {groups}")
    return found


def clean(table: str, metric: str, layer: str = "", **equal: Any) -> pd.DataFrame:
    """Values of clean patches, or of the output: a row per checkpoint."""
    where: dict[str, Any] = {
        "view": "clean",
        "tokens": ["patch", ""],
        "draw": None,
        "layer": layer,
        "metric": metric,
    }
    return rows(table, **where, **equal).drop_duplicates("checkpoint")


def seeds(table: str, group: str, metric: str, layer: str = "") -> pd.Series:
    """Values of clean patches, or of the output, by training seed."""
    return three(clean(table, metric, layer, group=group)).set_index("train_seed")["value"]


def three(found: pd.DataFrame) -> pd.DataFrame:
    """The same in the order of their training seeds, which are 0, 1 and 2."""
    if sorted(found["train_seed"]) != [0, 1, 2]:
        raise LookupError(f"these are not three seeds: {list(found['train_seed'])}")
    return found.sort_values("train_seed")


def budgets(found: pd.DataFrame) -> pd.DataFrame:
    """The same with a budget: k, or the capacity factor where experts choose."""
    return found.assign(budget=found["top_k"].fillna(found["capacity_factor"]))


def above(found: pd.DataFrame) -> int:
    """How many of the intervals lie above zero."""
    return int((found["ci_low"] > 0).sum())


def below(found: pd.DataFrame) -> int:
    """How many of the intervals lie below zero."""
    return int((found["ci_high"] < 0).sum())


def outside(found: pd.DataFrame) -> tuple[int, int, int]:
    """How many intervals there are, and how many of them lie above and below zero."""
    return len(found), above(found), below(found)


def ends(values: Iterable[float], digits: int) -> tuple[float, float]:
    """The lowest and the highest value, rounded."""
    found = np.asarray(list(values) if not isinstance(values, pd.DataFrame) else values, float)
    if not found.size or np.isnan(found).any():
        raise LookupError(f"not all of these are numbers: {found}")
    return round(float(found.min()), digits), round(float(found.max()), digits)


def excluded_loss(found: pd.DataFrame, digits: int = 3) -> float:
    """The loss above which every interval excludes one, rounded up, where more is better."""
    lowest = ends(found["ci_low"], 15)[0]
    return math.ceil(round(-lowest * 10**digits, 6)) / 10**digits


def every(conditions: Any) -> bool:
    """Whether all of at least one hold."""
    found = np.asarray(conditions if isinstance(conditions, pd.Series | pd.DataFrame) else list(conditions))
    if not found.size or found.dtype != bool:
        raise LookupError(f"these are no conditions: {found}")
    return bool(found.all())


def within(values: Iterable[float], low: float, high: float) -> bool:
    """Whether all of at least one value are between two."""
    return every(low <= value <= high for value in values)


def over_seeds(found: pd.DataFrame, digits: int = 2) -> tuple[float, float, float]:
    """Mean of a row per training seed, and its 95 % interval over trainings (t), rounded."""
    seed = "train_seed" if "train_seed" in found else "seed"
    if len(found) < 3 or found[seed].duplicated().any():
        raise LookupError(f"these are not one row for each of three seeds or more: {list(found[seed])}")
    mean, error = found["value"].mean(), stats.sem(found["value"])
    reach = stats.t.ppf(0.975, len(found) - 1) * error
    return round(float(mean), digits), round(float(mean - reach), digits), round(float(mean + reach), digits)


def over_both(
    data: str, metric: str | None = None, top_k: int | None = None, digits: int = 2, **equal: Any
) -> Ends:
    """Mean of pairs of trainings, and its interval over trainings and images for all layers at once, rounded."""
    wanted = equal | {"metric": metric, "top_k": top_k}
    row = rows(
        f"trainings/{data}.csv", **{name: value for name, value in wanted.items() if value is not None}
    )
    if len(row) != 1:
        raise LookupError(f"{len(row)} rows have {wanted}")
    value, low, high = (
        round(float(row[name].iloc[0]), digits) + 0.0 for name in ("value", "sim_low", "sim_high")
    )
    return value, low, high


def half(found: pd.DataFrame) -> pd.Series:
    """How far intervals reach to either side."""
    return (found["ci_high"] - found["ci_low"]) / 2


def power(found: pd.DataFrame, normal: float = 0.84) -> pd.Series:
    """Differences that are found with a power of .8, or of another normal quantile, at 5 %."""
    return (1.96 + normal) * half(found) / 1.96


def curve(folder: str, cell: str) -> pd.DataFrame:
    """The training of a cell of a sweep, a row per epoch."""
    metrics = read_pack(REPORTS / folder)[cell].metrics
    return pd.read_csv(io.StringIO(metrics or "")).set_index("epoch")


def capacity(rounding: str, images: int = 1, experts: int = 8) -> int | None:
    """Places of an expert for the 17 tokens of each image, at a capacity of 1 and k = 1."""
    rule = CapacityRule(1.0, rounding=rounding, multiple_of=1)
    return rule.capacity(group_size=17 * images, num_experts=experts, top_k=1)


def labeled_images(share: float) -> int:
    """How many of the digits have labels where a share of them has."""
    return len(choose_labeled(Digits(split="train").labels(), share, seed=0))


def layout(sweep: str) -> str:
    """A sweep's tokens, width, blocks, MoE layers, parameters, epochs and seeds, as the page on layouts prints them."""
    cells = grid.load(sweep).cells
    model = build_model(cells[0].model.model_copy(update={"num_classes": 10}))
    tokens = model.patch_embed.num_patches + model.num_prefix_tokens
    layers = ", ".join(f"`{layer}`" for layer in moe_layers(model))
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    size = f"{model.embed_dim}, {len(model.blocks)} | {layers} | {millions:.1f}"
    return f"| {tokens} | {size} | {cells[0].epochs:g} | {len({cell.seed for cell in cells})} |"


def setting(name: str) -> Any:
    """The content of a JSON file in reports."""
    return json.loads((REPORTS / name).read_text(encoding="utf-8"))


# What expressions may name: every function above, and a few things of others.
def percent_killed(files: pd.DataFrame) -> tuple[float, ...]:
    """Which share of mutants tests kill, and its interval, in % with one decimal."""
    value, low, high = mutants.share(files)
    return round(100 * value, 1), round(100 * low, 1), round(100 * high, 1)


HELPERS = {name: one for name, one in globals().items() if getattr(one, "__module__", "") == __name__}
HELPERS |= {
    "concat": pd.concat,
    "math": math,
    "thesis": thesis_tables,
    "flips_tables": flips_tables,
    "BANDS": kappa_reference.BANDS,
}
HELPERS |= {"reference": functools.cache(lambda: kappa_reference.rows(REPORTS))}
HELPERS |= {"train_images": len(Digits(split="train"))}
