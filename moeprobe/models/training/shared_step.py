"""One step of a training, done by one process at once, or shared: by several processes, in several passes, or both.

The batch is cut into equal parts of consecutive images. The supervised loss and the balancing losses (each of a group
of images) are means over the parts. What is a function of sums over the whole batch, such as S of PRC, gets these sums
in every part (``Views.total``): their values are those of the whole batch, their gradients those of the part, times the
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
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.models.nn.portion import Portion, seeing
from moeprobe.models.training.layouts import Layout
from moeprobe.models.training.objectives.base import Views
from moeprobe.models.training.tasks import Task
from moeprobe.runtime.distributed import Alone, Ranks
from moeprobe.runtime.seeds import seed_torch, torch_seed
from moeprobe.runtime.signals.wishes import Wish


@dataclass
class _Totals:
    """Sums over the whole batch, in the order in which an objective asks for them."""

    ranks: Ranks | Alone
    parts: int
    found: list[Tensor] = field(default_factory=list)
    asked: int = 0

    def collect(self, own: Tensor) -> Tensor:
        """Add up a sum over the parts of this process."""
        if self.asked == len(self.found):
            self.found.append(torch.zeros_like(own))
        self.found[self.asked] += own.detach()
        self.asked += 1
        return own

    def share(self) -> None:
        """Add up the sums of all processes."""
        self.found = [self.ranks.total(one) for one in self.found]

    def give(self, own: Tensor) -> Tensor:
        """Return a sum over the whole batch, with the gradient of this part's."""
        if self.parts == 1:
            whole = self.ranks.total(own.detach())
        else:
            whole = self.found[self.asked]
            self.asked += 1
        if not own.requires_grad:
            return whole
        return whole + self.ranks.size * self.parts * (own - own.detach())


class SharedStep:
    """What is done of a step before the update: losses, and gradients on the parameters.

    Args:
        task: measures what is trained.
        normalise: from pixels in [0, 1] to what the model takes.
        layout: what each of the processes that share each step has of the model.
        wish: whether this process is asked to end, of which all learn with the values of a step.

    Attributes:
        wished: the share of the processes that were asked to end before the last step, ``()``; None = there is one.

    Raises:
        UserError: a batch cannot be cut so.
    """

    wished: Tensor | None = None
    _wished_before: Tensor | None = None

    def __init__(self, task: Task, normalise: nn.Module, layout: Layout, *, wish: Wish | None = None) -> None:
        self.task, self.normalise, self.layout = task, normalise, layout
        self.ranks = ranks = layout.ranks
        self.wish = wish
        self.config, self.model = task.config, task.model
        embedding = self.model.patch_embed
        self.grid = PatchGrid(embedding.grid_size[0], embedding.grid_size[1], embedding.patch_size[0])
        self.parts = self.config.accumulate
        self.of = ranks.size * self.parts
        # Experts draw by a function, all others by torch's module.
        self.drops = any(
            (isinstance(one, nn.Dropout) and one.p > 0) or (isinstance(one, MlpExperts) and one.dropout > 0)
            for one in self.model.modules()
        )
        self._check()

    def _check(self) -> None:
        images, views = self.config.batch_size, self.config.views_per_image
        if self.of == 1:
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
        """Leave the gradients of the whole batch on the parameters; return what is reported of it.

        Args:
            batch: what this process has of the batch.
            step: number of the step.
            device: where to work.
        """
        rows = self._rows(batch, step, device)
        views = Views(batch.to_source, batch.source_size, self.grid, self.model.num_prefix_tokens)
        parameters = list(self.model.parameters())
        for parameter in parameters:
            parameter.grad = None
        if self.of == 1:
            self.seed(step, Portion(), rows[0].device)
            values = self.task.measure(rows, views)
            values["loss"].backward()
            return {name: value.detach() for name, value in values.items()}
        totals = _Totals(self.ranks, self.parts)
        if self.parts > 1 and self.task.objective.whole_batch:
            with torch.no_grad():
                for _ in self._passes(rows, replace(views, total=totals.collect), totals, step):
                    pass
            totals.share()
        means: dict[str, Tensor] = {}
        for values in self._passes(rows, replace(views, total=totals.give), totals, step):
            (values["loss"] / self.parts).backward()
            for name, value in values.items():
                means[name] = means.get(name, 0) + value.detach() / self.parts
        self.layout.average(self.model)
        return self._mean(means)

    def end_is_wished(self) -> bool:
        """Whether some process was asked to end; after each step once, so that all find it after the same one.

        Of a device, what was known a step before is read: this one may not be computed yet.
        """
        if self.wish is None or not self.wish.waits or self.wished is None:
            return False
        before, self._wished_before = self._wished_before, self.wished
        known = self.wished if self.wished.device.type == "cpu" else before
        return known is not None and bool(known > 0)

    def _rows(self, batch: Batch, step: int, device: torch.device) -> tuple[Tensor, ...]:
        """Return what is measured, a row per view."""
        images = torch.stack(batch.views, dim=1).flatten(0, 1).to(device, non_blocking=True)
        labels = batch.labels.repeat_interleave(len(batch.views)).to(device, non_blocking=True)
        return self.task.rows(
            self.normalise(images), labels, num_views=len(batch.views), step=step, ranks=self.ranks
        )

    def _passes(
        self, rows: tuple[Tensor, ...], views: Views, totals: _Totals, step: int
    ) -> Iterator[dict[str, Tensor]]:
        """Yield what is measured of each part."""
        images = len(views.source_size) // self.parts
        for number in range(self.parts):
            totals.asked = 0
            own = slice(number * images, (number + 1) * images)
            per_image = len(rows[0]) // len(views.source_size)
            part = slice(own.start * per_image, own.stop * per_image)
            portion = Portion(self.ranks.rank * self.parts + number, self.of)
            self.seed(step, portion, rows[0].device)
            with seeing(portion):
                yield self.task.measure(tuple(one[part] for one in rows), views.of(own))

    def _mean(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the means over the processes."""
        if self.ranks.size == 1:
            return dict(values)
        own = torch.stack([value.double() for value in values.values()])
        asked = own.new_tensor([self.wish is not None and self.wish.number is not None])
        *whole, self.wished = self.ranks.total(torch.cat([own, asked])) / self.ranks.size
        return {name: mean.to(values[name].dtype) for name, mean in zip(values, whole, strict=True)}
