"""Commands in processes of their own, copied from this one, which has loaded what takes seconds."""

import ctypes
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Line = tuple[str, ...]
# Seconds until a process is taken to hang.
PATIENCE = 1800.0


@dataclass
class Child:
    """A command that runs.

    Attributes:
        pid: of its process.
        errors: the file of its standard error.
        begun: when, in seconds of a clock that nobody sets.
        code: how it ended; None while it runs, negative for a signal.
    """

    pid: int
    errors: Path
    begun: float
    code: int | None = None

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, seconds: float = PATIENCE) -> int | None:
        """Return how it ended, None where it still runs after so many seconds."""
        until = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        return self.code

    def send(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def said(self) -> str:
        """Return what it has written to standard error."""
        # A signal may come before the process has opened it.
        return self.errors.read_text(encoding="utf-8", errors="replace") if self.errors.is_file() else ""


def load() -> None:
    """Import what commands need, so that a copy of this process begins at once."""
    import moeprobe.api
    import moeprobe.cli.app
    import moeprobe.results.figures
    import moeprobe.studies.train  # noqa: F401


def limited(name: str, value: int) -> Callable[[], None]:
    """Return what sets a limit of the process: ``FSIZE`` (bytes of a file) or ``NOFILE`` (open files)."""
    kind = getattr(resource, f"RLIMIT_{name}")

    def limit() -> None:
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))

    return limit


def not_almighty() -> None:
    """Give up what lets root write to a folder that is read-only."""
    if os.geteuid() == 0:
        # Linux's capset: version 3, this process, then effective, permitted and inheritable rights, all but two.
        header = struct.pack("Ii", 0x20080522, 0)
        low = 0xFFFFFFFF & ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        rights = ctypes.create_string_buffer(24)
        ctypes.CDLL(None).capget(header, rights)
        held = struct.unpack("6I", rights.raw)
        kept = [one & low if place < 3 else one for place, one in enumerate(held)]
        ctypes.CDLL(None).capset(header, struct.pack("6I", *kept))


def counting(path: Path) -> Callable[[], None]:
    """Return what lets a process write down how many images go through a model, a line per pass."""

    def count() -> None:
        from moeprobe.models.timm import timm

        embedding = timm.layers.PatchEmbed
        original = embedding.forward

        def forward(self: Any, images: "Tensor") -> "Tensor":
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{len(images)}\n")
            return original(self, images)

        embedding.forward = forward

    return count


def counted(path: Path) -> int:
    """Return how many images went through a model, and begin at none."""
    lines = path.read_text(encoding="utf-8").split() if path.is_file() else []
    path.unlink(missing_ok=True)
    return sum(map(int, lines))


def without_shared_memory() -> None:
    """Take /dev/shm away from this process and its children, as a container does that has it read-only."""
    library = ctypes.CDLL(None, use_errno=True)
    new_namespace, private, read_only = 0x00020000, 1 << 18 | 1 << 14, 1
    done = (
        library.unshare(new_namespace) == 0
        and library.mount(b"none", b"/", None, private, None) == 0
        and library.mount(b"tmpfs", b"/dev/shm", b"tmpfs", read_only, None) == 0
    )
    if not done:
        raise OSError(ctypes.get_errno(), "this process may not mount")


def as_it_is() -> None:
    """Change nothing in a new process."""


@contextmanager
def started(
    line: Line,
    folder: Path,
    *,
    before: Callable[[], None] = as_it_is,
    after: Callable[[], None] = as_it_is,
    stdout: int = -1,
) -> Iterator[Child]:
    """Run a command in ``folder``; it does not outlive the block.

    Args:
        line: what is typed after ``moeprobe``.
        folder: the working directory.
        before: called in the new process.
        after: called in it when the command has ended.
        stdout: its standard output; -1 = nowhere.
    """
    errors = folder / "stderr.txt"
    errors.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        _run(line, folder, errors, before, after, stdout)
    child = Child(pid, errors, time.monotonic())
    try:
        yield child
    finally:
        child.send(signal.SIGKILL)
        child.wait()


def _run(
    line: Line,
    folder: Path,
    errors: Path,
    before: Callable[[], None],
    after: Callable[[], None],
    stdout: int,
) -> None:
    """Be the command, and end."""
    code = 1
    try:
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY) if stdout < 0 else stdout, 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), 2)
        # Streams that know nothing of the files of before.
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        sys.argv = ["moeprobe", *line]
        before()
        from moeprobe.cli import main

        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        after()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def shell(line: Line, folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a command as a shell does, with nothing loaded and just this environment; returns code and standard error."""
    import subprocess

    command = [sys.executable, "-m", "moeprobe", *line]
    done = subprocess.run(
        command,
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return done.returncode, done.stderr
