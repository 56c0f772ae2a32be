"""The work of ``contagion``: swap a token's context and measure whether its routing changes.

* batch: the other images of its group are exchanged; the image stays, in its place;
* token: some of the router's input tokens of its image are exchanged; the others stay bit-equal;
* attention: the pixels of some patches of its image are exchanged; the others are untouched.

Each image has a donor, and patches that are exchanged: both belong to (seed, image), so they are the same for every
checkpoint. Where images share a group, one image of a group is changed at a time.

Axes: B images, N images of a group, T tokens, P patches, D width.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch, Loading, batches
from moeprobe.inputs.data.base import Dataset
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.images import Framing, Sample
from moeprobe.metrics.analyses.attention_contagion import AttentionContagion
from moeprobe.metrics.analyses.batch_contagion import BatchContagion
from moeprobe.metrics.analyses.token_contagion import TokenContagion
from moeprobe.metrics.base import Analysis
from moeprobe.metrics.contagion import ContagionAnalysis
from moeprobe.probes.contagion import Contagion
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.batch_sums import readable_batches, to_host
from moeprobe.probes.engine.checks import check_images
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.engine.shard import BlockSizes
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.routing.capabilities import Routable, Traceable
from moeprobe.routing.correspondence import settle
from moeprobe.routing.record import LayerPair, LayerRouting
from moeprobe.runtime.progress import Advance
from moeprobe.runtime.seeds import generator

# Images drawn in addition to those of a group, so that there is another where a donor cannot be read.
_SPARE = 32
BLOCK_IMAGES = 256
# In another batch an image's gates move by their rounding; less than this is no change.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Exchange:
    """What is exchanged.

    Attributes:
        dataset: where the images are from.
        pool: the images of the run, in its order; donors are among them.
        group_images: N, consecutive images of the pool that are each other's batch-mates.
        share: how much of an image's patches is exchanged, at least one and at most all but one.
        seed: of donors and patches.
    """

    dataset: Dataset
    pool: Sequence[int]
    group_images: int
    share: float
    seed: int

    @cached_property
    def positions(self) -> dict[str, int]:
        """Each image's place in the pool, by name."""
        return {self.dataset.image_ids[index]: place for place, index in enumerate(self.pool)}

    def donor(self, image_id: str, *, skip_bad_images: bool) -> Image.Image:
        """Return the picture that an image borrows from: a random one of the pool that is not of its own group.

        Raises:
            UserError: it cannot be read; with ``skip_bad_images``, neither can the next ones drawn.
        """
        group = self.positions[image_id] // self.group_images
        # A few more than a group: some draws fall into the image's own group, and some files may be unreadable.
        size = min(len(self.pool), self.group_images + _SPARE)
        drawn = generator(self.seed, "contagion lender", image_id).choice(len(self.pool), size, replace=False)
        for place in drawn.tolist():
            if place // self.group_images != group:
                try:
                    return self.dataset.example(self.pool[place]).image
                except UserError:
                    if not skip_bad_images:
                        raise
        raise UserError(f"None of the images drawn to be exchanged with {image_id} can be read.")

    def patches(self, image_ids: Sequence[str], num_patches: int) -> Tensor:
        """Return which patches ``(B, P)`` of each image are exchanged.

        Raises:
            UserError: the images are of a single patch.
        """
        if num_patches < 2:
            raise UserError("The model sees an image as a single patch, so there are no others to exchange.")
        # At least one patch changes and at least one stays: otherwise there is no context, or nobody to watch.
        count = min(max(round(self.share * num_patches), 1), num_patches - 1)
        exchanged = torch.zeros(len(image_ids), num_patches, dtype=torch.bool)
        for row, image_id in enumerate(image_ids):
            drawn = generator(self.seed, "contagion patches", image_id).permutation(num_patches)[:count]
            exchanged[row, torch.from_numpy(drawn)] = True
        return exchanged


