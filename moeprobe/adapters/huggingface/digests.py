"""The hash of a model of ``transformers``: a folder's files, or a hub model's name and commit.

Files are read in a thread while the model is loaded from them, so that each is read from the disk once; those that
were hashed before are not read (``runtime.file_hashes``).
"""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from torch import nn

from moeprobe.adapters.huggingface.gguf_files import locate
from moeprobe.errors import UserError
from moeprobe.runtime.file_hashes import LEAST_SIZE, hash_file, remembered_hash
from moeprobe.runtime.files import expand, is_file, is_folder
from moeprobe.runtime.seeds import random_state_kept

# What a folder says of a model and of its tokens.
_SUFFIXES = (".json", ".safetensors", ".model", ".txt")
# What is read beside a GGUF file.
_BESIDE = ("config.json", "*token*.json", "vocab.*", "merges.txt", "*.model")


@contextmanager
def digesting(reference: str, gguf: str = "") -> Iterator[Callable[[Any], str]]:
    """Hash a model's files while the block loads it; yields a function from its configuration to the hash.

    A folder is hashed by its files' names and hashes, a name on the hub by its commit; where weights are read from
    the GGUF file ``gguf``, by that file and the configuration and tokenizer beside it. Where the block raises, reading
    ends.
    """
    folder = expand(reference)
    if not is_folder(folder):
        yield lambda config: hash_of_commit(reference, config)
        return
    stop = Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(
            lambda: _digest([(path, hash_file(path, stop=stop)) for path in _files(folder, gguf)])
        )
        try:
            yield lambda config: future.result()
        finally:
            stop.set()


@random_state_kept()
def reload(
    reference: str,
    load: Callable[[], Any],
    *,
    move: Callable[[Any], Any],
    sha256: str,
    gguf: str = "",
) -> nn.Module:
    """Return a model that was opened before, loaded again, where it was.

    Args:
        reference: its folder, or its name on the hub.
        load: returns what ``files.load`` does.
        move: moves it to where it is to run.
        sha256: the hash that it had.
        gguf: as for ``digesting``.

    Raises:
        UserError: it has changed, or cannot be loaded any more.
    """
    with digesting(reference, gguf) as digest:
        model = load().model
        if digest(model.config) != sha256:
            raise UserError(f"hf:{reference} has changed since the run began; start the run again.")
    network: nn.Module = move(model.eval().requires_grad_(False))
    return network


def remembered_digest(reference: str, config: Any, gguf: str = "") -> str | None:
    """Return the hash of a model if it follows without reading its weights; None = a run has not computed it yet."""
    folder = expand(reference)
    if not is_folder(folder):
        return hash_of_commit(reference, config)
    hashes = []
    for path in _files(folder, gguf):
        is_large = path.stat().st_size >= LEAST_SIZE
        hashes.append((path, remembered_hash(path) if is_large else hash_file(path)))
    complete = [(path, value) for path, value in hashes if value is not None]
    return _digest(complete) if len(complete) == len(hashes) else None


def hash_of_commit(reference: str, config: Any) -> str:
    """Return the hash of a model on the hub."""
    return hashlib.sha256(f"{reference}@{config._commit_hash}".encode()).hexdigest()


def _files(folder: Path, gguf: str) -> list[Path]:
    if gguf:
        # Such a file may lie among others that have nothing to do with it.
        beside = {path for pattern in _BESIDE for path in folder.glob(pattern)}
        return [locate(folder, gguf), *sorted(path for path in beside if is_file(path))]
    return [path for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES and is_file(path)]


def _digest(hashes: list[tuple[Path, str]]) -> str:
    lines = "".join(f"{value} {path.name}\n" for path, value in hashes)
    return hashlib.sha256(lines.encode()).hexdigest()
