"""Pairs of pictures that were taken of the same scene, with a file that says which pixels correspond.

::

    PATH/<pair>/first.png  second.png  and one of flow.*, disparity.*, homography.*  (see ``readers.flows``)
"""

from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset, check_split, require_folder
from moeprobe.inputs.data.readers.flows import read_flow
from moeprobe.inputs.data.readers.images import EXTENSIONS, open_rgb
from moeprobe.inputs.picture_partners import PARTNER, PicturePartner
from moeprobe.runtime.files import is_file


class PicturePairs(ImageDataset):
    """Pairs of pictures with a known correspondence: stereo, viewpoints, light, motion. ``picture_pairs:PATH``.

    Each folder in PATH is a pair: ``first.png`` and ``second.png`` (or another image format) and a file of the flow,
    the disparity or the homography between them. The view ``second_picture`` compares the two.
    """

    splits = ("test",)
    is_encoded = True
    class_names = None

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        root = require_folder(
            location,
            name="picture_pairs",
            layout="a folder per pair: first.png, second.png and flow.npy, e.g.",
        )
        self._folders = sorted(path for path in root.iterdir() if path.is_dir() and _picture(path, "first"))
        if not self._folders:
            raise UserError(
                f"There are no pairs in {str(root)!r}: a pair is a folder with first.png and second.png."
            )
        self.image_ids = [folder.name for folder in self._folders]
        self._labels = [None] * len(self._folders)

    def example(self, index: int) -> Example:
        """Return the first picture of pair ``index``, which carries the second."""
        folder = self._folders[index]
        paths = [_picture(folder, stem) for stem in ("first", "second")]
        if paths[0] is None or paths[1] is None:
            raise UserError(f"{str(folder)!r} has no second picture, second.png.")
        first, second = (open_rgb(path, name=repr(str(path))) for path in paths if path is not None)
        first.info[PARTNER] = PicturePartner(second, read_flow(folder, *first.size))
        return Example(first, self.image_ids[index])


def _picture(folder: Path, stem: str) -> Path | None:
    """Return the image file of that name, whatever its format; None without one."""
    paths = (folder / f"{stem}{ending}" for ending in sorted(EXTENSIONS))
    return next((path for path in paths if is_file(path)), None)
