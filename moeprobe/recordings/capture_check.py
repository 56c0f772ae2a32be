"""What is wrong with recorded routing as such: choices that no router makes, named as people know them.

It is told of rows as they are written or read, and holds a few numbers per layer and per input. A *fault* means that
numbers about the trace would describe the capture; missing values enter no number, and are no fault.

Axes: N tokens of several inputs, K choices.
"""

from collections import defaultdict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.recordings.faults import (
    BITS,
    OF_CHOICES,
    OF_INPUTS,
    Finding,
    FrozenChoices,
    bits_of_zeros,
    constant_layers,
    first_names,
    layers_alike,
    nothing,
    zero_layers,
)
from moeprobe.recordings.format import beside

# What marks an empty place in buffers of 8 bits.
_FILL = 255
# What is looked at.
_COLUMNS = ("id", "layer", "top_k", "num_experts", "experts", "generated", "token_ids")


@dataclass
class _Layer:
    """Counts of one layer over all inputs; tokens are those with an expert."""

    num_experts: int
    top_k: int
    tokens: int = 0
    zero: int = 0
    twice: int = 0
    beyond: int = 0
    fill: int = 0
    first: bytes = b""
    constant: bool = True
    digest: int = 0

    @property
    def is_zero(self) -> bool:
        """Whether all tokens are zero, and that is no chance."""
        bits = bits_of_zeros(self.tokens, 1, self.top_k, self.num_experts)
        return self.tokens == self.zero and bits >= BITS


@dataclass
class _Input:
    """What all layers of an input have in common: the fewest of each."""

    layers: int = 0
    shortest: int = 2**31
    longest: int = 0
    prompt: int = -1
    zeros_first: int = 2**31
    unset_first: int = 2**31
    holes: int = 0


