"""docs/results/sources.md has every row of the five sources, and what it names exists; its numbers are looked up."""

import ast
import re

import pytest
import yaml

import moeprobe
from moeprobe.runtime import catalog
from reports.scripts import sources
from tests.docs.pages import COMMANDS, ROOT, text
from tests.sources import tree_of

ROWS = [*(f"P{n}" for n in range(1, 58)), *(f"W{n}" for n in range(1, 4)), *(f"C{n}" for n in range(1, 6))]
ROWS += [*(f"R{n}" for n in range(1, 43)), *(f"T{n}" for n in range(1, 45))]
# What a word before a quoted name means.
KINDS = {
    "router": catalog.ROUTERS,
    "objective": catalog.OBJECTIVES,
    "view": catalog.VIEWS,
    "views": catalog.VIEWS,
    "data set": catalog.DATA,
}


@pytest.fixture
def rows() -> list[dict[str, str]]:
    return [row for name in sources.names() for row in sources.rows(name)]


def test_every_row_is_there_once_with_a_state(rows: list[dict[str, str]]) -> None:
    assert [row["row"] for row in rows] == ROWS
    assert {row["state"] for row in rows} == set(sources.STATES)
    for row in rows:
        assert row["how"] or row["state"] == "nothing to build", row


def test_what_a_row_names_exists(rows: list[dict[str, str]]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = 0
    for row in rows:
        for before, quoted in re.findall(r"((?:data )?\w+)? ?`([^`]+)`", row["how"]):
            words = quoted.split()
            if words[0] == "moeprobe":
                command = " ".join(words[1:3]) if words[1] in ("trace", "import", "list") else words[1]
                assert command in COMMANDS or words[1] == "list", row
            elif words[0] == "make":
                assert f"\n{words[1]}:" in makefile, row
            elif before in KINDS:
                assert quoted in KINDS[before].names(), row
            elif before == "sweep":
                assert (ROOT / f"configs/sweeps/{quoted}.yaml").is_file(), row
            elif "/" in quoted and "*" not in quoted:
                path = words[0].split()[0]
                places = (ROOT, ROOT / "moeprobe", ROOT / "configs", ROOT / "moeprobe/models/training")
                assert any((place / f"{path}{end}").exists() for place in places for end in ("", ".yaml")), (
                    row
                )
            else:
                continue
            named += 1
    assert named > 80


def test_numbers_of_ours_are_looked_up(rows: list[dict[str, str]]) -> None:
    used = set()
    for row in rows:
        used |= set(re.findall(r"\{(\w+)\}", row["ours"]))
        assert not re.search(r"\d*\.\d", re.sub(r"`[^`]*`", "", row["ours"])), row
    assert used == set(sources.read()["numbers"])
    with pytest.raises(KeyError):
        sources.value(ROOT / "reports", "no such number")


def test_papers_that_the_code_follows_are_named() -> None:
    named = " ".join(text("sources.md").split()).split(" * ")
    author = r"([A-Z][a-z]+)(?: et al\.|(?:, [A-Z][a-z]+)*(?:,| and) [A-Z][a-z]+)? ((?:19|20)\d\d)\b"
    for path in sorted((ROOT / "moeprobe").rglob("*.py")):
        docstring = ast.get_docstring(tree_of(path)) or ""
        for name, year in re.findall(author, " ".join(docstring.split())):
            assert any(one.startswith(name) and year in one for one in named), f"{path}: {name} {year}"


def test_the_citation_names_the_papers_of_the_sources() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == moeprobe.__version__
    named = " ".join(text("sources.md").split()).lower()
    assert len(citation["references"]) == named.count("* ", 0, named.index("## routers and models"))
    for paper in citation["references"]:
        assert f'"{paper["title"].lower()}"' in named
