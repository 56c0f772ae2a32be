"""The sums per request of caches: each layer's, and those of all layers together.

Axes: B sequences, J tokens, K choices of a token, E experts, L layers, S sizes, F folds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import TEXT
from moeprobe.metrics.analyses.cache_size import CacheSize, HitCurve
from moeprobe.metrics.analyses.expert_cache import NO_OTHERS, CacheHits, ExpertCache
from moeprobe.metrics.analyses.shared_cache import SharedCache
from moeprobe.metrics.cache_policies import POLICIES, Lookups
from moeprobe.metrics.stats.statistic import Array, Integers
from moeprobe.recorded.engine.folds import heat_of
from moeprobe.recordings.reading import Layer
from moeprobe.results.sums import Cell

# Sizes of caches, as shares of the experts of a layer.
_SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4)
Masks = dict[str, NDArray[np.bool_]]


@dataclass(frozen=True)
class CacheSettings:
    """What caches are simulated.

    Attributes:
        sizes: places per layer; None = shares of the experts.
        batch: sequences that are served at once.
        expert_bytes: None = not known.
        bandwidth: bytes per second; None = not known.
    """

    sizes: tuple[int, ...] | None
    batch: int
    expert_bytes: float | None
    bandwidth: float | None

    def sizes_of(self, name: str, layer: Layer) -> tuple[int, ...]:
        """Return the sizes of a layer's cache.

        Raises:
            UserError: a size that was asked for holds no more than a token's experts, or more than the layer's.
        """
        low, high = layer.top_k + 1, layer.num_experts
        if self.sizes is None:
            sizes = {round(share * high) for share in _SHARES}
            return tuple(sorted(size for size in sizes if low <= size < high)) or (low,)
        for size in self.sizes:
            if not low <= size <= high:
                raise UserError(
                    f"A cache of {name} takes from {low} to {high} experts, above those of one token; got "
                    f"{option('cache', size)}."
                )
        return tuple(sorted(set(self.sizes)))


@dataclass(frozen=True)
class LayerTokens:
    """The tokens of some sequences in one layer.

    Attributes:
        layer: what holds for all of them.
        experts: ``(B, J, K)``, -1 = none.
        masks: by kind of tokens, which of them are present ``(B, J)``; all of them first.
    """

    layer: Layer
    experts: NDArray[np.int16]
    masks: Masks

    def interleaved(self, batch: int) -> "LayerTokens":
        """Return batches of sequences as one sequence each, in which they take turns token by token."""
        if batch == 1:
            return self
        masks: Masks = {kind: interleave(mask, batch, empty=False) for kind, mask in self.masks.items()}
        return LayerTokens(self.layer, interleave(self.experts, batch, empty=-1), masks)

    def take(self, rows: Integers) -> "LayerTokens":
        """Return the tokens of some of the sequences."""
        if len(rows) == len(self.experts):
            return self
        masks: Masks = {kind: mask[rows] for kind, mask in self.masks.items()}
        return LayerTokens(self.layer, self.experts[rows], masks)

    @property
    def present(self) -> NDArray[np.bool_]:
        """``(B, J)`` all tokens."""
        return self.masks[TEXT.token]

    @property
    def groups(self) -> NDArray[np.bool_]:
        """``(G, B, J)`` the masks, one after the other."""
        return np.stack(list(self.masks.values()))

    @cached_property
    def choices(self) -> Integers:
        """``(B, J)`` choices of each token."""
        return np.count_nonzero(self.experts >= 0, axis=2)


def interleave(values: NDArray[Any], batch: int, *, empty: int) -> NDArray[Any]:
    """Return values ``(B, J, ...)`` of sequences as those of batches ``(ceil(B / batch), J · batch, ...)``.

    Two sequences, of which one token each comes in turn:

    >>> import numpy as np
    >>> from moeprobe.recorded.locality.caches import interleave
    >>> interleave(np.array([[1, 2], [11, 12]]), 2, empty=-1).tolist()
    [[1, 11, 2, 12]]
    """
    missing = -len(values) % batch
    filled = np.pad(values, [(0, missing), *[(0, 0)] * (values.ndim - 1)], constant_values=empty)
    grouped = filled.reshape(-1, batch, *values.shape[1:]).swapaxes(1, 2)
    return grouped.reshape(len(grouped), -1, *values.shape[2:])


class CacheSums:
    """The sums of caches, of some sequences at a time.

    Args:
        settings: what is simulated.
        counts: by layer, how often other folds chose each expert ``(F, E)``, as ``without_fold`` returns it.
        folds: of each input.
        cached_ids: inputs for which caches are simulated; the sums of others are 0.
        shared_ids: those of them for which one cache for all layers is simulated, too.
        adds_layers: whether all layers together have sums, too: layers of one shape, with the same tokens.
    """

    def __init__(
        self,
        settings: CacheSettings,
        counts: Mapping[str, Integers],
        folds: Mapping[str, int],
        cached_ids: frozenset[str],
        shared_ids: frozenset[str],
        *,
        adds_layers: bool,
    ) -> None:
        self._settings, self._counts, self._folds = settings, counts, folds
        self._adds_layers = adds_layers
        self._cached_ids, self._shared_ids = cached_ids, shared_ids
        self._has_others = all(bool(of_layer.any(1).all()) for of_layer in counts.values())

    @property
    def has_others(self) -> bool:
        """Whether other requests say in every layer which experts are busy; else all caches begin empty."""
        return self._has_others

    def of(self, layers: Mapping[str, LayerTokens], ids: Sequence[str]) -> dict[Cell, dict[str, Tensor]]:
        """Return the sums of some sequences; of a batch they are those of its first sequence."""
        batch = self._settings.batch
        first_ids = ids[::batch]
        rows = np.array([row for row, name in enumerate(first_ids) if name in self._cached_ids], np.int64)
        tokens = {name: layer.interleaved(batch).take(rows) for name, layer in layers.items()}
        sums: dict[Cell, dict[str, Tensor]] = {}
        for cell, columns in self._sums(tokens, [first_ids[row] for row in rows.tolist()]):
            spread = {name: _to_rows(column, rows * batch, len(ids)) for name, column in columns.items()}
            if not self._has_others:
                spread[NO_OTHERS] = torch.zeros(len(ids), dtype=torch.int64)
            sums[cell] = sums.get(cell, {}) | spread
        return sums

    def _sums(
        self, tokens: Mapping[str, LayerTokens], ids: Sequence[str]
    ) -> Iterator[tuple[Cell, dict[str, Tensor]]]:
        totals: dict[str, _Caches] = {}
        for name, of_layer, hits in self._hits(tokens, ids):
            sizes = self._settings.sizes_of(name, of_layer.layer)
            for (kind, mask), of_kind in zip(of_layer.masks.items(), hits, strict=True):
                caches = _Caches(of_kind, (of_layer.choices * mask).sum(1), mask.sum(1), sizes)
                # Each kind by itself over all layers is enough, where there are several.
                if kind == TEXT.token or len(tokens) == 1:
                    layer = of_layer.layer
                    cell = Cell(layer=name, router=layer.router, top_k=layer.top_k, tokens=kind)
                    # A single layer is all there is to load.
                    yield from caches.of_layer(cell, layer, self._settings if len(tokens) == 1 else None)
                if self._adds_layers:
                    totals[kind] = caches if kind not in totals else totals[kind].plus(caches)
        if not self._adds_layers or len(tokens) < 2:
            return
        layer = next(iter(tokens.values())).layer
        # A token that one layer has no expert for counts where another layer has one.
        masks = {
            kind: np.logical_or.reduce([part.masks[kind] for part in tokens.values()]) for kind in totals
        }
        for kind, caches in totals.items():
            cell = Cell(router=layer.router, top_k=layer.top_k, tokens=kind)
            yield from replace(caches, tokens=masks[kind].sum(1)).of_layer(cell, layer, self._settings)
        yield from self._hits_of_shared(tokens, masks, ids, layer)

    def _hits(
        self, tokens: Mapping[str, LayerTokens], ids: Sequence[str]
    ) -> Iterator[tuple[str, LayerTokens, Array]]:
        """Yield the hits of each layer by kind ``(G, B, S, P)``; layers of one shape are simulated at once."""
        by_shape: dict[tuple[int, ...], list[str]] = {}
        for name, layer_tokens in tokens.items():
            by_shape.setdefault((layer_tokens.layer.num_experts, *layer_tokens.experts.shape), []).append(
                name
            )
        for names in by_shape.values():
            layers = [tokens[name] for name in names]
            heats = [self._heat(self._counts[name], ids) for name in names]
            lookups = Lookups(
                np.concatenate([layer_tokens.experts for layer_tokens in layers]),
                np.concatenate([layer_tokens.present for layer_tokens in layers]),
                None if heats[0] is None else np.concatenate([heat for heat in heats if heat is not None]),
                layers[0].layer.num_experts,
            )
            groups = np.concatenate([layer_tokens.groups for layer_tokens in layers], axis=1)
            hits = lookups.hits(self._settings.sizes_of(names[0], layers[0].layer), groups)
            for layer_hits, name, layer_tokens in zip(
                np.split(hits, len(names), axis=1), names, layers, strict=True
            ):
                yield name, layer_tokens, layer_hits

    def _heat(self, counts: Integers, ids: Sequence[str]) -> Integers | None:
        """Return the rank of experts ``(B, E)`` in other folds; None where there are no others."""
        if not self._has_others:
            return None
        return heat_of(counts)[[self._folds[name] for name in ids]]

    def _hits_of_shared(
        self, tokens: Mapping[str, LayerTokens], masks: Masks, ids: Sequence[str], layer: Layer
    ) -> Iterator[tuple[Cell, dict[str, Tensor]]]:
        """Yield the sums of one cache for all layers; 0 of sequences for which it is not simulated.

        ``masks``: by kind of tokens, which of them any layer has an expert for ``(B, J)``; all of them first.
        """
        rows = np.array([name in self._shared_ids for name in ids], bool)
        number, sizes = len(tokens), self._settings.sizes_of("", layer)
        hits = np.zeros((len(masks), len(ids), len(sizes), len(POLICIES)))
        if rows.any():
            # Experts of all layers have numbers of their own, which 16 bits may not hold.
            experts = np.concatenate([part.experts[rows] for part in tokens.values()], axis=2, dtype=np.int32)
            first_of_layer = np.repeat(np.arange(number, dtype=np.int32) * layer.num_experts, layer.top_k)
            heat = self._heat(np.concatenate([self._counts[name] for name in tokens], axis=1), ids)
            lookups = Lookups(
                np.where(experts >= 0, experts + first_of_layer, -1),
                masks[TEXT.token][rows],
                None if heat is None else heat[rows],
                number * layer.num_experts,
            )
            hits[:, rows] = lookups.hits(
                [size * number for size in sizes], np.stack([*masks.values()])[:, rows]
            )
        choices = np.sum([part.choices for part in tokens.values()], axis=0)
        for (kind, mask), hits_of_kind in zip(masks.items(), hits, strict=True):
            of_kind = (choices * mask).sum(1) * rows
            for index, size in enumerate(sizes):
                cell = Cell(router=layer.router, top_k=layer.top_k, severity=float(size), tokens=kind)
                subject = _cache_hits(hits_of_kind[:, index], of_kind, size / layer.num_experts)
                yield cell, SharedCache().sums(subject)


@dataclass(frozen=True)
class _Caches:
    """Hits ``(B, S, P)``, choices and tokens ``(B,)``, and sizes ``(S,)``, of a layer or of several."""

    hits: Array
    choices: Integers
    tokens: Integers
    sizes: tuple[int, ...]

    def plus(self, caches: "_Caches") -> "_Caches":
        """Return the sums of two layers of the same tokens."""
        return _Caches(self.hits + caches.hits, self.choices + caches.choices, self.tokens, self.sizes)

    def of_layer(
        self, cell: Cell, layer: Layer, settings: CacheSettings | None = None
    ) -> Iterator[tuple[Cell, dict[str, Tensor]]]:
        """Yield the sums of each size, then those of the curve; with settings, what is loaded per token, too."""
        tokens = None if settings is None else torch.from_numpy(self.tokens)
        for index, size in enumerate(self.sizes):
            subject = _cache_hits(
                self.hits[:, index],
                self.choices,
                size / layer.num_experts,
                tokens=tokens,
                settings=settings,
            )
            sized = Cell(cell.layer, cell.router, cell.top_k, severity=float(size), tokens=cell.tokens)
            yield sized, ExpertCache().sums(subject)
        # A cache of all experts finds them all.
        every = np.broadcast_to(self.choices[:, None, None], (len(self.choices), 1, len(POLICIES)))
        sizes = [size for size in self.sizes if size < layer.num_experts]
        curve = HitCurve(
            torch.from_numpy(np.concatenate([self.hits[:, : len(sizes)], every], axis=1)),
            torch.from_numpy(self.choices),
            torch.tensor([*sizes, layer.num_experts]).expand(len(self.choices), -1),
        )
        yield cell, CacheSize().sums(curve)


def _cache_hits(
    hits: Array,
    choices: Integers,
    share: float,
    *,
    tokens: Tensor | None = None,
    settings: CacheSettings | None = None,
) -> CacheHits:
    """Return what caches that hold a share of the experts found ``(B, P)`` of choices ``(B,)``."""

    def constant(value: float | None) -> Tensor | None:
        return None if value is None else torch.full((len(choices),), value, dtype=torch.float64)

    return CacheHits(
        torch.from_numpy(hits),
        torch.from_numpy(choices),
        torch.from_numpy(choices * share),
        tokens,
        constant(None if settings is None else settings.expert_bytes),
        constant(None if settings is None else settings.bandwidth),
    )


def _to_rows(column: Tensor, rows: Integers, number: int) -> Tensor:
    """Return sums as those of some of ``number`` sequences, and 0 of the others."""
    if len(rows) == number:
        return column
    spread = torch.zeros(number, *column.shape[1:], dtype=column.dtype)
    spread[torch.from_numpy(rows)] = column
    return spread
