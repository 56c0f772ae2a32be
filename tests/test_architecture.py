"""Who may import whom: nine layers, each of which imports only from those below."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moeprobe.declarations import registry
from moeprobe.runtime.catalog import PROBES, RECORDED
from tests.sources import tree_of

PACKAGE = Path(__file__).parents[1] / "moeprobe"
# From the ground up. What lies on one layer does not meet, but for the pairs below.
LAYERS = (
    {"errors", "runtime"},
    {"inputs", "routing"},
    {"declarations"},
    {"metrics", "models", "recordings"},
    {"adapters", "results"},
    {"judging"},
    {"probes", "recorded", "studies"},
    {"api", "cli", "integrations"},
    {"__main__"},
)
# Recordings are run by the engine of probes; ``align`` compares recordings that it makes of models.
SIDEWAYS = {
    ("runtime", "errors"), ("routing", "inputs"), ("studies", "probes"), ("studies", "recorded"), ("cli", "api"),
    ("recorded", "probes"), ("probes", "recorded"),
}  # fmt: skip
# What no layer implies: a view never sees a data set, a network not how it is trained.
NEVER = (("inputs.views", "inputs.data"), ("models.nn", "models.training"))
# What works for every probe, those of plug-ins too, and so names none.
GENERIC = ("cli.front", "probes.engine", "recorded.engine", "studies.report")
# Names of probes that are also those of options, analyses and figures.
ALSO_WORDS = {"precision", "confidence", "frames"}
# What holds for whole folders where torch must not be imported.
LIGHT = ("inputs/data", "inputs/views", "metrics", "results", "judging", "studies/report")
LINES = 500
# How many parameters a function takes at the most. A constructor's are its configuration, those of the layer on top are
# what a command or a call of the API offers.
PARAMETERS = 8
# Those from below that ``moeprobe.api`` offers as they are: their keywords are what a call of it configures.
WIDE = {
    "adapters.open.load_model",
    "recordings.import_experts.import_routed_experts",
    "studies.compare.compare",
    "studies.tradeoff.run.tradeoff",
}
# How a file that is longer says why, in its docstring.
REASON = f"more than {LINES} lines"


def module_of(path: Path, root: Path = PACKAGE) -> str:
    """``inputs/views/base.py`` -> ``inputs.views.base``; a package is called by its folder."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imports(path: Path, *, typed: bool = True) -> set[str]:
    """Every module of moeprobe that a file imports anywhere in it, without the leading ``moeprobe.``.

    ``typed`` counts what is imported for the type checker alone.
    """
    tree = tree_of(path)
    skipped = (
        set()
        if typed
        else {node for block in ast.walk(tree) if _for_types(block) for node in ast.walk(block)}
    )
    names = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("moeprobe.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "moeprobe":
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "moeprobe":
                names |= {f"moeprobe.{alias.name}" for alias in node.names if not alias.name.startswith("__")}
            else:
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("moeprobe.") for name in names}


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


FILES = sorted(PACKAGE.rglob("*.py"))
LAYER_OF = {part: number for number, parts in enumerate(LAYERS) for part in parts}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_every_part_has_its_layer() -> None:
    assert {module_of(path).split(".")[0] for path in FILES} - {"__init__"} == set(LAYER_OF)


def wrong_imports(module: str, names: set[str]) -> Iterator[str]:
    """Say of each import of a module that goes upwards, or where it never may."""
    own = module.split(".", maxsplit=1)[0]
    for other in sorted(names):
        if any(within(module, one) and within(other, never) for one, never in NEVER):
            yield f"{module} must never import {other}"
        part = other.split(".")[0]
        if own in ("__init__", part):
            continue
        if part not in LAYER_OF:
            yield f"{module} imports {other}, which has no layer"
        elif LAYER_OF[part] >= LAYER_OF[own] and (own, part) not in SIDEWAYS:
            yield f"{module} must not import {other}"


