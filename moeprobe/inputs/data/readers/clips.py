"""Clips of frames: folders of image files, and video files read through PyAV."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.inputs.data.readers.images import EXTENSIONS, open_rgb
from moeprobe.runtime.extras import missing_package
from moeprobe.runtime.files import is_file

VIDEOS = frozenset({".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm"})


class Clips(ImageDataset):
    """Frames of clips, clip by clip and in the order of time.

    Attributes:
        clips: the frames of each clip.
        clip_names: their paths.
    """

    splits = ("test",)
    # A frame of a video is reached past those before it.
    streamed = True
    clips: Sequence[range]
    clip_names: Sequence[str]
    class_names: tuple[str, ...] | None = None

    def read_clips(self, root: Path) -> None:
        """Find the clips below a folder, or the one in a video file.

        Raises:
            UserError: there are none, or a video cannot be read.
        """
        clips = list(_find(root))
        if not clips:
            raise UserError(
                f"There are no frames in {str(root)!r}: no folders of images, and no video files."
            )
        self._frames = [frame for _, frames in clips for frame in frames]
        self.image_ids = [
            f"{name}/{frame.name}" if name else frame.name for name, frames in clips for frame in frames
        ]
        self.clip_names = [name or root.name for name, _ in clips]
        ends = np.cumsum([len(frames) for _, frames in clips]).tolist()
        self.clips = [range(end - len(frames), end) for end, (_, frames) in zip(ends, clips, strict=True)]
        self._labels = [None] * len(self._frames)

    def example(self, index: int) -> Example:
        """Return frame ``index``, at its own size."""
        return Example(self._frames[index].read(), self.image_ids[index], label=self._labels[index])

    def in_order(self, indices: Sequence[int]) -> list[int]:
        """Return the frames in the order of the clips."""
        return sorted(indices)


@dataclass(frozen=True)
class _File:
    """A frame in a file of its own."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def read(self) -> Image.Image:
        return open_rgb(self.path, name=repr(str(self.path)))


@dataclass
class _Video:
    """A video file, read forwards; going back begins anew."""

    path: Path
    _frames: Iterator[Image.Image] | None = None
    _next: int = 0
    _process: int = field(default=-1)

    def frame(self, number: int) -> Image.Image:
        # A copy of this process must not read on in the same open file.
        if self._frames is None or number < self._next or self._process != os.getpid():
            self._frames, self._next, self._process = _decode(self.path), 0, os.getpid()
        for image in self._frames:
            self._next += 1
            if self._next > number:
                return image
        raise UserError(
            f"The video {str(self.path)!r} ends before its frame {number + 1}; mend or remove it."
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_frames": None, "_next": 0, "_process": -1}


@dataclass(frozen=True)
class _VideoFrame:
    video: _Video
    number: int

    @property
    def name(self) -> str:
        return f"{self.number:05d}"

    def read(self) -> Image.Image:
        return self.video.frame(self.number)


def _find(root: Path) -> Iterator[tuple[str, list[_File] | list[_VideoFrame]]]:
    """Yield name and frames of each clip below a folder, or of a video file."""
    if is_file(root):
        yield "", _of_video(root)
        return
    try:
        for folder, folders, files in os.walk(root):
            folders[:] = sorted((name for name in folders if not name.startswith(".")), key=_natural)
            visible = sorted((name for name in files if not name.startswith(".")), key=_natural)
            above = Path(folder)
            name = above.relative_to(root).as_posix().removeprefix(".")
            images = [above / file for file in visible if Path(file).suffix.lower() in EXTENSIONS]
            if images:
                yield name, [_File(path) for path in images]
            for file in visible:
                if Path(file).suffix.lower() in VIDEOS:
                    yield (above / file).relative_to(root).as_posix(), _of_video(above / file)
    except OSError as error:
        raise UserError(f"The folder {str(root)!r} cannot be read: {error.strerror}.") from error


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which frame 2 comes before frame 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _of_video(path: Path) -> list[_VideoFrame]:
    """Return the frames of a video, by its header or, without decoding them, by its packets."""
    av = _pyav(path)
    try:
        with av.open(str(path)) as container:
            count = container.streams.video[0].frames
            if not count:
                count = sum(packet.size > 0 for packet in container.demux(video=0))
    except (av.error.FFmpegError, IndexError, OSError) as error:
        raise _unreadable(path) from error
    if not count:
        raise _unreadable(path)
    video = _Video(path)
    return [_VideoFrame(video, number) for number in range(count)]


def _decode(path: Path) -> Iterator[Image.Image]:
    """Yield the frames of a video, as RGB."""
    av = _pyav(path)
    try:
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                yield frame.to_image()
    except (av.error.FFmpegError, OSError) as error:
        raise _unreadable(path) from error


def _unreadable(path: Path) -> UserError:
    return UserError(f"The video {str(path)!r} cannot be read: it is damaged, or has no frames.")


def _pyav(path: Path) -> Any:
    try:
        import av
    except ImportError:
        raise missing_package(
            f"The video {str(path)!r}", "PyAV", "video", otherwise="store its frames as images"
        ) from None
    return av
