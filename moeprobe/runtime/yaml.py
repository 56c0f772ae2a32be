"""YAML as people mean it, of a bounded size: numbers are numbers, and a duplicate key is an error."""

import re
from collections import Counter
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from moeprobe.errors import UserError
from moeprobe.runtime.files import read_bytes

# Configurations have some kilobytes, sweeps of very many cells some more.
_LIMIT = 2**20
_DEEPEST, _MOST = 50, 100_000
_INTEGER, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


# The end of a sentence; after an initial ("C. Teo"), "et al." and "eq." it goes on.
_SENTENCE_END = re.compile(r"(?<!\b[A-Z])(?<!et al)(?<!eq)[.](?:\n| (?=[A-Z`]))")


class NotYamlError(Exception):
    """A text is no YAML, or more than a configuration would hold."""


class _Loader(_BASE):
    """Numbers as in YAML 1.2: 1e-3 is one, 1_0 (ten in YAML 1.1) and 1:30 (ninety) are none, and 010 is not eight."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Return a mapping; called by the base class."""
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        twice = next((key for key, number in keys.items() if number > 1), None)
        if twice is not None:
            raise yaml.YAMLError(f"the key {twice!r} is given twice{node.start_mark}")
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_INTEGER, _FLOAT)]
    for first, resolvers in _BASE.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"^[-+]?\d+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"^([-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+.0123456789"),
)
_Loader.add_constructor(_INTEGER, lambda loader, node: int(loader.construct_scalar(node)))


def parse_yaml(text: str) -> Any:
    """Return what a YAML text holds.

    Raises:
        NotYamlError: it cannot be read, or holds too much.
    """
    try:
        _check_depth(text)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _measure(node, {}, ())
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise NotYamlError("it is nested too deeply") from None
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise NotYamlError(" ".join(str(error).split())) from None


def read_yaml(path: Path) -> Any:
    """Return what a YAML file holds.

    Raises:
        UserError: it cannot be read, is no YAML, or is larger than a configuration would be.
    """
    try:
        return parse_yaml(read_bytes(path, limit=_LIMIT).decode("utf-8"))
    except (UnicodeDecodeError, NotYamlError) as error:
        raise UserError(f"Cannot read {path} as YAML: {error}.") from None


def _check_depth(text: str) -> None:
    """Raise ``NotYamlError`` where sections are nested so deeply that composing them could overflow the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_BASE):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise NotYamlError("it is nested too deeply")


def _measure(node: Any, sizes: dict[int, int], above: tuple[int, ...]) -> int:
    """Return how many nodes there are with all references written out.

    Raises:
        NotYamlError: they are too many, or a node refers to itself.
    """
    if id(node) in above:
        raise NotYamlError("it refers to itself")
    if id(node) in sizes:
        return sizes[id(node)]
    if isinstance(node, yaml.ScalarNode):
        return 1
    size = 1
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            size += _measure(part, sizes, (*above, id(node)))
    if size > _MOST:
        raise NotYamlError(f"it holds more than {_MOST:,} values")
    sizes[id(node)] = size
    return size


def first_sentence(path: Path) -> str:
    """Return the first sentence of the comment that a file of the package begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("# "), lines)
    text = "\n".join(line.removeprefix("# ") for line in comment)
    return f"{' '.join(_SENTENCE_END.split(text, maxsplit=1)[0].split()).rstrip('.')}."
