"""Whatever a name holds, it is shown as it is, in the page and in Markdown."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from moeprobe import api
from moeprobe.runtime.characters import harmless
from moeprobe.studies.report import render
from tests.studies.report.making import HOSTILE, hostile, write_run
from tests.studies.report.page import Page

MARKDOWN = MarkdownIt("commonmark").enable("table")


def test_a_name_that_is_a_script_stays_text(tmp_path: Path) -> None:
    out = tmp_path / "out"
    document = api.report(
        [hostile(tmp_path / HOSTILE.replace("/", "\\")), write_run(tmp_path / "`x`|y")], out=out
    )
    page = Page(document.html)
    assert [text for _, text in page.all("script")] == [render.template_text("report.js")]
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
    words = harmless(" ".join(text.split()))
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
