"""Overlaps of the keys that the queries of two captures select, sequence by sequence; NumPy alone, for any process.

Axes: R queries of a sequence, L layers, K keys of a query, N pairs of query and layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.hypergeometric import expected_jaccard
from moeprobe.recordings.indexer import ENTRIES, Selection, Selections
from moeprobe.recordings.indexer_faults import count_repeats

Overlaps = dict[str, NDArray[np.float64]]
# Sequences, and queries of each, by which it is decided whether two captures are shifted.
_SEQUENCES, _QUERIES = 16, 128
# Share of what is missing to a perfect overlap that a shift must explain.
_EXPLAINED = 0.5


@dataclass(frozen=True)
class Pair:
    """A sequence of two captures.

    Attributes:
        name: of the sequence.
        first, second: its selections in either capture.
        begin, end: positions of the queries that are compared; both captures have them, on the same tokens before.
        partner: a sequence of another request, whose queries at the same positions are a chance level; None = there is
            no other request.
    """

    name: str
    first: Selection
    second: Selection
    begin: int
    end: int
    partner: Selection | None = None


def pair_sequences(first: Selections, second: Selections) -> list[Pair]:
    """Return the sequences that both have, each with a sequence of another request beside it."""
    pairs = []
    for name, selection in first.sequences.items():
        if name in second.sequences:
            view = second.sequences[name]
            begin = max(selection.first, view.first)
            end = min(selection.end, view.end, _common_tokens(selection, view))
            pairs.append(Pair(name, selection, view, begin, max(begin, end)))
    # The next longer sequence has all positions of one; the longest gets the next shorter.
    order = sorted(range(len(pairs)), key=lambda index: pairs[index].second.end)
    clusters = [pairs[index].first.cluster for index in order]
    partners: dict[int, Selection] = {}
    for rank, index in enumerate(order):
        ranks = [*range(rank + 1, len(order)), *range(rank - 1, -1, -1)]
        beside = next((near for near in ranks if clusters[near] != clusters[rank]), None)
        if beside is not None:
            partners[index] = pairs[order[beside]].second
    return [
        Pair(pair.name, pair.first, pair.second, pair.begin, pair.end, partners.get(index))
        for index, pair in enumerate(pairs)
    ]


def _common_tokens(first: Selection, second: Selection) -> int:
    """Return how many tokens both sequences begin with; no limit where ids are not known."""
    if first.tokens is None or second.tokens is None:
        return max(first.end, second.end)
    size = min(len(first.tokens.ids), len(second.tokens.ids))
    differ = np.flatnonzero(first.tokens.ids[:size] != second.tokens.ids[:size])
    return int(differ[0]) if len(differ) else size


def common_layers(first: Selections, second: Selections) -> tuple[list[int], list[NDArray[np.int64]]]:
    """Return the hidden layers that both captures have, and where either has them."""
    layers = [layer for layer in first.layers if layer in second.layers]
    return layers, [
        np.array([side.layers.index(layer) for layer in layers], np.int64) for side in (first, second)
    ]


def overlaps_of(pair: Pair, first: Selections, second: Selections) -> Overlaps:
    """Return the fields of ``KeyOverlap`` for each query and common layer ``(R, L)``, without the axis of requests."""
    layers, _ = common_layers(first, second)
    shape = pair.end - pair.begin, len(layers)
    overlaps = {name: np.full(shape, np.nan) for name in ("jaccard", "lost", "recency", "attention_lost")}
    for begin, end in _blocks(pair, len(layers) * (first.top_k + second.top_k)):
        for name, values in _of_queries(pair, first, second, begin, end).items():
            overlaps[name][begin - pair.begin : end - pair.begin] = values
    visible = (np.arange(pair.begin, pair.end) + 1) // first.tokens_per_key
    by_query = {
        "chance": expected_jaccard(visible, first.top_k, second.top_k),
        "lost_chance": 1 - second.top_k / np.maximum(visible, 1),
    }
    return overlaps | {name: np.broadcast_to(values[:, None], shape) for name, values in by_query.items()}


def _of_queries(pair: Pair, first: Selections, second: Selections, begin: int, end: int) -> Overlaps:
    """Compare the queries from ``begin`` up to ``end``; NaN where there is no trial."""
    _, (at_first, at_second) = common_layers(first, second)
    reference, present = _read(first, pair.first, at_first, begin, end)
    view, in_view = _read(second, pair.second, at_second, begin, end)
    present &= in_view
    common = count_common(reference, view)
    overlaps = {
        "jaccard": _jaccard(common, first, second, present),
        "lost": np.where(present, 1 - common / first.top_k, np.nan),
        "recency": np.full(common.shape, np.nan),
    }
    if pair.partner is not None:
        start, stop = max(begin, pair.partner.first), min(end, pair.partner.end)
        if start < stop:
            keys, in_partner = _read(second, pair.partner, at_second, start, stop)
            inside = slice(start - begin, stop - begin)
            common = count_common(reference[inside], keys)
            overlaps["recency"][inside] = _jaccard(common, first, second, present[inside] & in_partner)
    scores = first.scores(pair.first, begin, end)
    if scores is not None:
        lost = _lost_scores(reference, view, scores[:, at_first])
        overlaps["attention_lost"] = np.where(present, lost, np.nan)
    return overlaps


def _read(
    side: Selections, selection: Selection, layers: NDArray[np.int64], begin: int, end: int
) -> tuple[NDArray[np.integer], NDArray[np.bool_]]:
    """Return the positions ``(R, L, K)`` of some queries and layers, and which are present ``(R, L)``."""
    present = selection.present[begin - selection.first : end - selection.first]
    return side.positions(selection, begin, end)[:, layers], present[:, layers]


def _blocks(pair: Pair, entries: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of some queries at a time, of which each takes so many entries."""
    step = max(ENTRIES // entries, 1)
    for begin in range(pair.begin, pair.end, step):
        yield begin, min(begin + step, pair.end)


def count_common(first: NDArray[np.integer], second: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return how many of the keys ``(..., K)`` are in both selections; in neither one occurs twice."""
    keys = np.concatenate(
        [side.astype(np.result_type(first, second), copy=False) for side in (first, second)], axis=-1
    )
    keys.sort(axis=-1)
    return count_repeats(keys)


def _jaccard(
    common: NDArray[np.int64], first: Selections, second: Selections, present: NDArray[np.bool_]
) -> NDArray[np.float64]:
    index: NDArray[np.float64] = np.where(present, common / (first.top_k + second.top_k - common), np.nan)
    return index


def _lost_scores(
    reference: NDArray[np.integer], view: NDArray[np.integer], scores: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return which share of the scores ``(R, L, K)`` is on keys that the other selection lacks; NaN where all are 0."""
    shape, top_k = reference.shape[:2], reference.shape[2]
    rows = np.arange(shape[0] * shape[1])[:, None]
    width = int(max(reference.max(initial=0), view.max(initial=0))) + 1
    # A number for each key of each pair of query and layer; both sides are sorted by it.
    codes, view_codes = ((side.reshape(len(rows), -1) + rows * width).ravel() for side in (reference, view))
    nearest = np.minimum(np.searchsorted(view_codes, codes), len(view_codes) - 1)
    lost = (view_codes[nearest] != codes).reshape(-1, top_k)
    weights = scores.reshape(-1, top_k).astype(np.float64)
    total = weights.sum(1)
    share = np.where(total > 0, (weights * lost).sum(1) / np.where(total > 0, total, 1), np.nan)
    return share.reshape(shape)


def shift_sentence(pairs: Sequence[Pair], first: Selections, second: Selections) -> str:
    """Return that a shift by one explains most of the difference of two captures; empty where none does."""
    layers, at = common_layers(first, second)
    shifts: dict[str, list[float]] = {}
    for pair in [pair for pair in pairs if pair.end - pair.begin > 1][:_SEQUENCES]:
        end = min(pair.end, pair.begin + _QUERIES)
        a, b = (
            side.positions(selection, pair.begin, end)[:, indices].astype(np.int32)
            for side, selection, indices in zip((first, second), (pair.first, pair.second), at, strict=True)
        )
        for name, sides in _shift_layers(a, b, layers=len(layers)).items():
            common = count_common(*sides)
            shifts.setdefault(name, []).append(float((common / (first.top_k + second.top_k - common)).mean()))
    overlaps: Mapping[str, Any] = {name: float(np.mean(values)) for name, values in shifts.items()}
    if not overlaps:
        return ""
    unshifted = overlaps[""]
    best = max(overlaps, key=lambda name: overlaps[name])
    if unshifted == 1 or overlaps[best] - unshifted <= _EXPLAINED * (1 - unshifted):
        return ""
    return (
        f"is shifted by one: its selections overlap {overlaps[best]:.3f} with {first.path.name} where {best}, "
        f"and {unshifted:.3f} as they are; the numbers are about the shift, and not about indexers"
    )


def _shift_layers(
    first: NDArray[np.int32], second: NDArray[np.int32], *, layers: int
) -> dict[str, tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Return the selections of both as they are (""), and with the second shifted by one."""
    shifted = {
        "": (first, second),
        "its positions are one higher": (first, second - 1),
        "its positions are one lower": (first, second + 1),
        "its rows are one later": (first[:-1], second[1:]),
        "its rows are one earlier": (first[1:], second[:-1]),
    }
    if layers > 1:
        shifted |= {
            "its layers are one later": (first[:, :-1], second[:, 1:]),
            "its layers are one earlier": (first[:, 1:], second[:, :-1]),
        }
    return shifted
