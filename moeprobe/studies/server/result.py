"""What a check of a server returns: sentences, and the runs that they rest on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moeprobe.recordings.check_trace import CheckedTrace
from moeprobe.results.folder import Result
from moeprobe.results.showing import one_line
from moeprobe.results.sidecars import Sidecar


@dataclass(frozen=True, kw_only=True)
class ServerResult:
    """A server beside its model.

    Attributes:
        server: name and version.
        requests: how many were sent in each run.
        sentences: the verdict first, then what it rests on, and what more requests would show.
        checked: known faults of capture in the first run.
        runs: name -> result: ``agreement`` of the server (and of the model in float32, where it runs in another
            precision) with the model, ``determinism`` between the server's runs, and ``mismatch`` of log-probabilities,
            where it could be measured.
        left_out: what could not be measured, and why.
        sidecar: request and provenance.
        folder: where responses, traces, runs and the page are.
    """

    server: str
    requests: int
    sentences: list[str]
    checked: CheckedTrace
    runs: Mapping[str, Result]
    left_out: list[str]
    sidecar: Sidecar
    folder: Path

    @property
    def details(self) -> list[str]:
        """What is said below the verdict: what it rests on, the findings, and what could not be measured."""
        return [
            *self.sentences[1:],
            *(finding.line for finding in self.checked.findings),
            *self.left_out,
        ]

    def __repr__(self) -> str:
        return one_line("ServerResult", {"server": self.server, "requests": self.requests})
