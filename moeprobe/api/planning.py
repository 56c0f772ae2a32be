"""Say what a probe would take, by running a few images of each checkpoint and writing nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, Unpack

from moeprobe.adapters.base import Models
from moeprobe.api.asking import choose_probe
from moeprobe.probes.base import Probe
from moeprobe.probes.contagion import Contagion
from moeprobe.probes.discontinuity import Discontinuity
from moeprobe.probes.engine import run as engine
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.work import Plan
from moeprobe.probes.fewshot import Fewshot
from moeprobe.probes.overlay import Overlay
from moeprobe.probes.trace import Trace
from moeprobe.runtime.keywords import checked

R = TypeVar("R")


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
