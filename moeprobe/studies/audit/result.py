"""What an audit returns: the verdicts, the runs they rest on, and the page."""

import dataclasses
import html
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from moeprobe.errors import UserError, option
from moeprobe.results.folder import Result
from moeprobe.results.naming import names_in, rename_table
from moeprobe.results.showing import one_line
from moeprobe.results.sidecars import Sidecar
from moeprobe.runtime.characters import restored
from moeprobe.runtime.files import read_bytes
from moeprobe.studies.audit.judge import COLUMNS

VERDICTS = "verdicts.csv"
_LARGEST_TABLE = 2**26
_NUMBERS = (
    "severity", "value", "ci_low", "ci_high", "images", "trials", "experts", "layers", "variants", "first_value",
    "first_low", "first_high",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AuditContent:
    """What the page of an audit is made of.

    Attributes:
        verdicts: a row per property and model, then, of two models, a row per property with a ``reference``: the
            paired difference. Columns are ``judge.COLUMNS``.
        runs: probe -> its result; those that draw alone have none.
        left_out: probe -> why it was not run.
        sidecar: request, plan and provenance.
        folder: where the page is; None where nothing was written.
    """

    verdicts: pd.DataFrame
    runs: Mapping[str, Result]
    left_out: Mapping[str, str]
    sidecar: Sidecar
    folder: Path | None = None

    @property
    def models(self) -> list[str]:
        """Names of the models, the reference first."""
        return list(dict.fromkeys(self.verdicts.loc[self.verdicts["reference"] == "", "checkpoint"]))

    def with_names(self) -> "AuditContent":
        """Return it with models as ``--names`` calls them, to be shown."""
        return dataclasses.replace(self, verdicts=rename_table(self.verdicts, names_in(self.sidecar)))


@dataclass(frozen=True, kw_only=True)
class AuditResult(AuditContent):
    """The verdicts of an audit, with its page.

    Attributes:
        html: the page, which needs nothing but itself.
    """

    html: str

    def __repr__(self) -> str:
        return one_line("AuditResult", {"models": "+".join(self.models), "verdicts": len(self.verdicts)})

    def _repr_html_(self) -> str:
        """Return the page in a frame, which keeps its styles apart from the notebook's."""
        return f'<iframe srcdoc="{html.escape(self.html)}" sandbox width="100%" height="700"></iframe>'


def read_verdicts(path: Path) -> pd.DataFrame:
    """Read the verdicts of a finished audit: texts as they were, and numbers.

    Raises:
        UserError: the file is damaged or gone.
    """
    content = read_bytes(path, limit=_LARGEST_TABLE)
    try:
        table = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False).map(restored)
        for name in _NUMBERS:
            table[name] = [float(text) if text else math.nan for text in table[name]]
        return table[COLUMNS]
    except (ValueError, KeyError) as error:
        raise UserError(
            f"Cannot read {path} ({error}); run the audit again with {option('overwrite')}."
        ) from error
