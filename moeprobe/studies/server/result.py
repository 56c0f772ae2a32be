"""What a check of a server returns: its verdict in sentences, the runs that they rest on, and their page."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe import __version__
from moeprobe.inputs.modality import TEXT
from moeprobe.metrics.analyses.touched import PAIRS_DIFFER
from moeprobe.metrics.stats.bootstrap import MIN_IMAGES
from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.recordings.check_trace import BY_CHANCE, CheckedTrace
from moeprobe.results.folder import Result
from moeprobe.results.layouts.page import environment
from moeprobe.results.layouts.side_by_side import summary
from moeprobe.results.numbers import interval, number
from moeprobe.results.showing import one_line
from moeprobe.results.sidecars import Sidecar, with_names
from moeprobe.runtime.device import FLOAT32
from moeprobe.studies.report.pictures import read_pictures
from moeprobe.studies.report.render import data_address, markdown_environment, policy_hash, template_text


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


# The verdict on a server: does it route as the model does, and as itself?

Row = Mapping[str, Any]
# The share that a run should be able to exclude.
_SHARE = 0.01


def differing(table: pd.DataFrame) -> dict[str, Row]:
    """Return by checkpoint the row on the pairs of token and layer that differ from the first trace's."""
    rows = table[(table["metric"] == PAIRS_DIFFER.name) & (table["tokens"] == TEXT.token)]
    return {row["checkpoint"]: row for row in rows.to_dict("records")}


def sentences_of(
    checked: CheckedTrace, agreement: pd.DataFrame, determinism: pd.DataFrame, *, dtype: str, random: bool
) -> list[str]:
    """Return the verdict, what it rests on, and what more requests would show.

    Args:
        checked: the capture, with its overlap with the model.
        agreement: table of the model, the server's first run and perhaps the model in float32.
        determinism: table of the server's runs.
        dtype: precision of the model.
        random: whether the prompts were random tokens.
    """
    model, *in_float32 = differing(agreement).values()
    runs = differing(determinism)
    prompts = " The prompts were random tokens: your own texts may give other shares." if random else ""
    return [
        _verdict(checked, model, runs) + prompts,
        f"From the model in {dtype}, {interval(model)} of the pairs of token and layer differ.",
        *(
            f"Precision alone changes {interval(row)} of them: the model in {FLOAT32} against itself in {dtype}."
            for row in in_float32
        ),
        *(
            f"{_run_name(name)} against the first run: {interval(row)} of them differ."
            for name, row in runs.items()
        ),
        _power(model),
    ]


def _verdict(checked: CheckedTrace, model: Row, runs: Mapping[str, Row]) -> str:
    # Another model makes the check fail too, and is no fault of the capture.
    if {finding.name for finding in checked.findings if finding.fault} == {BY_CHANCE}:
        return "The server agrees with the model by chance alone: it serves another model, or other layers."
    if not checked.sound:
        return "The capture is faulty, so nothing can be said of the routing: see the findings."
    unequal = [name for name, row in runs.items() if row["value"] > 0]
    if model["value"] == 0 and not unequal:
        return "The server routes exactly as the model does, and as itself, in all that was sent."
    if model["ci_low"] != model["ci_low"]:
        return f"There are too few requests for a verdict: {model['images']} of at least {MIN_IMAGES}."
    floor = max((row["ci_high"] for row in runs.values()), default=0.0)
    itself = f"Its own repeated runs {'differ' if unequal else 'agree exactly'}."
    if model["ci_low"] > (floor if unequal else 0):
        beyond = ", and differs from it more than its own runs differ" if unequal else ""
        return f"The server does not route like the model{beyond}. {itself}"
    return f"The server differs from the model no more than its own runs may differ. {itself}"


def _run_name(name: str) -> str:
    """Return the name of a run at the beginning of a sentence: ``batch-8`` -> ``Batch 8``."""
    return name.replace("-", " ").capitalize() if name.startswith("batch-") else "The repeated run"


def _power(model: Row) -> str:
    """Return what so many requests can exclude."""
    enough = next(size for size in count(MIN_IMAGES) if score_interval(0.0, 0.0, size)[1] < _SHARE)
    if model["value"] == 0:
        return (
            f"No difference in {model['images']:,} requests excludes shares above {number(model['ci_high'])}; to "
            f"exclude shares above {_SHARE:g}, about {enough:,} requests are needed."
        )
    half = (model["ci_high"] - model["ci_low"]) / 2
    images = model["images"]
    return f"With {images:,} requests the share is known to within {number(half)}; four times as many halve that."


# The page of a server: ``server.html``, which needs nothing but itself, and its text as ``tables.md``.

PAGE, PAGE_TEXT = "server.html", "tables.md"
_TITLES = {
    "agreement": "Agreement with the model",
    "determinism": "Agreement of the server's runs with the first",
    "mismatch": "Log-probabilities: how much of the mismatch is routing",
}


def page_text(result: ServerResult) -> str:
    """Return the sentences as Markdown."""
    templates = markdown_environment("moeprobe.studies.server")
    return templates.get_template("server.md.jinja").render(result=result)


def page_html(result: ServerResult) -> str:
    """Return the page: sentences, then the tables and figures of each run."""
    style = template_text("report.css")
    templates = environment("moeprobe.studies.server", autoescape=True)
    templates.filters["address"] = lambda picture: data_address(picture.content, picture.media)
    parts = []
    for name, run in result.runs.items():
        renamed = with_names(run)
        parts.append(
            {
                "name": name,
                "title": _TITLES[name],
                "table": summary(renamed.table, renamed.comparison),
                "pictures": read_pictures(Path(result.folder / name), without=set(), animated=False),
            }
        )
    return templates.get_template("server.html.jinja").render(
        result=result, parts=parts, style=style, style_hash=policy_hash(style), version=__version__
    )
