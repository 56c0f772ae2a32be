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
    given = "" if problem["type"] == "missing" or not where else f"; got {_short(problem['input'])}"
    if problem["type"] == "model_type":
        inside = ", ".join(f"{where}.{name}" for name in _fields([key], schema))
        return f"In the {what}, {where} is a section of keys ({inside}){given}."
    message = lower_first(problem["msg"].removeprefix("Value error, "))
    return f"In the {what}, {where or 'the whole'}: {message}{given}."


def _key(location: tuple[str | int, ...], schema: type[BaseModel]) -> list[str]:
    """Return the key that a problem is about, without the marks of a union's members; [""] for the whole."""
    names = [str(part) for part in location] or [""]
    depth = 2 if names[0] in schema.model_fields and _fields(names[:1], schema) else 1
    return names[:depth] + [name for name in names[depth:] if name.isdecimal()]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def lower_first(text: str) -> str:
    """Return a sentence as it goes on after a colon."""
    return text[:1].lower() + text[1:]


def _fields(sections: list[str], schema: type[BaseModel]) -> list[str]:
    """Return the keys of a section, [] where it is none."""
    model: Any = schema
    for section in sections:
        annotation = model.model_fields[section].annotation
        choices = [annotation, *getattr(annotation, "__args__", ())]
        models = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)
