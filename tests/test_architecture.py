"""Who may import whom: only downwards, over the table of the README."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "moeprobe"
LEVELS = {
    0: {
        "_torchvision", "alignment", "arguments", "catalog", "characters", "comparable", "config", "errors", "files",
        "folders", "geometry", "grids", "hub", "keys", "locks", "medium", "options", "palette", "proportions",
        "records", "seeds", "tokens", "validation", "watching", "wording", "yamls",
    },
    1: {
        "accumulators", "chance", "data", "divergence", "entropy", "families", "finite", "formats", "nn", "regions",
        "ridge", "routing", "showing", "sidecars", "similarity", "statistics", "tables", "verdicts", "views",
        "within_image",
    },
    2: {"adapters", "analyses", "batches", "text_batches"},
    3: {
        "applicability", "comparisons", "corners", "exhibits", "figures", "floors", "neighbours", "origins", "pairing",
        "paths", "pixels", "plausibility", "probes", "recording", "report", "runs", "shots", "sources", "summaries",
        "sweeps",
        "trace_pairs", "trace_rows", "training",
    },
    4: {
        "analyzing", "api", "asking", "comparing", "corresponding", "demo", "doctor", "exchange", "fewshot",
        "following", "gathering", "inspection", "loading", "overlaying", "paper", "probing", "spreading", "tracing",
        "tradeoff", "trainings",
    },
    5: {"cli", "__main__"},
}  # fmt: skip
# Neighbours on one floor that may meet, in this direction alone.
NEIGHBOURS = {
    ("analyzing", "asking"),
    ("analyzing", "loading"),
    ("analyzing", "probing"),
    ("api", "analyzing"),
    ("api", "tracing"),
    ("recording", "probes"),
    ("recording", "trace_rows"),
    ("trace_pairs", "trace_rows"),
    ("tracing", "asking"),
    ("tracing", "loading"),
    ("tracing", "probing"),
    ("__main__", "cli"),
    ("api", "comparing"),
    ("api", "corresponding"),
    ("api", "fewshot"),
    ("api", "exchange"),
    ("api", "following"),
    ("api", "loading"),
    ("api", "overlaying"),
    ("api", "paper"),
    ("api", "probing"),
    ("api", "spreading"),
    ("applicability", "probes"),
    ("api", "tradeoff"),
    ("api", "trainings"),
    ("asking", "loading"),
    ("batches", "text_batches"),
    ("arguments", "errors"),
    ("options", "arguments"),
    ("catalog", "errors"),
    ("comparable", "catalog"),
    ("comparable", "errors"),
    ("comparing", "gathering"),
    ("comparing", "asking"),
    ("comparing", "loading"),
    ("comparing", "probing"),
    ("comparisons", "summaries"),
    ("config", "catalog"),
    ("config", "errors"),
    ("config", "validation"),
    ("config", "yamls"),
    ("keys", "config"),
    ("keys", "validation"),
    ("yamls", "errors"),
    ("yamls", "files"),
    ("corresponding", "loading"),
    ("demo", "api"),
    ("exchange", "loading"),
    ("exhibits", "probes"),
    ("chance", "statistics"),
    ("families", "statistics"),
    ("files", "catalog"),
    ("files", "errors"),
    ("finite", "routing"),
    ("hub", "options"),
    ("folders", "errors"),
    ("folders", "files"),
    ("folders", "locks"),
    ("folders", "records"),
    ("locks", "errors"),
    ("locks", "files"),
    ("records", "errors"),
    ("records", "files"),
    ("fewshot", "asking"),
    ("fewshot", "loading"),
    ("fewshot", "probing"),
    ("following", "asking"),
    ("following", "loading"),
    ("following", "probing"),
    ("gathering", "asking"),
    ("gathering", "loading"),
    ("gathering", "probing"),
    ("inspection", "loading"),
    ("neighbours", "pairing"),
    ("neighbours", "probes"),
    ("grids", "config"),
    ("grids", "errors"),
    ("grids", "validation"),
    ("options", "catalog"),
    ("options", "errors"),
    ("overlaying", "asking"),
    ("overlaying", "loading"),
    ("overlaying", "probing"),
    ("origins", "probes"),
    ("pairing", "probes"),
    ("paper", "comparing"),
    ("paper", "corresponding"),
    ("paper", "following"),
    ("paper", "loading"),
    ("paper", "overlaying"),
    ("paper", "probing"),
    ("paths", "probes"),
    ("probing", "asking"),
    ("probing", "loading"),
    ("ridge", "statistics"),
    ("shots", "probes"),
    ("shots", "sweeps"),
    ("spreading", "asking"),
    ("spreading", "loading"),
    ("spreading", "probing"),
    ("entropy", "statistics"),
    ("showing", "tables"),
    ("similarity", "statistics"),
    ("similarity", "within_image"),
    ("sweeps", "corners"),
    ("sweeps", "floors"),
    ("sweeps", "pairing"),
    ("sweeps", "probes"),
    ("tables", "accumulators"),
    ("tradeoff", "comparing"),
    ("tradeoff", "fewshot"),
    ("tradeoff", "inspection"),
    ("tradeoff", "loading"),
    ("tradeoff", "probing"),
    ("tradeoff", "spreading"),
    ("tradeoff", "trainings"),
    ("trainings", "loading"),
    ("validation", "catalog"),
    ("verdicts", "families"),
    ("within_image", "statistics"),
    ("wording", "medium"),
}
NEVER = {(part, "nn") for part in ("analyses", "views", "figures", "data")} | {
    ("nn", "training"),
    ("views", "data"),
}


def part_of(module: str) -> str:
    """``moeprobe.nn.moe`` -> ``nn``; ``moeprobe`` itself -> the empty string."""
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[str]:
    """Every part of moeprobe that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {part_of(alias.name) for alias in node.names if alias.name.split(".")[0] == "moeprobe"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "moeprobe":
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "moeprobe":
                found |= {alias.name for alias in node.names if not alias.name.startswith("__")}
            else:
                found.add(part_of(node.module or ""))
    return found - {""}


FILES = sorted(PACKAGE.rglob("*.py"))
FIGURES = [f"moeprobe.figures.{path.stem}" for path in FILES if path.parent == PACKAGE / "figures"]
LEVEL_OF = {part: level for level, parts in LEVELS.items() for part in parts}


def own_part(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def test_every_part_has_its_floor() -> None:
    parts = {own_part(path) for path in FILES} - {"__init__"}
    assert parts == set(LEVEL_OF)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downwards(path: Path) -> None:
    own = own_part(path)
    if own == "__init__":
        return
    for other in imports(path) - {own}:
        assert other in LEVEL_OF, f"{path} imports {other}, which has no floor"
        lower = LEVEL_OF[other] < LEVEL_OF[own]
        assert lower or (own, other) in NEIGHBOURS, f"{own} must not import {other}"
        assert (own, other) not in NEVER, f"{own} must never import {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torchvision_is_mended_before_timm_is_imported(path: Path) -> None:
    """Whoever imports timm or torchvision lies in a package whose ``__init__`` mends first."""
    code = path.read_text(encoding="utf-8")
    if any(
        line.startswith(("import timm", "from timm", "import torchvision", "from torchvision"))
        for line in code.splitlines()
    ):
        assert "_mend()" in (PACKAGE / own_part(path) / "__init__.py").read_text(encoding="utf-8")


def test_the_check_itself_sees_an_upward_import(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "def f():\n    from moeprobe.nn import moe\n    import moeprobe.cli.train\n    from moeprobe import api\n"
    )
    assert imports(bad) == {"nn", "cli", "api"}


@pytest.mark.parametrize(
    "statement",
    [
        "import moeprobe",
        "import moeprobe.cli",
        "import " + ", ".join(FIGURES),
        "import moeprobe.ridge",
        "import moeprobe.catalog; moeprobe.catalog.VIEWS.names(); moeprobe.catalog.ROUTERS.names()",
        "import moeprobe.config; moeprobe.config.load('digits-prc')",
        "import moeprobe.grids; moeprobe.grids.load('routers-digits')",
        "import moeprobe.formats.vmoe, moeprobe.formats.vmoe_writing",
        "import moeprobe.formats.trace_reading, moeprobe.formats.trace_log",
    ],
)
def test_what_must_not_import_torch(statement: str) -> None:
    code = f"import sys; {statement}; assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)
