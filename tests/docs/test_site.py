"""The site: every page is in its menu, links out of docs are names of files, flowcharts are drawn without a network."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.docs.pages import PAGES, ROOT, TEXT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def hooks() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module("site_hooks")


def on_site(hooks: ModuleType, markdown: str, page: str) -> str:
    text: str = hooks.on_page_markdown(markdown, page=SimpleNamespace(file=SimpleNamespace(src_uri=page)))
    return text


def in_menu(menu: Any) -> list[str]:
    if isinstance(menu, str):
        return [menu]
    entries = menu.values() if isinstance(menu, dict) else menu
    return [page for entry in entries for page in in_menu(entry)]


def test_every_page_is_in_the_menu_once() -> None:
    pages = in_menu(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert sorted(pages) == sorted(str(page.relative_to(DOCS)) for page in PAGES if DOCS in page.parents)


def test_nothing_is_fetched_from_elsewhere() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["theme"]["font"] is False
    assert settings["plugins"] == ["search"]
    assert "mermaid" not in str(settings["markdown_extensions"])


def test_links_out_of_docs_are_names_of_files(hooks: ModuleType) -> None:
    page = "results/ten-routers.md"
    assert on_site(hooks, "[digits](../../reports/routers/digits/tables.md)", page) == (
        "`reports/routers/digits/tables.md`"
    )
    assert on_site(hooks, "[all numbers](../../reports)", page) == "all numbers (`reports`)"
    for kept in (
        "[speed](router-speed.md)",
        "[data](../guide/data.md#masks)",
        "![x](../img/x.png)",
        "[a](#b)",
    ):
        assert on_site(hooks, kept, page) == kept


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```mermaid" in TEXT[page]], ids=lambda page: page.name
)
def test_flowcharts_are_drawn(hooks: ModuleType, page: Path) -> None:
    charts = [match["chart"] for match in hooks.FLOWCHART.finditer(TEXT[page])]
    assert charts
    for chart in charts:
        drawing = ElementTree.fromstring(hooks.svg(chart))
        labels = {text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")}
        arrows = [
            path for path in drawing.iter("{http://www.w3.org/2000/svg}path") if "marker-end" in path.attrib
        ]
        assert len(arrows) == chart.count("-->")
        assert all(label in chart for label in labels if label)
    assert "```mermaid" not in on_site(hooks, TEXT[page], str(page.relative_to(DOCS)))


def test_the_site_builds_and_its_pages_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs moeprobe[docs]")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert {page.stem for page in PAGES if DOCS in page.parents} <= {page.stem for page in pages}
    loaded = (
        r'<(?:script|img|iframe|source)[^>]* src="?https?:|<link[^>]* rel="?stylesheet"?[^>]* href="?https?:'
    )
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(loaded, text), page
        assert 'class="mermaid"' not in text, page  # Material would load Mermaid for it
    assert '<svg class="flow"' in (tmp_path / "site/contributing/architecture.html").read_text(
        encoding="utf-8"
    )