@dataclass(frozen=True)
class DonorRecipe:
    """Makes an image, and its donor, as the model sees them."""

    exchange: Exchange
    framing: Framing
    skip_bad_images: bool

    def __call__(self, image: Image.Image, image_id: str) -> list[Sample]:
        """Return the clean views of an image and of its donor."""
        donor = self.exchange.donor(image_id, skip_bad_images=self.skip_bad_images)
        return [self.framing.clean(image), self.framing.clean(donor)]


class ContagionMeasurement(Measurement[Result]):
    """Passes in which the context of tokens is exchanged with another group of images."""

    probe: Contagion

    def check_models(self) -> None:
        """Raise ``UserError`` unless the models have patches, and groups of the run's size."""
        size = self.options.group_images
        check_images(self.models, "there is nothing to exchange")
        for model in self.models:
            # Models whose images do not depend on each other take any group size.
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
            "analyses": [one.metric for one in self.spec.analyses if isinstance(one, ContagionAnalysis)],
            "group_images": self.options.group_images,
            "share": self.probe.share,
        }

    def run_block(self, spec: RunSpec, model: Checkpoint) -> loop.RunBlock:
        """Return what exchanges the context of a block of images."""
        return partial(run_block, exchange=self._exchange)

    def block_sizes(self, model: Checkpoint) -> BlockSizes:
        """Return cuts at the groups of the run, of models without groups of their own too."""
        size = self.options.group_images
        return BlockSizes.of_groups(size, block=BLOCK_IMAGES, batch=self.spec.batch_size)

    @property
    def passes(self) -> int:
        """Forward passes per image of the checkpoint that takes most."""
        return max(num_passes(self.spec, model.model, self._exchange) for model in self.models)

    def finish(self, result: Result, folder: OutputFolder | None) -> Result:
        """Say which numbers are missing."""
        result.sidecar["notes"] = self._notes()
        return result

    @cached_property
    def _exchange(self) -> Exchange:
        spec, options = self.spec, self.options
        return Exchange(spec.dataset, spec.indices, options.group_images, self.probe.share, options.seed)

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


@dataclass(frozen=True)
class _Scene:
    """A batch of whole groups, or one short group, in front of one model.

    Attributes:
        own: ``(B, 3, S, S)`` the images.
        lent: ``(B, 3, S, S)`` their donors.
        exchanged: ``(B, P)`` the patches to be exchanged.
        reference: the routing of the images as they are.
        num_groupmates: most images of a group of the run in this batch.
        at_once: images of which one at a time is changed; 1 where an image's routing depends on that image alone.
    """

    model: Traceable
    layers: list[str]
    own: Tensor
    lent: Tensor
    exchanged: Tensor
    reference: Mapping[str, LayerRouting]
    num_groupmates: int
    at_once: int

    def trace(self, images: Tensor) -> dict[str, LayerRouting]:
        return self.model.trace(images, layers=self.layers, logits=False)[1].layers

    def turns(self, number: int) -> list[Tensor]:
        """Return masks ``(B,)`` of every ``number``-th image, from the first, from the second, ... on."""
        place = torch.arange(len(self.own)) % number
        return [place == turn for turn in range(number)]


def applies(model: Traceable, analysis: Analysis) -> bool:
    """Whether a model can be asked for what an analysis is about."""
    return not isinstance(analysis, TokenContagion) or isinstance(model, Routable)


def num_passes(spec: RunSpec, model: Traceable, exchange: Exchange) -> int:
    """Return the forward passes per image, the donors' among them."""
    # Where images depend on each other, only one of a group may change per pass.
    at_once = exchange.group_images if model.group_images > 1 else 1
    of: dict[type[Analysis], int] = {
        BatchContagion: exchange.group_images,
        TokenContagion: 2,
        AttentionContagion: at_once,
    }
    return 1 + sum(of[type(analysis)] for analysis in spec.analyses if applies(model, analysis))


