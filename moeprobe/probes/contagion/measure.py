"""The work of ``contagion``: the exchanged part and its partners."""

import dataclasses
from functools import cached_property, partial
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.metrics import contagion
from moeprobe.metrics.analyses.batch_contagion import BatchContagion
from moeprobe.probes.contagion import Contagion, exchange
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.checks import check_images
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.engine.shard import BlockSizes
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.routing.capabilities import Routable


class ContagionMeasurement(Measurement[Result]):
    """Passes in which the context of tokens is exchanged with another group of images."""

    probe: Contagion

    def check_models(self) -> None:
        """Raise ``UserError`` unless the models have patches, and groups of the run's size."""
        size = self.options.group_images
        check_images(self.models, "there is nothing to exchange")
        for model in self.models:
            if model.model.group_images not in (1, size):
                raise UserError(
                    f"{model.name} was loaded with groups of {model.model.group_images} images and is to be probed "
                    f"with groups of {size}; load it with as many."
                )

    def make_spec(self) -> RunSpec:
        """Return the run specification, without batch-mates where groups have none.

        Raises:
            UserError: there are fewer than two groups of images.
        """
        size, spec = self.options.group_images, super().make_spec()
        if len(spec.indices) < 2 * size:
            raise UserError(
                f"What is exchanged comes from another group, so at least {2 * size} images are needed for groups of "
                f"{size}; there are {len(spec.indices)}. Take more images, or a smaller {option('group_images')}."
            )
        if size == 1:
            analyses = tuple(one for one in spec.analyses if not isinstance(one, BatchContagion))
            spec = dataclasses.replace(spec, analyses=analyses)
        return spec

    def make_request(self) -> dict[str, Any]:
        """Return everything that the numbers depend on, including the exchanges possible in these groups."""
        return super().make_request() | {
            "analyses": [
                one.metric for one in self.spec.analyses if isinstance(one, contagion.ContagionAnalysis)
            ],
            "group_images": self.options.group_images,
            "share": self.probe.share,
        }

    def run_block(self, spec: RunSpec, model: Checkpoint) -> loop.RunBlock:
        """Return what exchanges the context of a block of images."""
        return partial(exchange.run_block, exchange=self._exchange)

    def block_sizes(self, model: Checkpoint) -> BlockSizes:
        """Return cuts at the groups of the run, of models without groups of their own too."""
        size = self.options.group_images
        batch = max(self.spec.batch_size // size, 1) * size
        return BlockSizes(max(exchange.BLOCK_IMAGES // size, 1) * size, batch)

    @property
    def passes(self) -> int:
        """Forward passes per image of the checkpoint that takes most."""
        return max(exchange.num_passes(self.spec, model.model, self._exchange) for model in self.models)

    def finish(self, result: Result, folder: OutputFolder | None) -> Result:
        """Say which numbers are missing."""
        result.sidecar["notes"] = self._notes()
        return result

    @cached_property
    def _exchange(self) -> exchange.Exchange:
        spec, options = self.spec, self.options
        return exchange.Exchange(
            spec.dataset, spec.indices, options.group_images, self.probe.share, options.seed
        )

    def _notes(self) -> list[str]:
        """Return a sentence for each number that is missing."""
        notes = [
            f"token contagion of {model.name}: its routers cannot be run one by one"
            for model in self.models
            if not isinstance(model.model, Routable)
        ]
        if self.options.group_images == 1:
            notes.append("batch contagion: in groups of one image there are no batch-mates")
        return notes
