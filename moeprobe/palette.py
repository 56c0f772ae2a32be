"""Colours of checkpoints: told apart with any colour vision, and the same throughout a run and a report."""

from collections.abc import Sequence

# Okabe and Ito's palette, without the black that axes and text are drawn in.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")


def colours(checkpoints: Sequence[str]) -> dict[str, str]:
    """Return a colour per checkpoint, in their order; from the eighth on they repeat."""
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(checkpoints)}