def run_block(
    spec: RunSpec,
    checkpoint: Checkpoint,
    block: Sequence[int],
    progress: Advance | None,
    *,
    exchange: Exchange,
) -> tuple[Accumulator, list[str]]:
    """Return the sums per image of some images, whole groups of them; see ``engine.loop.run``."""
    accumulator, skipped = Accumulator(), list[str]()
    assert isinstance(checkpoint.framing, Framing), "only images have patches to exchange"
    loader = batches(
        spec.dataset,
        block,
        DonorRecipe(exchange, checkpoint.framing, spec.skip_bad_images),
        loading=Loading(spec.batch_size, spec.workers),
        skip_bad_images=spec.skip_bad_images,
        group_images=exchange.group_images,
    )
    for batch in readable_batches(loader, skipped, progress):
        for cell, columns in _batch_sums(spec, checkpoint, batch, exchange).items():
            arrays = {name: to_host(column) for name, column in columns.items()}
            accumulator.add(cell, batch.image_ids, arrays)
    return accumulator, skipped


def _batch_sums(
    spec: RunSpec, checkpoint: Checkpoint, batch: Batch, exchange: Exchange
) -> dict[Cell, dict[str, Tensor]]:
    model = checkpoint.model
    own, lent = batch.views
    layers = spec.layers_of(model) or list(model.layer_names)
    reference = model.trace(own, layers=layers, logits=False)[1].layers
    # The last group may be short.
    num_groupmates = min(exchange.group_images, len(own))
    scene = _Scene(
        model,
        layers,
        own,
        lent,
        exchange.patches(batch.image_ids, _grid(reference).num_patches),
        reference,
        num_groupmates,
        at_once=num_groupmates if model.group_images > 1 else 1,
    )
    sums: dict[Cell, dict[str, Tensor]] = {}
    for analysis in spec.analyses:
        assert isinstance(analysis, ContagionAnalysis)
        if not applies(model, analysis):
            continue
        for name, exchanged in _EXCHANGES[type(analysis)](scene).items():
            pair, left_out = settle(
                exchanged,
                batch.image_ids,
                checkpoint=checkpoint.name,
                layer=name,
                allow=spec.allow_not_finite,
            )
            if analysis.applies(pair.view):
                for tokens, columns in analysis.sums(pair).items():
                    view = pair.view
                    label = spec.label_of(model, name)
                    cell = Cell(label, view.router, view.choices_per_token, spec.view_name, tokens=tokens)
                    # An image is left out if any exchange fails for it: they all share the cell's columns.
                    marks = {key: bad | sums.get(cell, {}).get(key, bad) for key, bad in left_out.items()}
                    sums.setdefault(cell, {}).update(columns | marks)
    return sums


def _grid(routing: Mapping[str, LayerRouting]) -> PatchGrid:
    grids = {layer.grid for layer in routing.values()}
    if len(grids) > 1:
        raise UserError(
            "The layers of the model have other patches each, and contagion exchanges patches for all of them alike: "
            f"name layers of one stage with {option('layers')}, e.g. {option('layers', next(iter(routing)))}."
        )
    (grid,) = grids
    assert grid is not None
    return grid


def _exchange_mates(scene: _Scene) -> dict[str, LayerPair]:
    """Every image together with the donors of its batch-mates; an image that has none is not watched."""
    # Each turn keeps every n-th image, so that each image is once the one that stays.
    kept = scene.turns(scene.num_groupmates)
    passes = [scene.trace(scene.own.where(_like(keep, scene.own), scene.lent)) for keep in kept]
    view = _each_from_its_turn(passes)
    # An image alone in its group has no mates: its tokens do not count.
    if scene.num_groupmates == 1:
        view = {
            name: dataclasses.replace(layer, valid=torch.zeros_like(layer.valid))
            for name, layer in view.items()
        }
    view = {name: _settle(scene.reference[name], layer) for name, layer in view.items()}
    return _pairs(scene.reference, view, watched=torch.ones_like(scene.exchanged))


