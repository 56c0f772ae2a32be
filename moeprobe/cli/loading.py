"""Load modules without looking for garbage among them: what they make stays until the process ends.

Looking through it, at every so many new objects and once more at the end, takes a third of the time of ``moeprobe
inspect``. What is there when modules were loaded is not deleted at the end of the process either; so this is for our
own modules and torch, in a process of our own. ``import moeprobe`` leaves the collector as it is.
"""

import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextmanager
def loading() -> Iterator[None]:
    """Collect no garbage while modules are loaded; what is there afterwards is never looked through."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


class _Torch:
    """Loads torch so, whoever imports it first."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with loading():
                    execute(module)

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - a method, to the type checker
        return spec


def prepare() -> None:
    """Have torch loaded so when it is imported."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _Torch())
