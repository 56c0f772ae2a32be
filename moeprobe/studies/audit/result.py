"""What an audit returns: the verdicts, the runs they rest on, and their page."""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt

from moeprobe import __version__
from moeprobe.declarations import AuditEntry, Property
from moeprobe.declarations.kinds import audit_entry
from moeprobe.declarations.registry import kinds
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import Modality
from moeprobe.judging.headlines import RunTables, conclusions_of
from moeprobe.judging.properties import COLUMNS, property_numbers
from moeprobe.recorded.analyze_trace import AnalyzeTrace
from moeprobe.results.csv_files import read_values
from moeprobe.results.finished import read_result
from moeprobe.results.folder import Result
from moeprobe.results.layouts.cells import Table, TableCell, counts, value
from moeprobe.results.layouts.page import environment
from moeprobe.results.layouts.tails import tails_table
from moeprobe.results.own_files import STRICT, RunName, reading, run_inside, validate
from moeprobe.results.showing import one_line
from moeprobe.results.sidecars import Sidecar, names_in, read_sidecar, rename_sidecar, rename_table
from moeprobe.runtime.arguments import check_arguments
from moeprobe.runtime.files import read_bytes
from moeprobe.runtime.run_files import FINISHED
from moeprobe.studies.audit import sentences
from moeprobe.studies.audit.recorded import RECORDED
from moeprobe.studies.report.pictures import Picture, read_pictures
from moeprobe.studies.report.render import data_address, markdown_environment, policy_hash, template_text
from moeprobe.studies.tails import MATCHES, MOST_SUMS, tails_of

