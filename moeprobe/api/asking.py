"""From the arguments of a function to the run of a probe: whole, planned, or in shards on several machines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from moeprobe.adapters.base import Model, Models
from moeprobe.adapters.open import as_checkpoint
from moeprobe.api.making import fields_among
from moeprobe.declarations import Probe, registry
from moeprobe.declarations.fields import fields_of, keyword_of
from moeprobe.declarations.options import Options, combine
from moeprobe.declarations.question import Question
from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing
from moeprobe.inputs.pixels import to_pixels
from moeprobe.probes.engine import merging
from moeprobe.probes.engine import run as engine
from moeprobe.probes.engine.merging import MeasuredShard
from moeprobe.probes.engine.run import Plan
from moeprobe.probes.engine.shard import Shard
from moeprobe.routing.record import RoutingTrace
from moeprobe.runtime import catalog
from moeprobe.runtime.arguments import check_arguments, several, signature_of
from moeprobe.runtime.catalog import did_you_mean
from moeprobe.runtime.device import full_float32
from moeprobe.runtime.progress import Progress

R = TypeVar("R")

# Checked here: what checks keywords suggests names by means of the catalog.
use_plugins = check_arguments(catalog.use_plugins)


def _question(
    name: str, kind: str | Question[R], keywords: dict[str, Any], *, base: type[Question[Any]] = Probe
) -> tuple[Any, Options]:
    """Return a probe by its command, or as given, and common options, both of keywords.

    ``base``: what it may be; a ``Question`` is also one to recordings.
    """
    options = keywords.pop("options", None)
    # A class without its parameters is a likely slip.
    if isinstance(kind, type):
        raise UserError(f"Name the probe, or give one with its parameters: {kind.__name__}(...).")
    if not isinstance(kind, str | base):
        raise UserError(
            f"A probe is named by its command, or made: api.{name}('match-ratio', ...); got {kind!r}."
        )
    lookup = registry.probe_named if base is Probe else registry.divided_named
    declared = lookup(kind) if isinstance(kind, str) else type(kind)
    common = signature_of(Options).parameters
    accepted_names = {option: None for option in common if option in (declared.common or common)} | {
        keyword_of(declared, field): None for field in fields_of(declared)
    }
    for keyword in keywords:
        if keyword not in accepted_names:
            raise UserError(
                f"api.{name} of {declared.name} has no argument {keyword!r}.{did_you_mean(keyword, accepted_names)} "
                f"There are: {', '.join(accepted_names)}."
            )
    # Fields are taken out first; what remains are common options.
    fields = fields_among(declared, keywords)
    # A made probe has its fields already, so a second value would be ambiguous.
    if not isinstance(kind, str) and fields:
        raise UserError(
            f"{declared.__name__}(...) sets all of its fields; omit "
            f"{', '.join(keyword_of(declared, field) for field in fields)}."
        )
    probe = declared.with_fields(fields) if isinstance(kind, str) else kind
    return probe, combine(options, keywords, defaults=probe.defaults)  # type: ignore[arg-type]


@check_arguments
def probe(
    kind: str | Probe[R],
    models: Models,
    *,
    data: str | None = None,
    watcher: Progress | None = None,
    **keywords: Any,
) -> R:
    """Ask checkpoints what a probe asks, e.g. ``"match-ratio"`` or ``MatchRatio(view="prc_crops")``.

    Args:
        kind: the probe, or its command.
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        watcher: as in ``match_ratio``.
        keywords: as of the probe's own function, e.g. ``view``, unless ``kind`` has them; and ``options``, or
            single options.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    question, options = _question("probe", kind, keywords)
    return engine.run(question, models, data=data, options=options, watcher=watcher)


@check_arguments
def plan(kind: str | Probe[R], models: Models, *, data: str | None = None, **keywords: Any) -> Plan:
    """Return what a probe would take, by running a few images of each checkpoint; nothing is written.

    Args:
        kind: as in ``probe``.
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        keywords: as in ``probe``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    question, options = _question("plan", kind, keywords)
    return engine.plan(question, models, data=data, options=options)


@check_arguments
def measure_shard(
    kind: str | Question[R],
    models: Models | None = None,
    *,
    shard: str,
    data: str | None = None,
    watcher: Progress | None = None,
    **keywords: Any,
) -> MeasuredShard:
    """Measure one part of what ``probe`` measures, into the folder ``out``; ``merge`` puts the parts together.

    Questions to recordings that divide their inputs are ``"trace analyze"``, ``"trace locality"`` and
    ``"trace drift"``.

    Args:
        kind: as in ``probe``; or a question to recordings, or its command.
        models: as in ``match_ratio``; None for a question to recordings, whose keywords name its files.
        shard: which part of how many, e.g. ``"2/8"``: whole batches of the run's list.
        data: as in ``match_ratio``.
        watcher: as in ``match_ratio``.
        keywords: as in ``probe``; ``out`` must be named.

    Raises:
        UserError: something named does not exist or does not fit, or the probe is not measured in parts.
    """
    question, options = _question("measure_shard", kind, keywords, base=Question)
    if models is None and isinstance(question, Probe):
        raise UserError(f"Name the checkpoints of {question.name}, e.g. models=['checkpoints/demo-prc'].")
    return merging.measure_shard(
        question, models, Shard.read(shard), data=data, options=options, watcher=watcher
    )


@check_arguments
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


@check_arguments
def trace(
    model: Model, images: Any, *, layers: str | Sequence[str] | None = None
) -> tuple[Tensor | None, RoutingTrace]:
    """Return class scores ``(B, classes)``, None where the model has none, and the routing of images.

    Args:
        model: a checkpoint, loaded or by path.
        images: PIL images, which are framed as probes do; or pixels ``(B, 3, H, W)`` as the model takes them, float in
            [0, 1] or uint8. A language model takes a ``TokenBatch``.
        layers: MoE layers to trace; None = all.

    Raises:
        UserError: the images do not fit the model or are outside of [0, 1], or there is no such layer.
    """
    opened = as_checkpoint(model)
    inputs = to_pixels(images, opened.framing) if isinstance(opened.framing, Framing) else images
    # Full float32: TensorFloat-32 changes near ties.
    with full_float32():
        return opened.model.trace(inputs, layers=Options(layers=layers).layers)  # type: ignore[arg-type]
