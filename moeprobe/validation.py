"""What is wrong with the content of a YAML file, as one sentence.

A file's schema is a pydantic model whose sections are models too.
"""

from typing import Any

from pydantic import BaseModel, ValidationError

from moeprobe.catalog import did_you_mean


def sentence(error: ValidationError, schema: type[BaseModel], *, what: str) -> str:
    """Return the first problem as a sentence; a misspelt key before the one that is missed for it."""
    problem = min(error.errors(), key=lambda one: one["type"] == "missing")
    *sections, key = path = _key(problem["loc"], schema)
    where = ".".join(path)
    if problem["type"] == "extra_forbidden":
        known = _fields(sections, schema)
        hint = did_you_mean(key, known, prefix="".join(f"{section}." for section in sections))
        return f"There is no {what} key {where!r}.{hint} Known here: {', '.join(sorted(known))}."
    if problem["type"] == "missing" and key == "name" and sections:
        place = ".".join(sections)
        others = ", ".join(map(str, problem["input"])) or "nothing"
        return f"In the {what}, {place} has no name, only {others}: add {where}=NAME to say whose parameters these are."
    given = "" if problem["type"] == "missing" or not where else f"; got {shortened(problem['input'])}"
    if problem["type"] == "model_type":
        inside = ", ".join(f"{where}.{name}" for name in _fields(path, schema))
        return f"In the {what}, {where} is a section of keys ({inside}){given}."
    message = lower_first(problem["msg"].removeprefix("Value error, "))
    return f"In the {what}, {where or 'the whole'}: {message}{given}."


def _key(location: tuple[str | int, ...], schema: type[BaseModel]) -> list[str]:
    """Return the key that a problem is about, without the marks of a union's members; [""] for the whole."""
    found: list[str] = []
    section: type[BaseModel] | None = schema
    for part in location:
        if section is not None:
            found.append(str(part))
            section = section_of(section, str(part))
        elif isinstance(part, int):
            found.append(str(part))
    return found or [""]


def shortened(value: Any) -> str:
    """Return a value as it stands in a sentence."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def section_of(schema: type[BaseModel], key: str) -> type[BaseModel] | None:
    """Return the model of a section, None where the key is no section."""
    field = schema.model_fields.get(key)
    choices = [] if field is None else [field.annotation, *getattr(field.annotation, "__args__", ())]
    models = (choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel))
    return next(models, None)


def lower_first(text: str) -> str:
    """Return a sentence as it goes on after a colon."""
    return text[:1].lower() + text[1:]


def _fields(sections: list[str], schema: type[BaseModel]) -> list[str]:
    """Return the keys of a section, [] where it is none."""
    model: type[BaseModel] | None = schema
    for section in sections:
        model = None if model is None else section_of(model, section)
    return [] if model is None else list(model.model_fields)
