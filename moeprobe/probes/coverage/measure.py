"""The work of ``coverage``: one pass over each input, in which the tokens of each expert are counted.

Axes: B inputs, T tokens, E experts.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import CLEAN
from moeprobe.declarations.options import Options
from moeprobe.errors import FinishedError, UserError, option
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.inputs.data.readers.joined import Joined
from moeprobe.metrics.analyses.expert_coverage import ExpertCoverage, ExpertTokens
from moeprobe.probes.coverage import Coverage
from moeprobe.probes.coverage.uses import Uses, check_chooses, check_subset_file, lines_of, write_subsets
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.batch_sums import load_batches, readable_batches, to_host
from moeprobe.probes.engine.blank_passes import routing_of_blank_input
from moeprobe.probes.engine.checks import make_spec
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run_spec import RunSpec, chosen_layers
from moeprobe.results import summaries
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.stored import SumsStore, of_file
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.routing import finite
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.progress import Advance, Progress
from moeprobe.runtime.run_files import IMAGES


class CoverageMeasurement(Measurement[Result]):
    """Inputs that are added up until every expert has enough tokens.

    With several data sets, sums have the name of the data set in place of the view's, so that each has cells of its
    own.
    """

    probe: Coverage
    in_place = True

    def __init__(
        self, probe: Coverage, models: Sequence[Checkpoint], data: str | None, options: Options
    ) -> None:
        check_subset_file(probe.write, overwrite=options.overwrite)
        super().__init__(probe, models, data, options)
        self._lacking: dict[str, str] = {}
        self._subsets: dict[tuple[str, str], list[int]] = {}

    def check_models(self) -> None:
        """Raise ``UserError`` where tokens do not choose, or layers have other tokens than others."""
        for model in self.models:
            names = chosen_layers(model.model.layer_names, self.options.layers)
            layers = dict(zip(names, routing_of_blank_input(model, self.options.layers), strict=True))
            for name, layer in layers.items():
                check_chooses(
                    name,
                    model.name,
                    tokens_choose=layer.tokens_choose,
                    top_k=layer.top_k,
                    num_experts=layer.num_experts,
                )
            counts = {name: int(_is_ordinary(layer).sum()) for name, layer in layers.items()}
            if len(set(counts.values())) > 1:
                words = ", ".join(f"{name} {count:,}" for name, count in counts.items())
                raise UserError(
                    f"The layers of {model.name} have different numbers of tokens for one input ({words}); choose "
                    f"some with the same number by {option('layers')}."
                )
            if self.probe.other_data and self.options.unit is not None:
                raise UserError(
                    f"{option('unit')} is of one data set; leave it or {option('other_data')} out."
                )
            if self.probe.other_data and model.model.group_images > 1:
                raise UserError(
                    f"{model.name} routes several inputs together, which several data sets would mix; leave "
                    f"{option('other_data')} out."
                )

    def make_spec(self) -> RunSpec:
        """Return the specification of the run over all data sets, one after the other."""
        spec = super().make_spec()
        if not self.probe.other_data:
            return spec
        specs = {self.data: spec} | {
            name: make_spec(self.probe, self.models, data=name, options=self.options)
            for name in self.probe.other_data
        }
        joined = Joined({name: of_one.dataset for name, of_one in specs.items()})
        indices = [
            start + index
            for start, of_one in zip(joined.starts(), specs.values(), strict=True)
            for index in of_one.indices
        ]
        spec = dataclasses.replace(spec, dataset=joined, indices=indices, labeled=False)
        return spec.with_workers(self.models, self.options)

    def make_request(self) -> dict[str, Any]:
        """Return everything that the numbers depend on, with all data sets as the data."""
        return super().make_request() | {"data": ", ".join([self.data, *self.probe.other_data])}

    def execute(self, progress: Progress) -> Result:
        """Do the work; of a finished run, the subset is still written if it is asked for."""
        try:
            return super().execute(progress)
        except FinishedError as error:
            self._write_subset(of_file(error.folder / IMAGES))
            raise

    def run_block(self, spec: RunSpec, model: Checkpoint) -> loop.RunBlock:
        """Return what counts the tokens of the experts in a block of inputs."""
        return _run_block

    def more_rows(self, sums: SumsStore, info: summaries.About) -> list[dict[str, Any]]:
        """Return the lines on all layers together, of each model and data set."""
        of_sources = self._uses(sums)
        need = self.probe.need
        # Compared with as many tokens each: with all of the smallest data set.
        least = min(uses.num_tokens for uses in of_sources.values())
        rows: list[dict[str, Any]] = []
        for (checkpoint, view), uses in of_sources.items():
            subset = self._subsets[checkpoint, view] = uses.subset(need)
            rows += lines_of(uses, subset, need=need, least=least, checkpoint=checkpoint, info=info)
            if lacking := uses.lacking(need):
                name = checkpoint if view == CLEAN else f"{checkpoint}, {view}"
                self._lacking[name] = lacking
        return rows

    def notes(self) -> list[str]:
        """Return sentences that list the experts with too few tokens."""
        lacking = [f"what {name} needs, where {experts}" for name, experts in self._lacking.items()]
        return [*super().notes(), *lacking]

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Count, and put the tables together; data sets are named in their own column."""
        result = super().compute(folder, progress)
        if not self.probe.other_data:
            return result
        table = result.table.assign(dataset=result.table["view"], view=CLEAN)
        return dataclasses.replace(result, table=table)

    def finish(self, result: Result, folder: OutputFolder | None) -> Result:
        """Write the subset, if it is asked for."""
        self._write_subset(result.sums)
        return super().finish(result, folder)

    def _uses(self, sums: SumsStore) -> dict[tuple[str, str], Uses]:
        """Return what inputs bring, by checkpoint and view."""
        cells: dict[tuple[str, str], list[Any]] = {}
        for stored in sums:
            cells.setdefault((stored.checkpoint, stored.cell.view), []).append(stored)
        return {source: Uses.of_cells(of_one) for source, of_one in cells.items()}

    def _write_subset(self, sums: SumsStore) -> None:
        if self.probe.write is None:
            return
        subsets = []
        for (checkpoint, view), uses in self._uses(sums).items():
            # Of a finished run none is known yet.
            subset = self._subsets.get((checkpoint, view)) or uses.subset(self.probe.need)
            data = self.data if view == CLEAN else view
            subsets.append(({"checkpoint": checkpoint, "data": data}, uses, subset))
        write_subsets(self.probe.write, subsets)


