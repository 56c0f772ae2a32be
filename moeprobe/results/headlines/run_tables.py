"""The tables and request of a run, whether just measured or read back from a folder."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import Modality, modality_of
from moeprobe.results.sidecars import Request, Sidecar


@dataclass(frozen=True, kw_only=True)
class RunTables:
    """What sentences about a run are made of.

    Attributes:
        sidecar: request and provenance, as ``table.json`` holds them.
        table: the values; None where the run has none.
        comparison: the paired differences likewise.
    """

    sidecar: Sidecar
    table: pd.DataFrame | None
    comparison: pd.DataFrame | None

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.sidecar.request

    @property
    def kind(self) -> str:
        """The kind of run, e.g. ``match-ratio``."""
        return self.request.kind

    @property
    def settings(self) -> dict[str, Any]:
        """What was asked, with what a comparison asked of its probe."""
        probe = self.request.get("probe")
        own = {name: given for name, given in self.request.items() if name not in ("probe", "checkpoints")}
        return {**probe, **own} if isinstance(probe, dict) else self.request

    @property
    def images(self) -> int | None:
        """Number of images that the values rest on; None where the run has none."""
        tables = [table for table in (self.table, self.comparison) if table is not None]
        return int(max(table["images"].max() for table in tables)) if tables else None

    @property
    def modality(self) -> Modality:
        """What the checkpoints read."""
        tables = [table for table in (self.table, self.comparison) if table is not None]
        tokens = (token for table in tables for token in table["tokens"].unique())
        return modality_of(tokens, data=self.request.data)

    @property
    def checkpoints(self) -> dict[str, dict[str, Any]]:
        """Provenance of each checkpoint, by name."""
        return self.sidecar.checkpoints
