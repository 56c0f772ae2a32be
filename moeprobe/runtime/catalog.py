"""A folder is a registry: one file is one plug-in, and the file's name is its name.

``inputs/views/gaussian_noise.py`` holds the class ``GaussianNoise`` and is called ``gaussian_noise`` in YAML, in the
tables and on the command line. Listing names reads the folder and imports nothing, so it costs no start-up time.

Plug-ins from outside the package (``plugins``) are called by their classes in the same way: a class of a named file or
an installed module belongs to the catalog whose contract, the class in ``base.py``, it is derived from.
"""

import ast
import difflib
import importlib
import inspect
import pkgutil
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError, option
from moeprobe.runtime import plugins
from moeprobe.runtime.characters import quote

# All that there are; those of further packages join when they are made.
CATALOGS: "list[Catalog]" = []


@dataclass(frozen=True)
class Outside:
    """A plug-in from outside the package: its class, and where that is from."""

    made: type
    source: plugins.Source


class Catalog:
    """The plug-ins of one package, and those from outside that keep to its contract.

    Args:
        package: dotted name, e.g. ``"moeprobe.inputs.views"``.
        kind: what one of its plug-ins is called in a sentence, e.g. ``"view"``.
        base: name of the contract's class in the package's ``base``.
        helpers: modules of the package that are no plug-ins, besides ``base``, the contract, and names with a
            leading underscore.
        contract: module of that class; default: ``base`` in the package.
    """

    def __init__(
        self, package: str, kind: str, *, base: str, helpers: Iterable[str] = (), contract: str = ""
    ) -> None:
        self.package = package
        self.kind = kind
        self.base = base
        self.contract = contract or f"{package}.base"
        self._no_plugins = {"base", *helpers}
        CATALOGS.append(self)

    def __contains__(self, name: object) -> bool:
        return name in self.built_in() or name in self.outside()

    def names(self) -> list[str]:
        """Return the sorted names; no plug-in of the package is imported.

        Raises:
            UserError: a plug-in from outside cannot be imported, or its name is taken.
        """
        return sorted([*self.built_in(), *self.outside()])

    def outside(self) -> dict[str, Outside]:
        """Return the plug-ins from outside the package by name.

        Raises:
            UserError: one cannot be imported, or its name is taken.
        """
        by_name: dict[str, Outside] = {}
        for source in plugins.sources():
            for plugin in filter(self.takes, source.classes()):
                name = plugin_name(plugin.__name__)
                if name in self.built_in():
                    raise UserError(
                        f"{source.name} has a {self.kind} {name!r} (class {plugin.__name__}), and so has moeprobe; "
                        "give the class another name."
                    )
                if name in by_name and by_name[name].source != source:
                    earlier = by_name[name].source.name
                    raise UserError(
                        f"{earlier} and {source.name} both have a {self.kind} {name!r}; leave one out."
                    )
                if missing := _missing(plugin):
                    raise UserError(
                        f"The {self.kind} {plugin.__name__} of {source.name} does not say its {missing[0]}; see "
                        f"{self.contract}.{self.base}."
                    )
                by_name[name] = Outside(plugin, source)
        return by_name

    def takes(self, plugin: type) -> bool:
        """Whether a class keeps to the contract; nothing is imported to find out."""
        contract = (self.contract, self.base)
        derived = any((base.__module__, base.__name__) == contract for base in plugin.__mro__[1:])
        return derived and not inspect.isabstract(plugin)

    def built_in(self) -> list[str]:
        """Return the sorted names of the package's own plug-ins, without importing any."""
        modules = _modules(self.folder, self.folder.stat().st_mtime_ns)
        return [name for name in modules if name not in self._no_plugins and not name.startswith("_")]

    def get(self, name: str) -> Any:
        """Return the plug-in class called ``name``.

        Raises:
            UserError: there is none; the sentence names the nearest one and lists them all.
        """
        if name not in self.built_in():
            self.check(name)
            return self.outside()[name].made
        module = importlib.import_module(f"{self.package}.{name}")
        for candidate in self._class_names(name):
            if hasattr(module, candidate):
                return getattr(module, candidate)
        raise self._no_class(name)

    def check(self, name: str) -> None:
        """Raise what ``get`` raises, and import nothing of the package."""
        if name not in self:
            raise UserError(describe_unknown(self.kind, name, self.names()))

    def describe(self, name: str) -> str:
        """Return the first line of the plug-in's docstring, as plain text, and where it is from if from outside.

        Raises:
            UserError: there is no such plug-in.
        """
        self.check(name)
        if name not in self.built_in():
            outside = self.outside()[name]
            lines = (outside.made.__dict__.get("__doc__") or "").strip().splitlines()
            return " ".join(
                [*(line.replace("``", "") for line in lines[:1]), f"(from {outside.source.label})"]
            )
        path = self.folder / f"{name}.py"
        module = ast.parse((path if path.is_file() else self.folder / name / "__init__.py").read_bytes())
        described = [
            ast.get_docstring(node) or ""
            for node in module.body
            if isinstance(node, ast.ClassDef) and node.name in self._class_names(name)
        ]
        if not described:
            raise self._no_class(name)
        return "".join(described[0].splitlines()[:1]).replace("``", "")

    def _class_names(self, name: str) -> tuple[str, str]:
        """Return what the class of a file may be called: with the contract's name where another kind has the first."""
        return class_name(name), class_name(name) + self.base

    def _no_class(self, name: str) -> UserError:
        return UserError(
            f"{self.package}.{name} holds no class {class_name(name)}: a {self.kind} is called by its file and "
            "its class."
        )

    @cached_property
    def folder(self) -> Path:
        """The place of its files."""
        # By its place on disk: looking a package up by name would import its parents, and torch with them.
        return Path(__file__).parents[1].joinpath(*self.package.split(".")[1:])


