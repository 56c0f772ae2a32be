"""The work of ``corruptions``: each batch clean, then under one corruption after the other; then means over them.

One clean pass is compared with all of them. Pixels of all corruptions at once would take 100 times a batch's memory.
A mean is of the same images everywhere, and its resamples are theirs, so that intervals are paired over images.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import CLEAN
from moeprobe.errors import UserError, option
from moeprobe.inputs.corruptions import FAMILIES, MEAN, MEAN_OF_ANY, STANDARD
from moeprobe.inputs.views.corruption import Corruption
from moeprobe.judging.summarize import Combine
from moeprobe.metrics.analyses.output import ACCURACY
from moeprobe.metrics.base import OutputAnalysis
from moeprobe.metrics.corruption_error import CORRUPTION_ERROR
from moeprobe.metrics.declaration import NumberName
from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.bootstrap import MIN_IMAGES, Replicates, average, with_crossed
from moeprobe.metrics.stats.statistic import Array
from moeprobe.metrics.stats.training_pairs import FEWEST
from moeprobe.probes.corruptions import Corruptions
from moeprobe.probes.engine.batch_sums import ForwardResult, load_all_views
from moeprobe.probes.engine.loop import RunBlock, run_batch
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.engine.shard import BlockSizes
from moeprobe.results.folder import Result
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.values import CellValues
from moeprobe.runtime.progress import Advance

# An interrupted run loses no more than these.
_BLOCK_IMAGES = 256
_EVERY = float("nan")
_ACCURACY, _ERROR = NumberName(ACCURACY.name, ""), NumberName(CORRUPTION_ERROR.name, "")
# View and severity.
At = tuple[str, float]


class CorruptionsMeasurement(Measurement[Result]):
    """A sweep for each corruption, all with one clean pass."""

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
        """Return the runs over each batch, in order: the output for clean images, then a sweep per corruption."""
        output = tuple(analysis for analysis in spec.analyses if isinstance(analysis, OutputAnalysis))
        clean = dataclasses.replace(spec, view_name=CLEAN, severities=(0.0,), analyses=output)
        swept = [
            dataclasses.replace(
                spec, view_name=name, view=Corruption(kind=kind, moves=moves), draws=self.probe.view
            )
            for name, kind, moves in self.probe.variants
        ]
        return [clean, *swept]

    def run_block(self, spec: RunSpec, model: Checkpoint) -> RunBlock:
        """Return what runs each batch of a block under all corruptions."""
        return partial(_run_block, specs=self.specs(spec))

    def block_sizes(self, model: Checkpoint) -> BlockSizes:
        """Return where the images are cut: blocks are smaller, since an image takes a hundred passes."""
        group = model.model.group_images
        return BlockSizes.of_groups(group, block=_BLOCK_IMAGES, batch=self.spec.batch_size)

    @property
    def passes(self) -> int:
        """Forward passes per image."""
        return 1 + len(self.probe.variants) * len(self.probe.severities)

    @property
    def more_images(self) -> int:
        """Images of all sweeps; the first time they are clean."""
        return self.num_images * len(self.probe.variants)

    def combine(self) -> Combine:
        """Return the function that takes the means."""
        means = means_of([name for name, *_ in self.probe.variants], self.probe.severities)
        return partial(mean_values, means=means, baseline=self.probe.baseline)


def _run_block(
    spec: RunSpec,
    checkpoint: Checkpoint,
    block: Sequence[int],
    progress: Advance | None,
    *,
    specs: Sequence[RunSpec],
) -> tuple[Accumulator, list[str]]:
    """Return the sums per image of some images, and the names of those that could not be read."""
    accumulator, skipped = Accumulator(), list[str]()
    of_output = bool(specs[0].analyses)
    layers = spec.layers_of(checkpoint.model)
    # The clean passes of a batch, by its images: a group that lost an image makes several batches of one.
    references: dict[tuple[str, ...], ForwardResult] = {}
    previous = 0
    for number, batch in load_all_views(specs, checkpoint, block, masks=True):
        if number == 0:
            if previous != 0:
                references.clear()
            skipped += batch.skipped
        previous = number
        if batch.image_ids:
            names = tuple(batch.image_ids)
            if number == 0:
                references[names] = checkpoint.model.trace(batch.views[0], layers=layers, logits=of_output)
            if number > 0 or of_output:
                run_batch(specs[number], checkpoint, batch, accumulator, reference=references[names])
        if progress is not None:
            progress(len(batch.image_ids) + len(batch.skipped))
    return accumulator, skipped


@dataclass(frozen=True)
class Mean:
    """A mean: its view and severity in tables (NaN = over all severities), and what it is of."""

    view: str
    severity: float
    parts: tuple[At, ...]


def means_of(views: Sequence[str], severities: Sequence[float]) -> list[Mean]:
    """Return the means of a run over these views (corruptions and controls).

    Of a corruption over severities; of each family and of all standard corruptions, at each severity and over all. A
    run of none of the standard ones has means over those that it has. With three or more of them there is a mean over
    corruptions as a sample, too.
    """
    standard = [view for view in views if view in STANDARD] or list(views)
    groups = {view: [view] for view in views}
    families = {family: [view for view in standard if view in names] for family, names in FAMILIES.items()}
    together = {family: members for family, members in families.items() if members} | {MEAN: standard}
    at_each = [
        Mean(name, severity, tuple((view, severity) for view in members))
        for name, members in together.items()
        for severity in severities
    ]
    over_all = [
        Mean(name, _EVERY, tuple(itertools.product(members, severities)))
        for name, members in (groups | together).items()
    ]
    if len(standard) >= FEWEST:
        over_all.append(Mean(MEAN_OF_ANY, _EVERY, tuple(itertools.product(standard, severities))))
    return [*at_each, *over_all]


def mean_values(
    valued: Sequence[Sequence[CellValues]], *, means: Sequence[Mean], baseline: str | None
) -> Iterable[list[CellValues]]:
    """Yield the values of each mean, one of each checkpoint.

    Args:
        valued: of each view and severity of one layer and kind of tokens, one of each checkpoint.
        means: the means to take.
        baseline: the checkpoint whose errors divide the others' errors; None = nothing is divided.

    Raises:
        UserError: not all values are of the same images.
    """
    values_of: dict[str, dict[At, CellValues]] = {}
    for values in itertools.chain.from_iterable(valued):
        values_of.setdefault(values.checkpoint, {})[values.cell.view, values.cell.severity] = values
    divided = _errors(values_of.get(baseline, {})) if baseline is not None else {}
    for mean in means:
        of_checkpoints = []
        for by_view in values_of.values():
            members = [by_view[at] for at in mean.parts if at in by_view]
            if len(members) == len(mean.parts):
                of_checkpoints.append(_mean(mean, members, _errors(by_view), divided))
        if of_checkpoints:
            yield of_checkpoints


def _errors(values: Mapping[At, CellValues]) -> dict[At, Replicates]:
    """Return 1 minus the accuracy at each view and severity; empty for a layer."""
    return {
        at: cell.numbers[_ACCURACY].complement() for at, cell in values.items() if _ACCURACY in cell.numbers
    }


def _mean(
    mean: Mean,
    members: Sequence[CellValues],
    errors: Mapping[At, Replicates],
    divided: Mapping[At, Replicates],
) -> CellValues:
    """Return the mean of values of one checkpoint."""
    first = members[0]
    if any(member.image_ids != first.image_ids for member in members):
        raise UserError(
            f"{first.checkpoint} was probed on different images under {first.cell.view} and another corruption, so no "
            "mean is paired; leave out the images that cannot be read."
        )
    shared = reduce(
        lambda names, member: [name for name in names if name in member.numbers], members, [*first.numbers]
    )
    numbers = {
        name: average([member.numbers[name] for member in members]) for name in shared if name.expert is None
    }
    if mean.view == MEAN_OF_ANY:
        by_view = [
            list(group) for _, group in itertools.groupby(members, key=lambda member: member.cell.view)
        ]
        crossed = {name: _values_of_images(number, by_view, name) for name, number in numbers.items()}
        numbers = {
            name: _inside(name, with_crossed(numbers[name], values))
            for name, values in crossed.items()
            if values is not None
        }
    elif divided and mean.severity != mean.severity:
        ratios = [
            average([errors[at] for at in parts]).over(average([divided[at] for at in parts]))
            for _, group in itertools.groupby(mean.parts, key=lambda at: at[0])
            for parts in [list(group)]
        ]
        numbers[_ERROR] = average(ratios)
    return CellValues(
        checkpoint=first.checkpoint,
        cell=Cell(
            layer=first.cell.layer,
            router=first.cell.router,
            top_k=first.cell.top_k,
            view=mean.view,
            severity=mean.severity,
            tokens=first.cell.tokens,
        ),
        image_ids=first.image_ids,
        numbers=numbers,
        influences={},
        not_finite=any(member.not_finite for member in members),
        num_experts=first.num_experts,
        num_units=first.num_units,
    )


def _values_of_images(
    number: Replicates, by_view: Sequence[Sequence[CellValues]], name: NumberName
) -> Array | None:
    """Return what each image adds to a number under each corruption ``(P, n)``, mean over severities.

    None where it has no interval, or where no image or corruption differs from the others.
    """
    if number.images < MIN_IMAGES or number.interval().flag:
        return None
    rows = []
    for members in by_view:
        values = [member.numbers[name] for member in members]
        influences = [
            member.influences.get(name, value.influence)
            for member, value in zip(members, values, strict=True)
        ]
        of_images = [influence for influence in influences if influence is not None]
        if len(of_images) < len(members):
            return None
        # n times its influence is by how much an image itself differs from the value.
        point = np.mean([value.point for value in values])
        rows.append(point + members[0].num_units * np.mean(of_images, axis=0))
    crossed = np.array(rows)
    return None if np.isnan(crossed).any() or np.ptp(crossed) == 0 else crossed


def _inside(name: NumberName, number: Replicates) -> Replicates:
    """Return a number whose interval stays where the number can be: a few corruptions give a wide one."""
    form = find(name.metric)
    if not form.has_margin or number.bounds is None:
        return number
    low, high = number.bounds
    return dataclasses.replace(
        number, bounds=(low if form.kind == "kappa" else max(low, 0.0), min(high, 1.0))
    )
