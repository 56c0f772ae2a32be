"""One step of a training, done by one process at once, or shared: by several processes, in several passes, or both.

The batch is cut into equal parts of consecutive images. The supervised loss and the balancing losses (each of a group
of images) are means over the parts. A function of sums over the whole batch, such as S of PRC, gets these sums
in every part (``BatchViews.total``): their values belong to the whole batch, their gradients to the part, times the
number of parts. The mean of the parts' gradients is then the gradient of the whole batch.

Axes: B images of this process, V views of each, rows = B · V.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.inputs.batches import Batch
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.draws import Portion, seeing
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.models.training.objectives.base import BatchViews
from moeprobe.models.training.parallel.layouts import ProcessLayout
from moeprobe.models.training.tasks import Task
from moeprobe.runtime.distributed import Alone, Ranks
from moeprobe.runtime.seeds import seed_torch, torch_seed
from moeprobe.runtime.signals import StopRequest


@dataclass
class _Totals:
    """Sums over the whole batch, in the order in which an objective asks for them."""

    ranks: Ranks | Alone
    parts: int
    sums: list[Tensor] = field(default_factory=list)
    next_index: int = 0

    def collect(self, part_sum: Tensor) -> Tensor:
        """Add up a sum over the parts of this process."""
        if self.next_index == len(self.sums):
            self.sums.append(torch.zeros_like(part_sum))
        self.sums[self.next_index] += part_sum.detach()
        self.next_index += 1
        return part_sum

    def share(self) -> None:
        """Add up the sums of all processes."""
        self.sums = [self.ranks.total(process_sum) for process_sum in self.sums]

    def give(self, part_sum: Tensor) -> Tensor:
        """Return a sum over the whole batch, with the gradient of this part's."""
        if self.parts == 1:
            total = self.ranks.total(part_sum.detach())
        else:
            total = self.sums[self.next_index]
            self.next_index += 1
        if not part_sum.requires_grad:
            return total
        # The value is that of the whole batch, the gradient that of this part alone.
        return total + self.ranks.size * self.parts * (part_sum - part_sum.detach())