def test_imports_go_downwards() -> None:
    # A declaration names the classes of what it leads to, for the type checker alone.
    assert not [
        said
        for path in FILES
        for module in [module_of(path)]
        for said in wrong_imports(module, imports(path, typed=not within(module, "declarations")))
    ]


@pytest.mark.parametrize(
    ("module", "other"),
    [("runtime.files", "cli.app"), ("inputs.views.crop", "inputs.data.digits"), ("probes.eval", "nosuch")],
)
def test_the_check_itself_sees_a_wrong_import(module: str, other: str) -> None:
    assert list(wrong_imports(module, {other, "errors"}))


def test_generic_code_imports_no_single_probe() -> None:
    probes = {f"probes.{name}" for name in PROBES.names()} | {f"recorded.{name}" for name in RECORDED.names()}
    generic = [path for path in FILES if any(within(module_of(path), part) for part in GENERIC)]
    assert len(generic) > len(GENERIC)
    assert not {
        (module_of(path), name)
        for path in generic
        for name in imports(path, typed=False)
        if any(within(name, probe) for probe in probes)
    }


def test_generic_code_names_no_single_probe() -> None:
    declared = {*PROBES.names(), *RECORDED.names()} | {
        name for kind in registry.kinds() for name in (kind.name, kind.kind)
    }
    assert not {
        (module_of(path), node.value)
        for path in FILES
        if any(within(module_of(path), part) for part in GENERIC)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and node.value in declared - ALSO_WORDS
    }


def test_no_circle() -> None:
    """Modules can be sorted so that each imports only from those before it."""
    modules = {module_of(path) for path in FILES}

    def target(name: str) -> str | None:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name or None

    # Those within a function count: they make a reader go in circles as well. Those for the type checker do not.
    arrows = {
        module_of(path): {target(name) for name in imports(path, typed=False)} - {None, module_of(path)}
        for path in FILES
    }
    left = dict(arrows)
    while left:
        ready = {module for module, needs in left.items() if not needs & set(left)}
        assert ready, f"these import one another: {sorted(left)}"
        for module in ready:
            del left[module]


def test_files_stay_readable() -> None:
    """A file of more than 500 lines says in its docstring why it is one."""
    assert not {
        module_of(path): lines
        for path in FILES
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LINES
        and REASON not in (ast.get_docstring(tree_of(path)) or "")
    }


def test_functions_take_few_parameters() -> None:
    below = [path for path in FILES if module_of(path).split(".")[0] not in LAYERS[-2]]
    assert not {name for path in below for name in wide_functions(path)} - WIDE


@pytest.mark.parametrize("name", sorted(WIDE))
def test_a_wide_function_is_one_of_the_api(name: str) -> None:
    module, _, function = name.rpartition(".")
    assert name in wide_functions(PACKAGE / f"{module.replace('.', '/')}.py")
    imports = [
        node
        for node in ast.walk(tree_of(PACKAGE / "api/__init__.py"))
        if isinstance(node, ast.ImportFrom) and node.module == f"moeprobe.{module}"
    ]
    assert function in {alias.name for node in imports for alias in node.names}


def test_few_modules_speak_to_other_processes() -> None:
    """Everything else would have to know what is done where there are none."""
    users = {
        module_of(path)
        for path in PACKAGE.rglob("*.py")
        if re.search(r"torch\W+distributed|\bdist\.", path.read_text())
    }
    assert users == {"runtime.distributed", "models.training.parallel.sharded"}


def wide_functions(path: Path) -> set[str]:
    """The functions of a file that take more than eight parameters, but for constructors."""
    wide = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            own = node.args
            every = [*own.posonlyargs, *own.args, *own.kwonlyargs, *filter(None, (own.vararg, own.kwarg))]
            if len([one for one in every if one.arg not in ("self", "cls")]) > PARAMETERS:
                wide.add(
                    f"{module_of(path, PACKAGE if PACKAGE in path.parents else path.parent)}.{node.name}"
                )
    return wide


