"""From runs to the text of ``report.html`` and ``report.md``, through the templates in this folder.

The page needs nothing but itself: pictures and CSVs are in it as ``data:`` addresses, and its policy allows one
style and one script, by their hashes, and no request at all. Names of checkpoints, classes and folders are text in
both: HTML is escaped by jinja2, and everything that goes into the Markdown by ``markdown`` below.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment

from moeprobe import __version__
from moeprobe.declarations.kinds import audit_entry
from moeprobe.declarations.registry import of_kind
from moeprobe.judging.conclusions import Conclusion
from moeprobe.results.files_for_reports import CLASSES
from moeprobe.results.layouts.cells import Table, whole_table
from moeprobe.results.layouts.page import environment
from moeprobe.runtime.characters import harmless
from moeprobe.studies.report import about, summary
from moeprobe.studies.report.pictures import Explorer, Picture, explorer_of
from moeprobe.studies.report.reading import Run
from moeprobe.studies.report.selection import short_tables

FILES = "report-files"


@dataclass(frozen=True)
class Section:
    """One run as the templates show it.

    Attributes:
        finding: the run and all that it found, in words.
        number: its place in the report, from 1; part of its anchor and of the folder of its files.
        classes: the share of each class that each expert has, of the runs of ``routes``; None where there is none.
    """

    finding: summary.RunSummary
    number: int
    classes: pd.DataFrame | None = None

    @property
    def run(self) -> Run:
        """The run."""
        return self.finding.run

    @property
    def title(self) -> str:
        """What the run is about."""
        return self.finding.title

    @cached_property
    def lead(self) -> str:
        """The sentence that it begins with; empty where there is nothing to say."""
        return summary.lead_of(self.run)

    @property
    def sentences(self) -> list[str]:
        """What else it found."""
        return [sentence for sentence in self.finding.sentences if sentence != self.lead]

    @property
    def anchor(self) -> str:
        """Where links within the page lead."""
        return f"run-{self.number}"

    @property
    def folder(self) -> str:
        """Folder of the run's files next to report.md; any name of a run becomes one that every system allows."""
        return f"{FILES}/{self.number}-{_plain(self.run.label)}"

    @property
    def request_lines(self) -> list[tuple[str, str]]:
        """What determined the numbers."""
        return about.request_lines(self.run)

    @property
    def figure_note(self) -> str:
        """A note if figures show other colors or names than the rest of the report; mostly empty."""
        names = self.run.miscolored
        if names:
            them = f"{about.listing(names)} {'has' if len(names) == 1 else 'have'}"
            return f"The figures of this run keep its own colors; elsewhere {them} another one."
        is_misnamed = self.run.misnamed and self.run.pictures
        return "The figures of this run keep its own names of checkpoints." if is_misnamed else ""

    @cached_property
    def explorer(self) -> Explorer | None:
        """The patches or tokens of an overlay; None where the run is none."""
        unit = self.run.sidecar.severity_unit or "severity"
        return explorer_of(
            self.run.overlay, self.run.pixels, modality=self.run.modality, unit=unit, classes=self.classes
        )

    @property
    def leading_pictures(self) -> list[Picture]:
        """The figure that is seen at once, by preference one that an audit shows; none where frames are."""
        kind = of_kind(self.run.kind)
        entry = None if kind is None else audit_entry(kind)
        names = () if entry is None else entry.figures
        ordered = sorted(self.run.pictures, key=lambda picture: not picture.stem.startswith(names))
        return [] if self.run.frames else ordered[:1]

    @property
    def other_pictures(self) -> list[Picture]:
        """The figures that are folded."""
        leading = self.leading_pictures
        return [picture for picture in self.run.pictures if picture not in leading]

    @cached_property
    def short_tables(self) -> list[Table]:
        """What is read first."""
        return short_tables(self.run)

    @property
    def whole_tables(self) -> list[Table]:
        """Every CSV as it is written."""
        return [whole_table(table, name=name) for name, table in self.run.csvs.items()]

    @property
    def downloads(self) -> list[tuple[str, str, str]]:
        """Each CSV: (its name in the run, the name to save it by, its address)."""
        plain = _plain(self.run.label)
        return [
            (name, f"{plain}-{name}", data_address(content, "text/csv;charset=utf-8"))
            for name, content in self.run.files.items()
        ]

    def files(self) -> dict[str, bytes]:
        """Return the files next to report.md, by path."""
        pictures = [
            *self.run.pictures,
            *(frame.picture for series in self.run.frames.values() for frame in series),
        ]
        content = {picture.name: picture.content for picture in pictures} | self.run.files
        return {self.path_of(name): data for name, data in content.items()}

    def path_of(self, name: str) -> str:
        """Return the path of a file of the run, relative to report.md."""
        return f"{self.folder}/{name}"


