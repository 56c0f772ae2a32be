"""The parts of the benchmark: one file each, whose name is the part's name and whose class derives from ``Part``.

Naming them imports none of them.
"""

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moeprobe.errors import UserError
from moeprobe.runtime.catalog import class_name, describe_unknown

if TYPE_CHECKING:
    from benchmarks.speed.parts.base import Part

ALL = "all"


def names() -> list[str]:
    """Return the sorted names of all parts."""
    return sorted(
        one.name for one in pkgutil.iter_modules([str(Path(__file__).parent)]) if one.name != "base"
    )


def chosen(given: Sequence[str]) -> list[str]:
    """Return the parts that are meant by what was typed; nothing, or ``all``, is all of them.

    Raises:
        UserError: there is no such part.
    """
    for name in given:
        if name != ALL and name not in names():
            raise UserError(describe_unknown("part of the benchmark", name, [*names(), ALL]))
    return names() if not given or ALL in given else list(dict.fromkeys(given))


def part(name: str) -> "Part":
    """Return the part called ``name``."""
    module = importlib.import_module(f"{__name__}.{name}")
    made: Part = getattr(module, class_name(name))()
    return made
