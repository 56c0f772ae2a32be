"""Clips of frames in time: folders of images, or video files.

::

    PATH/<clip>/*.png     a folder of frames is a clip; names are sorted so that frame 2 comes before frame 10
    PATH/<clip>.mp4       a video file is a clip (optional: the extra ``video``); PATH may be one itself
"""

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import check_split
from moeprobe.inputs.data.readers.clips import Clips
from moeprobe.runtime.files import expand, is_file, is_folder
from moeprobe.runtime.similar_paths import did_you_mean_path


class Frames(Clips):
    """Frames of clips without labels: ``frames:PATH``, folders of images or video files."""

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        if not location:
            raise UserError(
                "'frames' needs a folder or a video: write frames:PATH, with a folder of images per clip."
            )
        root = expand(location)
        if not is_folder(root) and not is_file(root):
            raise UserError(
                f"There is no folder and no video {location!r} for 'frames'.{did_you_mean_path(root)}"
            )
        self.read_clips(root)
