"""Configuration files: found by name, read, and changed by ``key=value``."""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError
from moeprobe.runtime.catalog import describe_unknown, did_you_mean
from moeprobe.runtime.characters import quote
from moeprobe.runtime.schema import shorten
from moeprobe.runtime.similar_paths import did_you_mean_path
from moeprobe.runtime.yaml import NotYamlError, parse_yaml, read_yaml

# A section may be written as its one essential value: ``objective: prc`` is ``objective: {name: prc}``.
_SHORTHANDS = {
    "data": "name",
    "view": "name",
    "objective": "name",
    "initialise": "checkpoint",
    "model.router": "name",
    "model.upcycle": "name",
}


# A sentence lists no more names than this.
_MOST_NAMED = 20
# The sub-folders whose files are no configurations: sweeps of them (``grid``), and some in a row (``pipeline``).
SWEEPS, PIPELINES = "sweeps", "pipelines"


def folders() -> list[Path]:
    """Return where configurations are found by name: in the package, or next to it in a checkout."""
    package = Path(__file__).parents[1]
    return [folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir()]


def names() -> list[str]:
    """Return the names of moeprobe's configurations; names in a sub-folder begin with the folder's name."""
    return sorted(
        {
            path.relative_to(folder).with_suffix("").as_posix()
            for folder in folders()
            for path in folder.rglob("*.yaml")
            if not {SWEEPS, PIPELINES} & set(path.relative_to(folder).parts)
        }
    )


def path_of(source: str) -> Path:
    """Return the file of the configuration called ``source``, a name or a path.

    Raises:
        UserError: there is none.
    """
    return find(source, names(), what="configuration")


def find(source: str, available: Iterable[str], *, what: str, folder: str = "") -> Path:
    """Return the file that a name or a path to a YAML file means; messages name ``what`` it is.

    Raises:
        UserError: there is none.
    """
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"There is no {what} file {source}.{did_you_mean_path(path)}")
        return path
    available = list(available)
    for root in folders():
        if source in available and (root / folder / f"{source}.yaml").is_file():
            return root / folder / f"{source}.yaml"
    if len(available) > _MOST_NAMED:
        hint = did_you_mean(source, available)
        raise UserError(
            f"There is no {what} {quote(source)}.{hint} moeprobe list {folder or 'configs'} names all."
        )
    raise UserError(describe_unknown(what, source, available))


def read(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds; ``name`` defaults to the name of the file.

    Raises:
        UserError: it cannot be read or holds something else.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        content_type = "nothing" if content is None else type(content).__name__
        raise UserError(f"{path} should hold a mapping of keys to values; it holds {content_type}.")
    content.setdefault("name", path.stem)
    return written_out(content)


def written_out(content: dict[str, Any], section: str = "") -> dict[str, Any]:
    """Return the content with its shorthands written out and every key a string."""
    return {str(key): _long_form(f"{section}{key}", value) for key, value in content.items()}


def _long_form(path: str, value: Any) -> Any:
    if isinstance(value, str) and path in _SHORTHANDS:
        return {_SHORTHANDS[path]: value}
    return written_out(value, f"{path}.") if isinstance(value, dict) else value


def pair(override: str) -> tuple[str, Any]:
    """Return the key and the value of a ``key=value``.

    Raises:
        UserError: it is none, or the value is no YAML.
    """
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"An override is written key=value, e.g. model.top_k=1; got {shorten(override)}.")
    try:
        return key, parse_yaml(text)
    except NotYamlError:
        raise UserError(f"Cannot read the value of {shorten(override)}.") from None


def put(content: dict[str, Any], key: str, value: Any) -> None:
    """Put a value into ``content`` by its dotted key.

    Raises:
        UserError: a section of the key is a value.
    """
    *sections, last = key.split(".")
    for section in sections:
        child = content.setdefault(section, {})
        if child is None:
            child = content[section] = {}
        if not isinstance(child, dict):
            raise UserError(f"{section!r} in {key!r} is a value, not a section.")
        content = child
    content[last] = _long_form(key, value)


# The models by name, read from the source of ``nn.vit``: importing it takes seconds.

_SOURCE = Path(__file__).parent / "nn" / "vit.py"


def list_architectures() -> dict[str, str]:
    """Return name -> first line of the docstring, of every model that ``nn.vit`` registers."""
    tree = ast.parse(_SOURCE.read_text(encoding="utf-8"))
    return {
        node.name: (ast.get_docstring(node) or "").partition("\n")[0]
        for node in sorted(
            (statement for statement in tree.body if isinstance(statement, ast.FunctionDef)),
            key=lambda one: one.name,
        )
        if any(
            isinstance(decorator, ast.Name) and decorator.id == "register_model"
            for decorator in node.decorator_list
        )
    }