@cache
def _modules(folder: Path, changed: int) -> tuple[str, ...]:
    """Return the sorted names of a folder's modules: read once, and again when a file joins or leaves it."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules([str(folder)])))


def class_name(name: str) -> str:
    """Return the class that file ``name`` must hold: ``prc_crops`` -> ``PrcCrops``."""
    return "".join(part.capitalize() for part in name.split("_"))


def plugin_name(class_name: str) -> str:
    """Return what the class of a plug-in is called by: ``PrcCrops`` -> ``prc_crops``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


# Contracts are in a ``base`` of their package, or here.
_DECLARATIONS = "moeprobe.declarations."


def _missing(plugin: type) -> list[str]:
    """Return what the contracts declare of every class, and this one lacks."""
    declared = {
        name
        for base in plugin.__mro__
        if base.__module__.startswith("moeprobe.")
        and (base.__module__.endswith(".base") or base.__module__.startswith(_DECLARATIONS))
        for name, annotation in inspect.get_annotations(base).items()
        if "ClassVar" in str(annotation)
    }
    return sorted(name for name in declared if not hasattr(plugin, name))


def use_plugins(files: str | Path | Iterable[str | Path]) -> None:
    """Take plug-in files into the catalogs of this process and of those it starts.

    Args:
        files: Python files with plug-ins, which are run; name only what you trust.

    Raises:
        UserError: a file does not exist, cannot be imported or holds no plug-in, or a name is taken.
    """
    with plugins.add([files] if isinstance(files, str | Path) else files):
        for source in plugins.sources():
            if not any(catalog.takes(plugin) for plugin in source.classes() for catalog in CATALOGS):
                for made in filter(inspect.isabstract, source.classes()):
                    lacking = ", ".join(sorted(getattr(made, "__abstractmethods__", ())))
                    raise UserError(
                        f"{source.name} holds no plug-in: its class {made.__name__} lacks {lacking}."
                    )
                bases = ", ".join(f"{catalog.contract}.{catalog.base}" for catalog in CATALOGS)
                raise UserError(
                    f"{source.name} holds no plug-in: no class in it is derived from one of {bases}."
                )
        for catalog in CATALOGS:
            catalog.outside()


def plugins_in(content: Any) -> list[dict[str, str]]:
    """Return where the plug-ins from outside are from that a request (JSON) names: ``source`` and its ``sha256``."""
    names = {text.partition(":")[0] for text in _texts(content)}
    sources = [
        outside.source
        for catalog in CATALOGS
        for name, outside in catalog.outside().items()
        # Probes are called by their commands.
        if names & {name, getattr(outside.made, "kind", name)}
    ]
    used = {source.label: source.sha256 for source in sources}
    return [{"source": label, "sha256": used[label]} for label in sorted(used)]


