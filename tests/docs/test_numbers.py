"""The tables of the pages are those of the committed reports."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from reports.scripts import pages, sources
from tests.docs.pages import PAGES, TEXT, name_of, text


def found(page: Path) -> list[tuple[str, str, str]]:
    """The blocks of a page that follow from reports: folder, name, text."""
    return re.findall(r"<!-- from ([^:\n]+): ([^\n]+) -->\n(.*?)<!-- end -->", TEXT[page], flags=re.DOTALL)


FILLED = [page for page in PAGES if found(page)]


@pytest.fixture(scope="module", autouse=True)
def _read_once() -> Iterator[None]:
    """A table stands in several blocks, and the file of all sources is read for every cell of theirs."""
    tables: dict[str, pd.DataFrame] = {}
    read = pd.read_csv

    def read_once(path: object, **options: object) -> pd.DataFrame:
        if not isinstance(path, Path):
            return read(path, **options)
        key = repr((path, options))
        if key not in tables:
            tables[key] = read(path, **options)
        return tables[key].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "read", functools.cache(sources.read))
        patch.setattr(pd, "read_csv", read_once)
        yield


@pytest.mark.parametrize("page", FILLED, ids=name_of)
def test_the_tables_of_a_page_are_those_of_the_reports(page: Path) -> None:
    assert page in pages.PAGES
    assert all(body.count("\n|") >= 2 for *_, body in found(page))
    assert pages.filled(TEXT[page]) == TEXT[page], "run: python -m reports.scripts.pages"


def test_every_table_of_the_reports_is_on_a_page() -> None:
    every = [block for page in FILLED for block in found(page)]
    assert {folder for folder, *_ in every} == {
        "reports", "reports/digits", "reports/fashion", "reports/shapes",
        "reports/routers/digits", "reports/routers/shapes", "reports/router-times/digits",
        "reports/routers/digits-patch4", "reports/routers/digits-deep",
        "reports/router-times/digits-patch4", "reports/router-times/digits-deep",
        "reports/router-times/shapes", "reports/margins", "reports/transfer",
        "reports/sweeps/prc-ablation", "reports/sweeps/drops-digits", "reports/sweeps/labels-digits",
        "reports/sweeps/combine-digits", "reports/sweeps/groups-digits",
        "reports/sweeps/groups-alone-digits", "reports/sweeps/experts-digits", "reports/sweeps/dense-digits",
        "reports/sweeps/thesis-digits", "reports/sweeps/manual-digits",
        "reports/sweeps/mixup-digits",
        "reports/thesis", "reports/gate",
        "reports/faults", "reports/bench", "reports/attack",
        "reports/corruptions", "reports/deformations", "reports/precision", "reports/align",
        "reports/flips", "reports/experts", "reports/exchanged", "reports/mutants",
        "reports/trainings/digits", "reports/trainings/shapes", "reports/trainings/corruptions",
        "reports/trainings/attack", "reports/trainings/fashion",
        "reports/regret",
        "reports/real", "reports/real-texts",
    }  # fmt: skip
    assert {name for _, name, _ in every} == set(pages.MAKERS)


def test_a_number_that_is_changed_by_hand_is_put_right() -> None:
    right = text("results/prc-digits-shapes.md")
    block = re.search(r"<!-- from reports/digits: the first seed -->.*?<!-- end -->", right, flags=re.DOTALL)
    assert block is not None
    wrong = right.replace(block[0], re.sub(r"0\.\d+", "0.123", block[0]))
    assert wrong != right and pages.filled(wrong) == right
