"""Describe a run over traces: its request, and its omissions."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from moeprobe.declarations.options import Options
from moeprobe.declarations.recording_probe import MatchedTraces
from moeprobe.inputs.modality import REQUEST
from moeprobe.recordings.expert_map import ExpertMap
from moeprobe.recordings.format import BY_TOKEN_ID
from moeprobe.recordings.pairs import NamedTrace
from moeprobe.results.palette import colors

# Tokens up to which weights are compared: their chance takes steps that grow with the square.
LONGEST = 512


def request_of(
    probe: MatchedTraces[Any], traces: Sequence[NamedTrace], ids: Sequence[str], options: Options
) -> dict[str, Any]:
    """Return everything that the numbers depend on, as other probes have it."""
    # A single trace is compared with nothing, and stands for itself.
    compared_traces = traces[1:] or traces
    first = traces[0].trace.about
    checkpoints: dict[str, dict[str, Any]] = {}
    for trace_view in traces:
        provenance = trace_view.trace.about["checkpoint"]
        identity = {key: provenance.get(key) for key in ("sha256", "capacity", "group_images")}
        files = checkpoints.setdefault(trace_view.name, identity | {"traces": {}})["traces"]
        files[trace_view.label] = trace_view.trace.parts.sha256()
    return {
        "kind": probe.kind,
        "data": first["data"] or REQUEST.data,
        "split": first["split"] or "",
        "view": {"name": ", ".join(dict.fromkeys(trace_view.view for trace_view in compared_traces))},
        # A single trace has no pair whose patches could correspond.
        "aligned": not any(trace_view.has_moved for trace_view in traces) and len(traces) > 1,
        "severities": [
            trace_view.severity
            for trace_view in compared_traces
            if trace_view.severity == trace_view.severity
        ],
        "analyses": list(probe.analyses),
        "replayed_gates": None,
        "layers": None if options.layers is None else list(options.layers),
        # Identifies the inputs: runs can be compared only if they have the same ones.
        "inputs": hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest(),
        "recorded": _recorded_views(traces),
        "capacity": _capacities(traces),
        "seed": options.seed,
        "trained_capacity": False,
        "class_null": False,
        "labels_used": False,
        "checkpoints": checkpoints,
    } | probe.matching()


def _recorded_views(traces: Sequence[NamedTrace]) -> dict[str, list[dict[str, Any] | None]]:
    """Return data, framing, parameters and seed of each view and severity; None = not known.

    Not in how many pixels: checkpoints of different sizes are compared, as in other probes.
    """
    by_view: dict[str, list[dict[str, Any] | None]] = {}
    for trace_view in traces:
        inputs = trace_view.trace.about["inputs"]
        content = None if inputs is None else {key: value for key, value in inputs.items() if key != "size"}
        contents = by_view.setdefault(trace_view.view_label, [])
        if content not in contents:
            contents.append(content)
    return by_view


def _capacities(traces: Sequence[NamedTrace]) -> list[str | None]:
    """Return the capacities under which tokens chose; where experts choose, it is the choice itself."""
    capacities = {
        trace_view.trace.about["checkpoint"].get("capacity")
        for trace_view in traces
        if not all(layer.experts_choose or layer.top_k == 0 for layer in trace_view.trace.layers.values())
    }
    return sorted(capacities, key=str)


def facts_of(traces: Sequence[NamedTrace]) -> dict[str, Any]:
    """Return what the sidecar of a run says of its traces."""
    checkpoints: dict[str, dict[str, Any]] = {}
    for trace_view in traces:
        about = trace_view.trace.about["checkpoint"]
        training = {key: about.get(key) for key in ("seed", "group")}
        facts = {"path": str(trace_view.trace.path), "sha256": about.get("sha256"), "training": training}
        limits = {key: about.get(key) for key in ("capacity", "group_images")}
        checkpoints.setdefault(trace_view.name, facts | limits)
    units = [
        trace_view.trace.about["severity_unit"]
        for trace_view in traces
        if trace_view.severity == trace_view.severity
    ]
    return {
        "severity_unit": units[0] if units else None,
        "floor_dtype": None,
        "checkpoints": checkpoints,
        "colours": colors(list(checkpoints)),
        "traces": [
            {
                "path": str(trace_view.trace.path),
                "checkpoint": trace_view.name,
                "view": trace_view.view,
                "severity": None if trace_view.severity != trace_view.severity else trace_view.severity,
                "label": trace_view.label,
                "inputs": len(trace_view.trace.ids),
            }
            for trace_view in traces
        ],
        "skipped_images": sorted(
            {name for trace_view in traces for name in trace_view.trace.about["skipped"]}
        ),
        "device": "cpu",
    }


def notes_of(
    traces: Sequence[NamedTrace],
    layers: Sequence[str],
    ids: Sequence[str],
    *,
    expert_map: ExpertMap | None = None,
) -> list[str]:
    """Return sentences on numbers that are missing or partial."""
    notes = [
        f"{len(trace_view.trace.ids) - len(ids):,} of the {len(trace_view.trace.ids):,} inputs of "
        f"{trace_view.label}, which not all "
        "of the traces have"
        for trace_view in traces
        if len(trace_view.trace.ids) > len(ids)
    ]
    hashes = {trace_view.trace.about["checkpoint"].get("sha256") for trace_view in traces}
    if expert_map is not None:
        removed = ", ".join(f"{int((expert_map.of(name) < 0).sum())} of {name}" for name in layers)
        notes.append(
            f"the agreement of tokens with experts that {expert_map.path.name} removes ({removed}) or merges, or that "
            "are new: they are counted, and their remaining experts are compared separately (tokens unshared); and the "
            "weights"
        )
    elif len({trace_view.name for trace_view in traces}) > 1 and len(hashes) > 1:
        notes.append("whether expert e of one checkpoint does what expert e of another does")
    recorded_layers = [(name, trace_view.trace.layers[name]) for name in layers for trace_view in traces]
    load_only_layers = dict.fromkeys(name for name, layer in recorded_layers if layer.load_only)
    if load_only_layers:
        notes.append(
            f"anything but the load of {', '.join(load_only_layers)}, as a trace holds counts of "
            "choices there, and no token: "
            "no match, no chance, no κ"
        )
    lacking = dict.fromkeys(
        name for name, layer in recorded_layers if not layer.ordered and name not in load_only_layers
    )
    if lacking:
        notes.append(
            f"which expert came first in {', '.join(lacking)} (and so top-1 match and first choices), as a trace holds "
            "sets of experts: sets are compared, and the load counts all choices"
        )
    differ = [
        name
        for name in layers
        if name not in lacking
        and traces[0].trace.layers[name].top_k > 1
        and len({trace_view.trace.layers[name].ordered_by for trace_view in traces}) > 1
    ]
    if differ:
        notes.append(
            f"which expert came first in {', '.join(differ)}, as the traces order them by different things: sets of "
            "experts are compared"
        )
    by_id = dict.fromkeys(name for name, layer in recorded_layers if layer.router == BY_TOKEN_ID)
    if by_id:
        notes.append(
            f"{', '.join(by_id)} in numbers on all layers together: there the token's id alone decides, so equal "
            "tokens agree by construction"
        )
    long = [layer for layer in layers if not weights_fit(most_tokens(traces, layer, ids))]
    if long and len(traces) > 1:
        notes.append(f"the weights in {', '.join(long)}, as inputs have more than {LONGEST} tokens")
    return notes


def ignored_tokens(traces: Sequence[NamedTrace], left_out: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return of which traces tokens were ignored, and how many: of two sequences their common beginning is compared.

    ``left_out``: by the label of a trace, tokens of the first one and of it after the common beginning.
    """
    names = [trace_view.name for trace_view in traces]
    short = {
        # The short name, unless several traces share it.
        trace_view.label: trace_view.name if names.count(trace_view.name) == 1 else trace_view.label
        for trace_view in traces
    }
    first = traces[0].label
    phrases = []
    for label, counts in left_out.items():
        extra = [
            f"{count:,} extra tokens of {short[name]}"
            for name, count in zip((first, label), counts, strict=True)
            if count
        ]
        phrases += [" and ".join(extra)] if extra else []
    return phrases


def weights_fit(longest: int) -> bool:
    """Whether weights of inputs of up to ``longest`` tokens are compared."""
    return longest <= LONGEST


def most_tokens(traces: Sequence[NamedTrace], layer: str, ids: Sequence[str]) -> int:
    """Return the tokens of the longest of the inputs, in any trace."""
    return max(int(trace_view.trace.num_tokens(layer, ids).max()) for trace_view in traces)
