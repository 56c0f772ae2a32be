"""The available probes: commands, comparisons, reports and docs are made from them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moeprobe.errors import UserError
from moeprobe.probes.base import Kind, Probe
from moeprobe.runtime.catalog import ANALYSES, PROBES, unknown

if TYPE_CHECKING:
    from moeprobe.results.folder import Result

# What a comparison of checkpoints measures where nothing is named.
USUAL = "match-ratio"


def kinds() -> list[type[Kind]]:
    """Return all that a run folder can hold, by command.

    Raises:
        UserError: a plug-in has the command of another probe.
    """
    by_command: dict[str, type[Kind]] = {}
    for kind in map(PROBES.get, PROBES.names()):
        other = by_command.setdefault(kind.name, kind)
        if other is not kind:
            outside = other if kind.__module__.startswith("moeprobe.") else kind
            raise UserError(
                f"The probe {outside.__name__} of a plug-in is called {kind.name!r}, which another probe is called "
                "already; give it another name."
            )
    return list(by_command.values())


def probes() -> list[type[Probe[Any]]]:
    """Return what can be asked of checkpoints, by command."""
    return [kind for kind in kinds() if issubclass(kind, Probe)]


def of_kind(kind: str) -> type[Kind] | None:
    """Return the declaration of what a run calls its kind; None where it is no probe's."""
    by_kind = {one.kind: one for one in kinds() if one.name != one.kind}
    by_kind |= {one.name: one for one in kinds() if one.name == one.kind}
    return by_kind.get(kind)


def named(name: str) -> type[Probe[Any]]:
    """Return the probe of a command, or of a kind.

    Raises:
        UserError: there is none.
    """
    known = {one.name: one for one in probes()}
    if name not in known:
        raise UserError(unknown("probe", name, known))
    return known[name]


def measured_by(kind: Kind | type[Kind]) -> tuple[str, ...]:
    """Return the analyses of a kind of run: those that it names, then those that join it (``Analysis.joins``).

    Raises:
        UserError: an analysis joins a kind of run that measures in its own way.
    """
    others = (name for name in ANALYSES.names() if name not in kind.analyses)
    joining = tuple(name for name in others if kind.kind in ANALYSES.get(name).joins)
    if joining and not kind.joinable:
        known = ", ".join(dict.fromkeys(one.kind for one in kinds() if one.joinable and one.analyses))
        raise UserError(
            f"The analysis {joining[0]!r} joins {kind.kind}, which measures in its own way; it can join: {known}."
        )
    return (*kind.analyses, *joining)


def measuring(metric: str) -> list[str]:
    """Return the commands that measure a metric."""
    from moeprobe.metrics.registry import analyses_of  # not before a name is asked for: it brings scipy

    analyses = {*analyses_of(metric)}
    return [kind.name for kind in kinds() if analyses & {*measured_by(kind)}]


def comparable() -> list[str]:
    """Return the probes that ``compare`` can measure checkpoints by."""
    return [probe.name for probe in probes() if probe.compares]


def to_compare(
    name: str | None, *, view: str | None = None, severities: Sequence[float] | None = None
) -> "Probe[Result]":
    """Return the probe of a comparison; None = the usual one, its usual view, the view's own severities.

    Raises:
        UserError: there is none, it is compared by its finished run, or it takes no view or no severities.
    """
    return comparable_kind(name).with_fields({"view": view, "severities": severities})


def comparable_kind(name: str | None) -> "type[Probe[Result]]":
    """Return the class of ``to_compare``, by its name alone."""
    name = name or USUAL
    if name not in comparable():
        if name in [kind.name for kind in kinds() if kind.headlines]:
            raise UserError(
                f"{name} does not probe checkpoints: run it, moeprobe {name} ... --out FOLDER, and compare the run: "
                "moeprobe compare FOLDER."
            )
        raise UserError(unknown("probe", name, comparable()))
    return named(name)
