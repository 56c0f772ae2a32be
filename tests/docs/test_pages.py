"""Pages have a readable size, their links lead somewhere, and readers find them all."""

import importlib
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from markdown.extensions.toc import slugify

from moeprobe.runtime.files import sha256
from tests.docs.pages import PAGES, README, ROOT, TEXT, name_of
from tests.sources import tracked_files

DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    """The script that writes pages, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module("generate")


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"```.*?```", "", TEXT[page], flags=re.DOTALL)


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)


def on_github(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(page: Path) -> list[tuple[Path, str]]:
    """What a page links to in the repository: the file, and the anchor in it ("" = none)."""
    targets = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", prose(page))
    return [((page.parent / file).resolve() if file else page, anchor) for file, anchor in targets]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_pictures_and_anchors_exist(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), target
        assert not anchor or anchor in map(on_github, headings(target)), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_are_of_a_readable_size(page: Path) -> None:
    assert len(TEXT[page].splitlines()) <= (100 if page in (README, INDEX) else 220)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_one_title_and_anchors_that_are_the_same_on_github_and_on_the_site(page: Path) -> None:
    assert len(re.findall(r"^# ", prose(page), flags=re.MULTILINE)) == 1
    anchors = Counter(map(on_github, headings(page)))
    assert max(anchors.values()) == 1, anchors
    assert [slugify(heading, "-") for heading in headings(page)] == list(map(on_github, headings(page)))


def test_titles_of_pages_differ() -> None:
    """The navigation, and what a search finds, show titles alone."""
    titles = Counter(headings(page)[0].lower() for page in PAGES if page != README)
    assert max(titles.values()) == 1, titles.most_common(1)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    folders = "cli|probes|studies|adapters|results|metrics|models|inputs|routing|runtime"
    for name in re.findall(rf"`((?:{folders})/[\w/.]*)`", prose(page)):
        assert (ROOT / "moeprobe" / name).exists(), name


def test_every_page_can_be_reached_from_the_first() -> None:
    reached, left = set(), [INDEX]
    while left:
        page = left.pop()
        if page in TEXT and page not in reached:
            reached.add(page)
            left += [target for target, _ in links(page)]
    assert set(PAGES) - reached - {README} == set()


def test_pictures_of_pages_are_the_reports(generate: ModuleType) -> None:
    copies = {path.name for path in (DOCS / "img").iterdir()}
    assert copies == generate.FIGURES.keys() | generate.DRAWN.keys()
    assert all((DOCS / "img" / name).stat().st_size <= 300_000 for name in generate.DRAWN)
    for name, source in generate.FIGURES.items():
        # Figures of sweeps are not in git: `tests/reports/test_guide_figures.py` draws them from their tables.
        if (ROOT / source).is_file() or not source.startswith(("reports/sweeps/", "reports/routers/")):
            assert sha256(DOCS / "img" / name) == sha256(ROOT / source), (
                f"{name}: run python docs/generate.py"
            )
    shown = {target.name for page in PAGES for target, _ in links(page) if target.parent == DOCS / "img"}
    assert shown == copies


def test_generated_pages_are_what_generate_writes(generate: ModuleType) -> None:
    written = generate.pages()
    for name, text in written.items():
        assert TEXT.get(DOCS / name) == text, f"{name}: run python docs/generate.py"
    marked = {page for page in PAGES if "<!-- written by docs/generate.py" in TEXT[page]}
    assert marked == {DOCS / name for name in written}, "pages that nothing writes any more"


def test_sizes_of_the_tree_are_current(generate: ModuleType) -> None:
    page = TEXT[generate.ARCHITECTURE]
    assert generate.with_sizes(page) == page, "run python docs/generate.py"


def test_nothing_is_left_to_fill_in() -> None:
    markers = re.compile(
        r"<!-- (from [^:\n]+: [^\n]+|end|sizes of the tree|written by docs/generate.py from [^\n]+"
        r"|printed by: moeprobe [^\n]+) -->"
    )
    for page in PAGES:
        assert "<!--" not in markers.sub("", TEXT[page]), page


# Files that the pages for contributors have one write.
EXAMPLES = {"contrast.py", "my_family.py", "paged.py", "sure.py", "tutorial.py"}


@pytest.mark.parametrize(
    "page",
    [*sorted((DOCS / "contributing").glob("*.md")), ROOT / "CONTRIBUTING.md"],
    ids=lambda page: page.name,
)
def test_files_and_names_of_the_code_exist(page: Path) -> None:
    """Those in backticks: ``folder/file.py``, ``folder/``, ``name`` in ``file.py``, ``_name``, and 3 (``_NAME``)."""
    prose = re.sub(r"```.*?```", "", TEXT[page], flags=re.DOTALL)
    for place in set(re.findall(r"`([\w./-]+\.py|[\w/]+/)`", prose)):
        assert Path(place).name in EXAMPLES or sources(place), place
    for name, place in re.findall(r"`(\w+)` in `([\w./]+\.py)`", prose):
        assert any(
            re.search(rf"\b{name}\b", source.read_text(encoding="utf-8")) for source in sources(place)
        ), name
    for number, name in re.findall(r"([\d,]+) [a-z ]+\(`(_[A-Z_]+)`\)", prose):
        values = re.findall(rf"^{name} = ([\d *]+)$", code(), re.MULTILINE)
        assert int(number.replace(",", "")) in map(eval, values), name
    private = set(re.findall(r"`(_\w+)`", prose))
    assert all(re.search(rf"\b{name}\b", code()) for name in private), private


def sources(place: str) -> list[Path]:
    """Return the files or folders whose path ends so."""
    return [path for name, path in paths().items() if name.endswith(f"/{place.rstrip('/')}")]


@cache
def paths() -> dict[str, Path]:
    """The files and folders with code, by their paths from the root, which begin with /."""
    folders = [ROOT / top for top in ("moeprobe", "tests", "docs", "reports", "benchmarks")]
    found = [*folders, *(path for folder in folders for path in folder.rglob("*"))]
    return {f"/{path.relative_to(ROOT).as_posix()}": path for path in found}


@cache
def code() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "moeprobe").rglob("*.py")))


def test_every_report_has_its_command() -> None:
    page = TEXT[DOCS / "contributing" / "reports.md"]
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    named = {name for folders, _ in rows for name in re.findall(r"`([\w-]+)`", folders)}
    reports = {path.name for path in (ROOT / "reports").iterdir() if path.is_dir() and tracked(path)}
    assert named == reports - {"scripts"}
    targets = set(
        re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    scripts = {path.stem for path in (ROOT / "reports" / "scripts").glob("regenerate*.py")}
    commands = " ".join(command for _, command in rows)
    assert set(re.findall(r"`make ([\w-]+)", page)) <= targets
    assert set(re.findall(r"\b(regenerate\w*)", commands)) == scripts


def test_every_drawn_picture_has_its_script(generate: ModuleType) -> None:
    page = TEXT[DOCS / "contributing" / "reports.md"]
    for name, script in generate.DRAWN.items():
        if script.startswith("a "):
            assert f"`{name}`" in page or f"`{name.partition('-')[0]}-*.png`" in page, name
        else:
            source = ROOT / "reports" / "scripts" / f"{script}.py"
            assert name.removesuffix(".png") in source.read_text(encoding="utf-8"), name
            assert f"`.venv/bin/python -m reports.scripts.{script}`" in page


def tracked(folder: Path) -> bool:
    """Whether git knows a file of the folder: runs of one's own lie beside the committed reports."""
    return bool(tracked_files(str(folder)))


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- printed by: " in TEXT[page]], ids=name_of)
def test_what_a_command_prints_is_on_its_page(page: Path) -> None:
    blocks = re.findall(
        r"<!-- printed by: [^\n]+ -->\n```text\n(.*?)```\n<!-- end -->", TEXT[page], re.DOTALL
    )
    assert len(blocks) == TEXT[page].count("<!-- printed by: ")
    assert all(block.strip() for block in blocks), "run: python -m reports.scripts.printed"
