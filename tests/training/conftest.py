"""What the tests of training share."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def ctrl_c_arrives() -> Iterator[None]:
    """A shell starts what runs in the background with Ctrl-C ignored, and a child process would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
