"""What the classes of this package take: a mistyped keyword is a ``UserError``, as in ``api``."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from moeprobe.runtime.arguments import check_keywords, checked_class, signature_of

_PACKAGE = "integrations"
checked = partial(checked_class, package=_PACKAGE)


def check_settings(callback: type, settings: Mapping[str, Any], *, monitor: type) -> None:
    """Raise ``UserError`` where a callback is given settings that its monitor, made later, does not take."""
    check_keywords(f"{_PACKAGE}.{callback.__name__}", signature_of(monitor), settings)
