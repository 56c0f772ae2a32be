"""Load modules with the garbage collector off: what they make stays until the process ends.

Looking through it, at every so many new objects and once more at the end, takes a third of the time of ``moeprobe
inspect``. Where code of the user runs, everything is collected at the end as always, so that what it left open is
closed. ``import moeprobe`` leaves the collector as it is.
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
def loading(*, collected: bool = True) -> Iterator[None]:
    """Collect no garbage while modules are loaded, and exempt the loaded objects from later collections.

    Args:
        collected: at the end of the process it is collected.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collected:
            atexit.unregister(gc.unfreeze)
            atexit.register(gc.unfreeze)
        if enabled:
            gc.enable()


class _Torch:
    """Does the same for torch, whichever module imports it first."""

    def __init__(self, *, collected: bool) -> None:
        self.collected = collected

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with loading(collected=self.collected):
                    execute(module)

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - a method, to the type checker
        return spec


def load_torch_so(*, collected: bool = True) -> None:
    """Have torch loaded with the collector off, when it is imported."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _Torch(collected=collected))