def check_plugins(what: Path, entries: Any) -> None:
    """Raise ``UserError`` unless the plug-ins are known that ``plugins_in`` named when ``what`` was written."""
    labels = {source.label for source in plugins.sources()}
    for entry in entries if isinstance(entries, list) else ():
        name = entry.get("source") if isinstance(entry, dict) else None
        if isinstance(name, str) and name not in labels:
            raise UserError(
                f"{what} was made with the plug-in {name}, which is not known here; name its file with "
                f"{option('api.use_plugins', flag='--plugins')}, before the command."
            )


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping):
        yield from (text for value in content.values() for text in _texts(value))
    elif isinstance(content, Sequence):
        yield from (text for value in content for text in _texts(value))


def describe_unknown(kind: str, name: str, candidates: Iterable[str]) -> str:
    """Return the sentence for an unknown name: did-you-mean, and the list."""
    names = list(candidates)
    return f"There is no {kind} {quote(name)}.{did_you_mean(name, names)} There are: {', '.join(names) or 'none'}."


def did_you_mean(name: str, candidates: Iterable[str], *, prefix: str = "") -> str:
    """Return " Did you mean 'X'?" for the name most like this one (with ``prefix`` before it); "" if none is."""
    suggestion = nearest(name, candidates)
    return "" if suggestion is None else f" Did you mean {prefix + suggestion!r}?"


ROUTERS = Catalog("moeprobe.models.nn.routers", "router", base="Router", helpers=("rules",))
VIEWS = Catalog("moeprobe.inputs.views", "view", base="View", helpers=("crops", "text"))
DATA = Catalog("moeprobe.inputs.data", "data set", base="Dataset", helpers=("readers",))
OBJECTIVES = Catalog("moeprobe.models.training.objectives", "objective", base="Objective")
ANALYSES = Catalog("moeprobe.metrics.analyses", "analysis", base="Analysis", contract="moeprobe.metrics.base")
PROBES = Catalog(
    "moeprobe.probes", "probe", base="Kind", helpers=("engine",), contract="moeprobe.declarations.kinds"
)
# Those from outside are of the catalog above.
RECORDED = Catalog("moeprobe.recorded", "probe", base="", helpers=("engine",))
READERS = Catalog("moeprobe.recordings.readers", "reader", base="Reader")
ADAPTERS = Catalog(
    "moeprobe.adapters",
    "adapter",
    base="Adapter",
    helpers=("inspect_routers", "inspection", "open", "residence", "router_rows", "schemes"),
)
# Models of other programs, ``scheme:reference``, and the adapter that opens them; one from outside is its own scheme.
SCHEMES = {"py": "hooks", "hf": "huggingface"}


def is_foreign(source: str | Path) -> bool:
    """Whether a model is named ``scheme:reference``, and is no path."""
    scheme, _, reference = str(source).partition(":")
    return bool(reference) and (scheme in SCHEMES or scheme in ADAPTERS.outside())


# A line of a traceback that is text: of an error in a loader process nothing else reaches this one.
_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<number>\d+)')


def blame(error: Exception) -> UserError | None:
    """Return what to say where the code of a plug-in took part in an error; None where none did.

    Args:
        error: as it was caught; one of a loader process holds its traceback as text.
    """
    lines = list(_lines(error))
    for file, number in reversed(lines):
        for source in plugins.sources():
            if _is_of(source, file):
                who = _plugin_at(source, file, number)
                # Further inside it may be another's mistake.
                inside = "" if lines[-1][0] == file else f" (in {lines[-1][0]}, line {lines[-1][1]})"
                return UserError(f"{who} ({file}, line {number}) raised {_what(error)}{inside}.")
    return None


def _lines(error: Exception) -> Iterator[tuple[str, int]]:
    """Yield files and line numbers, the innermost last."""
    for frame in traceback.extract_tb(error.__traceback__):
        yield frame.filename, frame.lineno or 0
    for match in _LINE.finditer(str(error)):
        yield match["file"], int(match["number"])


