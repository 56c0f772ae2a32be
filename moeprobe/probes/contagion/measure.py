"""The work of ``contagion``: what is exchanged, and with what it is run."""

import dataclasses
from functools import cached_property, partial
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.metrics import contagion
from moeprobe.metrics.batch_contagion import BatchContagion
from moeprobe.probes.contagion import Contagion, exchange
from moeprobe.probes.contagion.donors import Exchange
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.applicability import check_images
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.question import Question
from moeprobe.probes.engine.shard import Cuts
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.routing.capabilities import Routable


class ContagionMeasurement(Measurement[Result]):
    """Passes in which the context of tokens is exchanged with that of another group of images."""

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

    def make_question(self) -> Question:
        """Return what is asked, without batch-mates where groups have none.

        Raises:
            UserError: there are fewer than two groups of images.
        """
        size, question = self.options.group_images, super().make_question()
        if len(question.indices) < 2 * size:
            raise UserError(
                f"What is exchanged comes from another group, so at least {2 * size} images are needed for groups of "
                f"{size}; there are {len(question.indices)}. Take more images, or a smaller --group-images."
            )
        if size == 1:
            analyses = tuple(one for one in question.analyses if not isinstance(one, BatchContagion))
            question = dataclasses.replace(question, analyses=analyses)
        return question

    def make_request(self) -> dict[str, Any]:
        """Return what determines the numbers, with what is measured in these groups."""
        return super().make_request() | {
            "analyses": [
                one.metric for one in self.question.analyses if isinstance(one, contagion.Contagion)
            ],
            "group_images": self.options.group_images,
            "share": self.probe.share,
        }

    def run_block(self, question: Question, model: Checkpoint) -> loop.RunBlock:
        """Return what exchanges the context of a block of images."""
        return partial(exchange.run_block, exchange=self._exchange)

    def cuts(self, model: Checkpoint) -> Cuts:
        """Return cuts at the groups of the run, of models without groups of their own too."""
        size = self.options.group_images
        batch = max(self.question.batch_size // size, 1) * size
        return Cuts(max(exchange.BLOCK_IMAGES // size, 1) * size, batch)

    @property
    def passes(self) -> int:
        """Forward passes per image of the checkpoint that takes most."""
        return max(exchange.num_passes(self.question, model.model, self._exchange) for model in self.models)

    def finish(self, result: Result, folder: OutputFolder | None) -> Result:
        """Say which numbers are missing."""
        result.sidecar["notes"] = self._notes()
        return result

    @cached_property
    def _exchange(self) -> Exchange:
        question, options = self.question, self.options
        return Exchange(
            question.dataset, question.indices, options.group_images, self.probe.share, options.seed
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