class SharedStep:
    """The part of a step before the update: losses, and gradients on the parameters.

    Args:
        task: computes the loss.
        normalise: from pixels in [0, 1] to what the model takes.
        layout: what each of the processes that share each step has of the model.
        stop_request: whether this process is asked to end, of which all learn with the values of a step.

    Attributes:
        stop_share: the share of the processes that were asked to end before the last step, ``()``; None = there is one.

    Raises:
        UserError: a batch cannot be cut so.
    """

    stop_share: Tensor | None = None
    _stop_share_before: Tensor | None = None

    def __init__(
        self,
        task: Task,
        normalise: nn.Module,
        layout: ProcessLayout,
        *,
        stop_request: StopRequest | None = None,
    ) -> None:
        self.task, self.normalise, self.layout = task, normalise, layout
        self.ranks = ranks = layout.ranks
        self.stop_request = stop_request
        self.config, self.model = task.config, task.model
        embedding = self.model.patch_embed
        self.grid = PatchGrid(embedding.grid_size[0], embedding.grid_size[1], embedding.patch_size[0])
        self.parts = self.config.accumulate
        self.of = ranks.size * self.parts
        # Experts draw by a function, all others by torch's module.
        self.drops = any(
            (isinstance(module, nn.Dropout) and module.p > 0)
            or (isinstance(module, MlpExperts) and module.dropout > 0)
            for module in self.model.modules()
        )
        self._check()

    def _check(self) -> None:
        images, views = self.config.batch_size, self.config.views_per_image
        if self.of == 1:
            # A batch that is not shared needs no rules.
            return
        shared = (
            f"{self.ranks.size} processes x {self.parts} passes" if self.parts > 1 else f"{self.of} processes"
        )
        if self.ranks.size == 1:
            shared = f"{self.parts} passes"
        if self.config.data.labeled is not None:
            raise UserError(
                f"With data.labeled a batch cannot be shared by {shared}: parts would have other numbers of labels; "
                "leave data.labeled out, or train by one process in one pass."
            )
        layers = moe_layers(self.model)
        if self.drops and any(layer.whole_expert_dropout for layer in layers.values()):
            raise UserError(
                f"With dropout, parts of a batch shared by {shared} would leave out other experts; set either "
                "model.whole_expert_dropout or all other dropout (model.expert_dropout) to 0."
            )
        if images % self.of:
            raise UserError(
                f"A batch of {images} images cannot be shared by {shared}; make batch_size a multiple of {self.of}."
            )
        rows = images // self.of * views
        for name, layer in layers.items():
            if rows % layer.group_images:
                raise UserError(
                    f"A batch of {images} images x {views} views shared by {shared} leaves {rows} each, which cannot "
                    f"be cut into groups of {layer.group_images} ({name}); change batch_size or model.group_images."
                )

    def seed(self, step: int, portion: Portion, device: torch.device) -> None:
        """Seed a pass: all parts alike, so that each takes its own rows of one draw, but where dropout draws too."""
        purpose = f"step, part {portion.number}" if self.drops and portion.number else "step"
        seed_torch(torch_seed(self.config.seed, purpose, draw=step), device)

    def __call__(self, batch: Batch, *, step: int, device: torch.device) -> dict[str, Tensor]:
        """Leave the gradients of the whole batch on the parameters; return its reported values.

        Args:
            batch: what this process has of the batch.
            step: number of the step.
            device: where to work.
        """
        rows = self._rows(batch, step, device)
        views = BatchViews(batch.to_source, batch.source_size, self.grid, self.model.num_prefix_tokens)
        parameters = list(self.model.parameters())
        for parameter in parameters:
            # None, not zero: parameters without a gradient are skipped by the optimizer.
            parameter.grad = None
        if self.of == 1:
            self.seed(step, Portion(), rows[0].device)
            values = self.task.measure(rows, views)
            values["loss"].backward()
            return {name: value.detach() for name, value in values.items()}
        totals = _Totals(self.ranks, self.parts)
        # Sums over the whole batch are needed before any part has a gradient, so all parts are run once without.
        if self.parts > 1 and self.task.objective.whole_batch:
            with torch.no_grad():
                for _ in self._passes(rows, replace(views, total=totals.collect), totals, step):
                    pass
            totals.share()
        means: dict[str, Tensor] = {}
        for values in self._passes(rows, replace(views, total=totals.give), totals, step):
            # Parts are of equal size, so the mean of their losses is the loss of the batch.
            (values["loss"] / self.parts).backward()
            for name, value in values.items():
                means[name] = means.get(name, 0) + value.detach() / self.parts
        self.layout.average(self.model)
        return self._mean(means)

    def must_stop(self) -> bool:
        """Whether some process was asked to end; after each step once, so that all find it after the same one.

        A device's values are read one step late: the current ones may not be computed yet.
        """
        if self.stop_request is None or not self.stop_request.waits or self.stop_share is None:
            return False
        before, self._stop_share_before = self._stop_share_before, self.stop_share
        readable = self.stop_share if self.stop_share.device.type == "cpu" else before
        return readable is not None and bool(readable > 0)

    def _rows(self, batch: Batch, step: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return the tensors to measure, a row per view."""
        # The views of an image lie side by side.
        images = torch.stack(batch.views, dim=1).flatten(0, 1).to(device, non_blocking=True)
        labels = batch.labels.repeat_interleave(len(batch.views)).to(device, non_blocking=True)
        return self.task.rows(
            self.normalise(images), labels, num_views=len(batch.views), step=step, ranks=self.ranks
        )

    def _passes(
        self, rows: tuple[Tensor, ...], views: BatchViews, totals: _Totals, step: int
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the values of each part."""
        images = len(views.source_size) // self.parts
        for number in range(self.parts):
            totals.next_index = 0
            images_slice = slice(number * images, (number + 1) * images)
            per_image = len(rows[0]) // len(views.source_size)
            part = slice(images_slice.start * per_image, images_slice.stop * per_image)
            portion = Portion(self.ranks.rank * self.parts + number, self.of)
            self.seed(step, portion, rows[0].device)
            with seeing(portion):
                yield self.task.measure(tuple(tensor[part] for tensor in rows), views.of(images_slice))

    def _mean(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the means over the processes."""
        if self.ranks.size == 1:
            return dict(values)
        # In one message, and in double precision: small values must survive a sum over processes.
        process_means = torch.stack([value.double() for value in values.values()])
        stop_flag = process_means.new_tensor(
            [self.stop_request is not None and self.stop_request.number is not None]
        )
        *means, self.stop_share = self.ranks.total(torch.cat([process_means, stop_flag])) / self.ranks.size
        return {name: mean.to(values[name].dtype) for name, mean in zip(values, means, strict=True)}