def sections(runs: Sequence[Run]) -> list[Section]:
    """Return the sections of a report, in the order of the runs."""
    tables = [run.csvs[CLASSES] for run in runs if CLASSES in run.csvs]
    # Two runs about the same layer of a checkpoint may be of different data: the first one is shown.
    keys = ["checkpoint", "layer", "tokens", "class", "expert"]
    classes = pd.concat(tables).drop_duplicates(keys) if tables else None
    return [
        Section(finding, number, classes) for number, finding in enumerate(summary.findings(runs), start=1)
    ]


def html(content: Mapping[str, object]) -> str:
    """Return the page of some ``content_of`` runs."""
    style, script = (template_text(name) for name in ("report.css", "report.js"))
    templates = environment("moeprobe.studies.report", autoescape=True)
    templates.filters["unbroken"] = keep_with_intervals
    templates.filters["address"] = lambda picture: data_address(picture.content, picture.media)
    templates.filters["alternative"] = alternative
    return templates.get_template("report.html.jinja").render(
        **content,
        style=style,
        script=script,
        style_hash=policy_hash(style),
        script_hash=policy_hash(script),
    )


def markdown_text(content: Mapping[str, object]) -> str:
    """Return the report as Markdown; its pictures and tables are in ``report-files`` next to it."""
    templates = markdown_environment("moeprobe.studies.report")
    templates.filters["alternative"] = alternative
    return templates.get_template("report.md.jinja").render(**content)


def markdown_environment(package: str) -> Environment:
    """Return the templates of a package whose text is Markdown."""
    templates = environment(package, autoescape=False)
    # What is put in is escaped unless it says that it is Markdown already: forgetting it leaves plain text.
    templates.finalize = lambda text: text if isinstance(text, _Markdown) else markdown(str(text))
    templates.filters["code"] = _code
    templates.filters["link"] = lambda path: _Markdown(quote(path))
    return templates


def content_of(parts: Sequence[Section], concluded: Conclusion) -> dict[str, object]:
    """Return what the templates put in."""
    runs = [part.run for part in parts]
    names = about.checkpoint_names(runs)
    modalities = list(dict.fromkeys(run.modality for run in runs))
    return {
        "title": f"Routing of {about.listing(names)}" if 0 < len(names) <= 3 else "Routing report",
        "version": __version__,
        "reading": about.reading(modalities),
        "scope": about.scope(runs),
        "conclusions": concluded.sentences,
        "warnings": list(dict.fromkeys(text for part in parts for text in part.finding.warnings)),
        "verdicts": concluded.tables,
        "headlines": summary.headline_table(runs),
        "sections": parts,
        "checkpoints": about.checkpoint_table(runs),
        "computing": about.computing_table(runs),
        "versions": about.version_lines(runs),
    }


def template_text(name: str) -> str:
    """Return a file of the report's templates, e.g. its style."""
    return resources.files("moeprobe.studies.report").joinpath("templates", name).read_text(encoding="utf-8")


def policy_hash(text: str) -> str:
    """Return a Content-Security-Policy source that allows exactly this text between its tags."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def data_address(content: bytes, media: str) -> str:
    """Return an address that holds a file itself."""
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def _plain(name: str) -> str:
    """Return a name that is safe in a path and a link."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def alternative(picture: Picture, part: Section) -> str:
    """Return what a picture shows, for those who do not see it."""
    has_numbers = part.run.table is not None or part.run.comparison is not None
    return f"Figure {picture.stem} of {part.run.label}: {part.title}." + (
        " Its numbers are in the tables." * has_numbers
    )


def keep_with_intervals(text: str) -> str:
    """Return a sentence whose numbers stay on one line with their intervals."""
    return re.sub(r"(\S+) \[([^\[\]]*)\]", lambda part: part[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


class _Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


def markdown(text: str) -> str:
    """Return text that Markdown shows as it is: on one line, without tags, links, emphasis, code or table cells."""
    text = harmless(re.sub(r"\s+", " ", text))
    text = re.sub(r"([\\`*|~$])", r"\\\1", text)
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # one between letters is no emphasis
    text = re.sub(r"\](?=[(\[:])|!(?=\[)", lambda found: "\\" + found[0], text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(text: str) -> str:
    """Return text as a code span; more backticks outside than ever in a row inside."""
    text = harmless(re.sub(r"\s+", " ", str(text)))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return _Markdown(f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}")
