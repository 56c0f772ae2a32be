"""Files that would run something if whatever reads them trusted them: each writes a marker when it is executed."""

import gzip
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Hostile:
    """What a pickle of this does where it is loaded: it makes the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self.marker)!r}, 'w').close()",)


def _saved(save: Callable[[Any], Any]) -> bytes:
    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()


def _objects(marker: Path) -> Any:
    return np.array([Hostile(marker)], dtype=object)


def _zip(marker: Path) -> bytes:
    """A torch archive whose members are packed, so that torch cannot map it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Hostile(marker), protocol=2))
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


# Ways to write it: name -> bytes of the file.
PAYLOADS: dict[str, Callable[[Path], bytes]] = {
    "pickle 0": lambda marker: pickle.dumps(Hostile(marker), protocol=0),
    "pickle 2": lambda marker: pickle.dumps({"model": Hostile(marker)}, protocol=2),
    "pickle 5": lambda marker: pickle.dumps(Hostile(marker), protocol=5),
    "torch": lambda marker: _saved(lambda stream: torch.save({"model": Hostile(marker)}, stream)),
    "old torch": lambda marker: _saved(
        lambda stream: torch.save(Hostile(marker), stream, _use_new_zipfile_serialization=False)
    ),
    "packed torch": _zip,
    "npy": lambda marker: _saved(lambda stream: np.save(stream, _objects(marker), allow_pickle=True)),
    "npz": lambda marker: _saved(lambda stream: np.savez(stream, data=_objects(marker), allow_pickle=True)),
    "gzip": lambda marker: gzip.compress(pickle.dumps(Hostile(marker))),
    "yaml": lambda marker: f"!!python/object/apply:os.mknod [{str(marker)!r}]\n".encode(),
    "yaml below": lambda marker: (
        f"name: mine\nmodel: !!python/object/apply:os.mknod [{str(marker)!r}]\n".encode()
    ),
}


def fires(payload: bytes, folder: Path) -> bool:
    """Whether a pickle of a payload does what it is for, where it is trusted."""
    try:
        pickle.loads(payload)
    except Exception:  # not a bare pickle
        return False
    return any(folder.iterdir())
