"""Signals that ask a process to end: what they do while it works.

``Ending`` has them end a command as Ctrl-C does, ``Postponed`` puts them off until a block is left, and ``StopRequest``
notes them for several processes that must all end at the same point. All three replace handlers while they are entered.
The last two serve trainings alone; what a killed run continues from is in ``probes/engine/loop.py``.
"""

import signal
import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self

# SIGTERM is what schedulers, containers and `kill` send; SIGHUP, where there is one, says that the terminal is gone.
FROM_OUTSIDE = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
ALL = (signal.SIGINT, *FROM_OUTSIDE)


class Terminated(KeyboardInterrupt):
    """The process was asked to end; whatever handles Ctrl-C handles this."""

    def __init__(self, number: int) -> None:
        super().__init__(
            "Interrupted" if number == signal.SIGINT else f"Ended by {signal.Signals(number).name}"
        )


class _Handling(ABC):
    """While it is entered, signals go to ``_receive``; afterwards the earlier handlers are back.

    Python delivers signals to the main thread alone, so in any other thread nothing is replaced. What still waits when
    the block is left is raised then; an error of the block's own goes first.
    """

    signals: ClassVar[tuple[int, ...]] = ALL

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._waiting: list[int] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.signals:
                if self._replaces(signal.getsignal(number)):
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waiting = self._put_back()
        if kind is None:
            for number in waiting:
                signal.raise_signal(number)

    @abstractmethod
    def _replaces(self, handler: Any) -> bool:
        """Whether a signal with this handler is received."""

    @abstractmethod
    def _receive(self, number: int, frame: Any) -> None:
        """Do what a signal does."""

    def _put_back(self) -> list[int]:
        """Put the handlers of before back; returns the signals that waited for it, each once."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        waiting = list(dict.fromkeys(self._waiting))
        self._before, self._waiting = {}, []
        return waiting


class Ending(_Handling):
    """While it is entered, signals raise ``Terminated``; one that is ignored (``nohup``) stays so.

    Python ignores an exception in a hook of a fork, in the finalizer of an object or in the callback of a weak
    reference. The signal would be lost, so long work and the end of a command raise it again (``raise_ignored``).

    Attributes:
        number: of the last signal that arrived; None as long as there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number: int | None = None
        self._settled = False

    def settle(self) -> None:
        """Only note signals from now on: a command is about to end, and a second Ctrl-C changes nothing."""
        self._settled = True

    def exit_code(self, otherwise: int) -> int:
        """Return the code of a command that a signal ended, as shells have it; of any other command ``otherwise``."""
        return otherwise if self.number is None else 128 + self.number

    def raise_again(self) -> None:
        """Raise ``Terminated`` if a signal has arrived."""
        if self.number is not None:
            raise Terminated(self.number)

    def _replaces(self, handler: Any) -> bool:
        return handler in (signal.SIG_DFL, signal.default_int_handler)

    def _receive(self, number: int, frame: Any) -> None:
        self.number = number
        if not self._settled:
            raise Terminated(number)


def raise_ignored() -> None:
    """Raise what a signal raised where Python ignored it; long work calls this between two of its steps."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in ALL:
        handling = getattr(signal.getsignal(number), "__self__", None)
        if isinstance(handling, Ending):
            handling.raise_again()


class Postponed(_Handling):
    """Put off what ends a run until the block is left.

    What a signal does then, and whether it is ignored, is as it was before.
    """

    def _replaces(self, handler: Any) -> bool:
        # A handler that was not installed from Python is not known to it, and cannot be put back: it stays.
        return handler is not None

    def _receive(self, number: int, frame: Any) -> None:
        self._waiting.append(number)


# Seconds in which signals are one request: a terminal and a launcher may send the same, one after the other.
_TOGETHER = 3.0


class StopRequest(_Handling):
    """While it is entered, a signal is noted. One that comes again some seconds later does what it did before.

    A signal that is ignored (``nohup``), or ends the process without Python being asked, stays as it is.

    Args:
        waits: whether signals wait at all.

    Attributes:
        waits: the same.
        number: of the first signal; None as long as there was none.
        acknowledged: whether the process ends because of it.
    """

    def __init__(self, *, waits: bool) -> None:
        super().__init__()
        self.waits, self.acknowledged = waits, False
        self.number: int | None = None
        self._since = 0.0

    def acknowledge(self) -> NoReturn:
        """Do what the signal did before; where it was another process that got it, what Ctrl-C does.

        Raises:
            KeyboardInterrupt: always; or what the handler of the signal raises.
        """
        self.acknowledged = True
        for number in self._put_back():
            signal.raise_signal(number)
        raise KeyboardInterrupt

    def _replaces(self, handler: Any) -> bool:
        return self.waits and callable(handler)

    def _receive(self, number: int, frame: Any) -> None:
        if self.number is None:
            self.number, self._since = number, time.monotonic()
            self._waiting.append(number)
        elif time.monotonic() - self._since > _TOGETHER:
            self._put_back()
            signal.raise_signal(number)


def is_waited_for(number: int) -> bool:
    """Whether a signal is noted as a request to stop at present."""
    return isinstance(getattr(signal.getsignal(number), "__self__", None), StopRequest)
