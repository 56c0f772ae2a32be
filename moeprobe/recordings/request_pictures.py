"""The pictures of requests to a server: files in a folder, called by the names of the requests."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from moeprobe.errors import UserError, option
from moeprobe.inputs.data.readers.images import list_images, open_rgb
from moeprobe.runtime.files import is_folder, sha256


class RequestPictures:
    """A folder with the pictures of requests: REQUEST.png, or REQUEST/ with several in the order of their names.

    Choices of one request (``r0/0``, ``r0/1``) have its pictures.

    Args:
        folder: of the pictures.

    Raises:
        UserError: there is no such folder, it cannot be read, or holds no picture.
    """

    def __init__(self, folder: Path) -> None:
        if not is_folder(folder):
            raise UserError(
                f"There is no folder {folder} for {option('images')}; it should hold a picture for each request."
            )
        self._folder = folder
        self._files: dict[str, list[Path]] = {}
        for name in list_images(folder):
            request, _, inner_name = name.partition("/")
            # Looked up by name, and never made of one: a request's name is the server's.
            self._files.setdefault(request if inner_name else Path(request).stem, []).append(folder / name)
        if not self._files:
            raise UserError(f"The folder {folder} holds no pictures.")

    def files_of(self, request: str) -> list[Path]:
        """Return the pictures of a request, or of the request that a choice belongs to.

        Raises:
            UserError: there is none.
        """
        for name in (request, request.rpartition("/")[0]):
            if name in self._files:
                return self._files[name]
        raise UserError(
            f"{request} has a picture, and {self._folder} holds none of its name; its pictures are called e.g. "
            f"{min(self._files)}. Call the picture of a request by the request's id."
        )

    def open(self, request: str) -> list[Image.Image]:
        """Return the pictures of a request, as RGB with 8 bits.

        Raises:
            UserError: there is none, or one cannot be read.
        """
        return [open_rgb(path, name=repr(str(path))) for path in self.files_of(request)]

    def digest(self, requests: Iterable[str]) -> str:
        """Return a hash of the pictures of some requests."""
        digest = hashlib.sha256()
        for request in requests:
            for path in self.files_of(request):
                digest.update(f"{request}\0{sha256(path)}\n".encode())
        return digest.hexdigest()
