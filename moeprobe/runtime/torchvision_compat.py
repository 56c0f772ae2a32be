"""Import torchvision beside a torch that it was not built for.

The only wheels of torchvision are built for CUDA. Beside a torch for the CPU its C++ library does not load, and
``import torchvision`` stops at operators that this library would have declared. Declaring the two that are looked up
at import time is enough for the transforms and for timm, which are all that moeprobe uses.

They must be declared after the import has failed, never before: a library that does load declares them itself, and a
second declaration ends the process. So the import is repeated where it fails, whoever imports torchvision first: a user
may import timm before anything of moeprobe needs it.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from moeprobe.runtime.deferred_compiler import compiler_deferred

_NAME = "torchvision"
_ERROR = "operator torchvision::nms does not exist"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# A torch.library.Library undeclares its operators when it is collected, so it has to live as long as the process.
_declared: list[Any] = []


def import_with_operators(name: str) -> ModuleType:
    """Import a module that is torchvision, or may import it; declare the operators only where that fails for them.

    Raises:
        Exception: whatever importing the module raises otherwise.
    """
    repeat_failed_import()
    return importlib.import_module(name)


def repeat_failed_import() -> None:
    """From now on, repeat the import of torchvision with its operators where it fails for them; imports nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def operators_were_declared() -> bool:
    """Return whether torchvision lacked its operators when it was imported here."""
    return bool(_declared)


class _Finder(MetaPathFinder):
    """Finds torchvision where it is, with a loader that tries twice."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of torchvision; None of anything else, which other finders find."""
        if fullname != _NAME:
            return None
        for finder in sys.meta_path:
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec = find_spec(fullname, path, target) if find_spec else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Loads a module, and once more with the operators declared."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        """Return what the module's own loader offers, such as its resources."""
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the module's own loader makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module without the compiler; where it lacks the operators, declare them and run it again."""
        before = dict(vars(module))
        with compiler_deferred():
            try:
                self._loader.exec_module(module)
            except RuntimeError as error:
                if _declared or _ERROR not in str(error):
                    raise
            else:
                return
            _declare()
            # Nothing that was imported before the failure may stay: it knows only a part of the package.
            for name in [name for name in sys.modules if name.startswith(f"{_NAME}.")]:
                del sys.modules[name]
            vars(module).clear()
            vars(module).update(before)
            self._loader.exec_module(module)


def _declare() -> None:
    """Declare the operators that torchvision's C++ library lacks."""
    import torch

    library = torch.library.Library(_NAME, "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
