"""What the tests of training share."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def signals_arrive() -> Iterator[None]:
    """A shell starts what runs in the background with some signals ignored, and a child process would inherit that."""
    wanted: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
    wanted |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL)
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
