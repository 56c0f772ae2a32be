"""Hand records to sinks: one that hangs, fails or is slow does not hold up the training.

A sink is called in a thread of its own, and the training waits for it up to a deadline. So a sink that works has its
record when the training continues, and random numbers that it drew are put back. A late sink continues by itself; if
it draws from Python's or NumPy's random numbers then, the training draws others than without it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from threading import Thread

from moeprobe.integrations.guard import TrainingGuard
from moeprobe.integrations.sinks import RoutingRecord, Sink
from moeprobe.runtime.torch_state import random_numbers_kept

# Seconds that a training waits for all its sinks together: at a record, and at its end.
DEADLINE, LAST_DEADLINE = 1.0, 10.0
# Records that wait for a late sink, and errors in a row after which a sink is left out.
MOST_WAITING, MOST_ERRORS = 16, 5
REMEDY = "Check its disk, server or login."


class Deliveries:
    """Hands records to several sinks."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._deliveries = [Delivery(sink) for sink in sinks]

    def send(self, record: RoutingRecord) -> None:
        """Hand a record to each sink; returns when they have it, or at the deadline."""
        with random_numbers_kept(()):
            calls = [delivery.send(record) for delivery in self._deliveries]
            wait([call for call in calls if call is not None], timeout=DEADLINE)
        for delivery in self._deliveries:
            delivery.report()

    def close(self) -> None:
        """Close the sinks after the records that still wait; returns when that is done, or at the deadline."""
        with random_numbers_kept(()):
            calls = [delivery.close() for delivery in self._deliveries]
            wait([call for call in calls if call is not None], timeout=LAST_DEADLINE)
        for delivery in self._deliveries:
            delivery.report_end()


class Delivery:
    """Hands records to one sink, and says what became of them.

    Its methods are for the thread of the training. A call of the sink has a thread of its own, which waits for the
    call before; no thread is left between two records, when a loader of data may fork.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink, self._name, self._guard = sink, type(sink).__name__, TrainingGuard()
        # Calls that have not been reported on, by the step of their record; that to close has none.
        self._calls: deque[tuple[int | None, Future[None]]] = deque()
        self._is_attached = self._is_open = False
        self._sent = self._written = self._errors = 0

    def send(self, record: RoutingRecord) -> "Future[None] | None":
        """Hand a record on; returns what the training is to wait for, None if it is late already or left out."""
        self._judge_ended()
        self._sent += 1
        if self._errors >= MOST_ERRORS or len(self._calls) > MOST_WAITING:
            return None
        is_late = bool(self._calls)
        try:
            if not self._is_attached:
                self._sink.attach()
                self._is_attached = True
            call = self._start(record.step, lambda: self._write(record))
        except Exception as error:  # whatever another program raises, or no more threads
            self._judge(record.step, error)
            return None
        return None if is_late else call

    def close(self) -> "Future[None] | None":
        """Close the sink after the calls before; a record that comes later opens it again."""
        self._is_attached = False
        with self._guard.errors_warned(f"{self._name} was not closed", REMEDY):
            return self._start(None, self._close)
        return None

    def report(self) -> None:
        """Warn of errors, and of a sink that is late."""
        self._judge_ended()
        if self._calls:
            step, _ = self._calls[0]
            self._guard.warn(
                "late",
                f"{self._name} did not take the record of step {step} within {DEADLINE:g} s. The training continues, "
                f"and {MOST_WAITING} records wait for it at the most. {REMEDY}",
            )

    def report_end(self) -> None:
        """Warn of errors, of a sink that could not be closed in time, and of records that are lost."""
        self._judge_ended()
        if self._calls:
            self._guard.warn("open", f"{self._name} was not closed within {LAST_DEADLINE:g} s. {REMEDY}")
        if self._written < self._sent:
            self._guard.warn("lost", f"{self._name} took {self._written} of {self._sent} records. {REMEDY}")

    def _judge_ended(self) -> None:
        """Judge the calls that have ended; raises what asks for the end of the program."""
        while self._calls and self._calls[0][1].done():
            step, call = self._calls.popleft()
            error = call.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            self._judge(step, error)

    def _start(self, step: int | None, action: Callable[[], None]) -> "Future[None]":
        before = self._calls[-1][1] if self._calls else None
        call: Future[None] = Future()
        Thread(target=_run, args=(before, action, call), daemon=True).start()
        self._calls.append((step, call))
        return call

    def _write(self, record: RoutingRecord) -> None:
        if not self._is_open:
            self._sink.open()
            self._is_open = True
        self._sink.write(record)

    def _close(self) -> None:
        self._is_open = False
        self._sink.close()

    def _judge(self, step: int | None, error: Exception | None) -> None:
        """Note what became of a call, and leave out a sink that only raises errors."""
        if step is None:
            if error is not None:
                self._guard.warn_of(error, f"{self._name} was not closed", REMEDY)
        elif error is None:
            self._errors, self._written = 0, self._written + 1
        else:
            self._errors += 1
            self._guard.warn_of(error, f"{self._name} did not take the record", REMEDY, at=f" of step {step}")
            if self._errors == MOST_ERRORS:
                self._guard.warn(
                    "left out",
                    f"{self._name} failed {MOST_ERRORS} times in a row; it gets no more records. {REMEDY}",
                )


def _run(before: "Future[None] | None", action: Callable[[], None], call: "Future[None]") -> None:
    """Do something after a call before, whatever came of that."""
    if before is not None:
        wait([before])
    try:
        action()
        call.set_result(None)
    except BaseException as error:  # raised in the thread of the training, if it asks for its end
        call.set_exception(error)
