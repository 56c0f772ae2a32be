"""ImageNet-C (D. Hendrycks and T. Dietterich, ICLR 2019), as published.

::

    PATH/<corruption>/<severity>/<wnid>/*.JPEG              224 x 224, one of 19 corruptions, severities 1 to 5
    PATH/<family>/<corruption>/<severity>/<wnid>/*.JPEG     likewise, where archives were unpacked by family
    PATH/LOC_synset_mapping.txt                             optional: names of the classes, as ``imagenet`` reads them

Its images are ImageNet's official validation images, stored as JPEG once more.
"""

from moeprobe.errors import UserError
from moeprobe.inputs.corruptions import FAMILIES, parse_location
from moeprobe.inputs.data.base import check_split, require_folder
from moeprobe.inputs.data.imagenet import class_names
from moeprobe.inputs.data.readers.images import ImageFiles, list_images
from moeprobe.runtime.files import is_folder


class ImagenetC(ImageFiles):
    """ImageNet-C: one corruption at one severity, ``imagenet_c:PATH?corruption=snow&severity=3``.

    Images have the same names under every corruption, so that ``--limit`` takes the same photographs of all.
    """

    splits = ("test",)

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        location, kind, severity = parse_location(location, name="imagenet_c")
        root = require_folder(location, name="imagenet_c", layout="<corruption>/<severity>/<wnid>/*.JPEG")
        folders = [root / above / kind / str(severity) for above in ("", *FAMILIES, "extra")]
        folder = next((path for path in folders if is_folder(path)), None)
        if folder is None:
            raise UserError(
                f"There is no folder {f'{kind}/{severity}'!r} in {location!r}, or in one of a family."
            )
        self._root = folder
        self.image_ids = list_images(folder)
        names = class_names(root, folder)
        self.class_names = tuple(names.values())
        number = {wnid: label for label, wnid in enumerate(names)}
        wnids = [file.partition("/")[0] for file in self.image_ids]
        if odd := next((wnid for wnid in wnids if wnid not in number), None):
            raise UserError(f"{odd!r} in {str(folder)!r} is none of the {len(number)} classes.")
        if not wnids:
            raise UserError(f"There are no images in {str(folder)!r}.")
        self._labels = [number[wnid] for wnid in wnids]
