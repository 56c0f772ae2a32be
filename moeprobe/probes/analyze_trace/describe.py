"""What a run over traces says of itself: what was asked, and what was not measured."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from moeprobe.probes.analyze_trace import AnalyzeTrace
from moeprobe.probes.engine.options import Options
from moeprobe.results.palette import colors
from moeprobe.results.provenance import provenance
from moeprobe.routing.traces.expert_map import ExpertMap
from moeprobe.routing.traces.format import BY_TOKEN_ID
from moeprobe.routing.traces.pairs import Named
from moeprobe.runtime.files import sha256

# Tokens up to which weights are compared: their chance takes steps that grow with the square.
LONGEST = 512


def request_of(
    traces: Sequence[Named], ids: Sequence[str], options: Options, *, expert_map: ExpertMap | None = None
) -> dict[str, Any]:
    """Return what determines the numbers, as other probes have it."""
    mapped = {} if expert_map is None else {"expert_map": sha256(expert_map.path)}
    analyses = [name for name in AnalyzeTrace.analyses if mapped or name != "unshared"]
    others = traces[1:] or traces
    first = traces[0].trace.about
    checkpoints: dict[str, dict[str, Any]] = {}
    for named in traces:
        about = named.trace.about["checkpoint"]
        own = {key: about.get(key) for key in ("sha256", "capacity", "group_images")}
        files = checkpoints.setdefault(named.name, own | {"traces": {}})["traces"]
        files[named.label] = sha256(named.trace.path)
    return {
        "kind": AnalyzeTrace.kind,
        "data": first["data"] or "requests",
        "split": first["split"] or "",
        "view": {"name": ", ".join(dict.fromkeys(named.view for named in others))},
        "aligned": not any(named.moved for named in traces) and len(traces) > 1,
        "severities": [named.severity for named in others if named.severity == named.severity],
        "analyses": analyses,
        "replayed_gates": None,
        "layers": None if options.layers is None else list(options.layers),
        # Of which inputs: in runs that are compared they must be the same.
        "inputs": hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest(),
        "recorded": _recorded(traces),
        "capacity": _capacities(traces),
        "seed": options.seed,
        "trained_capacity": False,
        "class_null": False,
        "labels_used": False,
        "checkpoints": checkpoints,
    } | mapped


def _recorded(traces: Sequence[Named]) -> dict[str, list[dict[str, Any] | None]]:
    """Return by view and severity what was shown: data, framing, parameters and seed of the view; None = not known.

    Not in how many pixels: checkpoints of different sizes are compared, as in other probes.
    """
    by_view: dict[str, list[dict[str, Any] | None]] = {}
    for named in traces:
        inputs = named.trace.about["inputs"]
        content = None if inputs is None else {key: value for key, value in inputs.items() if key != "size"}
        alike = by_view.setdefault(named.view_label, [])
        if content not in alike:
            alike.append(content)
    return by_view


def _capacities(traces: Sequence[Named]) -> list[str | None]:
    """Return the capacities under which tokens chose; where experts choose, it is the choice itself."""
    capacities = {
        named.trace.about["checkpoint"].get("capacity")
        for named in traces
        if not all(layer.experts_choose or layer.top_k == 0 for layer in named.trace.layers.values())
    }
    return sorted(capacities, key=str)


def sidecar_of(
    traces: Sequence[Named], request: dict[str, Any], notes: list[str], options: Options, started: float
) -> dict[str, Any]:
    """Return the sidecar of a run."""
    checkpoints: dict[str, dict[str, Any]] = {}
    for named in traces:
        about = named.trace.about["checkpoint"]
        training = {key: about.get(key) for key in ("seed", "group")}
        own = {"path": str(named.trace.path), "sha256": about.get("sha256"), "training": training}
        kept = {key: about.get(key) for key in ("capacity", "group_images")}
        checkpoints.setdefault(named.name, own | kept)
    units = [named.trace.about["severity_unit"] for named in traces if named.severity == named.severity]
    return {
        "request": request,
        "severity_unit": units[0] if units else None,
        "floor_dtype": None,
        "command": options.command,
        "checkpoints": checkpoints,
        "colours": colors(list(checkpoints)),
        "traces": [
            {
                "path": str(named.trace.path),
                "checkpoint": named.name,
                "view": named.view,
                "severity": None if named.severity != named.severity else named.severity,
                "label": named.label,
                "inputs": len(named.trace.ids),
            }
            for named in traces
        ],
        "skipped_images": sorted({name for named in traces for name in named.trace.about["skipped"]}),
        "notes": notes,
        "wall_seconds": time.perf_counter() - started,
        "device": "cpu",
    } | provenance()


def notes_of(
    traces: Sequence[Named],
    layers: Sequence[str],
    ids: Sequence[str],
    left_out: Mapping[str, tuple[int, int]],
    *,
    expert_map: ExpertMap | None = None,
) -> list[str]:
    """Return what was not measured, or only in part.

    ``left_out``: by trace, tokens of the first one and of it after those that both have.
    """
    notes = [
        f"{len(named.trace.ids) - len(ids):,} of the {len(named.trace.ids):,} inputs of {named.label}, which not all "
        "of the traces have"
        for named in traces
        if len(named.trace.ids) > len(ids)
    ]
    hashes = {named.trace.about["checkpoint"].get("sha256") for named in traces}
    if expert_map is not None:
        removed = ", ".join(f"{int((expert_map.of(name) < 0).sum())} of {name}" for name in layers)
        notes.append(
            f"the agreement of tokens with experts that {expert_map.path.name} removes ({removed}) or merges, or that "
            "are new: they are counted, and what is left of their experts is compared apart (tokens unshared); and the "
            "weights"
        )
    elif len({named.name for named in traces}) > 1 and len(hashes) > 1:
        notes.append("whether expert e of one checkpoint does what expert e of another does")
    recorded_layers = [(name, named.trace.layers[name]) for name in layers for named in traces]
    counted = dict.fromkeys(name for name, layer in recorded_layers if layer.load_only)
    if counted:
        notes.append(
            f"anything but the load of {', '.join(counted)}, as a trace holds counts of choices there, and no token: "
            "no match, no chance, no κ"
        )
    lacking = dict.fromkeys(
        name for name, layer in recorded_layers if not layer.ordered and name not in counted
    )
    if lacking:
        notes.append(
            f"which expert came first in {', '.join(lacking)} (and so top-1 match and first choices), as a trace holds "
            "sets of experts: sets are compared, and the load is that of all choices"
        )
    differ = [
        name
        for name in layers
        if name not in lacking
        and traces[0].trace.layers[name].top_k > 1
        and len({one.trace.layers[name].ordered_by for one in traces}) > 1
    ]
    if differ:
        notes.append(
            f"which expert came first in {', '.join(differ)}, as the traces order them by different things: sets of "
            "experts are compared"
        )
    by_id = dict.fromkeys(name for name, layer in recorded_layers if layer.router == BY_TOKEN_ID)
    if by_id:
        notes.append(
            f"{', '.join(by_id)} in what is said of all layers together: there the token's id alone decides, so equal "
            "tokens agree by construction"
        )
    for label, (of_first, of_other) in left_out.items():
        if of_first or of_other:
            notes.append(
                f"{of_first:,} tokens of {traces[0].label} and {of_other:,} of {label} after those that both have at "
                "the beginning of their sequences"
            )
    long = [layer for layer in layers if most_tokens(traces, layer, ids) > LONGEST]
    if long and len(traces) > 1:
        notes.append(f"the weights in {', '.join(long)}, as inputs have more than {LONGEST} tokens")
    return notes


def most_tokens(traces: Sequence[Named], layer: str, ids: Sequence[str]) -> int:
    """Return the tokens of the longest of the inputs, in any trace."""
    return max(int(named.trace.num_tokens(layer, ids).max()) for named in traces)
