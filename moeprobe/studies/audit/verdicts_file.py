"""The file of an audit's verdicts, read back as it was written."""

import io
import math
from pathlib import Path

import pandas as pd

from moeprobe.errors import UserError
from moeprobe.runtime.characters import restored
from moeprobe.runtime.files import read_bytes
from moeprobe.studies.audit.judge import COLUMNS

VERDICTS = "verdicts.csv"
_LARGEST = 2**26
_NUMBERS = (
    "severity", "value", "ci_low", "ci_high", "images", "trials", "experts", "layers", "first_value", "first_low",
    "first_high",
)  # fmt: skip


def read_verdicts(path: Path) -> pd.DataFrame:
    """Read the verdicts of a finished audit: texts as they were, and numbers.

    Raises:
        UserError: the file is damaged or gone.
    """
    content = read_bytes(path, limit=_LARGEST)
    try:
        table = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False).map(restored)
        for name in _NUMBERS:
            table[name] = [float(text) if text else math.nan for text in table[name]]
        return table[COLUMNS]
    except (ValueError, KeyError) as error:
        raise UserError(f"Cannot read {path} ({error}); run the audit again with --overwrite.") from error
