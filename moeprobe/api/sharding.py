"""Measure a run in parts, on as many machines as there are, and put the parts together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from moeprobe.adapters.base import Models
from moeprobe.api.asking import choose_probe
from moeprobe.probes.base import Probe
from moeprobe.probes.engine import merging
from moeprobe.probes.engine.merging import MeasuredShard
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.shard import Shard
from moeprobe.runtime.arguments import several
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Progress

R = TypeVar("R")


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
