"""The work of a probe that measures images one by one: sums per image, then tables, files and figures.

An image is run as its views, or in several variants of the model or of the run, each of which is a view in tables.
"""

import dataclasses
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pandas as pd
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import Probe
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.inputs.modality import Modality
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.judging.summarize import Combine, summarize
from moeprobe.probes.engine import floors, loop, origins
from moeprobe.probes.engine.batch_sums import load_batches, readable_batches, to_host
from moeprobe.probes.engine.checks import make_spec
from moeprobe.probes.engine.leading import leading_sentences
from moeprobe.probes.engine.models import is_emulated_run
from moeprobe.probes.engine.run import Plan, ProbeWork, TableWork, time_sample
from moeprobe.probes.engine.run_spec import RunSpec, make_request
from moeprobe.probes.engine.shard import BlockSizes, Shard, image_ranges, shard_note
from moeprobe.probes.engine.units import units_of_dataset
from moeprobe.results import caveats, summaries, tables
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.palette import colors
from moeprobe.results.sidecars import choose_names
from moeprobe.results.stored import SumsStore, concat
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.runtime.device import FLOAT32, choose_device, full_float32
from moeprobe.runtime.progress import Advance, Progress
from moeprobe.runtime.spread import current_group

M = TypeVar("M", bound=Result)


