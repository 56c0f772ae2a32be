"""How long work tells its caller where it is."""


class Watcher:
    """Told how a run advances; the command line draws a progress bar with it. This one ignores it."""

    def start(self, description: str, total: int) -> None:
        """Begin a piece of work of ``total`` images (or arrays of a checkpoint)."""

    def advance(self, count: int) -> None:
        """Report ``count`` more of them."""
