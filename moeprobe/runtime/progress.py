"""Progress of long work, reported to the caller."""

import html
import sys
import time
from collections.abc import Callable
from typing import Any


class Progress:
    """Progress callback; the command line draws a bar with it. This base class ignores every event."""

    def start(self, description: str, total: int) -> None:
        """Begin a piece of work of ``total`` images (or arrays of a checkpoint)."""

    def advance(self, count: int) -> None:
        """Report ``count`` more of them."""


def progress_of(watcher: Progress | None) -> Progress:
    """Return the progress that was given; without one, a progress bar in a notebook and none elsewhere."""
    return watcher or (NotebookBar() if in_notebook() else Progress())


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookBar(Progress):
    """A progress bar under the cell of a notebook; needs nothing but the notebook."""

    _PAUSE = 0.2  # seconds between two drawings

    def __init__(self) -> None:
        self._description, self._total, self._done = "", 0, 0
        self._drawn = 0.0
        self._handle: Any = None

    def start(self, description: str, total: int) -> None:
        """Begin a piece of work; its bar takes the place of the one before."""
        self._description, self._total, self._done = description, total, 0
        self._draw()

    def advance(self, count: int) -> None:
        """Draw the progress, now and then and at the end."""
        self._done += count
        if self._done >= self._total or time.monotonic() - self._drawn > self._PAUSE:
            self._draw()

    def _repr_html_(self) -> str:
        return (
            f"<progress value='{self._done}' max='{self._total}'></progress> "
            f"{html.escape(self._description)} {self._done:,}/{self._total:,}"
        )

    def __repr__(self) -> str:
        return f"{self._description} {self._done:,}/{self._total:,}"

    def _draw(self) -> None:
        from IPython.display import display

        self._drawn = time.monotonic()
        if self._handle is None:
            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)


Advance = Callable[[int], None]
