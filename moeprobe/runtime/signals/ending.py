"""End a command at a scheduler's or closed terminal's signal as at Ctrl-C: runs stay resumable."""

import signal
import threading
from types import TracebackType
from typing import Any

from moeprobe.runtime import signals


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
            for number in signals.FROM_OUTSIDE:
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
