"""Import torchvision and timm without torch's compiler, which would take longer than both.

While they are imported, they take two things of it: a function of ``torch._dynamo.utils`` that an operator calls, and,
by the decorator ``torch.compiler.disable``, a way to keep a function out of compiled graphs. Both are put off until
they are called. Anything else that is asked of the compiler meanwhile loads it, as it would without this module.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_COMPILER, _UTILS = "torch._dynamo", "torch._dynamo.utils"


class _StandIn(ModuleType):
    """Stands for a module of the compiler; what it lacks is asked of the module itself, which then takes its place."""

    def __getattr__(self, name: str) -> Any:
        """Return what the module itself has; what Python asks of every module is not there yet."""
        if name.startswith("__"):
            raise AttributeError(name)
        _remove_stand_in()
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def compiler_deferred() -> Iterator[None]:
    """Within the context, imports find stand-ins for the compiler, unless it is already loaded."""
    import torch

    if _COMPILER in sys.modules:
        yield
        return
    # Its package needs none: Python looks for the full name first, and only loads a package where that is not there.
    utils = _StandIn(_UTILS)
    utils.is_compile_supported = _is_compile_supported  # type: ignore[attr-defined]
    disable = torch.compiler.disable
    sys.modules[_UTILS] = utils
    torch.compiler.disable = functools.partial(_defer, disable)
    try:
        yield
    finally:
        torch.compiler.disable = disable
        _remove_stand_in()


def _remove_stand_in() -> None:
    if isinstance(sys.modules.get(_UTILS), _StandIn):
        del sys.modules[_UTILS]


def _is_compile_supported(device: Any) -> Any:
    """Ask the compiler, as torchvision would."""
    return importlib.import_module(_UTILS).is_compile_supported(device)


def _defer(disable: Callable[..., Any], fn: Any = None, recursive: bool = True, **more: Any) -> Any:
    """Return a function that is kept out of compiled graphs from the first call after the compiler was loaded."""
    if fn is None:
        return functools.partial(_defer, disable, recursive=recursive, **more)
    disabled: list[Any] = []

    @functools.wraps(fn)
    def call(*values: Any, **keywords: Any) -> Any:
        if _COMPILER not in sys.modules:  # so nothing can be compiling
            return fn(*values, **keywords)
        if not disabled:
            disabled.append(disable(fn, recursive, **more))
        return disabled[0](*values, **keywords)

    # By this name the compiler knows functions that it must not trace; it calls them instead.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call
