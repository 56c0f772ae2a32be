"""A trace as a model can repeat it."""

from collections.abc import Sequence
from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.recordings.reading import TraceFile
from moeprobe.recordings.rows import to_routing
from moeprobe.routing.record import RoutingTrace
from moeprobe.runtime.arguments import several
from moeprobe.runtime.catalog import unknown
from moeprobe.runtime.keywords import checked


@checked
def recorded_routing(
    path: str | Path, *, inputs: str | Sequence[str] | None = None, layers: str | Sequence[str] | None = None
) -> RoutingTrace:
    """Return what a trace says of some inputs: what a model that can replay takes (``model.replay``).

    Shorter inputs are filled up to the longest; there they have no valid tokens.

    Args:
        path: the trace.
        inputs: their names, in the order that is wanted; None = all, in the order of the file.
        layers: MoE layers; None = all.

    Raises:
        UserError: the file is damaged or no trace, has no such input or layer, or tokens choose no experts there.
    """
    trace = TraceFile(Path(path))
    ids = trace.ids if inputs is None else several(inputs)
    names = list(trace.layers) if layers is None else several(layers)
    for what, requested, available in (("input", ids, trace.ids), ("layer", names, list(trace.layers))):
        for name in requested:
            if name not in available:
                raise UserError(f"{trace.path}: {unknown(what, name, available)}")
    for name in names:
        if trace.layers[name].load_only or not trace.layers[name].top_k or trace.layers[name].experts_choose:
            raise UserError(f"{trace.path}: tokens of {name} choose no experts that could be repeated.")
    return RoutingTrace({name: to_routing(trace.read(name, ids)) for name in names})
