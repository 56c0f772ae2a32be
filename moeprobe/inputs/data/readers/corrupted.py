"""Which published files of corrupted images are read: ``PATH?corruption=snow&severity=3``."""

from urllib.parse import parse_qsl

from moeprobe.errors import UserError
from moeprobe.inputs.corruptions import NAMES, SEVERITIES
from moeprobe.runtime.catalog import unknown


def parse_location(location: str | None, *, name: str) -> tuple[str, str, int]:
    """Return folder, corruption and severity that a location names.

    One corruption at one severity is read at a time: the same photographs under several are no independent images.

    Raises:
        UserError: one of them is missing, or there is no such corruption or severity.
    """
    path, _, query = (location or "").partition("?")
    fields = dict(parse_qsl(query, keep_blank_values=True))
    if not path or set(fields) != {"corruption", "severity"}:
        raise UserError(
            f"{name!r} needs a folder, a corruption and a severity: write "
            f"{name}:PATH?corruption=snow&severity=3 (in quotes, for the shell)."
        )
    kind, severity = fields["corruption"], fields["severity"]
    if kind not in NAMES:
        raise UserError(unknown("corruption", kind, NAMES))
    if severity not in {f"{value:g}" for value in SEVERITIES}:
        raise UserError(f"The severity of {name!r} is a whole number from 1 to 5; got {severity!r}.")
    return path, kind, int(severity)