def _run_block(
    spec: RunSpec, checkpoint: Checkpoint, block: Sequence[int], progress: Advance | None
) -> tuple[Accumulator, list[str]]:
    """Return the sums of some inputs."""
    accumulator, skipped, model = Accumulator(), list[str](), checkpoint.model
    for batch in readable_batches(load_batches(spec, checkpoint, block, masks=False), skipped, progress):
        routing = model.trace(batch.views[0], layers=spec.layers_of(model), logits=False)[1]
        finite.check(routing.layers, None, batch.image_ids, checkpoint=checkpoint.name)
        for name, layer in routing.layers.items():
            sums = ExpertCoverage().sums(tokens_of_experts(layer))
            columns = {column: to_host(values) for column, values in sums.items()}
            cell = Cell(
                spec.label_of(model, name), layer.router, layer.choices_per_token, tokens=layer.modality.token
            )
            for view, rows, names in _by_source(spec, batch):
                labels = batch.labels.numpy()[rows]
                of_rows: Mapping[str, NDArray[Any]] = {key: values[rows] for key, values in columns.items()}
                accumulator.add(dataclasses.replace(cell, view=view), names, {"label": labels, **of_rows})
    return accumulator, skipped


def _by_source(spec: RunSpec, batch: Batch | TextBatch) -> list[tuple[str, NDArray[np.int64], list[str]]]:
    """Return for each data set in a batch what its view is called, its rows, and the names of its inputs there."""
    if not isinstance(spec.dataset, Joined):
        return [(CLEAN, np.arange(len(batch.image_ids)), list(batch.image_ids))]
    sources = [spec.dataset.source_of[name] for name in batch.image_ids]
    return [
        (
            data,
            np.array([row for row, source in enumerate(sources) if source[0] == data]),
            [name for of_one, name in sources if of_one == data],
        )
        for data in dict.fromkeys(data for data, _ in sources)
    ]


def tokens_of_experts(layer: LayerRouting) -> ExpertTokens:
    """Return how many ordinary tokens of each input there are, and how many each expert processes.

    What an expert has no capacity for does not reach it.
    """
    is_ordinary = _is_ordinary(layer)
    reaches = layer.processed_mask[:, layer.num_prefix_tokens :] & is_ordinary[..., None]
    return ExpertTokens(is_ordinary.sum(1), reaches.sum(1, dtype=torch.int32))


def _is_ordinary(layer: LayerRouting) -> torch.Tensor:
    """Return which tokens after the prefix ``(B, T)`` are there."""
    return layer.valid[:, layer.num_prefix_tokens :]
