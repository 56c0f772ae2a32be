"""The faults: each disturbs a command, lets it go on, and says what was found.

An undisturbed run of the same command, in a folder of its own, is what all results are held against.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.torture.children import (
    PATIENCE,
    Child,
    Line,
    counted,
    counting,
    limited,
    not_almighty,
    shell,
    started,
    without_shared_memory,
)
from benchmarks.torture.jobs import Job
from benchmarks.torture.looking import fingerprint, left_behind, partial


@dataclass
class Finding:
    """What a fault did to a command.

    Attributes:
        fault: what was done.
        command: to which command.
        times: how often it took place.
        codes: the exit codes of the disturbed processes, negative for a signal.
        partial: files that had their final name and were not whole, seen right after a fault.
        left: temporary files after the last run.
        tracebacks: processes whose standard error held one.
        runs: runs that went on to their end.
        same: those of them whose results are those of the undisturbed run.
        again: blocks computed again for each signal, the most of all runs; None where no image goes through a model.
    """

    fault: str
    command: str
    times: int = 0
    codes: set[int] = field(default_factory=set)
    partial: int = 0
    left: int = 0
    tracebacks: int = 0
    runs: int = 0
    same: int = 0
    again: float | None = None

    def disturbed(self, child: Child, folder: Path, out: Sequence[str]) -> None:
        """Note how a disturbed process ended, and what it left."""
        self.times += 1
        self.codes.add(child.code if child.code is not None else -999)
        self.tracebacks += "Traceback" in child.said()
        self.partial += len(partial(folder, out))


class Torture:
    """A command, an undisturbed run of it, and a folder to disturb others in.

    Args:
        job: the command.
        folder: an empty folder for all of it.
        rng: of the moments.
    """

    def __init__(self, job: Job, folder: Path, rng: random.Random) -> None:
        self.job, self.rng = job, rng
        self.folder = folder / "here"
        self.images = folder / "images.txt"
        for name in ("undisturbed", "here"):
            (folder / name).mkdir(parents=True)
            job.prepare(folder / name)
        self.wanted, self.seconds, self.num_images = self._undisturbed(folder / "undisturbed")

    def _undisturbed(self, folder: Path) -> tuple[dict[str, str], float, int]:
        with started(self.job.line, folder, before=counting(self.images)) as child:
            if child.wait() != 0:
                raise RuntimeError(f"{self.job.name} does not run: {child.said()}")
            seconds = time.monotonic() - child.begun
        return fingerprint(folder, self.job), seconds, counted(self.images)

    def moment(self) -> float:
        """Return a random moment of the run, in seconds from its beginning."""
        return self.rng.uniform(0, self.seconds)

    def finish(self, found: Finding, *, resume: bool = True, clear: bool = True) -> None:
        """Let the command go on to its end, undisturbed, and compare what it leaves."""
        if resume:
            with started(self.job.line, self.folder, before=counting(self.images)) as child:
                child.wait()
            if child.code != 0:
                found.tracebacks += "Traceback" in child.said()
                found.codes.add(child.code if child.code is not None else -999)
        found.runs += 1
        found.left += len(left_behind(self.folder, self.job.out))
        found.same += fingerprint(self.folder, self.job) == self.wanted
        if clear:
            self.job.cleared(self.folder)

    def signaled(
        self, fault: str, number: int, times: int, *, chain: int = 1, twice: bool = False
    ) -> Finding:
        """Send a signal at random moments, ``chain`` times in a row, then let the run end; so often in all.

        ``twice`` sends it a second time while the first is dealt with.
        """
        found = Finding(fault, self.job.name)
        misses = 0
        while found.times < times and misses < 20 * times:
            hit = 0
            counted(self.images)
            while hit < chain and found.times < times:
                with started(self.job.line, self.folder, before=counting(self.images)) as child:
                    child.wait(self.moment())
                    child.send(number)
                    if twice:
                        child.wait(self.rng.uniform(0, 0.2))
                        child.send(number)
                    child.wait(PATIENCE)
                if child.code == 0 or "finished" in child.said():
                    misses += 1
                    break  # it was done before
                found.disturbed(child, self.folder, self.job.out)
                hit += 1
            if hit:
                self.finish(found)
                self._computed(found, hit)
            else:
                self.job.cleared(self.folder)
        return found

    def _computed(self, found: Finding, signals: int) -> None:
        """Note how much a run computed that an undisturbed one does not, in blocks for each signal."""
        if self.job.blocks:
            more = (counted(self.images) - self.num_images) / signals
            found.again = max(found.again or 0.0, more / (self.num_images / self.job.blocks))

    def without_shared_memory(self) -> Finding:
        """Run with loader processes that have no shared memory, then without such processes."""
        found = Finding("no /dev/shm, 2 loader processes", self.job.name)
        with started(self.job.with_workers, self.folder, before=without_shared_memory) as child:
            child.wait()
        found.disturbed(child, self.folder, self.job.out)
        self.finish(found, resume=child.code != 0)
        return found

    def limits(self, fault: str, kind: str, values: Sequence[int]) -> Finding:
        """Run under a limit, then without it."""
        found = Finding(fault, self.job.name)
        for value in values:
            with started(self.job.line, self.folder, before=limited(kind, value)) as child:
                child.wait()
            found.disturbed(child, self.folder, self.job.out)
            self.finish(found, resume=child.code != 0)
        return found

    def full_disk(self, kilobytes: Sequence[int]) -> Finding | None:
        """Run on a file system that is too small, then on one that is not; None where none can be mounted."""
        found = Finding("disk full", self.job.name)
        for size in kilobytes:
            with self._mounted(size) as mounted:
                if not mounted:
                    return None
                with started(self.job.line, self.folder) as child:
                    child.wait()
                found.disturbed(child, self.folder, self.job.out)
                os.system(f"mount -o remount,size=1g {self.folder / self.job.out[0]}")
                self.finish(found, resume=child.code != 0, clear=False)
        return found

    @contextmanager
    def _mounted(self, kilobytes: int) -> Iterator[bool]:
        place = self.folder / self.job.out[0]
        place.mkdir()
        done = os.system(f"mount -t tmpfs -o size={kilobytes}k tmpfs {place} 2>/dev/null") == 0
        try:
            yield done
        finally:
            if done:
                os.system(f"umount -l {place}")
            self.job.cleared(self.folder)

    def meanwhile(
        self, fault: str, times: int, act: Callable[[Path], None], undo: Callable[[Path], None]
    ) -> Finding:
        """Do something to the folder at random moments of a run, undo it, let it go on."""
        found = Finding(fault, self.job.name)
        tries = 0
        while found.times < times and tries < 20 * times:
            tries += 1
            out = self.folder / self.job.out[0]
            with started(self.job.line, self.folder, before=not_almighty) as child:
                child.wait(self.moment())
                acted = out.is_dir() and child.poll() is None
                if acted:
                    act(out)
                child.wait()
            if acted and child.code != 0:
                found.disturbed(child, self.folder, self.job.out)
            undo(out)
            if acted and child.code != 0:
                self.finish(found)
            self.job.cleared(self.folder)
        return found

    def two_at_once(self) -> Finding:
        """Begin the same command a second time while the first runs: it is refused, and the first is not disturbed."""
        found = Finding("two runs in one folder", self.job.name)
        # A training locks the folder of its run, inside of the named one.
        out = self.folder / self.job.out[0]
        with started(self.job.line, self.folder) as first:
            # The file is there a moment before it is locked; then it says who holds it.
            while first.poll() is None and not any(one.stat().st_size for one in out.rglob(".moeprobe.lock")):
                time.sleep(0.001)
            first.send(signal.SIGSTOP)
            (self.folder / "other").mkdir(exist_ok=True)
            line: Line = tuple(one if one not in self.job.out else f"../{one}" for one in self.job.line)
            line = tuple(
                f"../{one}" if (self.folder / one).exists() and "/" not in one else one for one in line
            )
            with started(line, self.folder / "other") as second:
                second.wait()
            found.disturbed(second, self.folder, ())
            first.send(signal.SIGCONT)
            first.wait()
        shutil.rmtree(self.folder / "other")
        self.finish(found, resume=first.code != 0)
        return found

    def closed_pipe(self) -> Finding:
        """Run with nobody who reads what is printed."""
        found = Finding("SIGPIPE", self.job.name)
        receiver, sender = os.pipe()
        os.close(receiver)
        with started(self.job.line, self.folder, stdout=sender) as child:
            child.wait()
        os.close(sender)
        found.disturbed(child, self.folder, self.job.out)
        self.finish(found, resume=child.code != 0)
        return found

    def surroundings(self, fault: str, changes: Mapping[str, str | None]) -> Finding:
        """Run as a shell does, with variables of the environment changed, None = removed."""
        found = Finding(fault, self.job.name, times=1)
        environment = {**os.environ, **{name: value for name, value in changes.items() if value is not None}}
        for name, value in changes.items():
            if value is None:
                environment.pop(name, None)
        code, said = shell(self.job.line, self.folder, environment)
        found.codes.add(code)
        found.tracebacks += "Traceback" in said
        found.partial += len(partial(self.folder, self.job.out))
        self.finish(found, resume=code != 0)
        return found
