"""Torchvision is imported first; its operators are declared only where it lacks them."""

import subprocess
import sys
from pathlib import Path

import pytest

# Each starts a Python that loads torch and torchvision.
pytestmark = [pytest.mark.slow, pytest.mark.promise]

# What the C++ library of torchvision does when it loads. A second declaration would end the process.
LOADS = """
import torch
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
LACKS = """
import torch
from torchvision import part
for name in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{name}")(lambda *_: None)
"""
IMPORT = """
import sys
from moeprobe.runtime.torchvision_compat import import_with_operators, operators_were_declared
assert "torch" not in sys.modules
module = import_with_operators(sys.argv[1])
print(module.__name__, operators_were_declared())
"""


def imported(folder: Path, source: str, name: str = "torchvision") -> subprocess.CompletedProcess[str]:
    """Import a module beside a torchvision with this content."""
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    (package / "part.py").write_text("")
    (folder / "users.py").write_text("import torchvision\n")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}){IMPORT}", name]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("source", "name", "declared"),
    [(LOADS, "torchvision", False), (LACKS, "torchvision", True), (LACKS, "users", True)],
)
def test_operators_are_declared_only_where_the_import_fails_for_them(
    tmp_path: Path, source: str, name: str, declared: bool
) -> None:
    result = imported(tmp_path, source, name)
    assert (result.returncode, result.stdout) == (0, f"{name} {declared}\n"), result.stderr


@pytest.mark.parametrize("before", ["from moeprobe.api import UserError", "from moeprobe import api"])
@pytest.mark.parametrize(("source", "declared"), [(LOADS, False), (LACKS, True)])
def test_an_import_after_the_api_succeeds(tmp_path: Path, before: str, source: str, declared: bool) -> None:
    """Whoever imports torchvision, as timm does, and though nothing of moeprobe has needed torch by then."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(
        f"from torchvision import early\n{source}\nfrom torchvision import late\n"
    )
    (package / "early.py").write_text("import torchvision\nwhole = [torchvision]\n")
    for name in ("late", "part"):
        (package / f"{name}.py").write_text("")
    (tmp_path / "users.py").write_text("import torchvision\n")
    script = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
{before}
assert "torch" not in sys.modules
import users
from importlib import resources
from moeprobe.runtime.torchvision_compat import operators_were_declared
whole = users.torchvision
assert whole is sys.modules["torchvision"] and whole.early.whole == [whole]
assert whole.early is sys.modules["torchvision.early"] and whole.late
assert resources.files("torchvision").joinpath("late.py").is_file()
print(operators_were_declared())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, f"{declared}\n"), ended.stderr


def test_another_failure_is_passed_on(tmp_path: Path) -> None:
    result = imported(tmp_path, "raise RuntimeError('operator torchvision::roi does not exist')")
    assert "RuntimeError: operator torchvision::roi does not exist" in result.stderr


COMPILES_LATER = """
import sys
from moeprobe import api
import torch
api.load_model(sys.argv[1])
import timm, torchvision
assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules
# A function that torchvision keeps out of compiled graphs, before and after the compiler is loaded.
from torchvision import tv_tensors
image = tv_tensors.Image(torch.ones(3, 2, 2))
assert type(tv_tensors.wrap(torch.ones(1), like=image)) is tv_tensors.Image
def wrapped(x): return tv_tensors.wrap(x + 1, like=image)
made = torch.compile(wrapped, backend="eager")(torch.ones(3, 2, 2))
assert type(made) is tv_tensors.Image and made.flatten()[0] == 2
import torch._dynamo
assert torch._dynamo.config.cache_size_limit > 0 and torch._dynamo.utils.is_compile_supported("cpu") in (True, False)
"""


def test_the_compiler_is_loaded_when_it_is_needed() -> None:
    checkpoint = Path(__file__).parents[2] / "checkpoints/reference/digits-prc-k2-seed0"
    line = [sys.executable, "-c", COMPILES_LATER, str(checkpoint)]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_what_else_is_asked_of_the_compiler_loads_it(tmp_path: Path) -> None:
    """A torchvision that takes more of it than today's is imported all the same."""
    (tmp_path / "torchvision").mkdir()
    source = (
        "import torch\nfrom torch._dynamo import config\n"
        "from torch._dynamo.utils import counters, is_compile_supported\n"
        "limit = torch._dynamo.config.cache_size_limit\n"
    )
    (tmp_path / "torchvision" / "__init__.py").write_text(source)
    script = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from moeprobe.runtime.torchvision_compat import import_with_operators
module = import_with_operators("torchvision")
import torch
assert module.config is torch._dynamo.config and module.limit > 0 and module.counters is torch._dynamo.utils.counters
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


INSIDE = """
import threading
from moeprobe.runtime.deferred_compiler import compiler_deferred
import torch
with compiler_deferred():
    from torch._dynamo.utils import is_compile_supported
    kept = torch.compiler.disable(fn=lambda x: x + 1)
    assert kept(1) == 2
    import torch._dynamo.config
    from torch._dynamo.eval_frame import optimize
    results = []
    def compiled(): results.append(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
    thread = threading.Thread(target=compiled)
    thread.start()
    thread.join()
    assert results == [2]
assert is_compile_supported("cpu") in (True, False) and kept(1) == 2
import torch._dynamo.utils
assert type(torch._dynamo.utils).__name__ == "module" and callable(torch.compiler.disable(lambda: 1))
"""


def test_who_needs_the_compiler_meanwhile_gets_it() -> None:
    ended = subprocess.run([sys.executable, "-c", INSIDE], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_training_may_be_the_first_to_import_timm() -> None:
    code = "import moeprobe.models.training.optimize as made; assert made.list_optimizers() and made.PolyLRScheduler"
    subprocess.run([sys.executable, "-c", code], check=True)
