"""Have one system call of a process fail: ``inject.c``, compiled here and loaded before everything else."""

import ctypes
import errno
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("inject.c")
# In the order of the program's own numbers.
CALLS = (
    "open", "stat", "read", "write", "fsync", "rename", "close", "unlink", "mkdir", "list", "lock", "map",
)  # fmt: skip
SHORT = "short"
_OF_ALL = ("EIO", "EACCES", "ESTALE", "ENOMEM", "EINTR")
_OF_A_FULL_DISK = ("ENOSPC", "EDQUOT", "EROFS")
# What each call may answer with on some file system.
ERRORS = {
    "open": (*_OF_ALL, *_OF_A_FULL_DISK, "EMFILE", "ENODEV"),
    "stat": (*_OF_ALL, "ENODEV"),
    "read": (*_OF_ALL, "ENODEV", SHORT),
    "write": (*_OF_ALL, *_OF_A_FULL_DISK, "ENODEV", SHORT),
    "fsync": ("EIO", "ESTALE", *_OF_A_FULL_DISK),
    "rename": (*_OF_ALL, *_OF_A_FULL_DISK),
    "close": ("EIO", "ESTALE", "EINTR", "ENOSPC", "EDQUOT"),
    "unlink": (*_OF_ALL, "EROFS"),
    "mkdir": (*_OF_ALL, *_OF_A_FULL_DISK),
    "list": (*_OF_ALL, "EMFILE", "ENODEV"),
    "lock": ("EIO", "ESTALE", "EINTR"),
    "map": ("EIO", "EACCES", "ENODEV", "ENOMEM"),
}


def compiled(folder: Path) -> Path:
    """Compile the program into a folder and return its path; raises ``RuntimeError`` where there is no compiler."""
    out = folder / "inject.so"
    command = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", str(out), str(SOURCE), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(
            f"{SOURCE.name} was not compiled: {getattr(error, 'stderr', None) or error}"
        ) from error
    return out


def with_injection(library: Path, arguments: Sequence[str]) -> None:
    """Run Python in a process that can have calls fail; raises ``CalledProcessError`` where it does not end well."""
    environment = os.environ | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *arguments], env=environment, check=True)


def failing(roots: Sequence[Path], call: str, number: int, error: str) -> Callable[[], None]:
    """Return what has the ``number``-th call of a kind fail in a new process, below some folders; 0 = none."""
    folders = b"".join(os.fsencode(root) + b"\0" for root in roots)
    code = -1 if error == SHORT else getattr(errno, error)

    def arm() -> None:
        arming = ctypes.CDLL(None).torture_arm
        arming.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_int)
        arming(folders, len(roots), CALLS.index(call), number, code)

    return arm


def reporting(root: Path, path: Path) -> Callable[[], None]:
    """Return what a process writes down at its end: calls by kind, files that are open, modules."""

    def report() -> None:
        library = ctypes.CDLL(None)
        library.torture_disarm()
        gc.collect()  # an error holds what its functions had open, until its cycle is found
        library.torture_count.restype = ctypes.c_long
        counts = {name: library.torture_count(number) for number, name in enumerate(CALLS)}
        left = [
            name
            for name in map(_target, Path("/proc/self/fd").iterdir())
            if name.startswith(f"{root}/") and not name.endswith("/stderr.txt")
        ]
        path.write_text(
            json.dumps({"counts": counts, "open": left, "modules": list(sys.modules)}), encoding="utf-8"
        )

    return report


def _target(descriptor: Path) -> str:
    """Return the path of a file that is open for writing; none of any other, and of the streams.

    What is read from may stay open until the process ends: PyTorch keeps a file open that it could not map.
    """
    try:
        flags = Path(f"/proc/self/fdinfo/{descriptor.name}").read_text(encoding="utf-8").split("flags:")[1]
        if int(flags.split()[0], 8) & os.O_ACCMODE == os.O_RDONLY:
            return ""
        return "" if int(descriptor.name) <= 2 else str(descriptor.readlink()).removesuffix(" (deleted)")
    except (OSError, IndexError):
        return ""
