"""The work of ``s-matrix``: S over all pairs of patches, and one pair of them to look at."""

import dataclasses
from typing import TYPE_CHECKING

from moeprobe.errors import UserError
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.s_matrix.steps import Steps, steps_of
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.naming import rename_items

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class SMatrixMeasurement(Measurement[Result]):
    """Sums of outer products, and the steps of one pair of patches."""

    def finish(self, result: Result, folder: OutputFolder | None) -> Result:
        """Return the result with a figure of one pair of patches besides."""
        steps = self._steps()

        def draw(result: Result) -> dict[str, "Figure"]:
            from moeprobe.probes.s_matrix.figure import draw_steps

            return self.probe.draw(result) | draw_steps(rename_items(steps, result.sidecar), result.table)

        return dataclasses.replace(result, drawing=draw)

    def _steps(self) -> list[Steps]:
        """Return the steps of the first image that can be read and whose views have patches in common."""
        for index in self.spec.indices:
            try:
                example = self.spec.dataset.example(index)
            except UserError:
                if not self.spec.skip_bad_images:
                    raise
                continue
            steps = steps_of(self.spec, self.models, example)
            if steps:
                return steps
        return []
