"""Ctrl-C, SIGTERM and SIGHUP as a wish, for work of several processes that must all end at the same point of it."""

import signal
import threading
import time
from types import TracebackType
from typing import Any, NoReturn

from moeprobe.runtime import signals

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
            for number in signals.ALL:
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
