"""The second picture of a pair that was taken, not made: stereo, another viewpoint, another light, a later frame."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.picture_partners import PARTNER, PicturePartner
from moeprobe.inputs.views.base import PairView


@dataclass(frozen=True)
class SecondPicture(PairView):
    """Both pictures of a pair that was taken, and where the pixels of one are in the other. For ``picture_pairs``."""

    random: ClassVar[bool] = False
    needs: ClassVar[str] = PARTNER

    def pair(
        self, image: Image.Image, *, framing: Framing, rng: np.random.Generator
    ) -> tuple[Sample, Sample]:
        """Return the clean views of both pictures; the second says where the pixels of the first are in it."""
        second = image.info.get(PARTNER)
        if not isinstance(second, PicturePartner):
            raise UserError(
                "The view second_picture compares pictures that were taken as pairs: take picture_pairs:PATH."
            )
        views = framing.clean(image), framing.clean(second.image)
        maps = views[0].to_source, views[1].to_source
        return views[0], replace(views[1], displacement=second.displacement(*maps, framing.size))
