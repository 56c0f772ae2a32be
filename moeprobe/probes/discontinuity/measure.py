"""The work of ``discontinuity``: paths of the output, the tables, and the paths that are drawn."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example
from moeprobe.inputs.open import pick_images
from moeprobe.metrics.discontinuity import Path as OutputPath
from moeprobe.probes.discontinuity import LARGEST_JUMP, Discontinuity, follow
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.applicability import check_choices
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.question import Question
from moeprobe.probes.engine.shard import Cuts
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.routing.capabilities import check_replayable
from moeprobe.runtime.csv import write_csv


@dataclass(frozen=True)
class DiscontinuityResult(Result):
    """The tables over all images, and the paths of the images that are drawn."""

    paths: list[OutputPath] = field(default_factory=list)

    @property
    def result(self) -> Result:
        """The tables; the result itself has them too."""
        return self

    def __repr__(self) -> str:
        return f"DiscontinuityResult({super().__repr__()}, paths={len(self.paths)})"


class DiscontinuityMeasurement(Measurement[DiscontinuityResult]):
    """The output of each image followed along a severity, with every switch of experts located."""

    probe: Discontinuity

    def check_models(self) -> None:
        """Raise ``UserError`` unless the models replay a routing and choose."""
        for model in self.models:
            check_replayable(model.name, model.model, "its jumps cannot be measured")
            if model.model.group_images > 1:
                raise UserError("A path is followed image by image: use --group-images 1.")
        check_choices(self.models, "there are no switches to find")

    def make_question(self) -> Question:
        """Return what is asked, in equal steps of the severity."""
        probe, question = self.probe, super().make_question()
        dataset, named, self.data = pick_images(
            question.dataset, images=probe.images, files=probe.files, data=self.data
        )
        return dataclasses.replace(
            question,
            dataset=dataset,
            indices=question.indices if named is None else named,
            severities=_severities(question, until=probe.until, steps=probe.steps),
        )

    def make_request(self) -> dict[str, Any]:
        """Return what determines the numbers, with the images that were named."""
        named = [str(name) for name in (self.probe.files or self.probe.images)]
        return super().make_request() | {
            "images": named,
            "steps": self.probe.steps,
            "tolerance": follow.TOLERANCE,
        }

    def run_block(self, question: Question, model: Checkpoint) -> loop.RunBlock:
        """Return what follows a block of images."""
        return follow.run_block

    def cuts(self, model: Checkpoint) -> Cuts:
        """Return small blocks, which shards cut anywhere: each image is followed by itself."""
        return Cuts(follow.BLOCK_IMAGES, 1)

    @property
    def passes(self) -> int:
        """Those of the steps; how many the bisection takes is not known beforehand."""
        return self.probe.steps + 1

    @property
    def sample_images(self) -> int:
        """Two images: each takes hundreds of passes."""
        return 2

    def finish(self, result: Result, folder: OutputFolder | None) -> DiscontinuityResult:
        """Follow the images that are drawn once more, and write their paths and switches."""
        question, models = self.question, self.models
        chosen = ""
        if self.probe.pick == LARGEST_JUMP:
            question, among = _by_jump(question, result)
            images = "image" if self.probe.count == 1 else "images"
            chosen = (
                f"{images} chosen for {'its' if self.probe.count == 1 else 'their'} jump, among {among:,}"
            )
        examples = _readable(question, self.probe.count)
        followed = [follow.follow(question, model, example) for model in models for example in examples]
        if folder is not None:
            write_csv(folder.path / "paths.csv", path_table(followed))
            write_csv(folder.path / "switches.csv", switch_table(followed, models, question))
        fields = {one.name: getattr(result, one.name) for one in dataclasses.fields(result)}
        return DiscontinuityResult(
            **(fields | {"drawing": _drawing(followed, models, chosen), "paths": followed})
        )


def _by_jump(question: Question, result: Result) -> tuple[Question, int]:
    """Return the question with the images in order of the largest jump of any checkpoint, and how many there are."""
    largest: dict[str, float] = {}
    images = result.images.select(["image_id", "jump_largest"]).to_pydict()
    for name, jump in zip(images["image_id"], images["jump_largest"], strict=True):
        largest[name] = max(jump, largest.get(name, 0.0))
    names = question.dataset.image_ids
    measured = [index for index in question.indices if names[index] in largest]
    ordered = sorted(measured, key=lambda index: -largest[names[index]])
    return dataclasses.replace(question, indices=tuple(ordered)), len(largest)


def _readable(question: Question, count: int) -> list[Example]:
    """Return the first ``count`` images, but for those that cannot be read and are to be skipped."""
    examples: list[Example] = []
    for index in question.indices:
        if len(examples) == count:
            break
        try:
            examples.append(question.dataset.example(index))
        except UserError:
            if not question.skip_bad_images:
                raise
    return examples


def _severities(question: Question, *, until: float | None, steps: int) -> tuple[float, ...]:
    """Return equal steps from the view's first severity; ``question`` holds the view's own."""
    first = question.severities[0]
    last = question.severities[-1] if until is None else until
    if not last > first:
        raise UserError(f"The largest severity must be above {first:g}; got {last}.")
    return tuple(float(severity) for severity in np.linspace(first, last, steps + 1))


def path_table(followed: Sequence[OutputPath]) -> pd.DataFrame:
    """Return the drawn paths: a row per image, checkpoint and step."""
    parts = [
        pd.DataFrame(
            {
                "checkpoint": path.checkpoint,
                "image_id": path.image_id,
                "class": path.target,
                "severity": path.severity,
                "probability": path.probability,
            }
        )
        for path in followed
    ]
    return pd.concat(parts, ignore_index=True)


def switch_table(
    followed: Sequence[OutputPath], models: Sequence[Checkpoint], question: Question
) -> pd.DataFrame:
    """Return the switches of the drawn paths: a row per moment and MoE layer in which tokens switch."""
    names = {
        one.name: [
            question.label_of(one.model, layer)
            for layer in question.layers_of(one.model) or one.model.layer_names
        ]
        for one in models
    }
    rows = [
        {
            "checkpoint": path.checkpoint,
            "image_id": path.image_id,
            "severity": path.switch[moment],
            "jump": path.jump[moment],
            "layer": names[path.checkpoint][layer],
            "tokens": path.tokens[moment, layer],
        }
        for path in followed
        for moment, layer in np.argwhere(path.tokens > 0)
    ]
    return pd.DataFrame(rows, columns=["checkpoint", "image_id", "severity", "jump", "layer", "tokens"])


def _drawing(
    followed: Sequence[OutputPath], models: Sequence[Checkpoint], chosen: str
) -> Callable[[Result], dict[str, Figure]]:
    """Return what draws a result with these paths; ``chosen`` says for what they were, empty = at random."""
    names = {model.name: model.class_names for model in models}

    def draw(result: Result) -> dict[str, Figure]:
        from moeprobe.probes.discontinuity import figure

        colors, unit = result.sidecar["colours"], result.sidecar["severity_unit"]
        return figure.draw(result.table, followed, colors=colors, unit=unit, class_names=names, chosen=chosen)

    return draw
