"""The declaration of ``prefetch``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from moeprobe.declarations import Arg, Layout, Probe
from moeprobe.errors import UserError, option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from moeprobe.results.folder import Result


# Loaded experts, as multiples of k.
_MULTIPLES = (1, 2, 4)
LOADED = Arg(
    "Experts of each layer that are loaded ahead, comma-separated; default k, 2 k and 4 k, or all but one where a "
    "layer has no more.",
    low=1,
)


@dataclass(frozen=True, kw_only=True)
class RouterPrefetch(Probe["Result"]):
    """Does the next router know a layer earlier which experts it will choose, so that they can be loaded ahead?

    Applies the router of each MoE layer to the input of the MoE layer before: share of a token's experts among the m
    experts that it ranks highest there, beside the m busiest experts of other inputs and an even router. m is k, 2 k
    and 4 k by default.

    Example: `moeprobe prefetch checkpoints/demo-baseline checkpoints/demo-prc --data digits`
    """

    name = "prefetch"
    kind = "router-prefetch"
    title = "Experts predicted by the next router"
    work = "moeprobe.probes.router_prefetch.measure:PrefetchMeasurement"
    concluded_by = "moeprobe.probes.router_prefetch.sentences:sentences"
    refuses_parallel = "applies routers one by one, so that each process needs all of them"
    analyses = ("router_ahead",)
    headlines = ()
    layout = Layout.PREFETCH
    joinable = False
    compares = False

    loaded: Annotated[Sequence[int] | None, LOADED] = None

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return the figures of a result by name."""
        from moeprobe.results.figures import prefetch

        return prefetch.draw(result)


def sizes_of(loaded: Sequence[int] | None, name: str, *, top_k: int, num_experts: int) -> list[int]:
    """Return how many experts of a layer are loaded ahead; raises ``UserError`` where it has not as many."""
    if loaded is None:
        return sorted({min(multiple * top_k, num_experts - 1) for multiple in _MULTIPLES})
    for size in loaded:
        if size > num_experts:
            raise UserError(
                f"{name} has {num_experts} experts, so no more can be loaded ahead; got {option('loaded', size)}."
            )
    return sorted(set(loaded))
