"""From the arguments of a function to the run of a probe: whole, planned, or in shards on several machines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from torch import Tensor

from moeprobe.adapters.base import Model, Models
from moeprobe.adapters.open import as_checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing
from moeprobe.inputs.pixels import to_pixels
from moeprobe.probes import registry
from moeprobe.probes.base import Probe
from moeprobe.probes.contagion import Contagion
from moeprobe.probes.discontinuity import Discontinuity
from moeprobe.probes.engine import merging
from moeprobe.probes.engine import run as engine
from moeprobe.probes.engine.merging import MeasuredShard
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.run import Plan
from moeprobe.probes.engine.shard import Shard
from moeprobe.probes.fewshot import Fewshot
from moeprobe.probes.overlay import Overlay
from moeprobe.probes.trace import Trace
from moeprobe.routing.record import RoutingTrace
from moeprobe.runtime import catalog
from moeprobe.runtime.arguments import checked, several
from moeprobe.runtime.device import full_float32
from moeprobe.runtime.progress import Progress

R = TypeVar("R")

# Checked here: what checks keywords suggests names by means of the catalog.
use_plugins = checked(catalog.use_plugins)


def ask(
    probe: Probe[R],
    models: Models,
    data: str | None,
    options: Options | None,
    watcher: Progress | None,
    changes: Keywords,
) -> R:
    """Run a probe with its own defaults, where no options are given, and the changes applied."""
    options = combine(options, changes, defaults=probe.defaults)
    return engine.run(probe, models, data=data, options=options, watcher=watcher)


def attribution(attribute: str | None) -> dict[str, Any]:
    """Return the fields of a sweep that say whether, and with which gates, its changes are attributed."""
    return {} if attribute is None else {"attribute": True, "gates": attribute}


def choose_probe(
    kind: str | Probe[R], view: str | None, severities: Sequence[float] | None, attribute: str | None
) -> Probe[R]:
    """Return a probe by its command, with the fields that are given."""
    fields = {"view": view, "severities": severities} | attribution(attribute)
    if isinstance(kind, type):
        raise UserError(f"Name the probe, or give one with its parameters: {kind.__name__}(...).")
    if isinstance(kind, Probe):
        if set_twice := [name for name, value in fields.items() if value is not None]:
            raise UserError(
                f"{type(kind).__name__}(...) sets all of its fields; omit {', '.join(set_twice)}."
            )
        return kind
    return registry.probe_named(kind).with_fields(fields)


@with_options
def plan(
    kind: str | Probe[R],
    models: Models,
    *,
    data: str | None = None,
    view: str | None = None,
    severities: Sequence[float] | None = None,
    attribute: str | None = None,
    options: Options | None = None,
    **changes: Unpack[Keywords],
) -> Plan:
    """Return what ``probe`` would take, by running a few images of each checkpoint; nothing is written."""
    probe = choose_probe(kind, view, severities, attribute)
    return engine.plan(probe, models, data=data, options=combine(options, changes, defaults=probe.defaults))


@checked
def plan_contagion(
    models: Models,
    *,
    data: str | None = None,
    share: float = Contagion.share,
    options: Options | None = None,
) -> Plan:
    """Plan ``contagion``; ``passes`` counts the checkpoint that takes most."""
    return engine.plan(Contagion(share=share), models, data=data, options=options)


@checked
def plan_fewshot(
    models: Models,
    *,
    data: str | None = None,
    shots: Sequence[int] = (10,),
    draws: int = Fewshot.draws,
    options: Options | None = None,
) -> Plan:
    """Plan ``fewshot``; the regressions are not in it."""
    return engine.plan(Fewshot(shots=shots, draws=draws), models, data=data, options=options)


@checked
def plan_discontinuity(
    models: Models,
    *,
    data: str | None = None,
    view: str = Discontinuity.view,
    steps: int = Discontinuity.steps,
    until: float | None = None,
    images: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    options: Options | None = None,
) -> Plan:
    """Plan ``discontinuity``, by following two images; ``passes`` counts the steps alone."""
    probe = Discontinuity(view=view, steps=steps, until=until, images=images, files=files)
    return engine.plan(probe, models, data=data, options=options)


@checked
def plan_overlay(
    models: Models,
    *,
    data: str | None = None,
    images: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    count: int = Overlay.count,
    view: str = Overlay.view,
    severity: float | None = None,
    severities: Sequence[float] | None = None,
    animate: bool = False,
    options: Options | None = None,
) -> Plan:
    """Plan ``overlay``, by running two images; the drawing is not in it."""
    probe = Overlay(
        images=images, files=files, count=count, view=view, severity=severity, severities=severities, animate=animate
    )  # fmt: skip
    return engine.plan(probe, models, data=data, options=options)


@checked
def plan_record(
    models: Models,
    *,
    data: str | None = None,
    view: str = Trace.view,
    severities: Sequence[float] | None = None,
    all_gates: bool = False,
    options: Options | None = None,
) -> Plan:
    """Plan ``record``."""
    probe = Trace(view=view, severities=severities, all_gates=all_gates)
    return engine.plan(probe, models, data=data, options=options)


@with_options
def measure_shard(
    kind: str | Probe[R],
    models: Models,
    *,
    shard: str,
    data: str | None = None,
    view: str | None = None,
    severities: Sequence[float] | None = None,
    attribute: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> MeasuredShard:
    """Measure one part of what ``probe`` measures, into the folder ``out``; ``merge`` puts the parts together.

    Args:
        kind: as in ``probe``, with ``data``, ``view``, ``severities`` and ``attribute``.
        models: as in ``match_ratio``.
        shard: which part of how many, e.g. ``"2/8"``: whole batches of the run's list.
        data: as in ``match_ratio``.
        view: as in ``probe``.
        severities: as in ``probe``.
        attribute: as in ``probe``.
        options: as in ``match_ratio``, with ``changes``; ``out`` must be named.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit, or the probe is not measured in parts.
    """
    probe = choose_probe(kind, view, severities, attribute)
    combined = combine(options, changes, defaults=probe.defaults)
    return merging.measure_shard(
        probe, models, Shard.read(shard), data=data, options=combined, watcher=watcher
    )


@checked
def merge(
    runs: Sequence[str | Path],
    *,
    out: str | Path,
    models: Models | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    device: str = "auto",
    trust: bool = False,
    watcher: Progress | None = None,
) -> Any:
    """Put the shards of a run together, as the probe itself returns and leaves it.

    Args:
        runs: the folders of all shards, in any order.
        out: folder for tables and figures.
        models: the checkpoints, where the shards were measured of models in memory.
        overwrite: replace what an earlier run left in ``out``.
        figures: draw figures.
        svg: write figures as SVG too.
        device: for the few images that are drawn.
        trust: run the Python code that the shards name for their models (``py:MODULE:FACTORY``).
        watcher: as in ``match_ratio``.

    Raises:
        UserError: a shard is missing, named twice or of another run, or the checkpoints have changed.
    """
    options = Options(out=Path(out), overwrite=overwrite, figures=figures, svg=svg, device=device)
    shards = merging.read_shards([Path(run) for run in several(runs)])
    return merging.merge(shards, options, models=models, trust=trust, watcher=watcher)


@checked
def trace(
    model: Model, images: Any, *, layers: str | Sequence[str] | None = None
) -> tuple[Tensor | None, RoutingTrace]:
    """Return class scores ``(B, classes)``, None where the model has none, and the routing of images.

    Args:
        model: a checkpoint, loaded or by path.
        images: PIL images, which are framed as probes do; or pixels ``(B, 3, H, W)`` as the model takes them, float in
            [0, 1] or uint8. Of a language model a ``TokenBatch``.
        layers: MoE layers to trace; None = all.

    Raises:
        UserError: the images do not fit the model or are outside of [0, 1], or there is no such layer.
    """
    opened = as_checkpoint(model)
    inputs = to_pixels(images, opened.framing) if isinstance(opened.framing, Framing) else images
    with full_float32():
        return opened.model.trace(inputs, layers=Options(layers=layers).layers)  # type: ignore[arg-type]
