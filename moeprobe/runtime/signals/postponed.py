"""Ctrl-C, SIGTERM and SIGHUP wait while something is under way that must not be left half done."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from moeprobe.runtime import signals


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
    previous = {number: signal.getsignal(number) for number in signals.ALL}
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
