"""Check recorded routing for known faults of its capture."""

from dataclasses import dataclass
from pathlib import Path

from moeprobe.recordings.capture_check import CaptureCheck
from moeprobe.recordings.faults import Finding
from moeprobe.recordings.overlap import Overlap, overlap
from moeprobe.recordings.reading import TraceFile
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Progress, progress_of


@dataclass(frozen=True)
class CheckedTrace:
    """What a check found: how many inputs and layers there are, the findings, and the overlap with another trace.

    ``load_only``: no token is known, so there was nothing to look at.
    """

    path: Path
    inputs: int
    layers: list[str]
    findings: list[Finding]
    overlap: Overlap | None
    load_only: bool = False

    @property
    def sound(self) -> bool:
        """Whether no finding is a fault."""
        return not any(finding.fault for finding in self.findings)


@checked
def check_trace(
    path: str | Path, *, against: str | Path | None = None, watcher: Progress | None = None
) -> CheckedTrace:
    """Look for faults of capture in a routing trace, and for shifts against another one of the same inputs.

    Args:
        path: the trace.
        against: another trace of the same model and inputs.
        watcher: shows the rows read.

    Raises:
        UserError: a file is damaged or no trace, or the two cannot be compared.
    """
    trace, watcher = TraceFile(Path(path)), progress_of(watcher)
    check = CaptureCheck()
    watcher.start("trace check", trace.num_rows)
    for rows in trace.row_groups():
        check.add(rows)
        watcher.advance(rows.num_rows)
    findings, shared = check.findings(), None
    # Where choices are none that a trace may hold, there is nothing to compare.
    if against is not None and not any(finding.empty or finding.name in _UNREADABLE for finding in findings):
        shared = overlap(trace, TraceFile(Path(against)))
        findings = [*findings, *_of_overlap(shared, Path(against))]
    load_only = all(layer.load_only for layer in trace.layers.values())
    findings.sort(key=lambda one: not one.fault)
    return CheckedTrace(trace.path, len(trace.ids), list(trace.layers), findings, shared, load_only)


_UNREADABLE = ("duplicate expert", "expert out of range", "255 fill")


def _of_overlap(shared: Overlap, against: Path) -> list[Finding]:
    """Return what the overlap says of the first trace."""
    findings = []
    words = f"Overlap with {against.name} is {shared.here:.3f} (chance {shared.chance:.3f}), and"
    if shared.layers:
        sentence = (
            f"{words} {shared.shifted:.3f} where layer l is the other's layer l {shared.layers:+d}: known as layers "
            "shifted, of dense layers that one side alone counts."
        )
        findings.append(Finding("layers shifted", abs(shared.layers), sentence))
    if shared.positions:
        sentence = (
            f"{words} {shared.shifted:.3f} where token t is the other's token t {shared.positions:+d}: known as one "
            "off, or as a start that one side left out."
        )
        findings.append(Finding("positions shifted", abs(shared.positions), sentence))
    if shared.is_renumbered:
        sentence = (
            f"{words} {shared.renumbered:.3f} with other numbers of its experts: known as physical ids of experts that "
            "a server has moved."
        )
        findings.append(Finding("experts renumbered", 1, sentence))
    return findings
