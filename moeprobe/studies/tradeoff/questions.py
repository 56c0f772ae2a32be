"""What is asked of every cell: probes, each with a run folder of its own inside the cell's."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.models.grid import MeasureConfig
from moeprobe.probes.contagion import measure as spreading
from moeprobe.probes.engine import run as probing
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.question import CLEAN
from moeprobe.probes.fewshot import measure as fewshot
from moeprobe.results import finished
from moeprobe.results.sidecars import read_sidecar
from moeprobe.runtime.progress import Watcher


@dataclass(frozen=True)
class Question:
    """One probe: the name of its folder, its kind, its view, and the severities of a sweep."""

    folder: str
    kind: str
    view: str = CLEAN
    severities: tuple[float, ...] | None = None

    def ask(self, model: Checkpoint, *, data: str, options: Options, watcher: Watcher) -> None:
        """Measure a cell's checkpoint into ``options.out``."""
        if self.kind == fewshot.KIND:
            shots = [int(shot) for shot in self.severities or ()]
            fewshot.fewshot([model], data=data, shots=shots, options=options, watcher=watcher)
        elif self.kind == spreading.KIND:
            # In groups of several images, unlike all else: loaded once more.
            options = dataclasses.replace(options, group_images=spreading.GROUP_IMAGES)
            path = model.provenance["path"]
            spreading.contagion([path], data=data, options=options, watcher=watcher)
        else:
            probing.probe(
                self.kind,
                [model],
                data=data,
                view=self.view,
                severities=self.severities,
                options=options,
                watcher=watcher,
            )

    def answered(self, cell: Path, data: str, measure: MeasureConfig) -> bool:
        """Whether the run in a cell's folder is finished.

        Raises:
            UserError: it is finished, and was asked something else.
        """
        run = cell / self.folder
        if not finished.is_finished(run):
            return False
        request = read_sidecar(run)["request"]
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
    """Return what is to be measured.

    On clean images, between pairs of views, under noise, with few labels, and where a token's neighbours are exchanged.
    """
    asked = [Question("eval", "eval"), Question("confidence", "confidence")]
    asked += [Question(f"match-{view}", "match-ratio", view) for view in measure.views]
    if measure.sigmas:
        asked.append(Question("noise", "sweep", "gaussian_noise", tuple(measure.sigmas)))
    if measure.shots:
        asked.append(Question("fewshot", fewshot.KIND, severities=tuple(map(float, measure.shots))))
    if measure.contagion:
        asked.append(Question("contagion", spreading.KIND))
    return asked
