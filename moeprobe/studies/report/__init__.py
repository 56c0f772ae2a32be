"""The report: finished runs → one page that can be sent, and the same as Markdown.

``report.html`` needs nothing but itself. ``report.md`` shows the pictures and links the tables in ``report-files/``
next to it, so the folder can be sent or committed as it is. The same runs give the same bytes of both.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pandas as pd

from moeprobe.declarations.registry import scales
from moeprobe.errors import UserError, already_finished, option
from moeprobe.judging.conclusions import conclude
from moeprobe.runtime.arguments import check_arguments, several
from moeprobe.runtime.files import atomic_file, is_file, is_there, read_bytes, remove, resolve, write_text
from moeprobe.runtime.folders import RunFolder, check_family
from moeprobe.runtime.records import Family, scan
from moeprobe.studies.report import render, summary
from moeprobe.studies.report.coloring import in_one_color
from moeprobe.studies.report.reading import Run, read_runs

__all__ = ["Document", "report"]

_HTML, _MARKDOWN = "report.html", "report.md"
_LARGEST_PAGE = 2**30
# Sentences on runs that compare nothing.
_MOST_LEADS = 3
_GENERATOR = b'<meta name="generator" content="moeprobe '
_FAMILY = Family(
    "report",
    patterns=lambda path: (_HTML, _MARKDOWN, f"{render.FILES}/*/*") if _is_page(path / _HTML) else (),
    shares=True,
)


@dataclass(frozen=True)
class Document:
    """A report.

    Attributes:
        html: the page.
        markdown: the same as Markdown.
        conclusions: the sentences that it begins with.
        runs: what it reports, in order.
        headlines: the headline numbers, a row per value and per difference (those with a ``reference``); empty where
            no run has one. Columns as in ``table.csv``.
        files: written files; empty where no folder was named.
    """

    html: str
    markdown: str
    conclusions: list[str]
    runs: list[Run]
    headlines: pd.DataFrame
    files: list[Path]

    def __repr__(self) -> str:
        return f"Document(runs={len(self.runs)}, html={len(self.html):,} characters, files={len(self.files)})"

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, which keeps its styles and scripts apart from the notebook's."""
        return f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" width="100%" height="700"></iframe>'


@check_arguments
def report(
    runs: str | Path | Sequence[str | Path],
    *,
    names: str | Sequence[str] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> Document:
    """Put finished runs together in one report.

    Args:
        runs: output folders, in the order of the report.
        names: what the page calls the checkpoints, in the order in which the runs name them; None = as the runs do.
        out: folder for ``report.html``, ``report.md`` and ``report-files/``; None = nothing is written.
        overwrite: replace a report that is there; other files of the folder are left alone. Without it an equal
            report stays.

    Raises:
        UserError: a folder is no finished run or is given twice; ``out`` is in a run or holds a report already.
    """
    folders = [Path(run) for run in several(runs)]
    folder = None if out is None else Path(out)
    # First, since a folder that is no run is a better reason than where the report would lie.
    read = in_one_color(read_runs(folders, names=None if names is None else several(names)))
    stays = folder is not None and _check(folder, folders, overwrite=overwrite)
    parts = render.sections(read)
    concluded = conclude(read, scales())
    if not concluded.sentences:
        leads = [lead for run in read if (lead := summary.lead_of(run))]
        concluded = dataclasses.replace(concluded, sentences=leads[:_MOST_LEADS])
    content = render.content_of(parts, concluded)
    html, markdown = render.html(content), render.markdown_text(content)
    files: list[Path] = []
    if folder is not None and stays:
        files = _same_files(folder, html, markdown, parts)
        warnings.warn(already_finished(folder), stacklevel=3)
    elif folder is not None:
        with RunFolder(folder, _FAMILY) as run_folder:
            # Once more, when no other process can change it.
            if _check(folder, folders, overwrite=overwrite):
                raise _another(folder)
            files = _write(run_folder, html, markdown, parts)
    return Document(html, markdown, concluded.sentences, read, summary.headline_rows(read), files)


def _check(folder: Path, runs: Sequence[Path], *, overwrite: bool) -> bool:
    """Return whether a finished report is there that stays; raises ``UserError`` where none may be written."""
    contents = scan(folder, _FAMILY)
    check_family(folder, contents, _FAMILY)
    for run in runs:
        if resolve(folder).is_relative_to(resolve(run)):
            raise UserError(
                f"{folder} is in the run {run}, which a report never changes; choose another {option('out')}."
            )
    existing = [name for name in (_HTML, _MARKDOWN, render.FILES) if is_there(folder / name)]
    # The page comes last, so that without it an earlier report was interrupted: nothing to keep.
    interrupted = contents.recorded and _HTML not in existing
    if not existing or (interrupted and _MARKDOWN not in contents.foreign):
        return False
    if not overwrite:
        return True
    for name in existing:
        if name in contents.foreign or f"{name}/" in contents.foreign:
            raise UserError(
                f"{folder / name} is no report of moeprobe; move it away, or choose another {option('out')}."
            )
    return False


def _another(path: Path) -> UserError:
    return UserError(
        f"{path} is there already; add {option('overwrite', True)} to replace it, or choose another {option('out')}."
    )


def _same_files(folder: Path, html: str, markdown: str, parts: Sequence[render.Section]) -> list[Path]:
    """Return the files of a report, or raise ``UserError`` where the folder holds another one."""
    contents = {name: content for part in parts for name, content in part.files().items()}
    contents |= {_MARKDOWN: markdown.encode(), _HTML: html.encode()}
    for name, content in contents.items():
        path = folder / name
        if not is_file(path) or read_bytes(path, limit=_LARGEST_PAGE) != content:
            existing = next(part for part in (_HTML, _MARKDOWN, render.FILES) if is_there(folder / part))
            raise _another(folder / existing)
    return [
        folder / _HTML,
        folder / _MARKDOWN,
        *sorted(folder / name for name in contents if name not in (_HTML, _MARKDOWN)),
    ]


def _is_page(path: Path) -> bool:
    """Whether a file is the page of a report, from a time when none was on record."""
    try:
        return not path.is_symlink() and _GENERATOR in read_bytes(path, limit=_LARGEST_PAGE)
    except UserError:
        return False


def _write(run_folder: RunFolder, html: str, markdown: str, parts: Sequence[render.Section]) -> list[Path]:
    """Write what report.md refers to, then report.md, then the page."""
    folder = run_folder.path
    attached = {folder / name: content for part in parts for name, content in part.files().items()}
    # The page first: a report without it is unfinished.
    if _HTML in scan(folder, _FAMILY).own:
        remove(folder / _HTML)
    run_folder.clear()
    for path, content in attached.items():
        with atomic_file(path) as temporary:
            temporary.write_bytes(content)
    write_text(folder / _MARKDOWN, markdown)
    write_text(folder / _HTML, html)
    run_folder.check()
    # The page first: it is what is opened and sent.
    return [folder / _HTML, folder / _MARKDOWN, *sorted(attached)]
