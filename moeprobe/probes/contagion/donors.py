"""Which image an image borrows from, and which of its patches are exchanged: the same for every checkpoint.

Axes: B images, N images of a group, P patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from PIL import Image
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Dataset
from moeprobe.inputs.images import Framing, Sample
from moeprobe.runtime.seeds import generator

# Images drawn in addition to those of a group, so that there is another where a donor cannot be read.
_SPARE = 32


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
    def places(self) -> dict[str, int]:
        """Each image's place in the pool, by name."""
        return {self.dataset.image_ids[index]: place for place, index in enumerate(self.pool)}

    def donor(self, image_id: str, *, skip_bad_images: bool) -> Image.Image:
        """Return the picture that an image borrows from: a random one of the pool that is not of its own group.

        Raises:
            UserError: it cannot be read; with ``skip_bad_images``, neither can the next ones drawn.
        """
        group = self.places[image_id] // self.group_images
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
