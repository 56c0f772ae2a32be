"""The work of ``fewshot``: the training images, the features, and the regressions on them."""

import dataclasses
from pathlib import Path
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Dataset
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run import Plan, time_sample
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.fewshot import Fewshot
from moeprobe.probes.fewshot.ridge import STRENGTHS
from moeprobe.probes.fewshot.shots import Cases, choose_shots, features_block, judge
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.stored import SumsStore
from moeprobe.routing.capabilities import Featured
from moeprobe.runtime.progress import Advance

_L2 = f"powers of 2 from {STRENGTHS[0]:g} to {STRENGTHS[-1]:g}"
# How the strength is chosen, and what the released program does otherwise; for the record of every run.
_RULE = (
    "highest accuracy on {on}, then least squared error; the released program takes the strength that is best on the "
    "test images"
)


class FewshotMeasurement(Measurement[Result]):
    """Ridge regressions on the frozen features of a few training images per class."""

    probe: Fewshot

    def check_models(self) -> None:
        """Raise ``UserError`` unless the models have features."""
        for model in self.models:
            if not isinstance(model.model, Featured):
                raise UserError(
                    f"{model.name} does not say what its head reads, so nothing can be fitted to it."
                )

    def make_spec(self) -> RunSpec:
        """Return the run specification for the test images; it also selects the training images.

        Raises:
            UserError: there are no labels, or a class has too few training images.
        """
        spec, split = super().make_spec(), self.options.split
        self._strengths: dict[str, dict[Cases, float]] = {}
        self._shots = choose_shots(
            _training_images(self.data, spec, split=split),
            counts=[int(count) for count in self.probe.shots],
            draws=self.probe.draws,
            seed=self.options.seed,
            data=self.data,
        )
        # The classes are learned here: those of the model do not matter.
        severities = tuple(float(count) for count in self.probe.shots)
        return dataclasses.replace(spec, severities=severities, labeled=True)

    def make_request(self) -> dict[str, Any]:
        """Return everything that the numbers depend on, including the choice of strengths."""
        return super().make_request() | {"held_out_per_class": self._held_out, "l2_strengths": _L2}

    def run(
        self,
        spec: RunSpec,
        model: Checkpoint,
        *,
        parts: Path | None = None,
        progress: Advance | None = None,
    ) -> tuple[SumsStore, list[str]]:
        """Return the sums of the judged images; the chosen strengths are kept."""
        table, skipped, self._strengths[model.name] = judge(
            spec, model, shots=self._shots, parts=parts, progress=progress
        )
        return table, skipped

    @property
    def more_images(self) -> int:
        """The training images."""
        return len(self._shots.indices)

    def plan(self) -> Plan:
        """Return what the features would take; the regressions are not in it."""
        plan = time_sample(self.spec, self.models, images=self.sample_images, passes=1, run=_features)
        images = plan.images + self.more_images
        return dataclasses.replace(plan, images=images, seconds=plan.seconds * images / plan.images)

    def finish(self, result: Result, folder: OutputFolder | None) -> Result:
        """Record which strengths were chosen, and by what."""
        held_out = self._held_out
        on = (
            f"{held_out} training images of each class that are in no draw"
            if held_out
            else "each shot left out in turn"
        )
        result.sidecar.update(
            severity_unit="training images per class",
            training_images=self.more_images,
            l2_chosen_by=_RULE.format(on=on),
            l2_chosen={
                name: {
                    count: [strengths[count, draw] for draw in range(1, self.probe.draws + 1)]
                    for count in self._shots.counts
                }
                for name, strengths in self._strengths.items()
            },
        )
        return result

    def data_warnings(self) -> dict[str, str]:
        """Return nothing: few-shot classifiers are for data that the model has not seen."""
        return {}

    @property
    def _held_out(self) -> int:
        return int(self._shots.held_out.shape[1])


def _features(spec: RunSpec, model: Checkpoint) -> tuple[SumsStore, list[str]]:
    return loop.run(spec, model, run_block=features_block)


def _training_images(data: str, spec: RunSpec, *, split: str) -> Dataset:
    """Return the training images.

    Raises:
        UserError: there are none, or they or the images that are judged have no labels or not the same classes.
    """
    judged = spec.dataset
    try:
        train = open_data(data, split="train")
    except UserError as error:
        raise UserError(f"The shots are drawn from the split train of {data}: {error}") from error
    for name, dataset in ((split, judged), ("train", train)):
        if dataset.class_names is None:
            raise UserError(f"{data} {name} has no labels, so there are no classes to tell apart.")
    if not (judged.labels()[list(spec.indices)] >= 0).any():
        raise UserError(f"None of the images of {data} {split} has a label, so there is nothing to judge.")
    if judged.class_names != train.class_names:
        raise UserError(
            f"{data} {split} has other classes than {data} train, where the shots are drawn from."
        )
    return train
