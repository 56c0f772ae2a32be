"""From a data set and a recipe of views to batches.

Views are made in the loader's workers, each image's from generators of its own, so an image's views are the same for
any batch size and any number of workers. Images that compete for room in the model form groups, N consecutive ones
of the list; a batch is made of whole groups, or is one short group, so groups too belong to the list alone. All of
this is true of texts too (``TextBatch``).

Axes: B images or texts, V views of each, T tokens, J pairs of tokens.
"""

import itertools
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import Dataset as TorchDataset

from moeprobe.errors import UnreadableError, UserError
from moeprobe.inputs import geometry, regions
from moeprobe.inputs.data.base import Dataset, Example, TextExample
from moeprobe.inputs.geometry import Correspondence, PatchGrid
from moeprobe.inputs.images import Sample
from moeprobe.inputs.spans import Spans, align
from moeprobe.inputs.texts import TextSample, TokenBatch, stack
from moeprobe.inputs.views.base import Recipe
from moeprobe.runtime import signals
from moeprobe.runtime.processes import lost_workers, without_workers
from moeprobe.runtime.signals import is_waited_for


@dataclass(frozen=True)
class TextBatch:
    """V views of B texts.

    Attributes:
        image_ids: names of the texts.
        labels: ``(B,)`` int64, -1 = none.
        views: V batches of tokens.
        spans: V lists of B arrays ``(T, 2)``, positions of the tokens after the prefix in the source; empty for special
            ones.
        num_pairs: J, as many as a text can have ordinary tokens.
        skipped: names of texts that could not be read; none ever.
    """

    image_ids: list[str]
    labels: Tensor
    views: list[TokenBatch]
    spans: list[list[Spans]]
    num_pairs: int
    skipped: list[str]

    def pin_memory(self) -> "TextBatch":
        """Return the batch in pinned memory; what the loader calls."""
        views = [view.pin_memory() for view in self.views]
        return replace(self, labels=self.labels.pin_memory(), views=views)

    def partners(self, view_index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the pairs of tokens ``(B, J)`` of view 0 and a view, numbered after the prefix, -1 = none.

        Pair j is about token j of view 0; ``spans.align`` finds its partner.
        """
        # -1 everywhere: texts are shorter than J.
        reference, view = (np.full((len(self.image_ids), self.num_pairs), -1) for _ in range(2))
        for row, (reference_spans, view_spans) in enumerate(
            zip(self.spans[0], self.spans[view_index], strict=True)
        ):
            partner = align(reference_spans, view_spans)
            view[row, : len(reference_spans)] = partner
            reference[row, : len(reference_spans)] = np.where(
                partner >= 0, np.arange(len(reference_spans)), -1
            )
        return reference, view

    def aligned_tokens(self) -> NDArray[np.int64]:
        """Return token j of view 0 for each pair ``(B, J)`` of views whose tokens stay where they are, -1 = none."""
        lengths = np.array([len(spans) for spans in self.spans[0]])
        position = np.arange(self.num_pairs)
        return np.where(position < lengths[:, None], position, -1)


def stack_texts(image_ids: list[str], labels: Tensor, samples: Sequence[Sequence[TextSample]]) -> TextBatch:
    """Return the batch of texts of V ``samples`` each."""
    first = samples[0][0]
    prefix = first.num_prefix_tokens
    views = []
    padded: dict[tuple[int, ...], Tensor] = {}
    for view_samples in zip(*samples, strict=True):
        batch = stack(view_samples)
        units = [sample.noise for sample in view_samples if sample.noise is not None]
        if units:
            # The severities of a sweep share one draw: it is padded, and sent, once.
            key = tuple(map(id, units))
            if key not in padded:
                padded[key] = torch.nn.utils.rnn.pad_sequence(units, batch_first=True)
            sigma = torch.tensor([sample.sigma for sample in view_samples])
            batch = replace(batch, noise=padded[key], sigma=sigma)
        views.append(batch)
    return TextBatch(
        image_ids=image_ids,
        labels=labels,
        views=views,
        spans=[
            [sample.spans[prefix:] for sample in view_samples] for view_samples in zip(*samples, strict=True)
        ],
        num_pairs=first.max_length - prefix,
        skipped=[],
    )


@dataclass(frozen=True)
class Batch:
    """V views of B images.

    Attributes:
        image_ids: names of the images.
        labels: ``(B,)`` int64, -1 = none.
        views: V tensors ``(B, 3, S, S)`` float32 in [0, 1].
        to_source: V arrays ``(B, 3, 3)``, the maps from each view to the source image.
        source_size: ``(B, 2)`` width and height of the sources in pixels.
        foreground: V arrays ``(B, S, S)``, which pixels show the object; None where that was not asked, or an image has
            no mask.
        skipped: names of images that could not be read and are not in the batch.
        displacement: for the views of which it is given ``(B, S, S, 2)``, see ``Sample``; the maps tell of the others.
    """

    image_ids: list[str]
    labels: Tensor
    views: list[Tensor]
    to_source: list[NDArray[np.float64]]
    source_size: NDArray[np.float64]
    foreground: list[NDArray[np.bool_]] | None
    skipped: list[str]
    displacement: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)

    def pin_memory(self) -> "Batch":
        """Return the batch with pixels and labels in pinned memory; what the loader calls."""
        views = [view.pin_memory() for view in self.views]
        return replace(self, labels=self.labels.pin_memory(), views=views)

    def correspond(self, view_index: int, grid: PatchGrid) -> Correspondence:
        """Return the patches of view 0 and a view that show the same."""
        if view_index in self.displacement:
            return geometry.correspond_displaced(self.displacement[view_index], grid=grid)
        return geometry.correspond(
            self.to_source[0], self.to_source[view_index], grid=grid, source_size=self.source_size
        )


@dataclass(frozen=True)
class _Item:
    position: int
    image_id: str
    label: int


@dataclass(frozen=True)
class _Pictured(_Item):
    samples: list[Sample]
    size: tuple[int, int]
    foreground: list[NDArray[np.bool_]] | None


@dataclass(frozen=True)
class _Worded(_Item):
    samples: list[TextSample]


@dataclass(frozen=True)
class _Failure:
    """An image that cannot be used. Raised in a worker, the sentence would reach the user as a traceback."""

    image_id: str
    sentence: str
    skip: bool
    unreadable: bool = False


@dataclass(frozen=True)
class RecipeByPlace:
    """A recipe that changes along the list of images: ``at`` returns the recipe of a position, from 0."""

    at: Callable[[int], Recipe]


class Numbers(Protocol):
    """What a list of image numbers has to have; it need not hold them."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> int: ...


class _Items(TorchDataset[_Item | _Failure]):
    """The chosen images of a data set, each through the recipe."""

    def __init__(
        self,
        dataset: Dataset,
        indices: Numbers,
        recipes: Sequence[Recipe | RecipeByPlace],
        *,
        batch_size: int,
        skip_bad_images: bool,
        masks: bool,
    ) -> None:
        self._dataset = dataset
        self._indices = indices
        self._recipes = recipes
        self._skip = skip_bad_images
        self._masks = masks
        # The last batch's examples, so that each image is read once for all recipes; with one recipe none are kept.
        self._examples: dict[int, Example | TextExample] = {}
        self._batch_size, self._last_batch = batch_size, -1

    def __getitem__(self, at: tuple[int, int]) -> _Item | _Failure:
        recipe, position = at
        index = int(self._indices[position])
        try:
            example = self._example(index, position // self._batch_size)
        except UserError as error:
            return _Failure(self._dataset.image_ids[index], f"{error}", skip=self._skip, unreadable=True)
        try:
            return self._item(self._recipes[recipe], position, example)
        except UserError as error:
            # Never skipped: a recipe that fails is a mistake in what was asked, and no bad file.
            return _Failure(example.image_id, f"{error}", skip=False)

    def _example(self, index: int, batch: int) -> Example | TextExample:
        # With one recipe each image is used once.
        if len(self._recipes) == 1:
            return self._dataset.example(index)
        # Recipes follow one another batch by batch, so only the present batch is worth keeping.
        if batch != self._last_batch:
            self._examples.clear()
            self._last_batch = batch
        if index not in self._examples:
            self._examples[index] = self._dataset.example(index)
        return self._examples[index]

    def _item(self, recipe: Recipe | RecipeByPlace, position: int, example: Example | TextExample) -> _Item:
        """Return what a batch takes of one source."""
        label = -1 if example.label is None else example.label
        if isinstance(recipe, RecipeByPlace):
            recipe = recipe.at(position)
        if isinstance(example, TextExample):
            return _Worded(position, example.image_id, label, recipe(example.text, example.image_id))
        samples: list[Sample] = recipe(example.image, example.image_id)
        foreground = None
        if self._masks and example.mask is not None:
            foreground = [
                regions.foreground(example.mask, sample.to_source, sample.pixels.shape[-1])
                for sample in samples
            ]
        return _Pictured(position, example.image_id, label, samples, example.image.size, foreground)


@dataclass(frozen=True)
class _RecipeSampler:
    """The numbers of recipe and position of each item of a batch: every batch with all recipes, then the next."""

    num_images: int
    batch_size: int
    num_recipes: int

    def __len__(self) -> int:
        return -(-self.num_images // self.batch_size) * self.num_recipes

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for start in range(0, self.num_images, self.batch_size):
            positions = range(start, min(start + self.batch_size, self.num_images))
            for recipe in range(self.num_recipes):
                yield [(recipe, position) for position in positions]


def _collate(items: list[_Item | _Failure], *, group_images: int) -> list[Batch | TextBatch] | _Failure:
    """Return the batches that these images make: more than one where a group is short, or the first failure."""
    failures = [item for item in items if isinstance(item, _Failure)]
    # The first failure ends the run, so nothing is stacked.
    for failure in failures:
        if not failure.skip:
            return failure
    pieces: list[list[_Item]] = [[]]
    good = [item for item in items if isinstance(item, _Item)]
    for _, group in itertools.groupby(good, lambda item: item.position // group_images):
        members = list(group)
        # A short group gets a batch of its own, so that no image is routed with those of another group.
        if len(members) < group_images or len(pieces[-1]) % group_images:
            pieces.append([])
        pieces[-1] += members
    # A batch of skipped images only is still sent, so that they are counted.
    batches = [_stack(piece) for piece in pieces if piece] or [_stack_images([])]
    batches[-1].skipped.extend(failure.image_id for failure in failures)
    if get_worker_info() is not None:
        # Here an error reaches the main process; in the thread that sends a batch it would be lost, and waited for.
        for batch in batches:
            _share(batch)
    return batches


def _share(batch: Batch | TextBatch) -> None:
    """Put the tensors of a batch into shared memory, by which they go from process to process."""
    parts = [
        part for view in batch.views for part in ([view] if isinstance(view, Tensor) else vars(view).values())
    ]
    for tensor in (batch.labels, *parts):
        if isinstance(tensor, Tensor):
            tensor.share_memory_()


def _stack(items: list[_Item]) -> Batch | TextBatch:
    """Return one batch; the items of a data set are all of one kind."""
    texts = [item for item in items if isinstance(item, _Worded)]
    if texts:
        labels = torch.tensor([item.label for item in texts], dtype=torch.int64)
        return stack_texts([item.image_id for item in texts], labels, [item.samples for item in texts])
    return _stack_images([item for item in items if isinstance(item, _Pictured)])


def _stack_images(items: list[_Pictured]) -> Batch:
    num_views = len(items[0].samples) if items else 0
    masks = [item.foreground for item in items if item.foreground is not None]
    displacements = {v: [item.samples[v].displacement for item in items] for v in range(num_views)}
    return Batch(
        image_ids=[item.image_id for item in items],
        labels=torch.tensor([item.label for item in items], dtype=torch.int64),
        views=[torch.stack([item.samples[v].pixels for item in items]) for v in range(num_views)],
        to_source=[np.stack([item.samples[v].to_source for item in items]) for v in range(num_views)],
        source_size=np.array([item.size for item in items], dtype=np.float64).reshape(-1, 2),
        foreground=[np.stack(views) for views in zip(*masks, strict=True)]
        # One image without a mask makes the batch's masks useless.
        if len(masks) == len(items)
        else None,
        skipped=[],
        # A view gives it for every image, or for none.
        displacement={
            v: np.stack([displacement for displacement in of_view if displacement is not None])
            for v, of_view in displacements.items()
            if of_view[0] is not None
        },
    )


@dataclass(frozen=True)
class Loading:
    """How batches are loaded, which changes nothing but speed.

    Attributes:
        batch_size: most images of a batch, cut down to whole groups; never less than one group.
        workers: loader processes; 0 = none but this one.
        pin_memory: put pixels and labels where copies to a CUDA device are quick.
    """

    batch_size: int
    workers: int = 0
    pin_memory: bool = False


def batches(
    dataset: Dataset,
    indices: Numbers,
    recipe: Recipe | RecipeByPlace,
    *,
    loading: Loading,
    skip_bad_images: bool = False,
    group_images: int = 1,
    masks: bool = False,
) -> Iterator[Any]:
    """Yield the images ``indices`` of a data set, in that order, each as the recipe's views: ``Batch``es.

    Texts come as ``TextBatch``es.

    Args:
        dataset: where they are from.
        indices: which.
        recipe: makes the views of one image; a ``RecipeByPlace`` where that changes along the list.
        loading: how they are loaded.
        skip_bad_images: leave out images that cannot be read; batches name them.
        group_images: N; a group that has lost an image, and the last one, may be short: a batch of their own.
        masks: say which pixels show the foreground, where the data set knows.

    Raises:
        UnreadableError: an image cannot be read and ``skip_bad_images`` is off; the sentence names it.
        UserError: loader processes cannot hand over what they load.
    """
    for _, batch in batches_of_recipes(
        dataset,
        indices,
        [recipe],
        loading=loading,
        skip_bad_images=skip_bad_images,
        group_images=group_images,
        masks=masks,
    ):
        yield batch


def batches_of_recipes(
    dataset: Dataset,
    indices: Numbers,
    recipes: Sequence[Recipe | RecipeByPlace],
    *,
    loading: Loading,
    skip_bad_images: bool = False,
    group_images: int = 1,
    masks: bool = False,
) -> Iterator[tuple[int, Any]]:
    """Yield each batch once for every recipe, one after the other, with the recipe's number; else as ``batches``.

    A loader process reads the images of a batch once for all recipes.
    """
    if loading.workers:
        _check_shared_memory()
    # Rounded down to whole groups, but at least one.
    batch_size = max(loading.batch_size // group_images, 1) * group_images
    sampler = _RecipeSampler(len(indices), batch_size, len(recipes))
    items = _Items(
        dataset, indices, recipes, batch_size=batch_size, skip_bad_images=skip_bad_images, masks=masks
    )
    loader: DataLoader[Any] = DataLoader(
        items,
        batch_sampler=sampler,
        num_workers=loading.workers,
        collate_fn=partial(_collate, group_images=group_images),
        pin_memory=loading.pin_memory,
        worker_init_fn=_end_quietly,
        # Its seed for workers, which draw nothing from it, is not to be taken from the caller's random state.
        generator=torch.Generator(),
    )
    try:
        for number, loaded in enumerate(loader):
            if isinstance(loaded, _Failure):
                raise (UnreadableError if loaded.unreadable else UserError)(loaded.sentence)
            for batch in loaded:
                yield number % len(recipes), batch
    except RuntimeError as error:
        # PyTorch reports a killed worker as a RuntimeError; others are passed on.
        lost = lost_workers(error)
        if lost is None:
            raise
        raise lost from error


def _check_shared_memory() -> None:
    """Raise ``UserError`` unless processes can lock and share memory here; loaders would fail in odd ways."""
    try:
        multiprocessing.Lock()
        torch.empty(1).share_memory_()
    except (OSError, RuntimeError) as error:
        raise without_workers(getattr(error, "strerror", None) or str(error)) from error


def _end_quietly(_: int) -> None:
    """Let a loader process end without an error of its own at signals that are sent to the main process too.

    It ignores those at which the main process works on for a while.
    """
    for number in signals.ALL:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_IGN if is_waited_for(number) else signal.default_int_handler)
