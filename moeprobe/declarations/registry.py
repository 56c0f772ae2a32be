"""The available probes: commands, comparisons, reports and docs are made from them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moeprobe.declarations.headlines import Agreement
from moeprobe.declarations.kinds import Kind, audit_entry, resolve
from moeprobe.declarations.probe import Probe
from moeprobe.declarations.question import Question, StandaloneQuestion
from moeprobe.errors import UserError
from moeprobe.runtime.catalog import ANALYSES, PROBES, RECORDED, describe_unknown

if TYPE_CHECKING:
    from moeprobe.results.folder import Result

# What a comparison of checkpoints measures where nothing is named.
USUAL = "match-ratio"
# Studies of several runs that are declared as questions are, and those whose folders alone are declared.
STUDIES = ("moeprobe.studies.server:CheckServer",)
FOLDERS = tuple(
    f"moeprobe.studies.kinds:{name}" for name in ("Audit", "Bench", "Compare", "Paper", "Tradeoff")
)


def kinds() -> list[type[Kind]]:
    """Return what the folder of a single run can hold, by command.

    Raises:
        UserError: a plug-in has the command or the function of another probe.
    """
    by_command: dict[str, type[Kind]] = {}
    by_function: dict[str, type[Kind]] = {}
    for kind in [*map(PROBES.get, PROBES.names()), *map(RECORDED.get, RECORDED.names())]:
        _claim(by_command, kind, kind.name, clash=f"is called {kind.name!r}, which another probe is called")
        function = kind.function_name() if issubclass(kind, Question) else kind.name
        _claim(by_function, kind, function, clash=f"has the function {function}, which another probe has")
    return list(by_command.values())


def _claim(claimed: dict[str, type[Kind]], kind: type[Kind], name: str, *, clash: str) -> None:
    first_kind = claimed.setdefault(name, kind)
    if first_kind is not kind:
        outside = first_kind if kind.__module__.startswith("moeprobe.") else kind
        raise UserError(f"The probe {outside.__name__} of a plug-in {clash} already; give it another name.")


def probes() -> list[type[Probe[Any]]]:
    """Return the probes of checkpoints, by command."""
    return [kind for kind in kinds() if issubclass(kind, Probe)]


def standalone() -> list[type[StandaloneQuestion[Any]]]:
    """Return the questions that name what they are about, by command."""
    studies: list[type[Any]] = [resolve(reference) for reference in STUDIES]
    return [kind for kind in [*kinds(), *studies] if issubclass(kind, StandaloneQuestion)]


def of_kind(kind: str) -> type[Kind] | None:
    """Return the declaration of what a run calls its kind; None where nothing here declares it."""
    declared = [*map(resolve, (*STUDIES, *FOLDERS)), *kinds()]
    by_kind = {kind.kind: kind for kind in declared if kind.name != kind.kind}
    by_kind |= {kind.name: kind for kind in declared if kind.name == kind.kind}
    return by_kind.get(kind)


def scales() -> dict[str, str]:
    """Return the scale by which an audit judges each metric, by its name; "" stands for agreement."""
    return {
        "" if isinstance(number, Agreement) else number.metric: item.scale
        for kind in kinds()
        if (entry := audit_entry(kind)) is not None
        for item in entry.properties
        for number in item.numbers
        if not item.companion and (not isinstance(number, Agreement) or item.scale == "agreement")
    }


def probe_named(name: str) -> type[Probe[Any]]:
    """Return the probe of a command, or of a kind.

    Raises:
        UserError: there is none.
    """
    by_name = {kind.name: kind for kind in probes()}
    if name not in by_name:
        raise UserError(describe_unknown("probe", name, by_name))
    return by_name[name]


def divided_named(name: str) -> type[Question[Any]]:
    """Return the probe of a command, or the question to recordings that is measured in shards too.

    Raises:
        UserError: there is none.
    """
    by_name: dict[str, type[Question[Any]]] = {kind.name: kind for kind in probes()}
    by_name |= {kind.name: kind for kind in standalone() if kind.splits}
    if name not in by_name:
        raise UserError(describe_unknown("probe", name, by_name))
    return by_name[name]


def measured_by(kind: Kind | type[Kind]) -> tuple[str, ...]:
    """Return the analyses of a kind of run: those that it names, then those that join it (``Analysis.joins``).

    Raises:
        UserError: an analysis joins a kind of run that measures in its own way.
    """
    other_analyses = (name for name in ANALYSES.names() if name not in kind.analyses)
    joining = tuple(name for name in other_analyses if kind.kind in ANALYSES.get(name).joins)
    if joining and not kind.joinable:
        joinable_names = ", ".join(
            dict.fromkeys(
                candidate.kind for candidate in kinds() if candidate.joinable and candidate.analyses
            )
        )
        raise UserError(
            f"The analysis {joining[0]!r} joins {kind.kind}, which measures in its own way; it can "
            f"join: {joinable_names}."
        )
    return (*kind.analyses, *joining)


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
        of_files = next((kind for kind in kinds() if kind.headlines and name in (kind.name, kind.kind)), None)
        if of_files is not None:
            raise UserError(
                f"{name} does not probe checkpoints: run it, moeprobe {of_files.name} ... --out FOLDER, and compare "
                "the run: moeprobe compare FOLDER."
            )
        raise UserError(describe_unknown("probe", name, comparable()))
    return probe_named(name)
