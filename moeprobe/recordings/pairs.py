"""Traces that are compared with one another: which inputs they share, and which of their tokens correspond.

Axes: B inputs, P tokens after the prefix.
"""

import dataclasses
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.errors import UserError, option
from moeprobe.recordings.reading import Block, Layer, TraceFile
from moeprobe.recordings.rows import patches_of, to_routing
from moeprobe.routing.record import LayerPair
from moeprobe.runtime.characters import exact
from moeprobe.runtime.files import resolve
from moeprobe.runtime.short_paths import shortest_ends

# What two traces must have in common to be of the same inputs.
_SOURCE = ("data", "split", "crop_fraction")


@dataclass(frozen=True)
class NamedTrace:
    """A trace, and what the tables call it: two of one run differ in their name, view or severity.

    ``has_moved``: its patches have other positions than in the trace that it is compared with. ``symmetric``: the two
    are the random views of one probe.
    """

    trace: TraceFile
    name: str
    view: str
    severity: float
    has_moved: bool
    symmetric: bool = False

    @property
    def label(self) -> str:
        """The name with the view, e.g. ``prc gaussian_noise 0.1``."""
        return f"{self.name} {self.view_label}"

    @property
    def view_label(self) -> str:
        """The view and its severity, e.g. ``gaussian_noise 0.1``."""
        return self.view if self.severity != self.severity else f"{self.view} {exact(self.severity)}"


def name_all(traces: Sequence[TraceFile]) -> list[NamedTrace]:
    """Name traces, the first of which is the reference of the others.

    The name is the checkpoint's; where several files share one name, or one view occurs twice, it is the path's.

    Raises:
        UserError: one is named twice, or cannot be compared with the first.
    """
    for path, number in Counter(resolve(trace.path) for trace in traces).items():
        if number > 1:
            raise UserError(f"The trace {path} was named twice.")
    paths = [trace.unsuffixed_path for trace in traces]
    labels = [(trace.about["checkpoint"]["name"], *_view_of(trace)) for trace in traces]
    # Traces of one name may be of different checkpoints: then the name alone would mislead.
    hashes: dict[str, set[str | None]] = {}
    for trace in traces:
        hashes.setdefault(trace.about["checkpoint"]["name"], set()).add(
            trace.about["checkpoint"].get("sha256")
        )
    counts = Counter(str(label) for label in labels)
    ambiguous = {label[0] for label in labels if counts[str(label)] > 1 or len(hashes[label[0]]) > 1}
    return [
        NamedTrace(
            trace,
            # The end of the path tells traces apart that share a name.
            end if name in ambiguous else name,
            view,
            severity,
            has_moved=number > 0 and _has_moved(traces[0], trace),
            symmetric=_are_both_views(traces[0], trace),
        )
        for number, (trace, end, (name, view, severity)) in enumerate(
            zip(traces, shortest_ends(paths), labels, strict=True)
        )
    ]


def _view_of(trace: TraceFile) -> tuple[str, float]:
    severity = trace.about["severity"]
    # NaN, not None: severities are numbers in tables.
    return trace.about["view"] or "recorded", float("nan") if severity is None else float(severity)


def _has_moved(reference: TraceFile, trace: TraceFile) -> bool:
    """Whether patches must be looked up; else token t of the one is token t of the other."""
    first, second = reference.about["inputs"], trace.about["inputs"]
    # Unless both say what they were made of, nothing can contradict.
    if None not in (first, second):
        for key in _SOURCE:
            if first.get(key) != second.get(key):
                raise UserError(
                    f"{reference.path} and {trace.path} are of different inputs: {key} is {first.get(key)} in the "
                    f"first and {second.get(key)} in the second."
                )
        if first == second:
            return False
    # This trace was recorded against the reference: its patches have partners there.
    pointed = trace.about["reference"]
    if pointed is not None and pointed == first:
        return True
    if pointed is not None or False in (reference.about["aligned"], trace.about["aligned"]):
        raise UserError(
            f"The patches of {trace.path} and {reference.path} have different positions, and no correspondence "
            "of the two was recorded; name the reference first that its patches were recorded against (for a view: "
            "clean.parquet or VIEW-1.parquet in the same folder)."
        )
    return False


