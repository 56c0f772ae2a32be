"""Headings and sentences that the screen and reports share."""

from moeprobe.metrics.analyses import attribution as parts
from moeprobe.metrics.registry import find, tokens_choose
from moeprobe.results.numbers import number

# What is attributed -> its columns: (metric, null, heading).
ATTRIBUTION = {
    what: tuple((family.make(share).name, "", share) for share in parts.SHARES)
    for what, family in (("class probability", parts.CLASS_PROBABILITY), ("accuracy", parts.ACCURACY))
}


def attribution(name: str, gates: str) -> str:
    """Return the heading over what features and switching have in the change of the output."""
    return f"what changes the {name}, features (pixels) or switching (experts)? Gates {gates}"


def floors(dtype: str | None) -> tuple[str, str, str]:
    """Return what the columns of a noise floor are called, in ``tables.FLOORS``' order; ``dtype`` is the other one."""
    return "same batch again", "other batch size", dtype or "other dtype"


def sentence_case(text: str) -> str:
    """Return the beginning of a sentence; κ stays what it is."""
    return text if text.startswith("κ") else text[:1].upper() + text[1:]


def random_router(checkpoint: str, lowest: float, *, first: str) -> str:
    """Return a sentence on a checkpoint whose clean images agree with themselves no better than ``lowest``."""
    what = "the tokens keep their first expert" if tokens_choose(first) else find(first).full_label()
    return f"{checkpoint} is random at evaluation: run again unchanged, only {number(lowest)} of {what}"
