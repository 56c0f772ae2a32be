"""The declaration of ``trace mismatch``: a probe of one language model and what a server recorded."""

from typing import TYPE_CHECKING

from moeprobe.probes.base import Kind

if TYPE_CHECKING:
    from pandas import DataFrame


class Mismatch(Kind):
    """Log-probabilities of a server against a model's own, and against the model with the server's routing."""

    name = "trace mismatch"
    kind = "mismatch"
    title = "Log-probabilities of a server and of the model"
    analyses = ("mismatch",)
    headlines = ()
    joinable = False

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return for each model how large the mismatch is, and how much of it goes with the server's routing."""
        from moeprobe.metrics.stats.statistic import PartOf
        from moeprobe.results.numbers import interval

        lines = []
        for name, checkpoint_rows in table.groupby("checkpoint", sort=False):
            rows = {row["metric"]: row for row in checkpoint_rows.to_dict("records")}
            total, replayed, routing = (rows[f"mismatch{part}"] for part in ("", "_rest", "_routing"))
            share = rows.get("mismatch_routing_share")
            sentence = (
                f"{name}: log-probabilities differ by {interval(total)} from the server's, and by "
                f"{interval(replayed)} where the model repeats the server's routing"
            )
            if share is None:
                lines.append(f"{sentence}. Server and model are two models, so no share of it is routing.")
            elif share["flag"] == PartOf.undefined:
                lines.append(f"{sentence}. This is rounding, so no share of it is routing.")
            else:
                lines.append(
                    f"{sentence}: routing accounts for {interval(routing)} of it, a share of {interval(share)}."
                )
        return lines
