"""The numbers of the pages are those of the committed reports."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from moeprobe.results.packed import read_pack
from moeprobe.studies.paper.tables import markdown
from tests.docs.pages import PAGES, ROOT, TEXT, name_of, text

FILLED = [page for page in PAGES if "<!-- from " in TEXT[page]]


def found(page: Path) -> list[tuple[str, str, str]]:
    """The blocks of a page that follow from reports: folder, name, text."""
    return re.findall(r"<!-- from ([^:\n]+): ([^\n]+) -->\n(.*?)<!-- end -->", TEXT[page], flags=re.DOTALL)


@pytest.fixture
def regenerating(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return what imports a script of ``reports`` as a module; they import one another."""
    monkeypatch.syspath_prepend(str(ROOT / "reports"))
    return importlib.import_module


@pytest.mark.parametrize("page", FILLED, ids=name_of)
def test_the_tables_of_a_page_are_those_of_the_reports(
    page: Path, regenerating: Callable[[str], Any]
) -> None:
    pages = regenerating("pages")
    assert page in pages.PAGES
    assert all(body.count("\n|") >= 2 for *_, body in found(page))
    assert pages.filled(TEXT[page]) == TEXT[page], "run: python reports/pages.py"


def test_every_table_of_the_reports_is_on_a_page(regenerating: Callable[[str], Any]) -> None:
    pages = regenerating("pages")
    every = [block for page in FILLED for block in found(page)]
    assert {folder for folder, *_ in every} == {
        "reports/digits", "reports/shapes", "reports/routers/digits", "reports/routers/shapes",
    }  # fmt: skip
    assert {name for _, name, _ in every} == set(pages.MAKERS)


def test_a_number_that_is_changed_by_hand_is_put_right(regenerating: Callable[[str], Any]) -> None:
    pages = regenerating("pages")
    right = text("results/prc-digits-shapes.md")
    block = re.search(r"<!-- from reports/digits: the first seed -->.*?<!-- end -->", right, flags=re.DOTALL)
    assert block is not None
    wrong = right.replace(block[0], re.sub(r"0\.\d+", "0.123", block[0]))
    assert wrong != right and pages.filled(wrong) == right


@pytest.mark.parametrize("data", ["digits", "shapes"])
def test_the_papers_tables_are_those_of_the_numbers(data: str, regenerating: Callable[[str], Any]) -> None:
    folder = ROOT / "reports" / data
    table = pd.read_csv(folder / "seeds.csv").fillna({"layer": ""})
    text = markdown(
        table, pd.read_csv(folder / "load.csv"), data=data, remarks=regenerating("regenerate").REMARKS
    )
    assert (folder / "tables.md").read_text(encoding="utf-8") == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", sorted((ROOT / "reports" / "routers").iterdir()), ids=lambda path: path.name
)
def test_the_numbers_of_the_routers_are_those_of_their_reports(
    folder: Path, regenerating: Callable[[str], Any]
) -> None:
    routers = regenerating("regenerate_routers")
    table, differing = routers.read(folder)
    assert (folder / "tables.md").read_text(encoding="utf-8") == routers.tables(table, differing)
    # What the tables follow from is kept: sums per image, training curves, and no weights.
    cells = read_pack(folder)
    assert cells.keys() == set(table["checkpoint"])
    for cell in cells.values():
        assert cell.metrics and "noise" in cell.runs
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert len(files) < 30
    assert not list(folder.rglob("*.safetensors"))