class Measurement(TableWork[M], ProbeWork[M]):
    """A loop over images for each checkpoint; override ``run`` for other work, ``finish`` to write more.

    Args:
        probe: the probe with its parameters.
        models: checkpoints, loaded.
        data: data set; None = the one that they were trained on.
        options: what all probes have in common.

    Attributes:
        in_place: whether patches are compared at their places, whatever the view of the run.

    Raises:
        UserError: something does not exist or does not fit.
    """

    in_place: ClassVar[bool] = False

    def __init__(
        self, probe: Probe[Any], models: Sequence[Checkpoint], data: str | None, options: Options
    ) -> None:
        self.probe, self.models, self.options = probe, models, options
        self.check_models()
        self._names = choose_names(options.names, [model.name for model in models])
        self.data = origins.choose_data(data, models, files=getattr(probe, "files", ()))
        self.spec = self.make_spec()
        self._floor_refusals: dict[str, str] = {}
        # A model that refuses the other number format has no such floor; the sidecar says why.
        if self.spec.floor_images:
            self._floor_refusals = floors.refusals(self.models, choose_device(options.device))
            self.spec = dataclasses.replace(self.spec, no_other_dtype=frozenset(self._floor_refusals))
        self.units = units_of_dataset(options.unit, self.spec.dataset, self.spec.indices)
        self.request = self.make_request() | ({} if self.units is None else self.units.request())
        # What the sidecar says of shards that were put together.
        self._measured: dict[str, Any] = {}

    @classmethod
    def learn(cls, probe: Probe[Any], model: Checkpoint, options: Options) -> None:
        """Make the passes over a blank input that the checks of a run need, while the model is in memory."""
        super().learn(probe, model, options)
        if probe.noise_floor and options.floor_images:
            floors.refusals([model], choose_device(options.device))

    def check_models(self) -> None:
        """Raise ``UserError`` where a model cannot be measured so, before any data are opened."""

    def make_spec(self) -> RunSpec:
        """Return the specification of the run, the same for every checkpoint."""
        return make_spec(self.probe, self.models, data=self.data, options=self.options)

    def make_request(self) -> dict[str, Any]:
        """Return everything that the numbers depend on."""
        request = make_request(self.probe, self.spec, self.models, data=self.data, options=self.options)
        return request | ({"aligned": True} if self.in_place else {})

    def run(
        self,
        spec: RunSpec,
        model: Checkpoint,
        *,
        parts: Path | None = None,
        progress: Advance | None = None,
    ) -> tuple[SumsStore, list[str]]:
        """Return one checkpoint's sums per image, and the images that were skipped."""
        return loop.run(
            spec,
            model,
            parts=parts,
            progress=progress,
            run_block=self.run_block(spec, model),
            sizes=self.block_sizes(model),
        )

    def run_block(self, spec: RunSpec, model: Checkpoint) -> loop.RunBlock | None:
        """Return the function that processes a block of images; None = trace and compare its views."""
        return None

    def finish(self, result: Result, folder: OutputFolder | None) -> M:
        """Return what the caller receives, with more in its sidecar or more files in the folder."""
        return result  # type: ignore[return-value]

    def combine(self) -> Combine | None:
        """Return the function that derives values, such as means, from a layer's values; None = there are none."""
        return None

    def more_sums(self, watcher: Progress) -> list[SumsStore]:
        """Return sums per image that take what several models did; all have read the images."""
        return []

    def notes(self) -> list[str]:
        """Return sentences on missing measurements."""
        return list(self._floor_refusals.values())

    def more_rows(self, sums: SumsStore, info: summaries.About) -> list[dict[str, Any]]:
        """Return lines of the table that follow from several cells together."""
        return []

    def block_sizes(self, model: Checkpoint) -> BlockSizes:
        """Return where the images of a checkpoint are cut; shards cut no batch."""
        return loop.block_sizes(self.spec, model)

    @property
    def severity_unit(self) -> str | None:
        """What a severity of 1 is; None where nothing has one."""
        view = self.spec.view
        return view.unit if isinstance(view, SeverityView) else None

    @property
    def is_aligned(self) -> bool:
        """Whether the views leave the patches where they are."""
        return self.in_place or self.spec.aligned

    @property
    def passes(self) -> int:
        """Forward passes per image."""
        return self.spec.num_passes

    @property
    def sample_images(self) -> int:
        """Enough images to estimate the time of a run and to know its metrics."""
        return 2 * self.options.batch_size

    @property
    def more_images(self) -> int:
        """Images that ``run`` needs in addition to the images of ``spec``."""
        return 0

    def plan(self) -> Plan:
        """Return an estimate of the cost, from two batches of each checkpoint."""
        plan = time_sample(
            self.spec, self.models, images=self.sample_images, passes=self.passes, run=self.run
        )
        # The sample is timed for the images of the whole run, of which a shard measures a part.
        return plan.scale_to(self.num_images)

    def sample(self, images: int) -> SumsStore:
        """Return the sums of a few images of every checkpoint: enough to know which metrics there will be."""
        indices = self.spec.indices[: min(images, self.sample_images)]
        # A sample must not fail on one bad file: the run itself decides whether to skip it.
        subset = dataclasses.replace(self.spec, indices=indices, skip_bad_images=True)
        return concat(self.run(subset, model)[0] for model in self.models)

    def compute(self, folder: OutputFolder | None, progress: Progress) -> M:
        """Run every checkpoint over the images and put the tables together; only part files are written."""
        spec, options = self.spec, self.options
        parts_of, skipped, rates = self._run_models(None if folder is None else folder.parts, progress)
        # Merged before summarizing, since differences between checkpoints are paired by image.
        sums = concat([*parts_of, *self.more_sums(progress)])
        if sums.num_rows == 0:
            raise self._nothing_measured_error(skipped)
        info = self.run_info(
            aligned=self.is_aligned,
            train_seeds={model.name: model.train_seed for model in self.models},
            groups={model.name: model.group for model in self.models},
        )
        table, comparison = summarize(sums, analyses=spec.analyses, run_info=info, combine=self.combine())
        table = tables.with_rows(table, self.more_rows(sums, info))
        warnings = self._warnings(table, sums)
        group = current_group()
        sidecar = self.make_sidecar(
            severity_unit=self.severity_unit,
            floor_dtype=floors.dtype_name(choose_device(options.device), options.precision)
            if spec.floor_images
            else None,
            checkpoints={
                model.name: dict(model.provenance) | warnings.get(model.name, {}) for model in self.models
            },
            colors=colors([model.name for model in self.models]),
            skipped_images=skipped[0],
            wall_seconds=self.seconds,
            batch_size=options.batch_size,
            workers=self.spec.workers,
            device=str(choose_device(options.device)),
            **({"emulated": options.precision} if is_emulated_run(options) else {}),
            **({"parallel": group.facts()} if group is not None else {}),
            **({"images_per_second": rates} | self._measured | self._names),
            **({"notes": notes} if (notes := self.notes()) else {}),
        )
        leading = partial(leading_sentences, layout=self.probe.layout)
        return Result(table, comparison, sums, sidecar, self.probe.draw, leading)  # type: ignore[return-value]

    def _run_models(
        self, parts: Path | None, watcher: Progress
    ) -> tuple[list[SumsStore], list[list[str]], dict[str, float]]:
        """Return the sums per image of every checkpoint, the images that were skipped, and images per second."""
        spec, options = self.spec, self.options
        measured, skipped, rates = list[SumsStore](), list[list[str]](), {}
        num_images = self.num_images + self.more_images
        for model in self.models:
            watcher.start(f"{self.probe.kind}: {model.name}", num_images)
            if self.probe.timed and not spec.shards:
                # Without what the first pass of all alone must do.
                first = dataclasses.replace(spec, indices=spec.indices[:1], shard=None)
                self.run(dataclasses.replace(first, skip_bad_images=True), model)
            begun = time.perf_counter()
            sums, unreadable = self.run(spec, model, parts=parts, progress=watcher.advance)
            rates[model.name] = num_images / (time.perf_counter() - begun)
            # A shard has no floor: it is measured when all are put together.
            if options.precision != FLOAT32 and spec.shard is None and not spec.shards:
                self.precision_floor(model)  # now, while the model is in memory
            measured.append(sums)
            skipped.append(unreadable)
        return measured, skipped, rates

    @property
    def num_images(self) -> int:
        """Images of the run, or of the shard that was taken, of the checkpoint that has most."""
        count = len(self.spec.indices)
        if self.spec.shard is None:
            return count
        return max(
            sum(
                span.stop - span.start
                for span in image_ranges(count, self.block_sizes(model), self.spec.shard)
            )
            for model in self.models
        )

    def set_shard(self, shard: Shard) -> None:
        """Measure no more than a shard of the images."""
        self.spec = dataclasses.replace(self.spec, shard=shard)

    @full_float32()
    def measure_parts(self, parts: Path, watcher: Progress) -> dict[str, Any]:
        """Write the part files of the images of the shard; returns the skipped images, and the speed."""
        started = time.perf_counter()
        _, skipped, rates = self._run_models(parts, watcher)
        return {
            "images": self.num_images,
            "images_of_run": len(self.spec.indices),
            "skipped_images": skipped[0],
            "images_per_second": rates,
            "wall_seconds": time.perf_counter() - started,
            "device": str(choose_device(self.options.device)),
        }

    def use_shard_parts(self, shards: Mapping[Path, Mapping[str, Any]]) -> None:
        """Put the parts of shards together, in place of running the images."""
        self.spec = dataclasses.replace(self.spec, shard=None, shards=tuple(shards))
        shard_notes = [shard_note(sidecar) for sidecar in shards.values()]
        # Rates are means over single processes: nobody knows how many shards ran at the same time.
        rates = {
            name: float(
                np.mean(
                    # A shard may hold no image, and then has no rate.
                    [sidecar["images_per_second"][name] for sidecar in shards.values() if sidecar["images"]]
                )
            )
            for name in (model.name for model in self.models)
        }
        self._measured = {"images_per_second": rates, "shards": shard_notes}

    def _nothing_measured_error(self, skipped: Sequence[list[str]]) -> UserError:
        """Return why no number could be computed."""
        count = len(self.spec.indices)
        if all(len(unreadable) == count for unreadable in skipped):
            return UserError(f"None of the {count} images of {self.data} could be read.")
        names = ", ".join(model.name for model in self.models)
        return UserError(
            f"Nothing that {self.probe.name} measures applies to the routers of {names}; match-ratio and sweep "
            "measure any."
        )

    def _warnings(self, table: pd.DataFrame, sums: SumsStore) -> dict[str, dict[str, str]]:
        """Return a warning for each checkpoint whose data are in doubt, or that is no better than chance."""
        texts = self.data_warnings()
        spec = self.spec
        names = spec.dataset.class_names
        if spec.labeled and names is not None and "accuracy" in set(table["metric"]):
            # Chance accuracy is judged on clean images: perturbed ones may be at chance rightly.
            clean = spec.view.severities[0] if isinstance(spec.view, SeverityView) else None
            for name, text in caveats.warnings(table, sums, num_classes=len(names), clean=clean).items():
                texts[name] = f"{texts[name]} It {text}" if name in texts else text
        return {name: {"warning": text} for name, text in texts.items()}

    def data_warnings(self) -> dict[str, str]:
        """Return warnings about checkpoints on these data, by their names."""
        return origins.doubts(self.models, self.spec.dataset, self.data, split=self.options.split)