def _is_of(source: plugins.Source, file: str) -> bool:
    """Whether a file is a plug-in's module, or in its package."""
    module_file = getattr(source.module, "__file__", None)
    if module_file is None:
        return False
    path = Path(module_file)
    return file == module_file or (path.name == "__init__.py" and path.parent in Path(file).parents)


def _plugin_at(source: plugins.Source, file: str, number: int) -> str:
    """Return what a plug-in is called in whose class a line of a file is; of other lines the plug-in's file."""
    try:
        module = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        module = ast.Module([], [])
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.lineno <= number <= (node.end_lineno or 0):
            for plugins_of in CATALOGS:
                name = plugin_name(node.name)
                outside = plugins_of.outside().get(name)
                if outside is not None and outside.source == source:
                    return f"The {plugins_of.kind} {name!r} of the plug-in {source.label}"
    return f"The plug-in {source.label}"


def _what(error: Exception) -> str:
    """Return an error's type and text, on one line; of a loader process, the error raised there."""
    lines = str(error).strip().splitlines()
    if any(map(_LINE.search, lines)):
        return lines[-1].strip().rstrip(".")
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


# Which of the known names was meant by one that is not known.

# How much alike names are at least: as they are; a word of one; where not even the first letters are the same.
_LIKE, _WORD_LIKE, _OTHER_INITIAL = 0.6, 0.72, 0.86
# What counts besides letters: the same but for separators, its first words, a word in it, its words in another order.
_SAME, _BEGINNING, _PART, _REORDERED = 1.0, 0.97, 0.95, 0.93
# What a name inside another counts ("acc", "validation" for "val"), and its least length: as a beginning, elsewhere.
_INSIDE, _BEGINS, _INNER = 0.8, 3, 5
# Nothing is called by a longer name, and comparing letters takes the square of their number.
_LONGEST = 200
_SEPARATORS = re.compile(r"[_\W]+")


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the known name most like this one, or with a part most like it; None if none is much like it."""
    if len(name) > _LONGEST:
        return None
    # Where several are as much alike, the shortest wins, then the first.
    rated = (
        (_likeness(name, candidate), -len(candidate), -index, candidate)
        for index, candidate in enumerate(candidates)
    )
    likeness, _, _, near = max(rated, default=(0.0, 0, 0, ""))
    return near if likeness >= _LIKE else None


def _likeness(name: str, candidate: str) -> float:
    """Return how much alike two names are, 0 to 1; ``sofmax`` is much like a part of ``softmax_token_choice``."""
    typed, target = _words(name), _words(candidate)
    if not typed or not target:
        return _ratio(name, candidate)
    if "".join(typed) == "".join(target):
        return _SAME
    parts = [target[start : start + len(typed)] for start in range(len(target) - len(typed) + 1)]
    scores = [
        _ratio("_".join(typed), "_".join(target)),
        _BEGINNING * (target[: len(typed)] == typed),
        _REORDERED * (len(typed) > 1 and sorted(typed) == sorted(target)),
        _INSIDE * _is_inside("".join(typed), "".join(target)),
        *(_PART * _ratio("_".join(typed), "_".join(part), least=_WORD_LIKE) for part in parts),
    ]
    return max(scores)


def _words(name: str) -> list[str]:
    return [word for word in _SEPARATORS.split(name.casefold()) if word]


def _is_inside(first: str, second: str) -> bool:
    """Whether one name is the beginning of the other, or a longer part of it."""
    short, long = sorted((first, second), key=len)
    return (len(short) >= _BEGINS and long.startswith(short)) or (len(short) >= _INNER and short in long)


def _ratio(first: str, second: str, *, least: float = _LIKE) -> float:
    """Return how many of the letters are the same in the same order; 0 where that says nothing."""
    first, second = first.casefold(), second.casefold()
    limit = least if first[:1] == second[:1] else _OTHER_INITIAL
    # No more letters can be the same than the shorter name has, however long the other one is.
    if 2 * min(len(first), len(second)) < limit * (len(first) + len(second)):
        return 0.0
    ratio = difflib.SequenceMatcher(None, first, second).ratio()
    return ratio if ratio >= limit else 0.0
