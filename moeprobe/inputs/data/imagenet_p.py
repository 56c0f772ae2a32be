"""ImageNet-P (D. Hendrycks and T. Dietterich, ICLR 2019): videos of a perturbation that grows, as published.

::

    PATH/<wnid>/*.mp4                of one perturbation, e.g. .../ImageNet-P/tilt; 31 frames or more of 224 x 224
    PATH/LOC_synset_mapping.txt      optional: names of the classes, as ``imagenet`` reads them
"""

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import check_split, require_folder
from moeprobe.inputs.data.imagenet import class_names
from moeprobe.inputs.data.readers.clips import Clips


class ImagenetP(Clips):
    """ImageNet-P: clips of one perturbation with the classes of ImageNet, ``imagenet_p:PATH/tilt``."""

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        root = require_folder(location, name="imagenet_p", layout="<wnid>/*.mp4")
        self.read_clips(root)
        names = class_names(root, root)
        number = {wnid: label for label, wnid in enumerate(names)}
        wnids = [name.partition("/")[0] for name in self.image_ids]
        if odd := next((wnid for wnid in wnids if wnid not in number), None):
            raise UserError(f"{odd!r} in {str(root)!r} is none of the {len(number)} classes.")
        self.class_names = tuple(names.values())
        self._labels = [number[wnid] for wnid in wnids]
