"""What a command has left: its results byte for byte, files that are not whole, and files that should be gone."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.torture.jobs import Job

# Results whose bytes are those of the undisturbed run; JSON beside them holds times.
SAME = (".safetensors", ".csv", ".parquet", ".png", ".yaml")
_KEPT = ".moeprobe.files"


def files(folder: Path, out: Sequence[str]) -> Iterator[Path]:
    """Yield the files of some folders, in order."""
    for name in out:
        yield from sorted(path for path in (folder / name).rglob("*") if path.is_file())


def fingerprint(folder: Path, job: Job) -> dict[str, str]:
    """Return a hash of each result, and the names of files that hold times, by path."""

    def seen(path: Path) -> str:
        if path.suffix not in SAME or any(path.match(one) for one in job.timed):
            return "there"
        return hashlib.sha256(path.read_bytes()).hexdigest()

    return {path.relative_to(folder).as_posix(): seen(path) for path in files(folder, job.out)}


def partial(folder: Path, out: Sequence[str]) -> list[str]:
    """Return the files that have their final name and are not whole."""
    return [
        path.relative_to(folder).as_posix()
        for path in files(folder, out)
        if not path.name.startswith(".") and not _is_whole(path)
    ]


def left_behind(folder: Path, out: Sequence[str]) -> list[str]:
    """Return the temporary files and locks."""
    return [
        path.relative_to(folder).as_posix()
        for path in files(folder, out)
        if path.name.startswith(".") and path.name != _KEPT
    ]


def _is_whole(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image
    from safetensors import SafetensorError, safe_open

    content = path.read_bytes()
    try:
        if path.suffix == ".json":
            json.loads(content)
        elif path.suffix == ".csv":
            rows = list(csv.reader(io.StringIO(content.decode())))
            return content.endswith(b"\n") and len({len(row) for row in rows}) == 1
        elif path.suffix == ".parquet":
            pq.read_table(path)
        elif path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    file.get_tensor(name)
    except (ValueError, OSError, SyntaxError, pa.ArrowException, SafetensorError):
        return False
    return bool(content)