Sums = dict[Cell, dict[str, Tensor]]
# From a batch to its sums by the name of the variant.
BatchSums = Callable[[Batch | TextBatch], Mapping[str, Sums]]


class VariantsMeasurement(Measurement[Result]):
    """The work of a probe that runs each batch in several variants.

    Attributes:
        masks: whether it reads which pixels show the foreground.
    """

    in_place = True
    masks: ClassVar[bool] = False

    @abstractmethod
    def batch_sums(self, spec: RunSpec, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch, by the name of the variant."""

    def run_block(self, spec: RunSpec, model: Checkpoint) -> loop.RunBlock:
        """Return what runs each batch of a block in all variants."""
        return partial(
            _run_block, sums=self.batch_sums(spec, model), masks=self.masks, loaded_view=self.loaded_view
        )

    def loaded_view(self, view: PairView | SeverityView | None) -> PairView | SeverityView | None:
        """Return the view that batches are loaded with, such as an ``ExtendedView`` of the run's."""
        return view


def _run_block(
    spec: RunSpec,
    checkpoint: Checkpoint,
    block: Sequence[int],
    progress: Advance | None,
    *,
    sums: BatchSums,
    masks: bool,
    loaded_view: Callable[[Any], Any],
) -> tuple[Accumulator, list[str]]:
    """Return the sums per input of some inputs."""
    accumulator, skipped = Accumulator(), list[str]()
    loaded = dataclasses.replace(spec, view=loaded_view(spec.view))
    for batch in readable_batches(load_batches(loaded, checkpoint, block, masks=masks), skipped, progress):
        labels = {"label": batch.labels.numpy()}
        for view, sums_by_cell in sums(batch).items():
            for cell, columns in sums_by_cell.items():
                arrays = {name: to_host(column) for name, column in columns.items()}
                accumulator.add(dataclasses.replace(cell, view=view), batch.image_ids, labels | arrays)
    return accumulator, skipped


@dataclasses.dataclass(frozen=True)
class ExtendedView(SeverityView[Any, Any, Any]):
    """A view with further inputs behind its own; its own are the same as without them."""

    view: SeverityView[Any, Any, Any]

    @property
    def severities(self) -> tuple[float, ...]:  # type: ignore[override]
        """The steps of the view."""
        return self.view.severities

    @property
    def modality(self) -> Modality:  # type: ignore[override]
        """What it perturbs."""
        return self.view.modality
