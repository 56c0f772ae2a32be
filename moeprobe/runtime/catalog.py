"""A folder is a registry: one file is one plug-in, and the file's name is its name.

``inputs/views/gaussian_noise.py`` holds the class ``GaussianNoise`` and is called ``gaussian_noise`` in YAML, in the
tables and on the command line. Listing names reads the folder and imports nothing, so it costs no start-up time.
"""

import ast
import difflib
import importlib
import pkgutil
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError

# How much alike a suggested name is at least, and what a part that is alike counts beside the whole.
_LIKE, _PART = 0.5, 0.95


class Catalog:
    """The plug-ins of one package.

    Args:
        package: dotted name, e.g. ``"moeprobe.inputs.views"``.
        kind: what one of its plug-ins is called in a sentence, e.g. ``"view"``.
        beside: what lies in the package and is no plug-in, apart from ``base``, the contract, and from names with a
            leading underscore.
    """

    def __init__(self, package: str, kind: str, *, beside: Iterable[str] = ()) -> None:
        self.package = package
        self.kind = kind
        self._no_plugins = {"base", *beside}

    def names(self) -> list[str]:
        """Return the sorted names, without importing any plug-in."""
        found = (module.name for module in pkgutil.iter_modules([str(self._folder)]))
        return sorted(name for name in found if name not in self._no_plugins and not name.startswith("_"))

    def get(self, name: str) -> Any:
        """Return the plug-in class called ``name``.

        Raises:
            UserError: there is none; the sentence names the nearest one and lists them all.
        """
        self.check(name)
        module = importlib.import_module(f"{self.package}.{name}")
        return getattr(module, class_name(name))

    def check(self, name: str) -> None:
        """Raise what ``get`` raises, and import nothing."""
        if name not in self.names():
            raise UserError(unknown(self.kind, name, self.names()))

    def describe(self, name: str) -> str:
        """Return the first line of the plug-in's docstring, as plain text; nothing is imported.

        Raises:
            UserError: there is no such plug-in.
        """
        self.check(name)
        path = self._folder / f"{name}.py"
        module = ast.parse((path if path.is_file() else self._folder / name / "__init__.py").read_bytes())
        described = [
            ast.get_docstring(node) or ""
            for node in module.body
            if isinstance(node, ast.ClassDef) and node.name == class_name(name)
        ]
        return "".join(described).splitlines()[0].replace("``", "")

    @property
    def _folder(self) -> Path:
        # By its place on disk: looking a package up by name would import its parents, and torch with them.
        return Path(__file__).parents[1].joinpath(*self.package.split(".")[1:])


def class_name(name: str) -> str:
    """Return the class that file ``name`` must hold: ``prc_crops`` -> ``PrcCrops``."""
    return "".join(part.capitalize() for part in name.split("_"))


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the sentence for an unknown name: did-you-mean, and the list."""
    names = list(known)
    return f"There is no {kind} {name!r}.{did_you_mean(name, names)} There are: {', '.join(names) or 'none'}."


def did_you_mean(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Return " Did you mean 'X'?" for the name most like this one (with ``prefix`` before it); "" if none is."""
    near = nearest(name, known)
    return "" if near is None else f" Did you mean {prefix + near!r}?"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like this one, or with a part most like it; None if none is much like it."""
    # Of several with a part that is as much alike, the shortest.
    candidates = ((_likeness(name, one), -len(one), one) for one in known)
    likeness, _, near = max(candidates, default=(0.0, 0, ""))
    return near if likeness >= _LIKE else None


def _likeness(name: str, known: str) -> float:
    """Return how much alike two names are, 0 to 1; ``sofmax`` is much like a part of ``softmax_token_choice``."""
    whole = difflib.SequenceMatcher(None, name.casefold(), known.casefold()).ratio()
    words = re.split(r"[_\W]+", known.casefold())
    size = len(re.split(r"[_\W]+", name))
    parts = ["_".join(words[start : start + size]) for start in range(len(words) - size + 1)]
    of_parts = (difflib.SequenceMatcher(None, name.casefold(), part).ratio() for part in parts)
    # Of two as good, the whole name.
    return max(whole, _PART * max(of_parts, default=0.0))


ROUTERS = Catalog("moeprobe.models.nn.routers", "router", beside=("rules",))
VIEWS = Catalog("moeprobe.inputs.views", "view", beside=("crops", "text"))
DATA = Catalog("moeprobe.inputs.data", "data set", beside=("readers",))
OBJECTIVES = Catalog("moeprobe.models.training.objectives", "objective")
ANALYSES = Catalog(
    "moeprobe.metrics",
    "analysis",
    beside=(
        "applicable",
        "contagion",
        "costs",
        "declaration",
        "nulls",
        "reading_order",
        "registry",
        "stats",
        "token_kinds",
    ),
)
PROBES = Catalog("moeprobe.probes", "probe", beside=("engine", "registry"))
ADAPTERS = Catalog("moeprobe.adapters", "adapter", beside=("inspection", "open"))
# Models of other programs, ``scheme:reference``, and the adapter that opens them.
SCHEMES = {"py": "hooks", "hf": "huggingface"}


def is_foreign(source: str | Path) -> bool:
    """Whether a model is named ``scheme:reference``, and is no path."""
    scheme, _, reference = str(source).partition(":")
    return bool(reference) and scheme in SCHEMES
