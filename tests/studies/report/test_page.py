"""The page without a browser: every number, links, headings, and that it needs nothing but itself."""

import base64
import hashlib
import re
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from moeprobe import api
from tests.studies.report.making import NAN, row, write_rows
from tests.studies.report.page import Page


def test_every_headline_stands_in_page_and_markdown_with_interval_and_denominators(runs: list[Path]) -> None:
    document = api.report(runs)
    rows = Page(document.html).all("tr")
    assert len(rows) > 10
    page, markdown = Page(document.html).text, document.markdown
    for text in (
        "0.354 [0.333, 0.375]", "0.549 [0.526, 0.571]", "+0.195 [+0.175, +0.215]", "0.437 [0.418, 0.455]",
        "0.128 [0.126, 0.129]", "0.972 [0.953, 0.986]", "+0.003 [-0.017, +0.023]",
    ):  # fmt: skip
        assert text in markdown
        assert all(part in page for part in text.split(" ", 1))
    line = next(line for line in markdown.splitlines() if line.startswith("| match | κ of top-1 match"))
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        "match", "κ of top-1 match", "0.354 [0.333, 0.375]", "0.549 [0.526, 0.571]", "+0.195 [+0.175, +0.215]",
        "blocks.3", "360", "5,530",
    ]  # fmt: skip
    # In words: what differs, and what does not.
    for words in (
        "In blocks.3, the first MoE layer (360 images, 5,530 trials), κ is higher (better) in b (0.549 [0.526, 0.571]) "
        "than in a (0.354 [0.333, 0.375]), by 0.195 [0.175, 0.215].",
        "Overall (360 images), b (0.975 [0.956, 0.989]) and a (0.972 [0.953, 0.986]) show no significant difference "
        "in accuracy (+0.003 [-0.017, +0.023]), which excludes a loss above 0.017.",
    ):
        assert words in markdown
        assert words in page
    # An overlay has no headline number, and its patches are counted: 2 of 4 changed.
    assert "| blocks.3 | a | digits/7 | 2 | 4 |" in markdown
    headlines = document.headlines
    assert list(headlines["run"].unique()) == ["match", "eval"]
    assert set(headlines["layer"]) == {"blocks.3", ""}
    kappa = headlines[(headlines["metric"] == "top1_match_kappa") & (headlines["reference"] == "a")]
    assert kappa["value"].tolist() == pytest.approx([0.195])


def test_every_value_of_the_csvs_can_be_seen_and_saved(runs: list[Path]) -> None:
    page = Page(api.report(runs).html)
    cells = {text for _, text in page.all("td")}
    for text in pd.read_csv(runs[0] / "table.csv", dtype=str, keep_default_na=False)["value"]:
        assert text in cells
    saved = {
        str(attributes["download"]): str(attributes["href"])
        for attributes, _ in page.all("a")
        if "download" in attributes
    }
    assert set(saved) == {
        "match-table.csv",
        "match-comparison.csv",
        "eval-table.csv",
        "eval-comparison.csv",
        "overlay-patches.csv",
    }
    for name, address in saved.items():
        folder, file = name.split("-", 1)
        content = base64.b64decode(address.removeprefix("data:text/csv;charset=utf-8;base64,"), validate=True)
        assert content == (runs[0].parent / folder / file).read_bytes()


def test_long_tables_are_cut_and_say_so(tmp_path: Path) -> None:
    lines = [row("a", ("blocks.1", "patch", "s", ""), (i / 3000, NAN, NAN), expert=i) for i in range(2100)]
    folder = write_rows(tmp_path / "run", "s-matrix", lines, checkpoints=["a"])
    page = Page(api.report([folder]).html)
    assert "The first 300 of 2,100 rows; table.csv holds all of them." in page.text
    assert "In every row: run: run, checkpoint: a" in page.text
    rows = [attributes for attributes, _ in page.all("tr")]
    assert 300 < len(rows) < 320


def test_the_page_needs_nothing_but_itself(runs: list[Path]) -> None:
    html = api.report(runs).html
    page = Page(html)
    for _, attributes, _ in page.elements:
        for name in ("src", "href"):
            if name in attributes:
                assert str(attributes[name]).startswith(("data:", "#")), attributes
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    assert {tag for tag, _, _ in page.elements}.isdisjoint(
        {"link", "iframe", "object", "embed", "base", "form"}
    )
    [policy] = [
        str(a["content"]) for a, _ in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"
    ]
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed.pop("default-src") == "'none'"
    assert allowed.pop("img-src") == "data:"
    for tag, source in (("style", "style-src"), ("script", "script-src")):
        [(_, text)] = page.all(tag)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert allowed.pop(source) == f"'sha256-{digest}'"
    assert set(allowed.values()) == {"'none'"}
    assert not re.search(
        r"url\(|@import|https?:", "".join(text for _, text in page.all("style") + page.all("script"))
    )


def test_the_page_is_well_put_together(runs: list[Path]) -> None:
    page = Page(api.report(runs).html)
    assert page.elements[0][:2] == ("html", {"lang": "en"})
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes, _ in page.elements:
        for name in ("aria-labeledby", "for"):
            assert name not in attributes or attributes[name] in ids, tag
        if tag == "a" and str(attributes["href"]).startswith("#"):
            assert str(attributes["href"])[1:] in ids
        if tag == "img":
            assert attributes["alt"]
        if tag == "th":
            assert attributes["scope"] == "col"
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(page.all("caption")) == len(page.all("table")) > 5
    for table in re.findall(r"<table.*?</table>", api.report(runs).html, flags=re.DOTALL):
        columns = len(re.findall("<th ", table))
        assert {len(re.findall("<td", line)) for line in re.findall("<tr>.*?</tr>", table, re.DOTALL)} == {
            0,
            columns,
        }