class CaptureCheck:
    """A check of rows of a trace (``format.COLUMNS``), in any number of parts."""

    def __init__(self) -> None:
        self._layers: dict[str, _Layer] = {}
        self._inputs: dict[str, _Input] = defaultdict(_Input)
        self._frozen = FrozenChoices()

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Look at rows; layers in which no token chooses, or none is known, are passed over."""
        experts_choose = np.asarray(rows["experts_choose"].to_pylist())
        top_k, num_experts = (rows[name].to_numpy().astype(np.int64) for name in ("top_k", "num_experts"))
        has_choices = (top_k > 0) & ~experts_choose & (rows["num_tokens"].to_numpy() > 0)
        columns = pa.table({name: rows[name] for name in _COLUMNS if name in rows.schema.names})
        # Layers of one shape are looked at together: a group of rows may hold few rows of each layer.
        for of_shape in np.unique(np.stack([top_k, num_experts])[:, has_choices], axis=1).T.tolist():
            is_of_shape = has_choices & (top_k == of_shape[0]) & (num_experts == of_shape[1])
            part = columns if is_of_shape.all() else columns.filter(pa.array(is_of_shape))
            self._add(part, top_k=of_shape[0], num_experts=of_shape[1])

    def _add(self, rows: pa.Table, *, top_k: int, num_experts: int) -> None:
        lists = rows["experts"].combine_chunks()
        tokens = lists.value_lengths().to_numpy().astype(np.int64) // top_k
        starts = np.concatenate([[0], np.cumsum(tokens)])
        experts = lists.flatten().to_numpy(zero_copy_only=False).reshape(-1, top_k)
        ordered, repeats = _in_order(experts)
        # Sorted, so that two columns answer nearly all checks; beside each other they are read faster.
        lowest, highest = ordered[:, 0].copy(), ordered[:, -1].copy()
        any_expert, zero = highest >= 0, (lowest == 0) & (highest == 0)
        filled = (lowest == _FILL) & (highest == _FILL)
        is_fill = filled & (num_experts <= _FILL)
        twice = np.zeros(len(ordered), dtype=bool)
        twice[repeats[ordered.reshape(-1)[repeats] >= 0] // top_k] = True
        counts = {
            "tokens": any_expert,
            "zero": zero,
            "fill": is_fill,
            "twice": twice & ~zero & ~is_fill,
            "beyond": ((highest >= num_experts) | (lowest < -1)) & ~is_fill,
        }
        names = rows["layer"].to_pylist()
        layers = [self._layers.setdefault(name, _Layer(num_experts, top_k)) for name in names]
        sums = {name: _sums(which, starts) for name, which in counts.items()}
        for count, of_rows in sums.items():
            for row in np.flatnonzero(of_rows).tolist():
                setattr(layers[row], count, getattr(layers[row], count) + int(of_rows[row]))
        for row, layer in enumerate(layers):
            if layer.constant and sums["tokens"][row]:
                span = slice(starts[row], starts[row + 1])
                sets = ordered[span][any_expert[span]]
                layer.first = layer.first or sets[0].tobytes()
                layer.constant = bool((np.frombuffer(layer.first, sets.dtype) == sets).all())
        # Rows of zeros and of 255 are no choices; they are said on their own.
        self._add_inputs(layers, rows, starts, ordered, zero, ~any_expert, any_expert & ~zero & ~filled)

    def _add_inputs(
        self,
        layers: list[_Layer],
        rows: pa.Table,
        starts: NDArray[np.int64],
        sets: NDArray[np.int16],
        zero: NDArray[np.bool_],
        unset: NDArray[np.bool_],
        is_choice: NDArray[np.bool_],
    ) -> None:
        tokens = np.diff(starts)
        positions = np.arange(starts[-1]) - np.repeat(starts[:-1], tokens)
        zeros_first, unset_first = (
            _first_without(which, positions, tokens, starts) for which in (zero, unset)
        )
        holes = _sums(unset & (positions > np.repeat(unset_first, tokens)), starts)
        identities = rows["id"].to_pylist()
        is_marked, generated = _values(rows, "generated", starts)
        prompts = np.where(is_marked, _first_without(~generated, positions, tokens, starts), -1).tolist()
        if layers[0].top_k < layers[0].num_experts:
            of_prompts = is_choice & ~generated & np.repeat(is_marked, tokens)
            self._frozen.add(
                identities,
                sets,
                starts,
                prompts=of_prompts,
                generated=is_choice & _vary(rows, generated, starts),
            )
        bounds = starts.tolist()
        of_rows = zip(
            *(numbers.tolist() for numbers in (tokens, zeros_first, unset_first, holes)), prompts, strict=True
        )
        for row, (num_tokens, num_zeros, num_unset, num_holes, prompt) in enumerate(of_rows):
            identity, layer = identities[row], layers[row]
            counts = self._inputs[identity]
            counts.shortest, counts.longest = (
                min(counts.shortest, num_tokens),
                max(counts.longest, num_tokens),
            )
            counts.zeros_first = min(counts.zeros_first, num_zeros)
            counts.unset_first = min(counts.unset_first, num_unset)
            counts.holes = min(counts.holes, num_holes) if counts.layers else num_holes
            counts.layers += 1
            if prompt >= 0:
                counts.prompt = prompt
            digest = blake2b(identity.encode(), digest_size=16)
            digest.update(sets[bounds[row] : bounds[row + 1]].data)
            layer.digest ^= int.from_bytes(digest.digest(), "little")

    def findings(self) -> list[Finding]:
        """Return the findings, faults first."""
        if not self._layers:
            return []
        findings = self._of_capture() or [*self._of_choices(), *self._of_layers(), *self._frozen.findings()]
        return findings + self._of_inputs() if not (findings and findings[0].empty) else findings

    def _of_capture(self) -> list[Finding]:
        """Return that nothing was captured."""
        layers = list(self._layers.values())
        tokens = sum(layer.tokens for layer in layers)
        if not tokens:
            return [nothing("all unset", 0)]
        if all(layer.zero == layer.tokens for layer in layers):
            bits = sum(bits_of_zeros(layer.tokens, 1, layer.top_k, layer.num_experts) for layer in layers)
            if bits >= BITS:
                return [nothing("all zero", tokens)]
        return [nothing("255 fill", tokens)] if all(layer.fill == layer.tokens for layer in layers) else []

    def _of_choices(self) -> list[Finding]:
        """Return single choices that no router makes."""
        findings = []
        for name, field in zip(OF_CHOICES, ("fill", "twice", "beyond"), strict=True):
            counts = {
                layer: getattr(counts_of, field)
                for layer, counts_of in self._layers.items()
                if getattr(counts_of, field)
            }
            if counts:
                total = sum(counts.values())
                where = f"{total:,} choices of tokens in {first_names(list(counts))}"
                findings.append(Finding(name, total, f"{where} {OF_CHOICES[name]}."))
        return findings

    def _of_layers(self) -> list[Finding]:
        """Return layers that look as if no router of theirs had been captured."""
        layers = self._layers
        zeros = [name for name, layer in layers.items() if layer.is_zero]
        findings = [zero_layers(zeros, sure=any(layers[name].top_k > 1 for name in zeros))] if zeros else []
        several = {name: layer for name, layer in layers.items() if layer.tokens > BITS}
        constant = [
            name
            for name, layer in several.items()
            if layer.constant and name not in zeros and layer.top_k < layer.num_experts
        ]
        findings += [constant_layers(constant)] if constant else []
        by_digest: dict[tuple[int, int], list[str]] = defaultdict(list)
        for name, layer in several.items():
            if not layer.constant:
                by_digest[layer.tokens, layer.digest].append(name)
        return findings + [layers_alike(same) for same in by_digest.values() if len(same) > 1]

    def _of_inputs(self) -> list[Finding]:
        """Return rows that are missing."""
        inputs = list(self._inputs.values())
        zeros = [entry for entry in inputs if self._is_no_routing(entry.zeros_first)]
        unset = [entry for entry in inputs if entry.unset_first > 0]
        counts = {
            "rows missing": sum(entry.shortest != entry.longest for entry in inputs),
            "inputs zero": sum(entry.zeros_first == entry.longest for entry in zeros),
            "prompt rows zero": sum(
                entry.prompt != 0 and entry.prompt <= entry.zeros_first < entry.longest for entry in zeros
            ),
            "leading rows zero": len(zeros),
            "rows zero": self._zeros_later(sum(entry.zeros_first for entry in zeros)),
            "prompt rows unset": sum(0 < entry.prompt <= entry.unset_first for entry in unset),
            "leading rows unset": len(unset),
            "rows unset": sum(entry.holes > 0 for entry in inputs),
        }
        counts["leading rows zero"] -= counts["inputs zero"] + counts["prompt rows zero"]
        counts["leading rows unset"] -= counts["prompt rows unset"]
        return [
            Finding(name, counts[name], f"{counts[name]:,} {words}.", fault)
            for name, (words, fault) in OF_INPUTS.items()
            if counts[name]
        ]

    def _zeros_later(self, at_first: int) -> int:
        """Return tokens that are zero, beyond those at inputs' beginnings, where an expert would be there twice."""
        layers = self._layers.values()
        if any(layer.is_zero for layer in layers):
            return 0  # said of the layer
        return max(layer.zero - at_first if layer.top_k > 1 else 0 for layer in layers)

    def _is_no_routing(self, zeros: int) -> bool:
        """Whether so many tokens of an input that are zero in all layers were not captured."""
        layer = next(iter(self._layers.values()))
        return bits_of_zeros(zeros, len(self._layers), layer.top_k, layer.num_experts) >= BITS


