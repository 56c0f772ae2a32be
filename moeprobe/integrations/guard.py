"""A monitor never ends the training that it watches: what goes wrong is a warning."""

import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from moeprobe.errors import RunWarning, UserError
from moeprobe.runtime.foreign_errors import error_text

NOT_RESUMED = "The drift of the routing is measured from here on, not from before the training was resumed"


class TrainingGuard:
    """Warns of errors in place of raising them, once of each kind.

    ``KeyboardInterrupt`` and ``SystemExit`` pass: who ends a training ends it.
    """

    def __init__(self) -> None:
        self._kinds: set[Hashable] = set()

    @contextmanager
    def errors_warned(self, failure: str, remedy: str, *, at: str = "") -> Iterator[None]:
        """Turn an error of the block into a warning; see ``warn_of``."""
        try:
            yield
        except Exception as error:  # whatever a model or another program raises
            self.warn_of(error, failure, remedy, at=at)

    def warn_of(self, error: Exception, failure: str, remedy: str, *, at: str = "") -> None:
        """Warn of an error.

        Args:
            error: the exception; a ``UserError`` says itself how to mend it.
            failure: what did not happen; with the class of the error it is the kind that is said once.
            remedy: a sentence on what to do.
            at: when, e.g. " at step 20".
        """
        if isinstance(error, UserError):
            sentence = f"{failure}{at}: {error!s}"
        else:
            sentence = f"{failure}{at}: {error_text(error)}. {remedy}"
        self.warn((failure, type(error)), f"{sentence} The training continues.")

    def warn(self, kind: Hashable, sentence: str) -> None:
        """Warn, unless something of this kind was said before."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            warnings.warn(RunWarning(sentence), stacklevel=2)
