"""The work of ``discontinuity``: paths of the output, the tables, and the paths that are drawn."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.open import content_of, pick_images
from moeprobe.metrics.analyses.discontinuity import Path as OutputPath
from moeprobe.probes.discontinuity import LARGEST_JUMP, Discontinuity, follow
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.batch_sums import readable_examples
from moeprobe.probes.engine.checks import check_choices
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.engine.shard import BlockSizes
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sidecars import rename_items
from moeprobe.routing.capabilities import check_replayable
from moeprobe.runtime.files import write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
                raise UserError(f"A path is followed image by image: use {option('group_images', 1)}.")
        check_choices(self.models, "there are no switches to find")

    def make_spec(self) -> RunSpec:
        """Return the run specification, in equal steps of the severity."""
        probe, spec = self.probe, super().make_spec()
        dataset, indices, self.data = pick_images(
            spec.dataset, images=probe.images, files=probe.files, data=self.data
        )
        return dataclasses.replace(
            spec,
            dataset=dataset,
            indices=spec.indices if indices is None else indices,
            severities=_severities(spec, until=probe.until, steps=probe.steps),
        )

    def make_request(self) -> dict[str, Any]:
        """Return everything that the numbers depend on, including the named images."""
        image_names = [str(name) for name in (self.probe.files or self.probe.images)]
        return super().make_request() | {
            "images": image_names,
            "steps": self.probe.steps,
            "tolerance": follow.TOLERANCE,
            **content_of(self.probe.files),
        }

    def run_block(self, spec: RunSpec, model: Checkpoint) -> loop.RunBlock:
        """Return the function that follows a block of images."""
        return follow.run_block

    def block_sizes(self, model: Checkpoint) -> BlockSizes:
        """Return small blocks, which shards cut anywhere: each image is followed by itself."""
        return BlockSizes(follow.BLOCK_IMAGES, 1)

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
        spec, models = self.spec, self.models
        selection = ""
        if self.probe.pick == LARGEST_JUMP:
            spec, among = _by_jump(spec, result)
            images = "image" if self.probe.count == 1 else "images"
            selection = (
                f"{images} chosen for {'its' if self.probe.count == 1 else 'their'} jump, among {among:,}"
            )
        examples = list(itertools.islice(readable_examples(spec), self.probe.count))
        followed = [follow.follow(spec, model, example) for model in models for example in examples]
        if folder is not None:
            write_csv(folder.path / "paths.csv", path_table(followed))
            write_csv(folder.path / "switches.csv", switch_table(followed, models, spec))
        fields = {item.name: getattr(result, item.name) for item in dataclasses.fields(result)}
        return DiscontinuityResult(
            **(fields | {"drawing": _drawing(followed, models, selection), "paths": followed})
        )


def _by_jump(spec: RunSpec, result: Result) -> tuple[RunSpec, int]:
    """Return the specification with the images by the largest jump of any checkpoint, and how many there are."""
    largest: dict[str, float] = {}
    images = result.images.select(["image_id", "jump_largest"]).to_pydict()
    for name, jump in zip(images["image_id"], images["jump_largest"], strict=True):
        largest[name] = max(jump, largest.get(name, 0.0))
    names = spec.dataset.image_ids
    measured = [index for index in spec.indices if names[index] in largest]
    ordered = sorted(measured, key=lambda index: -largest[names[index]])
    return dataclasses.replace(spec, indices=tuple(ordered)), len(largest)


def _severities(spec: RunSpec, *, until: float | None, steps: int) -> tuple[float, ...]:
    """Return equal steps from the view's first severity; ``spec`` holds the view's own."""
    first = spec.severities[0]
    last = spec.severities[-1] if until is None else until
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


def switch_table(followed: Sequence[OutputPath], models: Sequence[Checkpoint], spec: RunSpec) -> pd.DataFrame:
    """Return the switches of the drawn paths: a row per moment and MoE layer in which tokens switch."""
    names = {
        model.name: [
            spec.label_of(model.model, layer)
            for layer in spec.layers_of(model.model) or model.model.layer_names
        ]
        for model in models
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
    followed: Sequence[OutputPath], models: Sequence[Checkpoint], selection: str
) -> "Callable[[Result], dict[str, Figure]]":
    """Return what draws a result with these paths; ``selection`` says what they were chosen for, empty = at random."""
    names = {model.name: model.class_names for model in models}

    def draw(result: Result) -> "dict[str, Figure]":
        from moeprobe.probes.discontinuity import figure

        colors, unit = result.sidecar.colors, result.sidecar.severity_unit or ""
        paths = rename_items(followed, result.sidecar)
        # As the paths call them, in which the order is the same.
        class_names = {
            renamed.checkpoint: names[path.checkpoint] for path, renamed in zip(followed, paths, strict=True)
        }
        return figure.draw(
            result.table, paths, colors=colors, unit=unit, class_names=class_names, selection=selection
        )

    return draw
