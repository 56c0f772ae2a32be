"""Signals that ask a process to end: what they do while it works.

``Ending`` has them end a command as Ctrl-C does, ``uninterrupted`` puts them off until a block is left, and ``Wish``
notes them for several processes that must all end at the same point.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NoReturn

# SIGTERM is what schedulers, containers and `kill` send; SIGHUP, where there is one, says that the terminal is gone.
FROM_OUTSIDE = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
ALL = (signal.SIGINT, *FROM_OUTSIDE)


class Terminated(KeyboardInterrupt):
    """The process was asked to end; whatever handles Ctrl-C handles this."""

    def __init__(self, number: int) -> None:
        super().__init__(f"Ended by {signal.Signals(number).name}")
        self.number = number


class Ending:
    """While it is entered, SIGTERM and SIGHUP raise ``Terminated``; a signal that is ignored (``nohup``) stays so.

    Attributes:
        number: of the last signal that arrived; None as long as there was none.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Ending":
        # Python delivers signals to the main thread alone.
        if threading.current_thread() is threading.main_thread():
            for number in FROM_OUTSIDE:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._before[number] = signal.signal(number, self._end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _end(self, number: int, _frame: Any) -> None:
        self.number = number
        raise Terminated(number)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off what ends a run until the block is left; an error of the block's own goes first.

    What a signal does then, and whether it is ignored, is as it was before. Python delivers signals to the main thread
    alone, so in any other thread there is nothing to put off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def remember(number: int, _frame: Any) -> None:
        received.append(number)

    # A handler that was not installed from Python is not known to it, and cannot be put back: it stays.
    previous = {number: signal.getsignal(number) for number in ALL}
    replaced = {number: handler for number, handler in previous.items() if handler is not None}
    for number in replaced:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
    for number in dict.fromkeys(received):
        signal.raise_signal(number)


# Seconds in which signals are one wish: a terminal and a launcher may send the same, one after the other.
_TOGETHER = 3.0


class Wish:
    """While it is entered, a signal is noted. One that comes again some seconds later does what it did before.

    A signal that is ignored (``nohup``), or ends the process without Python being asked, stays as it is. Python
    delivers signals to the main thread alone, so in any other thread nothing is noted. A wish that nobody has granted
    is raised when the block is left without an error.

    Args:
        waits: whether signals wait at all.

    Attributes:
        waits: the same.
        number: of the first signal; None as long as there was none.
        granted: whether it was.
    """

    def __init__(self, *, waits: bool) -> None:
        self.waits, self.granted = waits, False
        self.number: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Wish":
        if self.waits and threading.current_thread() is threading.main_thread():
            for number in ALL:
                if callable(signal.getsignal(number)):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        noted = self._put_back()
        if noted and kind is None:
            assert self.number is not None
            signal.raise_signal(self.number)

    def grant(self) -> NoReturn:
        """Do what the signal did before; where it was another process that got it, what Ctrl-C does.

        Raises:
            KeyboardInterrupt: always; or what the handler of the signal raises.
        """
        self.granted = True
        if self._put_back():
            assert self.number is not None
            signal.raise_signal(self.number)
        raise KeyboardInterrupt

    def _note(self, number: int, _frame: Any) -> None:
        if self.number is None:
            self.number, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > _TOGETHER:
            self._put_back()
            signal.raise_signal(number)

    def _put_back(self) -> bool:
        """Put the handlers of before back; returns whether they were away and a signal was noted."""
        noted = bool(self._before) and self.number is not None
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        return noted


def is_waited_for(number: int) -> bool:
    """Whether a signal is noted as a wish at present."""
    return isinstance(getattr(signal.getsignal(number), "__self__", None), Wish)
