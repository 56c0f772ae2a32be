"""What a table of ``trace locality`` says of caches, in words."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from moeprobe.metrics.analyses.cache_size import AT_SMALLEST, CACHE_SIZE, LEVEL
from moeprobe.metrics.analyses.expert_cache import CACHE_BYTES, CACHE_HIT, CACHE_LOADS, CACHE_SPEED
from moeprobe.metrics.analyses.shared_cache import SHARED_HIT
from moeprobe.metrics.declaration import CHANCE
from moeprobe.results.layouts.expert_cache import of_all_layers
from moeprobe.results.numbers import interval, number

# Tokens per second for which a sentence says the bandwidth.
READING_SPEED = 20
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_Row = Mapping[Any, Any]


def cache_sentences(table: pd.DataFrame, name: str) -> list[str]:
    """Return what the smallest cache of a recording finds, how large one must be, and what is loaded per token."""
    rows = of_all_layers(table)
    if rows.empty or rows["layer"].nunique() > 1:
        return []
    every = {(row["metric"], row["null"], row["severity"]): row for row in rows.to_dict("records")}
    size = min(severity for metric, _, severity in every if metric == CACHE_HIT.make("lru").name)

    def at(metric: str, null: str = "") -> _Row:
        return every[metric, null, size]

    rates = {rule: at(CACHE_HIT.make(rule).name) for rule in ("lru", "lfu", "optimal")}
    # Nothing is busiest in other requests where there are none.
    static = every.get((CACHE_HIT.make("static").name, "", size))
    busiest = "" if static is None else f", the busiest experts of other requests {interval(static)}"
    lru = CACHE_HIT.make("lru").name
    random, even = (at(f"{lru}{CHANCE}", null) for null in ("eviction", "even"))
    sentences = [
        f"{name}: a cache of {int(size):,} experts per layer finds {interval(rates['lru'])} of the choices with LRU "
        f"(random eviction {number(random['value'])}, even router {number(even['value'])}). LFU finds "
        f"{interval(rates['lfu'])}{busiest}, and no rule that evicts more than {interval(rates['optimal'])}."
        f"{_describe_shared(every, size)}"
    ]
    sizes = {
        row["metric"]: row for row in rows.to_dict("records") if CACHE_SIZE.find(row["metric"]) is not None
    }
    lru_size, best = (
        _describe_size(sizes.get(CACHE_SIZE.make(rule).name), size) for rule in ("lru", "optimal")
    )
    if lru_size and best:
        sentences.append(
            f"{name}: LRU finds {100 * LEVEL:g} % of the choices with {lru_size} experts per layer, the optimum with "
            f"{best}."
        )
    layers = table.loc[table["metric"] == lru, "layer"]
    num_layers = layers[layers != ""].nunique()
    return [*sentences, *_describe_loads(every, size, name, num_layers)]


def _describe_size(row: _Row | None, smallest: float) -> str:
    """Return how many experts are needed; where the smallest simulated cache is enough, no more is known."""
    if row is None:
        return ""
    if row["flag"] == AT_SMALLEST:
        return f"at most {int(smallest):,}"
    return interval(row) if row["value"] == row["value"] else ""


def _describe_shared(every: Mapping[tuple[str, str, float], _Row], size: float) -> str:
    """Return what one cache for all layers finds; empty where it is not simulated."""
    row = every.get((SHARED_HIT.make("lru").name, "", size))
    if row is None or row["value"] != row["value"]:
        return ""
    return f" One LRU cache for all layers, with as many places, finds {interval(row)}."


def _describe_loads(
    every: Mapping[tuple[str, str, float], _Row], size: float, name: str, num_layers: int
) -> list[str]:
    """Return what LRU loads per token in so many layers, and which bandwidth and speed that means."""
    loads = every.get((CACHE_LOADS.make("lru").name, "", size))
    if loads is None:
        return []
    sentence = (
        f"{name}: with LRU and {int(size):,} experts per layer, a token loads {interval(loads)} experts in "
        f"{num_layers:,} MoE {'layer' if num_layers == 1 else 'layers'}"
    )
    loaded = every.get((CACHE_BYTES.make("lru").name, "", size))
    if loaded is None:
        return [f"{sentence}."]
    needed = _amount(READING_SPEED * loaded["value"])
    sentence += f", or {_amount(loaded['value'])}; {READING_SPEED} tokens per second need {needed}/s"
    speed = every.get((CACHE_SPEED.make("lru").name, "", size))
    if speed is not None:
        sentence += f". The given bandwidth lets {interval(speed)} tokens per second through"
    return [f"{sentence}."]


def _amount(number_of_bytes: float) -> str:
    """Return a number of bytes with three digits and a unit."""
    factor, unit = next(((factor, unit) for factor, unit in _UNITS if number_of_bytes >= factor), _UNITS[-1])
    return f"{number_of_bytes / factor:.3g} {unit}"
