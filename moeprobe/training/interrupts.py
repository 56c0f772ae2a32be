"""Ctrl-C waits while something is under way that must not be left half done."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C until the block is left; an error of the block's own goes first.

    Python delivers signals to the main thread alone, so in any other thread there is nothing to put off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def remember(number: int, _frame: Any) -> None:
        received.append(number)

    previous = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous if previous is not None else signal.default_int_handler)
    if received:
        signal.raise_signal(signal.SIGINT)