KIND, VERDICTS = "audit", "verdicts.csv"
_LARGEST_PAGE = 2**30
_NUMBERS = (
    "severity", "value", "ci_low", "ci_high", "images", "trials", "experts", "layers", "variants", "first_value",
    "first_low", "first_high", "checkpoint_value", "reference_value",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AuditContent:
    """What the page of an audit is made of.

    Attributes:
        verdicts: a row per property and model, then, of two models, a row per property with a ``reference``: the
            paired difference. Columns are ``judge.COLUMNS``.
        runs: probe -> its result; those that draw alone have none.
        left_out: probe -> why it was not run.
        sidecar: request, plan and provenance.
        folder: where the page is; None where nothing was written.
    """

    verdicts: pd.DataFrame
    runs: Mapping[str, Result]
    left_out: Mapping[str, str]
    sidecar: Sidecar
    folder: Path | None = None

    @property
    def models(self) -> list[str]:
        """Names of the models, the reference first."""
        # All of them: a verdict may be about the second alone.
        return list(self.sidecar["checkpoints"])

    def with_names(self) -> "AuditContent":
        """Return it with models as ``--names`` calls them, to be shown."""
        names = names_in(self.sidecar)
        return dataclasses.replace(
            self, verdicts=rename_table(self.verdicts, names), sidecar=rename_sidecar(self.sidecar, names)
        )


@dataclass(frozen=True, kw_only=True)
class AuditResult(AuditContent):
    """The verdicts of an audit, with its page.

    Attributes:
        html: the page, which needs nothing but itself.
    """

    html: str

    def __repr__(self) -> str:
        return one_line("AuditResult", {"models": "+".join(self.models), "verdicts": len(self.verdicts)})

    def _repr_html_(self) -> str:
        """Return the page in a frame, which keeps its styles apart from the notebook's."""
        return f'<iframe srcdoc="{html.escape(self.html)}" sandbox width="100%" height="700"></iframe>'


class _AuditSidecar(BaseModel):
    """The entries of an audit's sidecar that other runs do not have."""

    model_config = STRICT

    checkpoints: dict[str, Any]
    runs: list[RunName]
    folders: list[RunName]
    images: Annotated[dict[RunName, NonNegativeInt], Field(min_length=1)]
    left_out: dict[str, str]
    modality: str
    wall_seconds: FiniteFloat


@check_arguments
def read_audit(folder: Path) -> AuditResult:
    """Read a finished audit from its folder.

    Raises:
        UserError: it is none, or its files cannot be read.
    """
    sidecar = read_sidecar(folder)
    if sidecar.request.kind != KIND:
        raise UserError(f"{folder} holds no audit; choose another {option('out')}.")
    content = validate(_AuditSidecar, sidecar, folder / FINISHED)
    for name in content.folders:
        run_inside(folder, name)
    runs = {name: read_result(run_inside(folder, name)) for name in content.runs}
    verdicts = _read_verdicts(folder / VERDICTS)
    page = read_bytes(folder / HTML, limit=_LARGEST_PAGE)
    with reading(folder / HTML):
        text = page.decode("utf-8")
    return AuditResult(
        verdicts=verdicts, runs=runs, left_out=content.left_out, sidecar=sidecar, folder=folder, html=text
    )


def _read_verdicts(path: Path) -> pd.DataFrame:
    """Return the verdicts of a finished audit: texts as they were, and numbers."""
    table = read_values(path, numbers=_NUMBERS)
    with reading(path):
        verdicts = table[COLUMNS]
        # Each property has a row per model, whatever its differences.
        alone = set(verdicts["property"]) - set(verdicts.loc[verdicts["reference"] == "", "property"])
        if verdicts.empty or alone:
            raise ValueError(f"{min(alone)} has no verdict on a model" if alone else "it holds no verdict")
        return verdicts


# The page of an audit: ``audit.html``, which needs nothing but itself, and the same as ``audit.md``.

HTML, MARKDOWN = "audit.html", "audit.md"
_HERE = "moeprobe.studies.audit"


@dataclass(frozen=True)
class RunFigure:
    """A figure of a run on the page."""

    run: str
    picture: Picture

    @property
    def path(self) -> str:
        """Its path relative to the page."""
        return f"{self.run}/figures/{self.picture.name}"

    @property
    def alternative(self) -> str:
        """What it shows, for those who do not see it."""
        return f"Figure {self.picture.stem} of {self.run}. Its numbers are in {self.run}/table.csv."


def page_html(result: AuditContent) -> str:
    """Return the page."""
    style = template_text("report.css") + resources.files(_HERE).joinpath("templates", "audit.css").read_text(
        encoding="utf-8"
    )
    templates = environment(_HERE, autoescape=True)
    templates.filters["address"] = lambda figure: data_address(figure.picture.content, figure.picture.media)
    return templates.get_template("audit.html.jinja").render(
        **_context(result), style=style, style_hash=policy_hash(style)
    )


def page_markdown(result: AuditContent) -> str:
    """Return the page as Markdown; its figures are those in the folders of the runs."""
    return markdown_environment(_HERE).get_template("audit.md.jinja").render(**_context(result))


def _context(result: AuditContent) -> dict[str, object]:
    renamed = result.with_names()
    lines, modality, models = (
        sentences.lines_of(renamed.verdicts),
        sentences.modality_of_audit(result.sidecar),
        renamed.models,
    )
    figures, conclusions = _figures(result), _conclusions(result)
    seen_runs: set[str] = set()
    sections = []
    for line in lines:
        is_first = line.run not in seen_runs
        declared = _property(line)
        trials = declared.trials if declared else ""
        seen_runs.add(line.run)
        sections.append(
            {
                "line": line,
                "sentences": [
                    (row["checkpoint"], sentences.sentence(row, modality, trials)) for row in line.values
                ],
                "difference": ""
                if line.difference is None
                else sentences.sentence(line.difference, modality, trials),
                "references": sentences.references(line),
                "short_references": sentences.short_references(line),
                "table": _table(result, line, modality),
                "tails": _tails(result, line.run) if is_first else None,
                "conclusions": conclusions.get(line.run, []) if is_first else [],
                "figures": figures.get(line.run, []) if is_first else [],
            }
        )
    return {
        "title": f"Audit of {' and '.join(models)}",
        "models": models,
        "scope": scope(result),
        "summary": sentences.summary(lines, models),
        "sections": sections,
        "value_text": sentences.value_text,
        "difference_text": sentences.difference_text,
        "location": sentences.location,
        "other_figures": [figure for name in figures if name not in seen_runs for figure in figures[name]],
        "left_out": sorted(result.left_out.items()),
        "sidecar": result.sidecar,
        "folders": result.sidecar["folders"],
        "version": __version__,
    }


def scope(result: AuditContent) -> str:
    """Return the runs and the amount of data of each."""
    modality = sentences.modality_of_audit(result.sidecar)
    request, images = result.sidecar.request, result.sidecar["images"]
    sizes = sorted(set(images.values()))
    size = f"{sizes[0]:,} to {sizes[-1]:,}" if len(sizes) > 1 else f"{sizes[0]:,}"
    data = f" of {request.data} {request.split}" if request.data else ""
    seconds = result.sidecar["wall_seconds"]
    runs = len(result.sidecar["folders"])
    return (
        f"{runs} run{'s' if runs > 1 else ''} on {size} {modality.plural}{data}, in {seconds:,.0f} s. "
        f"Intervals [low, high] are 95 % over {modality.plural}; those of a verdict hold for all layers and variants "
        f"that it reads at once{_first_alone(result)}.{_unknown_training(result)}"
    )


def _first_alone(result: AuditContent) -> str:
    """Return that some verdicts read one layer of several; empty where none does."""
    verdicts = result.verdicts
    of_first = (verdicts["of_layers"] == "first") & (verdicts["layers"] > 1)
    return ", and one on the first layer reads that layer alone" if of_first.any() else ""


def _unknown_training(result: AuditContent) -> str:
    """Return what moeprobe cannot know of models of other programs; empty for recordings, and for its own models."""
    checkpoints = result.sidecar["checkpoints"]
    if "data" not in result.sidecar["request"] or all(
        provenance.get("training", {}).get("data") for provenance in checkpoints.values()
    ):
        return ""
    return " moeprobe cannot know what a model of yours was trained on: inputs of its training flatter it."


def _conclusions(result: AuditContent) -> dict[str, list[str]]:
    """Return the sentences on several numbers of a run together, by run."""
    names = names_in(result.sidecar)
    return {
        name: conclusions_of(
            RunTables(
                sidecar=rename_sidecar(run.sidecar, names),
                table=rename_table(run.table, names),
                comparison=None if run.comparison is None else rename_table(run.comparison, names),
            )
        )
        for name, run in result.runs.items()
    }


def _figures(result: AuditContent) -> dict[str, list[RunFigure]]:
    """Return the figures that the page shows, by run."""
    if result.folder is None:
        return {}
    declared = _entries()
    figures: dict[str, list[RunFigure]] = {}
    for run in result.sidecar["folders"]:
        entry = declared.get(run)
        if entry is None or not entry.figures:
            continue
        pictures = read_pictures(Path(result.folder) / run, without=set(), animated=True)
        figures[run] = [
            RunFigure(run, picture)
            for picture in pictures
            if any(picture.stem.startswith(name) for name in entry.figures)
        ]
    return figures


def _entries() -> dict[str, AuditEntry | None]:
    """Return how each kind of run joins an audit, by the name of its folder."""
    # The command on recordings has a space, its folder has none.
    return {kind.name: audit_entry(kind) for kind in kinds()} | {RECORDED: audit_entry(AnalyzeTrace)}


def _property(line: sentences.PropertyLine) -> Property | None:
    """Return the property as its kind of run declares it; None where none does."""
    entry = _entries().get(line.run)
    return next((item for item in entry.properties if item.name == line.name), None) if entry else None


def _table(result: AuditContent, line: sentences.PropertyLine, modality: Modality) -> Table | None:
    """Return the numbers of a property in every layer; None where there is one number alone."""
    run = result.runs.get(line.run)
    declared = _property(line)
    numbers = property_numbers(declared, run.table) if declared and run is not None else None
    if declared is None or numbers is None or len(numbers.rows) <= len(line.values):
        return None
    rows = numbers.simultaneous_rows
    keys = [key for key in ("metric", "layer", "view") if rows[key].nunique() > 1]
    body = [
        [
            *(TableCell(str(row["checkpoint"])) for _ in range(rows["checkpoint"].nunique() > 1)),
            *(TableCell(str(row[key])) for key in keys),
            value(row),
            counts([row["images"]]),
            counts([row["trials"]]),
        ]
        for row in rows.to_dict("records")
    ]
    columns = [*(["model"] if rows["checkpoint"].nunique() > 1 else []), *keys, "value [low, high]"]
    return Table("All numbers", [*columns, modality.plural, declared.trials or "tokens"], body, folded=True)


def _tails(result: AuditContent, name: str) -> Table | None:
    """Return the table of the inputs that change most in a run; None where it compares no routings, or very many."""
    run = result.runs.get(name)
    if run is None or not {*run.sidecar.request.analyses} & {*MATCHES}:
        return None
    # The shares of all inputs in all layers are held in memory at once.
    tails = tails_of(run.sums, run.sidecar.request) if run.sums.num_rows <= MOST_SUMS else None
    if tails is None:
        return None
    return tails_table(rename_table(tails.table, names_in(result.sidecar)), tails.modality, folded=True)


def next_steps(lines: Sequence[sentences.PropertyLine]) -> list[str]:
    """Return what to do next, the worst properties first, each with its command."""
    order = {"poor": 0, "fair": 1}
    ranked = sorted(
        (line for line in lines if line.advice),
        key=lambda line: min(order.get(str(row["grade"]), 2) for row in line.values),
    )
    return [f"{line.title}: {' '.join(line.advice)} {line.command}" for line in ranked]
