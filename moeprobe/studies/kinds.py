"""What the folders of studies hold whose commands are written by hand."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprobe.declarations import Kind
from moeprobe.results.packed import CELLS, PACK, PACKED_IMAGES

if TYPE_CHECKING:
    from moeprobe.results.sidecars import Sidecar


class Audit(Kind):
    """Verdicts on one or two models, and their page."""

    name = "audit"
    title = "Audit"
    writes = ("plan.json", "verdicts.csv", "audit.html", "audit.md")


class Bench(Kind):
    """Speeds, as ``python -m benchmarks.speed`` measures them."""

    name = "bench"
    title = "How fast moeprobe is"


class Compare(Kind):
    """Differences of checkpoints, and the run that they are computed from."""

    name = "compare"
    title = "Comparison of checkpoints"
    writes = ("probe/",)


class Paper(Kind):
    """The tables and figures of the PRC paper."""

    name = "paper"
    title = "Paper"
    writes = ("seeds.csv", "load.csv", "tables.md")

    @classmethod
    def finished_content(cls, folder: Path, sidecar: "Sidecar") -> dict[str, Any]:
        """Return the tables, as the run itself printed them."""
        from moeprobe.results.finished import read_table
        from moeprobe.results.tables import records

        table, load = (records(read_table(folder / name)) for name in ("seeds.csv", "load.csv"))
        return {"table": table, "load": load, "sidecar": sidecar}


class Tradeoff(Kind):
    """Trainings side by side, each measured in the same way."""

    name = "tradeoff"
    title = "Trainings side by side"
    writes = (
        "paper.csv", PACK, PACKED_IMAGES, f"{CELLS}/*/cell.json", f"{CELLS}/*/metrics.csv", f"{CELLS}/*/*/",
    )  # fmt: skip