def _are_both_views(reference: TraceFile, trace: TraceFile) -> bool:
    """Whether these are the first and the second random view that one checkpoint was shown."""
    first, second = reference.about["inputs"], trace.about["inputs"]
    if first is None or second is None or second.get("side") != 2:
        return False
    # The same record but for the side.
    return first == second | {"side": 1} and reference.about["checkpoint"] == trace.about["checkpoint"]


def common_layers(
    traces: Sequence[TraceFile], names: Sequence[str] | None, *, mapped: bool = False
) -> list[str]:
    """Return the layers that are looked at, in forward order; ``mapped``: experts of the others have other numbers.

    Raises:
        UserError: a trace lacks one, or two of one name cannot be compared.
    """
    first = traces[0]
    layers = list(first.layers) if names is None else [name for name in first.layers if name in names]
    for trace in traces:
        lacking = set(names or layers) - set(trace.layers)
        # Unless layers are named, both traces must have the same ones.
        extra = set(trace.layers) - set(layers) if names is None else set()
        if lacking:
            present = ", ".join(trace.layers)
            common = f": choose common layers with {option('layers')}" if len(traces) > 1 else ""
            raise UserError(f"{trace.path} has no layer {min(lacking)}; it has {present}{common}.")
        if extra:
            raise UserError(
                f"{first.path} has no layer {min(extra)}, which {trace.path} has; choose with {option('layers')}."
            )
        for name in layers:
            _check_alike(first, trace, name, mapped=mapped)
    return layers


def _check_alike(first: TraceFile, trace: TraceFile, name: str, *, mapped: bool) -> None:
    first_layer, second_layer = first.layers[name], trace.layers[name]
    for field in ("num_experts", "top_k", "experts_choose", "num_prefix_tokens"):
        # A map of experts says which became which, so their numbers may differ.
        if mapped and field == "num_experts":
            continue
        values = getattr(first_layer, field), getattr(second_layer, field)
        if values[0] != values[1]:
            raise UserError(
                f"{name} of {first.path} and of {trace.path} cannot be compared: {field} is {values[0]} in the first "
                f"and {values[1]} in the second"
                + (f"; say which became which: {option('expert_map')}." if field == "num_experts" else ".")
            )


def common_ids(traces: Sequence[TraceFile], layers: Sequence[str]) -> list[str]:
    """Return the inputs that all have, in the order of the first.

    Raises:
        UserError: there is none, or an image has another number of tokens in another trace.
    """
    # A single trace is compared with nothing.
    if len(traces) > 1:
        for trace in traces:
            check_placed(trace)
    first = traces[0]
    shared = set(first.ids).intersection(*(trace.ids for trace in traces))
    ids = [name for name in first.ids if name in shared]
    if not ids:
        paths = " and ".join(str(trace.path) for trace in traces)
        raise UserError(
            f"{paths} have no input in common; their names look like "
            f"{' and '.join(repr(trace.ids[0]) for trace in traces)}. Send the same request_id both times, or "
            f"match them by their tokens: {option('match', 'tokens')}."
        )
    for trace in traces[1:]:
        for layer in layers:
            first_counts, counts = first.num_tokens(layer, ids), trace.num_tokens(layer, ids)
            # Sequences are compared up to the shorter one; images must have the same number of tokens.
            if first.layers[layer].grid_rows is not None and (first_counts != counts).any():
                row = int(np.argmax(first_counts != counts))
                raise UserError(
                    f"{ids[row]} has {first_counts[row]} tokens in {first.path} and {counts[row]} in {trace.path}; "
                    "only the same tokens can be compared."
                )
    return ids


def clusters_of(traces: Sequence[TraceFile]) -> dict[str, str]:
    """Return the cluster of each input that is no sample by itself, as any of the traces says."""
    return {name: first for trace in traces for name, first in (trace.about.get("clusters") or {}).items()}


def check_placed(trace: TraceFile) -> None:
    """Raise ``UserError`` where nothing says which tokens some rows of a trace are of."""
    if count := trace.about.get("misplaced"):
        raise UserError(
            f"{trace.path}: {count:,} sequences lack rows, so nothing says which tokens theirs are of, and they cannot "
            f"be compared; if the server left out leading rows, import them with {option('start')}."
        )


