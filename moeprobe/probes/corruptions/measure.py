"""The work of ``corruptions``: a sweep for each corruption, one after the other, then means over them.

Each has its own clean pass: pixels of all corruptions at once would take 100 times the memory of a batch.
"""

import dataclasses
from pathlib import Path
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.views.corruption import Corruption
from moeprobe.metrics.base import OutputAnalysis
from moeprobe.probes.base import CLEAN
from moeprobe.probes.corruptions import Corruptions
from moeprobe.probes.corruptions.means import mean_values, means_of
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.results.folder import Result
from moeprobe.results.stored import SumsStore, concat
from moeprobe.results.summaries import About, lines_of_values
from moeprobe.results.values import Evaluator
from moeprobe.runtime.progress import Advance


class CorruptionsMeasurement(Measurement[Result]):
    """A sweep for each corruption."""

    probe: Corruptions

    def make_spec(self) -> RunSpec:
        """Return the run specification; ``specs`` makes one of each corruption of it.

        Raises:
            UserError: the baseline is none of the checkpoints, or nothing is known of its errors.
        """
        spec = super().make_spec()
        baseline, names = self.probe.baseline, [model.name for model in self.models]
        if baseline is not None and baseline not in names:
            raise UserError(f"{option('baseline')} names one of {', '.join(names)}; got {baseline!r}.")
        if baseline is not None and not (spec.of_output and spec.labeled and spec.dataset.class_names):
            raise UserError(
                f"{option('baseline')} divides errors, and there are no labels for the classes of all checkpoints."
            )
        return spec

    def make_request(self) -> dict[str, Any]:
        """Return everything that the numbers depend on; the kinds of the view are the probe's corruptions."""
        return super().make_request() | {"view": {"name": self.probe.view}}

    def specs(self, spec: RunSpec) -> list[RunSpec]:
        """Return the runs in their order: the output for the clean image, then a sweep per corruption."""
        output = tuple(analysis for analysis in spec.analyses if isinstance(analysis, OutputAnalysis))
        clean = dataclasses.replace(spec, view_name=CLEAN, severities=(0.0,), analyses=output)
        swept = [
            dataclasses.replace(
                spec, view_name=name, view=Corruption(kind=kind, moves=moves), draws=self.probe.view
            )
            for name, kind, moves in self.probe.variants
        ]
        return [*([clean] if output else []), *swept]

    def run(
        self, spec: RunSpec, model: Checkpoint, *, parts: Path | None = None, progress: Advance | None = None
    ) -> tuple[SumsStore, list[str]]:
        """Return one checkpoint's sums per image, and the images that were skipped; parts lie in a folder for each."""
        stores, skipped = [], dict[str, None]()
        for sweep in self.specs(spec):
            folders = tuple(shard / sweep.view_name for shard in spec.shards)
            folder = None if parts is None else parts / sweep.view_name
            sums, unreadable = super().run(
                dataclasses.replace(sweep, shards=folders), model, parts=folder, progress=progress
            )
            stores.append(sums)
            skipped |= dict.fromkeys(unreadable)
        return concat(stores), [*skipped]

    @property
    def passes(self) -> int:
        """Forward passes per image, the clean one of each corruption among them."""
        return sum(spec.num_passes for spec in self.specs(self.spec))

    @property
    def more_images(self) -> int:
        """Images of all sweeps but the first."""
        return self.num_images * (len(self.specs(self.spec)) - 1)

    def more_rows(self, sums: SumsStore, info: About) -> list[dict[str, Any]]:
        """Return the means."""
        names = [model.name for model in self.models]
        evaluate = Evaluator(self.spec.analyses, aligned=True, seed=info.seed, experts=False)
        means = means_of([name for name, *_ in self.probe.variants], self.probe.severities)
        rows: list[dict[str, Any]] = []
        self._differences: list[dict[str, Any]] = []
        for valued in mean_values(sums, means, evaluate=evaluate, baseline=self.probe.baseline):
            lines, differences = lines_of_values(valued, names[0], info)
            rows += [line for at in lines for line in lines[at]]
            self._differences += [line for at in differences for line in differences[at]]
        return rows

    def more_differences(self, sums: SumsStore, info: About) -> list[dict[str, Any]]:
        """Return the paired differences of the means, which ``more_rows`` computed."""
        return self._differences