def _exchange_tokens(scene: _Scene) -> dict[str, LayerPair]:
    """The router of each layer alone, with some of its tokens from the donor's pass."""
    assert isinstance(scene.model, Routable)
    own, lent = (scene.model.router_inputs(images, layers=scene.layers) for images in (scene.own, scene.lent))
    reference, passes = {}, [dict[str, LayerRouting]() for _ in range(scene.at_once)]
    for name, tokens in own.items():
        reference[name] = scene.model.route(name, tokens)
        # Prefix tokens have no place in the image, and are never exchanged.
        prefix = torch.zeros(len(tokens), reference[name].num_prefix_tokens, dtype=torch.bool)
        exchanged = torch.cat([prefix, scene.exchanged], dim=1).to(tokens.device)
        for turn, changed in enumerate(scene.turns(scene.at_once)):
            now = exchanged & changed[:, None].to(tokens.device)
            passes[turn][name] = scene.model.route(name, lent[name].where(now[..., None], tokens))
    return _pairs(reference, _each_from_its_turn(passes), watched=~scene.exchanged)


def _exchange_pixels(scene: _Scene) -> dict[str, LayerPair]:
    """The whole forward pass, with the pixels of some patches from the donor."""
    grid = _grid(scene.reference)
    pixels = scene.exchanged.view(-1, 1, grid.rows, grid.columns)
    pixels = pixels.repeat_interleave(grid.patch_size, 2).repeat_interleave(grid.patch_size, 3)
    mixed = scene.lent.where(pixels, scene.own)
    passes = [
        scene.trace(mixed.where(_like(changed, mixed), scene.own)) for changed in scene.turns(scene.at_once)
    ]
    return _pairs(scene.reference, _each_from_its_turn(passes), watched=~scene.exchanged)


_EXCHANGES: dict[type[ContagionAnalysis], Callable[[_Scene], dict[str, LayerPair]]] = {
    BatchContagion: _exchange_mates,
    TokenContagion: _exchange_tokens,
    AttentionContagion: _exchange_pixels,
}


def _like(rows: Tensor, images: Tensor) -> Tensor:
    """Return a mask ``(B,)`` in the shape of images."""
    return rows.view(-1, *[1] * (images.ndim - 1))


def _each_from_its_turn(passes: Sequence[Mapping[str, LayerRouting]]) -> dict[str, LayerRouting]:
    """Return a routing that takes image b from pass b modulo the number of passes."""
    joined = {}
    for name, first in passes[0].items():
        row = torch.arange(len(first.gates), device=first.gates.device)
        whole = {
            field.name: torch.stack([getattr(one[name], field.name) for one in passes])[
                row % len(passes), row
            ]
            for field in dataclasses.fields(first)
            if isinstance(getattr(first, field.name), Tensor)
        }
        joined[name] = dataclasses.replace(first, **whole)  # type: ignore[arg-type]
    return joined


def _settle(reference: LayerRouting, view: LayerRouting) -> LayerRouting:
    """Return the view without what the rounding of another batch has changed.

    Gates that have moved by less than ``ROUNDING`` are taken for the same. Where a token's choice is read off its own
    scores alone, and these have not moved by more, another choice is a tie that fell the other way.
    """
    same = (view.gates - reference.gates).abs().amax(-1, keepdim=True) <= ROUNDING
    settled = dataclasses.replace(view, gates=reference.gates.where(same, view.gates))
    if not view.token_local or view.top_k == 0:
        return settled
    if view.scores is not None:
        assert reference.scores is not None
        moved = (view.scores - reference.scores).abs().amax(-1, keepdim=True)
        same = moved <= ROUNDING * reference.scores.abs().amax(-1, keepdim=True).clamp_min(1)
    return dataclasses.replace(settled, selected=reference.selected.where(same, view.selected))


def _pairs(
    before: Mapping[str, LayerRouting], after: Mapping[str, LayerRouting], *, watched: Tensor
) -> dict[str, LayerPair]:
    """Return a pair per layer; the patches that are not watched ``(B, P)`` have no partner."""
    pairs = {}
    for name, view in after.items():
        patches = torch.arange(watched.shape[1]).expand(len(watched), -1).where(watched, -1)
        patches = patches.to(view.gates.device)
        pairs[name] = LayerPair(before[name], view, patches, patches, aligned=True)
    return pairs