def test_no_result_depends_on_the_time_of_day() -> None:
    """A clock may be set back while a run goes on: only the sentence of a lock and MLflow's points name the time."""
    asks = re.compile(r"\btime\.time\(|\bdatetime\.(now|utcnow|today)\(")
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if asks.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"runtime/locks.py", "integrations/sinks.py"}


def narrows(test: ast.expr) -> bool:
    """Whether an assertion only tells the type checker what is known: ``is not None`` or ``isinstance``."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) and all(map(narrows, test.values))
    if isinstance(test, ast.Call):
        return isinstance(test.func, ast.Name) and test.func.id == "isinstance"
    return isinstance(test, ast.Compare) and [type(one) for one in test.ops] == [ast.IsNot]


def test_no_assertion_guards_data() -> None:
    """``python -O`` skips assertions, and tables would be wrong without a word."""
    assert not {
        (module_of(path), ast.unparse(node))
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Assert) and not narrows(node.test)
    }


def test_the_check_itself_sees_a_wide_function(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "class A:\n    def __init__(self, a, b, c, d, e, f, g, h, i): pass\n"
        "    def few(self, a, b, c, d, *, e, f, g, h): pass\n    def many(self, a, b, c, d, *e, f, g, h, **i): pass\n"
    )
    assert wide_functions(bad) == {"bad.many"}


def test_the_check_itself_sees_an_upward_import(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "def f():\n    from moeprobe.models.nn import moe\n    import moeprobe.cli.commands.train\n"
        "    from moeprobe import api\n"
    )
    assert imports(bad) == {"models.nn.moe", "cli.commands.train", "api"}


def light() -> list[str]:
    """Modules that must not import torch: figures, wherever they lie, and what is said of finished runs."""
    found = [module_of(path) for path in PACKAGE.rglob("*.py") if path.name == "figure.py"]
    found += [
        module_of(path)
        for folder in LIGHT
        for path in PACKAGE.rglob("*.py")
        if (PACKAGE / folder) in path.parents
    ]
    return [f"moeprobe.{name}" for name in found]


WITHOUT_TORCH = (
    "import moeprobe",
    "import moeprobe.cli",
    "import " + ", ".join(light()),
    "import moeprobe.probes.fewshot.ridge",
    "import moeprobe.studies.compare",
    "import moeprobe.adapters.base, moeprobe.routing.capabilities, moeprobe.routing.record",
    "from moeprobe.runtime import catalog; catalog.VIEWS.names(); catalog.ROUTERS.names()",
    "from moeprobe.metrics import registry; registry.find('churn_kappa')",
    "from moeprobe.models import config; config.load('digits-prc')",
    "from moeprobe.models import grid; grid.load('routers-digits')",
    "import moeprobe.models.checkpoints.vmoe_files, moeprobe.models.checkpoints.vmoe_write",
    "import moeprobe.recordings.reading, moeprobe.recordings.import_log",
)


def first_with_torch(*statements: str) -> str:
    """Run statements in a process of its own; returns the first after which torch is there."""
    code = "import sys\nfor s in sys.argv[1:]:\n exec(s)\n if 'torch' in sys.modules: sys.exit(print(s))"
    command = [sys.executable, "-c", code, *statements]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.promise
def test_what_must_not_import_torch() -> None:
    assert not first_with_torch(*WITHOUT_TORCH)


def test_the_check_itself_sees_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert first_with_torch("import json", "import torch", "import math") == "import torch"


def test_one_module_imports_timm() -> None:
    """It first imports torchvision, which a torch for the CPU may need operators for."""
    imported = {
        (path.relative_to(PACKAGE.parent).as_posix(), name)
        for folder in ("moeprobe", "benchmarks", "reports", "checkpoints", "docs")
        for path in (PACKAGE.parent / folder).rglob("*.py")
        for name in re.findall(
            r"^ *(?:from|import) (timm|torchvision)\b", path.read_text(encoding="utf-8"), re.M
        )
    }
    assert imported == {("moeprobe/models/timm.py", "timm")}
