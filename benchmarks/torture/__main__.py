"""Disturb commands and write the table of what was found: ``make torture``, or ``python -m benchmarks.torture``."""

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.torture import disk
from benchmarks.torture.children import load
from benchmarks.torture.faults import Finding, Torture
from benchmarks.torture.jobs import JOBS
from benchmarks.torture.table import write

_SIGNALS = {"SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT, "SIGHUP": signal.SIGHUP}
# Of these all faults are tried; of the others kills and signals.
_ALL = ("train", "noise-sweep")
_SMALL_FILES = "files of at most 4 to 100 KB"
_SURROUNDINGS: dict[str, dict[str, str | None]] = {
    "no HOME": {"HOME": None, "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None, "MPLCONFIGDIR": None},
    "LC_ALL=C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "PYTHONOPTIMIZE=1": {"PYTHONOPTIMIZE": "1"},
}


Fault = Callable[[], Finding | None]


def faults_of(torture: Torture, kills: int) -> dict[str, Fault]:
    """Return what is done to a command, by name."""
    some = max(kills // 5, 1)
    faults: dict[str, Fault] = {
        "kill -9": lambda: torture.signaled("kill -9", signal.SIGKILL, kills, chain=2)
    }
    for name, number in _SIGNALS.items():
        faults[name] = partial(torture.signaled, name, number, some)
    faults["Ctrl-C twice"] = partial(torture.signaled, "Ctrl-C twice", signal.SIGINT, some, twice=True)
    faults[_SMALL_FILES] = lambda: torture.limits(_SMALL_FILES, "FSIZE", (4096, 30_000, 100_000))
    if torture.job.with_workers:
        faults["no /dev/shm"] = torture.without_shared_memory
    if torture.job.name not in _ALL:
        return faults
    return faults | {
        "disk full": lambda: torture.full_disk((64, 400)),
        "folder removed": lambda: torture.meanwhile("folder removed", 2, removed, nothing),
        "folder read-only": lambda: torture.meanwhile("folder read-only", 2, read_only, writable),
        "two runs in one folder": torture.two_at_once,
        "SIGPIPE": torture.closed_pipe,
        "48 open files": lambda: torture.limits("48 open files", "NOFILE", (48,)),
        **{name: partial(torture.surroundings, name, changes) for name, changes in _SURROUNDINGS.items()},
    }


def removed(path: Path) -> None:
    """Remove a folder, whatever is written into it meanwhile."""
    while path.is_dir():
        shutil.rmtree(path, ignore_errors=True)


def nothing(path: Path) -> None:
    """Leave a folder as it is."""


def read_only(path: Path) -> None:
    """Take the right to write to a folder."""
    path.chmod(0o555)


def writable(path: Path) -> None:
    """Give it back."""
    if path.is_dir():
        path.chmod(0o755)


def main() -> None:
    """Parse the command line, disturb, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reports/faults"))
    parser.add_argument(
        "--kills",
        type=int,
        default=30,
        help="kills of each command; other signals a fifth; 0 = only system calls",
    )
    parser.add_argument("--commands", help="only these; rows of others stay in the tables; default all")
    parser.add_argument("--faults", help="only these; rows of others stay in the table; default all")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the moments, and of the choice of calls that fail"
    )
    parser.add_argument("--calls", type=int, default=1000, help="system calls that fail, of ten commands")
    asked = parser.parse_args()
    # Copies of this process must not inherit threads: they would not run.
    os.environ["OMP_NUM_THREADS"] = "1"
    disk.make_up(asked.calls, asked.out, seed=asked.seed, commands=asked.commands or "")
    if asked.kills == 0:
        return
    load()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        Path(folder).chmod(0o755)
        for name in JOBS if asked.commands is None else asked.commands.split(","):
            torture = Torture(
                JOBS[name], Path(folder) / name.replace(" ", "-"), random.Random(f"{asked.seed}-{name}")
            )
            faults = faults_of(torture, asked.kills)
            for fault in faults if asked.faults is None else asked.faults.split(","):
                found = faults[fault]()
                if found is not None:
                    print(json.dumps({**vars(found), "codes": sorted(found.codes)}), flush=True)
                    write(asked.out, [found], seed=asked.seed, kills=asked.kills)


if __name__ == "__main__":
    main()
