"""What is asked of every cell: probes, each with a run folder of its own inside the cell's."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.models.grid import MeasureConfig
from moeprobe.probes.base import Probe
from moeprobe.probes.confidence import Confidence
from moeprobe.probes.contagion import Contagion
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.run import run
from moeprobe.probes.evaluate import Evaluate
from moeprobe.probes.fewshot import Fewshot
from moeprobe.probes.match_ratio import MatchRatio
from moeprobe.probes.noise_sweep import NoiseSweep
from moeprobe.results import finished
from moeprobe.results.sidecars import read_sidecar
from moeprobe.runtime.progress import Progress


@dataclass(frozen=True)
class Question:
    """One probe, the name of its folder, and the severities that its run is known by."""

    folder: str
    probe: Probe[Any]
    severities: Sequence[float] = ()

    def ask(self, model: Checkpoint, *, data: str, options: Options, watcher: Progress) -> None:
        """Measure a cell's checkpoint into ``options.out``."""
        options = dataclasses.replace(options, **self.probe.defaults)
        # Loaded once more where the probe has groups of several images, unlike the others.
        grouped = options.group_images != model.model.group_images
        source = model.provenance["path"] if grouped else model
        run(self.probe, [source], data=data, options=options, watcher=watcher)

    def answered(self, cell: Path, data: str, measure: MeasureConfig) -> bool:
        """Whether the run in a cell's folder is finished.

        Raises:
            UserError: it is finished, and was asked something else.
        """
        earlier = cell / self.folder
        if not finished.is_finished(earlier):
            return False
        request = read_sidecar(earlier)["request"]
        expected = {
            "kind": self.probe.kind,
            "data": data,
            "split": measure.split,
            "limit": measure.limit,
            "seed": measure.seed,
            "severities": list(self.severities),
        }
        for key, value in expected.items():
            if request.get(key) != value:
                raise UserError(
                    f"{earlier} was measured otherwise: {key} is {json.dumps(request.get(key))} there and "
                    f"{json.dumps(value)} now; choose another {option('out')}, or add {option('overwrite', True)} "
                    "to measure again."
                )
        return True


def questions(measure: MeasureConfig, *, dense: bool = False) -> list[Question]:
    """Return the runs to measure; of a dense model, only runs that need no routing.

    On clean images, between pairs of views, under noise, with few labels, and where the context of tokens is exchanged.
    """
    all_questions = [Question("eval", Evaluate()), Question("confidence", Confidence())]
    all_questions += [Question(f"match-{view}", MatchRatio(view=view)) for view in measure.views]
    if measure.sigmas:
        all_questions.append(Question("noise", NoiseSweep(severities=measure.sigmas), measure.sigmas))
    if measure.shots:
        shots = [float(count) for count in measure.shots]
        all_questions.append(Question("fewshot", Fewshot(shots=measure.shots), shots))
    if measure.contagion:
        all_questions.append(Question("contagion", Contagion()))
    return [question for question in all_questions if not (dense and question.probe.needs_routing)]