def check_tokens(trace: TraceFile, *, purpose: str) -> None:
    """Raise ``UserError`` where a trace holds counts of choices in place of the tokens that a ``purpose`` needs."""
    for name, layer in trace.layers.items():
        if layer.load_only:
            raise UserError(
                f"{trace.path} holds counts of choices in {name}, and no tokens {purpose}; import a log of choices."
            )


def common_prefix(reference: Block, view: Block) -> NDArray[np.bool_]:
    """Return which tokens ``(n, T)`` both have: up to the end of the shorter, and to the first other token."""
    positions = np.arange(reference.valid.shape[1])
    shared = positions < np.minimum(reference.num_tokens, view.num_tokens)[:, None]
    # Without token ids on both sides, only the lengths can be compared.
    if reference.token_ids is None or view.token_ids is None:
        return shared
    reference_ids, view_ids = reference.token_ids, view.token_ids
    # -1 is an unknown token, which cannot contradict.
    unlike = (reference_ids != view_ids) & (reference_ids >= 0) & (view_ids >= 0) & shared
    first = np.where(unlike.any(1), unlike.argmax(1), len(positions))
    return shared & (positions < first[:, None])


def _generated_tokens(reference: Block, view: Block) -> Tensor:
    """Return which tokens after the prefix ``(n, P)`` were generated, as either trace says; -1 = neither does."""
    generated = np.full(reference.valid.shape, -1, np.int8)
    # The reference last: where both know, its word counts.
    for block in (view, reference):
        if block.generated is not None:
            generated = np.where(block.generated >= 0, block.generated, generated)
    return torch.from_numpy(generated[:, view.layer.num_prefix_tokens :])


def _token_ids(reference: Block, view: Block) -> Tensor:
    """Return the tokens ``(n, T)`` as either trace says; -1 = neither does."""
    token_ids = np.full(reference.valid.shape, -1, np.int32)
    for block in (view, reference):
        if block.token_ids is not None:
            token_ids = np.where(block.token_ids >= 0, block.token_ids, token_ids)
    return torch.from_numpy(token_ids)


def pair(
    reference: Block, view: Block, *, view_trace: NamedTrace, known_columns: Container[str] = ()
) -> LayerPair:
    """Return the routing of the same inputs in two traces, and which tokens correspond.

    Args:
        reference: tokens and choices of a layer in the first trace.
        view: the same inputs in the other trace.
        view_trace: the other trace.
        known_columns: which of ``generated`` and ``token_ids`` a trace says of some token.

    Raises:
        UserError: patches moved, and the layer does not say where.
    """
    sides = to_routing(reference), to_routing(view)
    if reference.layer.ordered_by != view.layer.ordered_by:
        # First by the gates is not first by biased scores: to the pair the choices are sets.
        sides = dataclasses.replace(sides[0], ordered=view.layer.top_k < 2), sides[1]
    prefix = view.layer.num_prefix_tokens
    if not view_trace.has_moved:
        shared = torch.from_numpy(common_prefix(reference, view)[:, prefix:])
        patches = torch.arange(shared.shape[1]).expand(len(shared), -1).where(shared, -1)
        generated = _generated_tokens(reference, view) if "generated" in known_columns else None
        return LayerPair(
            # Patches that stay where they are need no lookup.
            *sides,
            patches,
            patches,
            aligned=True,
            symmetric=view_trace.symmetric,
            generated=generated,
            token_ids=_token_ids(reference, view) if "token_ids" in known_columns else None,
        )
    if view.partner is None:
        raise UserError(f"{view_trace.trace.path} does not say which patches correspond; record it again.")
    reference_patch, view_patch, first = patches_of(view)
    return LayerPair(
        *sides, reference_patch, view_patch, aligned=False, view_first=first, symmetric=view_trace.symmetric
    )


def knows_weights(layer: Layer) -> bool:
    """Whether the weights of a token's experts are known."""
    return layer.gates_kept == "all" if layer.top_k == 0 else layer.gates_kept != "none"