def not_empty(check: CaptureCheck, source: str) -> list[Finding]:
    """Return the findings of a check.

    Raises:
        UserError: nothing was captured.
    """
    findings = check.findings()
    for finding in findings:
        if finding.empty:
            raise UserError(f"{source}: {finding.sentence[0].lower()}{finding.sentence[1:]}")
    return findings


def _first_without(
    which: NDArray[np.bool_],
    positions: NDArray[np.int64],
    tokens: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the first place of each input where ``which`` ``(N,)`` does not hold; its length where there is none."""
    if not which.any():
        return np.zeros_like(tokens)
    first: NDArray[np.int64] = np.minimum.reduceat(
        np.where(which, np.repeat(tokens, tokens), positions), starts[:-1]
    )
    return first


def _sums(which: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return of how many tokens ``(N,)`` of each row it holds."""
    return _sums_at(np.flatnonzero(which), starts)


def _sums_at(index: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many of some tokens, ascending, each row has."""
    return np.diff(np.searchsorted(index, starts))


def _in_order(experts: NDArray[np.int16]) -> tuple[NDArray[np.int16], NDArray[np.intp]]:
    """Return choices ``(N, K)``, the lowest expert of a token first, and which of all N·K are equal to the next one."""
    # Sets are written in order and without repeats: one look at them suffices.
    if not beside(np.greater_equal, experts).any():
        return experts, np.empty(0, dtype=np.intp)
    ordered = np.sort(experts, axis=1) if beside(np.greater, experts).any() else experts
    return ordered, np.flatnonzero(beside(np.equal, ordered))


def _vary(rows: pa.Table, generated: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the generated tokens ``(N,)`` of rows in which these are not all one token, which has one choice."""
    has_ids, ids = _values(rows, "token_ids", starts)
    if not has_ids.any():
        return generated
    index = np.flatnonzero(generated)
    bounds = np.searchsorted(index, starts)
    number = np.diff(bounds)
    is_other = ids[index] != np.repeat(ids[index[bounds[:-1][number > 0]]], number[number > 0])
    num_others = _sums_at(index[is_other], starts)
    return generated & np.repeat(~has_ids | (num_others > 0), np.diff(starts))


def _values(rows: pa.Table, name: str, starts: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Return which rows have a list, and its values at the tokens ``(N,)``, 0 in other rows.

    Raises:
        UserError: a list does not have a value for each token.
    """
    tokens = np.diff(starts)
    if name not in rows.column_names or rows[name].null_count == rows.num_rows:
        return np.zeros(len(tokens), dtype=bool), np.zeros(starts[-1], dtype=bool)
    column = rows[name].combine_chunks()
    present = column.is_valid().to_numpy(zero_copy_only=False)
    lengths = column.value_lengths().fill_null(0).to_numpy()
    if (lengths != np.where(present, tokens, 0)).any():
        row = int(np.argmax(lengths != np.where(present, tokens, 0)))
        raise UserError(
            f"{name} of {rows['id'][row]} holds {lengths[row]} values, expected {tokens[row]}; record it again."
        )
    values = column.flatten().to_numpy(zero_copy_only=False)
    if present.all():
        return present, values
    every = np.zeros(starts[-1], dtype=values.dtype)
    every[np.repeat(present, tokens)] = values
    return present, every
