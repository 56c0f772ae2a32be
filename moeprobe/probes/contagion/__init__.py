"""The declaration of ``contagion``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from moeprobe.declarations import Arg, Headline, Probe
from moeprobe.runtime.catalog import ANALYSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from moeprobe.results.folder import Result

# In groups of one image there are no batch-mates.
GROUP_IMAGES = 4


@dataclass(frozen=True, kw_only=True)
class Contagion(Probe["Result"]):
    """How far does one token's routing depend on the others?

    Share of tokens that are processed by other experts when (batch) the other images of their group, (token) other
    tokens at the router only, or (attention) the pixels of other patches are exchanged. The first two are 0 where each
    token is routed on its own and capacity suffices.

    Example: `moeprobe contagion checkpoints/demo-baseline checkpoints/demo-prc --data digits --out reports/contagion`
    """

    name = "contagion"
    title = "Dependence of routing on other tokens"
    work = "moeprobe.probes.contagion.measure:ContagionMeasurement"
    analyses = ("batch_contagion", "token_contagion", "attention_contagion")
    headlines = tuple(Headline(f"{what}{measured}") for what in analyses for measured in ("", "_distance"))
    joinable = False
    defaults: ClassVar[Mapping[str, Any]] = {"group_images": GROUP_IMAGES}

    share: Annotated[
        float,
        Arg(
            "Share of an image's patches that are exchanged, between 0 and 1.",
            in_request=False,
            above=0,
            below=1,
            what="a share of the patches,",
        ),
    ] = 0.25

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the exchanged part, and its share."""
        groups = sidecar["request"]["group_images"]
        return f"Tokens that change experts: groups of {groups}, {self.share:.0%} of the patches exchanged"

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return which exchanges change nothing at all."""
        unchanged = _exchanges_without_effect(table)
        return [f"{_sentence_on(unchanged)}."] if unchanged else []

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return the shares of each layer."""
        from moeprobe.probes.contagion.figure import draw

        unchanged = _exchanges_without_effect(result.table)
        return draw(
            result.table,
            colors=result.sidecar.colors,
            metrics=[name for name in self.analyses if name not in unchanged],
            notes=[_sentence_on(unchanged)] if unchanged else [],
        )


def _exchanges_without_effect(table: "DataFrame") -> list[str]:
    """Return the exchanges whose numbers of patches are 0 in every image: nothing changes by exchanging this."""
    patches = table[table["tokens"] == "patch"]
    unchanged = []
    for name in Contagion.analyses:
        values = patches[patches["metric"].isin([name, f"{name}_distance"])]["value"].dropna()
        if len(values) and bool((values == 0).all()):
            unchanged.append(name)
    return unchanged


def _sentence_on(names: Sequence[str]) -> str:
    """Return the sentence about exchanges that change nothing, without its full stop."""
    exchanged = " or ".join(f"{ANALYSES.get(name).exchanged} are exchanged" for name in names)
    # The pixels of others reach a router through attention alone.
    routed_alone = "" if "attention_contagion" in names else ": each token is routed by itself"
    return f"0 exactly when {exchanged}{routed_alone}"
