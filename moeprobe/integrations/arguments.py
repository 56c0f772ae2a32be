"""What the classes of this package take: a mistyped keyword is a ``UserError``, as in ``api``."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from moeprobe.runtime.arguments import check_keywords, checked_class, signature_of

_PACKAGE = "integrations"
# What a callback hands to its monitor itself.
_HANDED_IN = ("model", "data")
check_class = partial(checked_class, package=_PACKAGE)


def check_settings(callback: type, settings: Mapping[str, Any], *, monitor: type) -> None:
    """Raise ``UserError`` where a callback is given settings that its monitor, made later, does not take."""
    signature = signature_of(monitor)
    parameters = [parameter for name, parameter in signature.parameters.items() if name not in _HANDED_IN]
    check_keywords(f"{_PACKAGE}.{callback.__name__}", signature.replace(parameters=parameters), settings)
