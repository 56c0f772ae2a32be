"""What is wrong with the content of a YAML file, as one sentence.

A file's schema is a pydantic model whose sections are models too.
"""

import inspect
import re
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from moeprobe.errors import UserError
from moeprobe.runtime.catalog import describe_unknown, did_you_mean


def sentence(error: ValidationError, schema: type[BaseModel], *, what: str) -> str:
    """Return the first problem as a sentence; a misspelt key before the one that is missed for it."""
    problem = min(error.errors(), key=lambda one: one["type"] == "missing")
    *sections, key = path = _key(problem["loc"], schema)
    where = ".".join(path)
    if problem["type"] == "extra_forbidden":
        names = _fields(sections, schema)
        hint = did_you_mean(key, names, prefix="".join(f"{section}." for section in sections))
        return f"There is no {what} key {where!r}.{hint} Known here: {', '.join(sorted(names))}."
    if problem["type"] == "missing" and key == "name" and sections:
        place = ".".join(sections)
        keys = ", ".join(map(str, problem["input"])) or "nothing"
        return f"In the {what}, {place} has no name, only {keys}: add {where}=NAME to say whose parameters these are."
    got = "" if problem["type"] == "missing" or not where else f"; got {shorten(problem['input'])}"
    if problem["type"] == "model_type":
        inside = ", ".join(f"{where}.{name}" for name in _fields(path, schema))
        return f"In the {what}, {where} is a section of keys ({inside}){got}."
    message = lower_first(problem["msg"].removeprefix("Value error, "))
    return f"In the {what}{f', {where}' if where else ''}: {message}{got}."


def _key(location: tuple[str | int, ...], schema: type[BaseModel]) -> list[str]:
    """Return the key that a problem is about, without the marks of a union's members; [""] for the whole."""
    key: list[str] = []
    section: type[BaseModel] | None = schema
    for part in location:
        if section is not None:
            key.append(str(part))
            section = section_of(section, str(part))
        elif isinstance(part, int):
            key.append(str(part))
    return key or [""]


def shorten(value: Any) -> str:
    """Return a value as messages show it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def section_of(schema: type[BaseModel], key: str) -> type[BaseModel] | None:
    """Return the model of a section, None where the key is no section."""
    field = schema.model_fields.get(key)
    choices = [] if field is None else [field.annotation, *getattr(field.annotation, "__args__", ())]
    models = (choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel))
    return next(models, None)


def lower_first(text: str) -> str:
    """Return a sentence as it continues after a colon."""
    return text[:1].lower() + text[1:]


def _fields(sections: list[str], schema: type[BaseModel]) -> list[str]:
    """Return the keys of a section, [] where it is none."""
    model: type[BaseModel] | None = schema
    for section in sections:
        model = None if model is None else section_of(model, section)
    return [] if model is None else list(model.model_fields)


class ConfigSection(BaseModel):
    """A part of a configuration: an unknown key or a value of another type is an error; nothing is changed later."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False
    )


class Plugin(ConfigSection):
    """A plug-in by name, with parameters for it."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(description="its name; further keys are parameters of its own")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, content: Any) -> Any:
        return {"name": content} if isinstance(content, str) else content

    @property
    def parameters(self) -> dict[str, Any]:
        """All keys but the name; lists become tuples, as frozen dataclasses want them."""
        extra = self.model_extra or {}
        return {key: tuple(value) if isinstance(value, list) else value for key, value in extra.items()}


def make_plugin(kind: Any, plugin: Plugin, *, what: str, **fixed: Any) -> Any:
    """Return the plug-in ``kind``, a class, with the configured parameters; ``fixed`` ones go before them.

    Raises:
        UserError: it has no such parameter (the message names ``what`` it is), or a value has the wrong type.
    """
    hints = get_type_hints(kind.__init__)
    parameters = list(inspect.signature(kind).parameters)
    values = plugin.parameters | fixed
    for key, value in values.items():
        if key not in parameters:
            free = [name for name in parameters if name not in fixed]
            raise UserError(describe_unknown(f"parameter of the {what} {plugin.name!r} called", key, free))
        try:
            TypeAdapter(hints.get(key, Any)).validate_python(value, strict=True)
        except ValidationError as error:
            message = lower_first(error.errors()[0]["msg"])
            raise UserError(f"In the {what} {plugin.name!r}, {key}: {message}; got {value!r}.") from None
    return kind(**values)


# Commas inside a value, e.g. of [0.1, 0.3], or in the name of a folder, are followed by no key.
_ASSIGNMENT = re.compile(r",(?=\s*[A-Za-z_]\w*\s*=)")


def split_assignments(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return what stands before the first ``,key=``, and the keys and values in their order."""
    name, *assignments = _ASSIGNMENT.split(text)
    parts = [assignment.partition("=") for assignment in assignments]
    return name, [(key.strip(), value.strip()) for key, _, value in parts]
