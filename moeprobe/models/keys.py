"""The keys of a configuration, as its schema says them: type, default and meaning."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from moeprobe.models.config import TrainConfig
from moeprobe.runtime.schema import Plugin, section_of

_WORDS = {int: "integer", float: "number", str: "text", bool: "true | false", type(None): "null"}
_BOUNDS = {
    annotated_types.Gt: (">", "gt"),
    annotated_types.Ge: ("≥", "ge"),
    annotated_types.Lt: ("<", "lt"),
    annotated_types.Le: ("≤", "le"),
}


@dataclass(frozen=True)
class Key:
    """One key.

    Attributes:
        name: with dots, as in an override.
        type: what it takes, with bounds.
        default: as in YAML; "required" where there is none.
        meaning: in a few words.
    """

    name: str
    type: str
    default: str
    meaning: str


def list_keys(schema: type[BaseModel] = TrainConfig) -> list[Key]:
    """Return the keys of a configuration, section by section."""
    return list(_keys(schema, ""))


def _keys(schema: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in schema.model_fields.items():
        section = section_of(schema, name)
        if section is None or issubclass(section, Plugin):
            yield Key(f"{prefix}{name}", _type(field), _default(field), field.description or "")
        else:
            yield from _keys(section, f"{prefix}{name}.")


def _type(field: FieldInfo) -> str:
    bounds = [f"{sign} {getattr(bound, at)}" for bound in field.metadata for sign, at in _signs(bound)]
    return " ".join([_type_text(field.annotation), ", ".join(bounds)]).strip()


def _signs(bound: object) -> list[tuple[str, str]]:
    return [sign for kind, sign in _BOUNDS.items() if isinstance(bound, kind)]


def _type_text(annotation: Any) -> str:
    """Return a type in the words of YAML."""
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(_type_text(part) for part in get_args(annotation))
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if get_origin(annotation) is list:
        return f"list of {_type_text(get_args(annotation)[0])}"
    if get_origin(annotation) is Annotated:
        return _type_text(get_args(annotation)[0])
    return _WORDS.get(annotation, "name, with parameters")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None:
        return "null"
    if isinstance(value, Plugin):
        return value.name
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'
