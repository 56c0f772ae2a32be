"""What an audit returns: the verdicts, the runs they rest on, and the page."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.results.folder import Result
from moeprobe.results.showing import one_line


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
    sidecar: dict[str, Any]
    folder: Path | None = None

    @property
    def models(self) -> list[str]:
        """Names of the models, the reference first."""
        return list(dict.fromkeys(self.verdicts.loc[self.verdicts["reference"] == "", "checkpoint"]))


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
