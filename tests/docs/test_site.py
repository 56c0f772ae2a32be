"""The site: every page is in its menu, links out of docs are names of files, flowcharts are drawn without a network."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
import yaml

from tests.browser import needs_browser
from tests.commands import PATIENCE
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
    assert settings["plugins"] == ["offline", "search"]
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


class Page(HTMLParser):
    """The links, pictures, names and tables of a built page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.headless = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.targets += [values[name] or "" for name in ("href", "src") if values.get(name)]
        self.ids |= {values[name] or "" for name in ("id", "name") if values.get(name)}
        self.headless += {"table": 1, "th": 0}.get(tag, 0)
        if tag == "th" and self.headless:
            self.headless -= 1


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.promise
def test_the_built_site_is_whole(site: Path) -> None:
    """Every picture and link of every page is there, with its section; each table has a header; nothing is fetched."""
    pages = {path: Page() for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        page.feed(path.read_text(encoding="utf-8"))
    missing = []
    for path, page in pages.items():
        for target in page.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            file = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not file.is_file() or (url.fragment and file in pages and url.fragment not in pages[file].ids):
                missing.append(f"{path.relative_to(site)}: {target}")
    assert len(pages) > 40 and not missing
    assert {page.stem for page in PAGES if DOCS in page.parents} <= {page.stem for page in pages}
    assert not [path.name for path, page in pages.items() if page.headless]


@pytest.mark.slow
@pytest.mark.promise
def test_the_built_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|link|iframe|source)[^>]*(?:src|href)=\"?https?:[^>]*")
    pages = {path.name: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert pages and not {name: urls for name, page in pages.items() if (urls := loaded.findall(page))}
    # Material would load Mermaid for a chart: the hooks draw it.
    assert not [name for name, page in pages.items() if 'class="mermaid"' in page]
    assert '<svg class="flow"' in pages["architecture.html"]


@pytest.mark.slow
@pytest.mark.promise
@needs_browser
def test_the_search_works_from_a_folder(site: Path, browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get((site / "results" / "attack.html").as_uri())
    field = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    browser.execute_script("arguments[0].focus()", field)
    field.send_keys("collapsed")
    items = WebDriverWait(browser, PATIENCE).until(
        lambda driver: driver.find_elements(By.CSS_SELECTOR, ".md-search-result__item")
    )
    assert any("collapsed" in item.text for item in items)


def test_intervals_in_tables_are_not_broken(hooks: ModuleType) -> None:
    cell = "<td>0.883 [0.876, 0.889]</td><td>see [a, b]</td>"
    assert hooks.on_page_content(cell) == "<td>0.883&nbsp;[0.876,&nbsp;0.889]</td><td>see [a, b]</td>"
