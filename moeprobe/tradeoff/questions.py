"""What is asked of every cell: probes, each with a run folder of its own inside the cell's."""

import json
from dataclasses import dataclass
from pathlib import Path

from moeprobe import sources
from moeprobe.errors import UserError
from moeprobe.grids import MeasureConfig
from moeprobe.probes import CLEAN

_SIDECAR = "table.json"


@dataclass(frozen=True)
class Question:
    """One probe: the name of its folder, its kind, its view, and the severities of a sweep."""

    folder: str
    kind: str
    view: str = CLEAN
    severities: tuple[float, ...] | None = None

    def answered(self, cell: Path, data: str, measure: MeasureConfig) -> bool:
        """Whether the run in a cell's folder is finished.

        Raises:
            UserError: it is finished, and was asked something else.
        """
        run = cell / self.folder
        if not sources.is_finished(run):
            return False
        request = json.loads((run / _SIDECAR).read_text(encoding="utf-8"))["request"]
        wanted = {
            "kind": self.kind,
            "data": data,
            "split": measure.split,
            "limit": measure.limit,
            "seed": measure.seed,
            "severities": list(self.severities or ()),
        }
        for key, value in wanted.items():
            if request.get(key) != value:
                raise UserError(
                    f"{run} was measured otherwise: {key} is {json.dumps(request.get(key))} there and "
                    f"{json.dumps(value)} now; choose another --out, or --overwrite what was measured."
                )
        return True


def questions(measure: MeasureConfig) -> list[Question]:
    """Return what is to be measured: on clean images, between pairs of views, and under noise."""
    asked = [Question("eval", "eval"), Question("confidence", "confidence")]
    asked += [Question(f"match-{view}", "match-ratio", view) for view in measure.views]
    if measure.sigmas:
        asked.append(Question("noise", "sweep", "gaussian_noise", tuple(measure.sigmas)))
    return asked
