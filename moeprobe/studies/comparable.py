"""What ``compare`` can probe checkpoints with; light to import, so that the command line can name and check it."""

from dataclasses import dataclass

from moeprobe.errors import UserError
from moeprobe.runtime.catalog import unknown


@dataclass(frozen=True)
class Offered:
    """A probe of checkpoints.

    Attributes:
        kind: which of ``engine.checks.KINDS`` it is.
        view: the view that it usually has; None = it must be named, or there is none.
        chooses: whether a view may be named.
    """

    kind: str
    view: str | None = None
    chooses: bool = False


USUAL = "match-ratio"
PROBES: dict[str, Offered] = {
    USUAL: Offered("match-ratio", "random_crop", chooses=True),
    "s-matrix": Offered("s-matrix", "random_crop", chooses=True),
    "noise-sweep": Offered("sweep", "gaussian_noise"),
    "sweep": Offered("sweep", chooses=True),
    "confidence": Offered("confidence"),
    "eval": Offered("eval"),
}
# Probes with options that a comparison does not have: theirs are given to the probe, and its folder is compared.
BY_RUN = ("contagion", "discontinuity", "fewshot", "analyze-trace")


def offered(name: str | None) -> Offered:
    """Return the probe of a name, None = the usual one.

    Raises:
        UserError: there is none, or it is compared by its finished run.
    """
    name = name or USUAL
    if name in BY_RUN:
        raise UserError(
            f"{name} has options of its own, so it is run first: moeprobe {name} ... --out FOLDER, and then compared: "
            "moeprobe compare FOLDER."
        )
    if name not in PROBES:
        raise UserError(unknown("probe", name, PROBES))
    return PROBES[name]
