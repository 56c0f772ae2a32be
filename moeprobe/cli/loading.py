"""Load modules with the garbage collector off: what they make stays until the process ends.

Looking through it at every so many new objects takes a fifth of the time of ``moeprobe inspect``. At the end of the
process everything is collected as always, so that what a plug-in left open is closed. Only a process of our own may do
this; ``import moeprobe`` leaves the collector as it is.
"""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


@contextmanager
def loading() -> Iterator[None]:
    """Collect no garbage while modules are loaded, and leave them out of later collections but the last."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.unregister(gc.unfreeze)
        atexit.register(gc.unfreeze)
        if enabled:
            gc.enable()


class _Torch:
    """Does the same for torch, whichever module imports it first."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with loading():
                    execute(module)

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - a method, to the type checker
        return spec


def prepare() -> None:
    """Have torch loaded this way when it is imported."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _Torch())
