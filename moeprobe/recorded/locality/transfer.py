"""Bytes of an expert, and bytes per second: what users write, and what a model's configuration says."""

import re
from pathlib import Path

from moeprobe.errors import UserError, option
from moeprobe.recordings.model_config import read_expert_bytes

_FACTORS = {"": 1, **{f"{prefix}B": 1000**power for power, prefix in enumerate(("", "k", "M", "G", "T"))}}
_FACTORS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), start=1)}
_AMOUNT = re.compile(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kKMGT]?i?B?)\s*")


def read_amount(name: str, text: str, *, example: str) -> float:
    """Return a number of bytes that is written with a unit, such as ``9.4MB``, or without.

    >>> from moeprobe.recorded.locality.transfer import read_amount
    >>> read_amount("expert_bytes", "1.5KiB", example="9.4MB")
    1536.0

    Raises:
        UserError: it is no such number, or not above 0.
    """
    match = _AMOUNT.fullmatch(text)
    unit = match[2].replace("K", "k") if match and match[2] == "KB" else match[2] if match else ""
    try:
        number = float(match[1]) * _FACTORS[unit] if match else 0.0
    except (ValueError, KeyError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise UserError(
            f"{option(name)} takes a number of bytes with its unit, e.g. {option(name, example)}; got {text!r}."
        )
    return number


def read_bandwidth(text: str | None) -> float | None:
    """Return the bytes per second of ``--bandwidth``; None = not given.

    Raises:
        UserError: it is no number of bytes per second.
    """
    return None if text is None else read_amount("bandwidth", text.removesuffix("/s"), example="25GB/s")


def expert_size(text: str | None, config: Path | None) -> float | None:
    """Return the bytes of an expert that are given or follow from a ``config.json``; None = neither.

    Raises:
        UserError: the size is no number of bytes, or the configuration does not say it.
    """
    if text is not None:
        return read_amount("expert_bytes", text, example="9.4MB")
    return None if config is None else read_expert_bytes(config)
