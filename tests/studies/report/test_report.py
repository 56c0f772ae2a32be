"""The report without a browser: every number, the words for it, escaping, the same bytes, and what is written where."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.studies.report import render
from moeprobe.studies.report.reading import read_runs as reading
from moeprobe.studies.report.summary import difference
from tests.commands import Trained, names_in, refused, run
from tests.studies.report.making import EVAL, MATCH, NAN, row, write_frames, write_rows, write_run

HOSTILE = "<script>alert(1)</script>"
MARKDOWN = MarkdownIt("commonmark").enable("table")


class Page(HTMLParser):
    """The elements of a page, as (tag, attributes, text directly inside)."""

    VOID = frozenset({"meta", "img", "input", "br", "link"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(html)
        assert not self._open, "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in self.VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.elements[self._open[-1]][2].append(data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, "".join(text)) for name, attributes, text in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join("".join(text).split()) for _, _, text in self.elements)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        write_run(tmp_path / "runs" / "match"),
        write_run(tmp_path / "runs" / "eval", "eval", values=EVAL, pictures=()),
        write_frames(tmp_path / "runs" / "overlay"),
    ]


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
        "In blocks.3, the first MoE layer (360 images, 5,530 trials), the κ of b (0.549 [0.526, 0.571]) is higher than "
        "that of a (0.354 [0.333, 0.375]) by 0.195 [0.175, 0.215].",
        "Overall (360 images), b (0.975 [0.956, 0.989]) and a (0.972 [0.953, 0.986]) cannot be distinguished by their "
        "accuracy (difference +0.003 [-0.017, +0.023]).",
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
    assert "The first 2,000 of 2,100 rows; table.csv holds all of them." in page.text
    assert "In every row: run: run, checkpoint: a" in page.text
    rows = [attributes for attributes, _ in page.all("tr")]
    assert 2000 < len(rows) < 2020


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


def hostile(folder: Path) -> Path:
    """A run in which whatever can carry a name carries a script."""
    key = (HOSTILE, "patch", "top1_match_kappa", "pooled")
    lines = [
        row(
            name,
            (HOSTILE, "patch", *which),
            (0.5, 0.4, 0.6),
            **{"class": HOSTILE, "router": HOSTILE, "flag": HOSTILE},
        )
        for name in (HOSTILE, f"{HOSTILE}2")
        for which in (("top1_match_kappa", "pooled"), (HOSTILE, HOSTILE), ("accuracy", ""))
    ]
    lines += [line | {"class": ""} for line in lines]
    differences = [row(f"{HOSTILE}2", key, (0.1, 0.05, 0.15), reference=HOSTILE)]
    return write_rows(
        folder, "match-ratio", lines, differences, checkpoints=[HOSTILE, f"{HOSTILE}2"],
        pictures=[f"{HOSTILE.replace('/', '|')}](x) 100%.png"],
        request={"data": HOSTILE, "view": {"name": HOSTILE, HOSTILE: HOSTILE}, HOSTILE: [HOSTILE]},
        command=f"moeprobe {HOSTILE} `{HOSTILE}`", platform=HOSTILE, versions={HOSTILE: HOSTILE},
    )  # fmt: skip


def test_a_name_that_is_a_script_stays_text(tmp_path: Path) -> None:
    out = tmp_path / "out"
    document = api.report(
        [hostile(tmp_path / HOSTILE.replace("/", "\\")), write_run(tmp_path / "`x`|y")], out=out
    )
    page = Page(document.html)
    assert [text for _, text in page.all("script")] == [render._template_text("report.js")]
    assert HOSTILE in page.text
    assert page.text.count("<script>") > 20
    tokens = list(flat(MARKDOWN.parse(document.markdown)))
    assert not [token for token in tokens if token.type in ("html_block", "html_inline")]
    assert HOSTILE in " ".join(token.content for token in tokens if token.type == "text")
    targets = [str(token.attrs["href"]) for token in tokens if token.type == "link_open"]
    targets += [str(token.attrs["src"]) for token in tokens if token.type == "image"]
    # Every link and picture is one of ours, and leads to its file.
    assert sorted(out / unquote(target) for target in targets) == sorted(document.files[2:])
    assert len(targets) == 6


def flat(tokens: list[Any]) -> Iterator[Any]:
    for token in tokens:
        yield token
        yield from flat(token.children or [])


@example("__0__")
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=30))
def test_whatever_is_put_into_markdown_is_shown_as_it_is(text: str) -> None:
    words = " ".join(text.split())
    escaped = render.markdown(text)
    # In a paragraph, and in the middle cell of a table.
    [paragraph] = [token for token in MARKDOWN.parse(f"see {escaped} there") if token.type == "inline"]
    assert shown(paragraph) == f"see {words} there".replace("  ", " ")
    table = MARKDOWN.parse(f"| a | b | c |\n|---|---|---|\n| x | {escaped} | z |\n")
    cells = [shown(token) for token in table if token.type == "inline"]
    assert cells == ["a", "b", "c", "x", words, "z"]


def shown(inline: Any) -> str:
    assert {token.type for token in inline.children} <= {"text", "text_special"}, inline.children
    return " ".join("".join(token.content for token in inline.children).split())


@given(st.text(alphabet="`a |", min_size=1).filter(str.strip))
def test_commands_are_code_whatever_they_hold(text: str) -> None:
    [paragraph] = [token for token in MARKDOWN.parse(f"by {render._code(text)} so") if token.type == "inline"]
    [code] = [token for token in paragraph.children or [] if token.type == "code_inline"]
    assert code.content.strip() == " ".join(text.split())


@pytest.mark.parametrize(
    ("value", "flag", "words"),
    [
        ((0.2, 0.1, 0.3), "", "the κ of B is higher than that of A by 0.200 [0.100, 0.300]."),
        ((-0.2, -0.3, -0.1), "", "the κ of B is lower than that of A by 0.200 [0.100, 0.300]."),
        (
            (0.1, 0.0, 0.2),
            "",
            "B and A cannot be distinguished by their κ (difference +0.100 [+0.000, +0.200]).",
        ),
        (
            (-0.1, -0.2, 0.0),
            "",
            "B and A cannot be distinguished by their κ (difference -0.100 [-0.200, +0.000]).",
        ),
        ((0.0, 0.0, 0.0), "", "the κ of B and A is the same in every resample."),
        (
            (0.3, NAN, NAN),
            "few_images",
            "nothing can be said of the κ of B and A: their difference of +0.300 has no interval (few images).",
        ),
    ],
)
def test_the_words_for_a_difference(value: tuple[float, float, float], flag: str, words: str) -> None:
    key = ("blocks.3", "patch", "top1_match_kappa", "pooled")
    sides = [row(name, key, (0.5, 0.4, 0.6)) for name in ("b", "a")]
    for name in ("a", "b"):
        words = re.sub(rf"\b{name.upper()}\b", f"{name} (0.500 [0.400, 0.600])", words)
    assert difference(row("b", key, value, flag=flag, reference="a"), *sides, noun="κ") == words


def test_a_collapsed_router_is_called_collapsed(tmp_path: Path) -> None:
    match, chance, kappa = (
        ("blocks.3", "patch", f"top1_match{end}", null)
        for end, null in (("", ""), ("_chance", "pooled"), ("_kappa", "pooled"))
    )
    lines = [
        row("a", match, (0.6, 0.5, 0.7)),
        row("a", chance, (0.1, 0.1, 0.1)),
        row("a", kappa, (0.55, 0.5, 0.6)),
    ]
    lines += [
        row("b", match, (1, 1, 1)),
        row("b", chance, (1, 1, 1)),
        row("b", kappa, (NAN, NAN, NAN), flag="collapsed"),
    ]
    differences = [
        row("b", match, (0.4, 0.3, 0.5), reference="a"),
        row("b", kappa, (NAN, NAN, NAN), flag="collapsed", reference="a"),
    ]
    folder = write_rows(tmp_path / "run", "match-ratio", lines, differences, checkpoints=["a", "b"])
    markdown = api.report([folder]).markdown
    assert (
        "the router of b has collapsed: chance alone reaches 1, so its match of 1.000 says nothing"
        in markdown
    )
    assert "| – (collapsed) |" in markdown
    assert (
        "the κ is: a 0.550 [0.500, 0.600] (raw 0.600 [0.500, 0.700], by chance 0.100 [0.100, 0.100])."
        in markdown
    )
    assert "higher" not in markdown.split("## Match of corresponding patches")[0].split("**Headline")[0]


def test_checkpoints_whose_first_layers_differ_are_told_one_by_one(tmp_path: Path) -> None:
    def lines(name: str, layer: str, kappa: float) -> list[dict[str, Any]]:
        return [row(name, (layer, "patch", "top1_match_kappa", "pooled"), (kappa, kappa - 0.1, kappa + 0.1))]

    rows = [
        *lines("a", "blocks.3", 0.3),
        *lines("a", "blocks.7", 0.2),
        *lines("b", "blocks.5", 0.5),
        *lines("b", "blocks.7", 0.4),
    ]
    folder = write_rows(
        tmp_path / "run", "match-ratio", rows, checkpoints=["a", "b"], request={"layers": ["blocks.7"]}
    )
    markdown = api.report([folder]).markdown
    assert (
        "In blocks.3, the first MoE layer selected (360 images, 5,530 trials), the κ is: a 0.300 [0.200, 0.400]."
        in markdown
    )
    assert (
        "In blocks.5, the first MoE layer selected (360 images, 5,530 trials), the κ is: b 0.500 [0.400, 0.600]."
        in markdown
    )


def test_a_name_that_stands_for_two_checkpoints_gets_its_hash(tmp_path: Path) -> None:
    first = write_run(tmp_path / "one" / "match", checkpoints=("a", "b"))
    second = write_run(tmp_path / "two" / "match", checkpoints=("a", "b"))
    content = json.loads((second / "table.json").read_text())
    content["checkpoints"]["a"]["sha256"] = "feed" * 16
    (second / "table.json").write_text(json.dumps(content))
    document = api.report([first, second])
    header = next(line for line in document.markdown.splitlines() if line.startswith("| run | metric |"))
    assert [cell.strip() for cell in header.split("|")[3:9]] == [
        "a (61616161)", "b", "a (feedfeed)", "b − a (61616161)", "b − a (feedfeed)", "layer",
    ]  # fmt: skip
    assert "feed" * 16 in document.html
    for label in ("one/match", "two/match"):
        assert f"* **Match of corresponding patches: random_crop ({label}).**" in document.markdown


def test_a_kind_of_run_that_nobody_knows_yet_is_reported(tmp_path: Path) -> None:
    values = {("blocks.3", "patch", "jump", ""): [(0.5, 0.4, 0.6)], ("", "", "share", ""): [(0.25, 0.2, 0.3)]}
    folder = write_run(
        tmp_path / "run",
        "output-jumps",
        checkpoints=("a",),
        values=values,
        pictures=("jumps.png",),
        request={"steps": 7, "how": {"a": [1, 2]}},
    )
    markdown = api.report([folder]).markdown
    assert "## Output jumps: random_crop" in markdown
    assert "* steps: 7\n" in markdown and "* how: a [1, 2]\n" in markdown
    assert "| blocks.3 | patch | jump | 0.500 [0.400, 0.600] | 360 | 5,530 |" in markdown
    assert "(report-files/1-run/jumps.png)" in markdown
    assert "These runs have no headline number" in markdown


def test_a_comparison_shows_its_verdicts(tmp_path: Path) -> None:
    key = ("blocks.3", "patch", "top1_match_kappa", "pooled")
    more = {"verdict": "cannot tell", "sim_low": -0.01, "sim_high": 0.21}
    said = [
        {
            "checkpoint": "b",
            "tokens": "patch",
            "metric": key[2],
            "null": key[3],
            "sentence": "b against a: cannot tell.",
        }
    ]
    folder = write_rows(tmp_path / "run", "compare", [], checkpoints=["a", "b"], verdicts=said)
    pd.DataFrame([row("b", key, (0.1, 0.05, 0.15), reference="a", severity=0.1) | more]).to_csv(
        folder / "comparison.csv", index=False
    )
    markdown = api.report([folder]).markdown
    title = "κ of top-1 match (top1_match_kappa, patches)"
    assert (
        f"Verdicts go by simultaneous intervals over 360 images. {title}: b against a: cannot tell."
        in markdown
    )
    line = next(line for line in markdown.splitlines() if line.startswith("| blocks.3 | 0.1 |"))
    # Runs of earlier versions lack some columns.
    assert [cell.strip() for cell in line.split("|")[3:-1]] == [
        "cannot tell", "+0.100 [-0.010, +0.210]", "–", "–", "–", "360", "5,530",
    ]  # fmt: skip


def test_a_sweep_is_told_at_its_ends(tmp_path: Path) -> None:
    rows = []
    for severity, kappa, accuracy in ((0.0, 1.0, 0.97), (0.1, 0.8, 0.9), (0.4, 0.3, 0.5)):
        rows.append(
            row(
                "a",
                ("blocks.3", "patch", "top1_match_kappa", "pooled"),
                (kappa, kappa, kappa),
                severity=severity,
            )
        )
        rows.append(row("a", ("", "", "accuracy", ""), (accuracy, accuracy, accuracy), severity=severity))
    folder = write_rows(
        tmp_path / "run",
        "sweep",
        rows,
        checkpoints=["a"],
        severity_unit="noise σ",
        request={"severities": [0.0, 0.1, 0.4]},
    )
    markdown = api.report([folder]).markdown
    assert (
        "In blocks.3, the first MoE layer, at severity 0.4, the strongest of the run (360 images, 5,530 trials), the κ "
        "is: a 0.300" in markdown
    )
    assert (
        "At severity 0, the weakest of the run (360 images), the accuracy is: a 0.970 [0.970, 0.970]."
        in markdown
    )
    assert "* severities: 0, 0.1, 0.4 (noise σ)" in markdown
    assert "| a | 0.1 | 0.800 [0.800, 0.800] |" in markdown
    assert "What the values rest on: κ: 360 images, 5,530 trials." in markdown


def test_a_sweep_shows_what_changes_the_output_and_its_noise_floor(tmp_path: Path) -> None:
    rows = []
    for severity, features, switching in ((0.0, 0.0, 0.0), (0.4, -0.5, -0.02)):
        for share, value in (("features", features), ("switching", switching), ("interaction", 0.001)):
            key = ("", "", f"class_probability_{share}", "")
            rows.append(
                row("a", key, (value, value - 0.01, value + 0.01), severity=severity, view="gaussian_noise")
            )
    match = ("blocks.3", "patch", "top1_match", "")
    for view, value in (("clean_again", 0.75), ("clean_other_batch", 0.74), ("clean_other_dtype", 0.72)):
        rows.append(row("a", match, (value, value - 0.01, value + 0.01), view=view, images=256, trials=4096))
    rows.append(row("b", match, (1.0, 1.0, 1.0), view="clean_again", images=256, trials=4096))
    folder = write_rows(
        tmp_path / "run", "sweep", rows, checkpoints=["a", "b"],
        request={"replayed_gates": "replayed"}, floor_dtype="bfloat16",
    )  # fmt: skip
    markdown = api.report([folder]).markdown
    changes, floor = markdown.split("**Noise floor**")
    assert (
        "**What changes the class probability, features (pixels) or switching (experts)? Gates replayed**"
        in changes
    )
    assert "| checkpoint | severity | features | switching | interaction |" in changes
    assert (
        "| a | 0.4 | -0.500 [-0.510, -0.490] | -0.020 [-0.030, -0.010] | 0.001 [-0.009, 0.011] |" in changes
    )
    assert (
        "| checkpoint | layer | same batch again | other batch size | bfloat16 | images | trials |" in floor
    )
    assert (
        "| a | blocks.3 | 0.750 [0.740, 0.760] | 0.740 [0.730, 0.750] | 0.720 [0.710, 0.730] | 256 | 4,096 |"
        in floor
    )
    assert "| b | blocks.3 | 1.000 [1.000, 1.000] |  |  | 256 | 4,096 |" in floor
    assert "a is random at evaluation: run again unchanged, only 0.750 of the tokens keep" in floor
    assert "b is random" not in floor


def test_the_same_runs_give_the_same_bytes_wherever_they_lie(runs: list[Path], tmp_path: Path) -> None:
    first = api.report(runs, out=tmp_path / "first")
    (tmp_path / "elsewhere").mkdir()
    moved = [path.rename(tmp_path / "elsewhere" / path.name) for path in runs]
    second = api.report(moved, out=tmp_path / "second")
    contents = [
        {path.relative_to(tmp_path / name): path.read_bytes() for path in document.files}
        for name, document in (("first", first), ("second", second))
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 2 + 5 + 1 + 4  # report.html, report.md; CSVs; a figure; frames and their strip
    assert str(tmp_path).encode() not in contents[0][Path("report.html")]


def test_what_is_written(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("report", *runs, "--out", out)
    assert result.exit_code == 0, result.output
    assert "0.549 [0.526, 0.571]" in result.output and f"Written to {out}/" in result.output
    assert names_in(out) == {"report.html", "report.md", "report-files"}
    markdown = (out / "report.md").read_text()
    targets = re.findall(r"\]\((report-files/[^)]*)\)", markdown)
    assert {out / unquote(target) for target in targets} == {
        path for path in (out / "report-files").rglob("*") if path.is_file()
    }
    assert (out / "report-files" / "1-match" / "table.csv").read_bytes() == (
        runs[0] / "table.csv"
    ).read_bytes()
    (out / "mine.txt").write_text("mine")
    assert "add --overwrite" in refused("report", runs[1], "--out", out)
    result = run("report", runs[1], "--out", out, "--overwrite", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [line["value"] for line in printed["headlines"]] == pytest.approx([0.972, 0.975, 0.003])
    assert printed["files"][:2] == [str(out / "report.html"), str(out / "report.md")]
    assert {path.name for path in (out / "report-files").iterdir()} == {"1-eval"}
    assert (out / "mine.txt").read_text() == "mine"


def test_an_interrupted_report_goes_on(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another is asked for; what is somebody else's in the folder stays."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with monkeypatch.context() as patch:

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr("moeprobe.studies.report.write_text", stop)
        assert run("report", *runs, "--out", out).exit_code == 130
    assert names_in(out) == {"report-files", "mine.txt"}
    (out / "report-files" / "mine.txt").write_text("mine")
    assert run("report", runs[1], "--out", out).exit_code == 0
    assert names_in(out) == {"report.html", "report.md", "report-files", "mine.txt"}
    assert {path.name for path in (out / "report-files").iterdir()} == {"1-eval", "mine.txt"}


def test_a_report_that_another_process_made_meanwhile_stays(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def meanwhile(paths: list[Path]) -> object:
        with monkeypatch.context() as patch:
            patch.setattr("moeprobe.studies.report.read_runs", reading)
            api.report(runs[0], out=out)
        return reading(paths)

    monkeypatch.setattr("moeprobe.studies.report.read_runs", meanwhile)
    with pytest.raises(UserError, match="is there already"):
        api.report(runs[1], out=out)
    monkeypatch.undo()
    assert (out / "report.html").read_text() == api.report(runs[0]).html


@pytest.mark.parametrize("name", ["report.html", "report.md", "report-files"])
@pytest.mark.parametrize("link", [True, False])
def test_a_report_is_not_written_over_what_is_none(
    runs: list[Path], tmp_path: Path, name: str, link: bool
) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine"
    out.mkdir()
    if link:
        (out / name).symlink_to(mine)
    else:
        (out / name).write_text("mine")
    for more in ((), ("--overwrite",)):
        assert name in refused("report", runs[1], "--out", out, *more)
    assert not mine.exists() and names_in(out) == {name}


def test_a_report_is_not_put_into_a_run_or_onto_a_file(runs: list[Path], tmp_path: Path) -> None:
    for out in (runs[0], runs[0] / "deeper" / "still"):
        assert "is in the run" in refused("report", *runs, "--out", out, "--overwrite")
    (tmp_path / "file").touch()
    assert "is a file" in refused("report", *runs, "--out", tmp_path / "file")
    # Beside the runs is where it may well be wanted.
    assert run("report", *runs, "--out", runs[0].parent).exit_code == 0


def test_nothing_is_written_unless_asked(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert api.report(runs).files == []
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_real_runs(trained: Trained, tmp_path: Path) -> None:
    """What the probes write is what the report reads."""
    for command in (
        ["match-ratio"],
        ["confidence"],
        ["noise-sweep", "--sigmas", "0,0.2", "--attribute"],
        ["eval"],
        ["overlay", "--count", 1],
    ):
        assert (
            run(*command, *trained.values(), "--limit", 24, "--out", tmp_path / str(command[0])).exit_code
            == 0
        )
    folders = [tmp_path / name for name in ("match-ratio", "confidence", "noise-sweep", "eval", "overlay")]
    document = api.report(folders)
    assert "**Noise floor**" in document.markdown
    assert "switching (experts)? Gates recomputed**" in document.markdown
    assert len(Page(document.html).all("img")) == 1 + 1 + 3 + 2
    for folder in folders[:4]:
        table = pd.read_csv(folder / "table.csv", dtype={"layer": str, "null": str}).fillna(
            {"layer": "", "null": ""}
        )
        told = document.headlines[
            (document.headlines["run"] == folder.name) & (document.headlines["reference"] == "")
        ]
        keys = [
            "checkpoint",
            "layer",
            "metric",
            "null",
            "severity",
            "value",
            "ci_low",
            "ci_high",
            "images",
            "trials",
        ]
        both = told.merge(table[table["tokens"] != "prefix"], on=keys)
        assert len(both) == len(told) >= 2
        assert set(told["layer"]) <= {"blocks.1", ""}
        for value in told["value"]:
            assert f"{value:.3f}" in document.markdown or (
                float(value).is_integer() and f"{value:.0f} [" in document.markdown
            )


def test_a_run_of_texts_speaks_of_texts(tmp_path: Path) -> None:
    values = {
        (layer, tokens.replace("patch", "token"), metric, null): value
        for (layer, tokens, metric, null), value in MATCH.items()
    }
    api.report([write_run(tmp_path / "run", values=values)], out=tmp_path / "page")
    markdown = (tmp_path / "page" / "report.md").read_text()
    assert "in the run, tokens. Intervals" in markdown and "95 % over texts; " in markdown
    assert "(360 texts, 5,530 trials)" in markdown and "paired, text by text" in markdown
    assert "patch tokens" not in markdown and "interval over images" not in markdown
