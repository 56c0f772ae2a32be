"""Whether a name that is no local folder may be asked of the hub of Hugging Face; by default it may not.

A mistyped path looks like a name on the hub. So a missing path is looked for in the local cache, and nowhere else
unless somebody says so: ``--download``, or ``with api.downloads():``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module

from moeprobe.errors import option
from moeprobe.runtime.arguments import check_arguments

_allowed: ContextVar[bool] = ContextVar("downloads", default=False)
_SWITCH = "HF_HUB_OFFLINE"
# What reads the switch: the hub's client, and the library of data sets, which keeps a copy.
_READERS = ("huggingface_hub.constants", "datasets.config")

HOW = f"with {option('api.downloads()', flag='--download')} the hub is asked for it"


def may_download() -> bool:
    """Whether the hub may be asked."""
    return _allowed.get()


@check_arguments
@contextmanager
def downloads() -> Iterator[None]:
    """Let models and data sets be fetched from the hub of Hugging Face inside the block."""
    before = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(before)


@contextmanager
def local_unless_allowed() -> Iterator[None]:
    """Keep Hugging Face's libraries off the network, unless downloads are allowed."""
    switched = []
    for name in () if may_download() else _READERS:
        try:
            module = import_module(name)
        except ImportError:
            continue
        switched.append((module, getattr(module, _SWITCH)))
        setattr(module, _SWITCH, True)
    try:
        yield
    finally:
        for module, before in switched:
            setattr(module, _SWITCH, before)
