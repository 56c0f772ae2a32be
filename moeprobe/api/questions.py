"""A function for each question, made of its declaration when it is first asked for.

``questions.pyi``, which ``docs/generate.py`` writes, says the same to type checkers and editors.
"""

from typing import Any

from moeprobe.api.making import function_for, questions


def __getattr__(name: str) -> Any:
    """Return the function of a question."""
    if name == "__all__":
        return sorted(questions())
    if name.startswith("__") or name not in questions():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return function_for(questions()[name])


def __dir__() -> list[str]:
    return sorted(questions())
