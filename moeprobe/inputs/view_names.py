"""Views as users name them: ``NAME``, ``NAME:PATH``, and parameters after commas, ``NAME,key=value``.

A name is read without what opens a view, so that a mistyped one is refused at once.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moeprobe.errors import UserError
from moeprobe.runtime.schema import split_assignments
from moeprobe.runtime.yaml import NotYamlError, parse_yaml

# A comma before no ``key=``, and in no list ``[...]``.
_BETWEEN_VIEWS = re.compile(r",(?!\s*[A-Za-z_]\w*\s*=)(?![^\[\]]*\])")


@dataclass(frozen=True)
class ViewName:
    """What names a view.

    Attributes:
        name: in the catalog of views.
        location: a file that it needs; empty = none.
        parameters: fields of the view.
    """

    name: str
    location: str
    parameters: dict[str, Any]


def split_views(names: Sequence[str]) -> list[str]:
    """Return the names of views in a list that commas part, which also stand before a parameter and in its lists."""
    views = _BETWEEN_VIEWS.split(",".join(names)) if names else []
    return [",".join(map(str.strip, view.split(","))) for view in views]


def parse_view(text: str) -> ViewName:
    """Return the parts of a view's name, e.g. of ``random_crop,first_area=[0.2,0.4]``.

    Raises:
        UserError: a parameter is named twice, or its value cannot be read.
    """
    head, assignments = split_assignments(text)
    name, _, location = head.partition(":")
    parameters: dict[str, Any] = {}
    for key, value in assignments:
        if key == "name":
            raise UserError(f"The view {text!r} is named first; its parameters have other names.")
        if key in parameters:
            raise UserError(f"The view {text!r} has the parameter {key} twice; name it once.")
        try:
            parameters[key] = parse_yaml(value)
        except NotYamlError:
            raise UserError(
                f"The view {text!r}: {key} takes a value such as 0.3 or [0.2, 0.4]; got {value!r}."
            ) from None
    return ViewName(name.strip(), location, parameters)
