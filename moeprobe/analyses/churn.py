"""Which tokens does an expert lose? Of those it processes in the reference, the share that it does not in the view.

Over all experts (each expert's tokens count), and expert by expert (column ``expert``). It is about what was processed,
so a token that its expert drops for want of room is lost too. Chance is the churn if the view's tokens were dealt out
anew: pooled, an expert processes any token as often as it does on the whole; image, it processes another patch of the
same image. kappa is 1 − churn / chance, so that 1 is steady and 0 is chance, as everywhere.

Patch tokens only. Axes: B images, J pairs of tokens, E experts, n images of a whole run.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.analyses._nulls import with_others
from moeprobe.analyses._pairs import of_tokens, patches
from moeprobe.analyses.base import Columns, LayerAnalysis, LayerPair, Metric
from moeprobe.routing import LayerRouting
from moeprobe.similarity import Complement, MeanProduct
from moeprobe.statistics import Kappa, Ratio, Statistic


class Churn(LayerAnalysis):
    """Share of an expert's tokens whose corresponding token it does not process."""

    signature = "churn_pairs"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether experts process some of the tokens, and there is more than one."""
        return layer.top_k > 0 and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return pairs per image, and what each expert processes of them on either and on both sides, ``(B, E)``."""
        paired = patches(pair)
        reference, view = (
            of_tokens(layer.served, token) & paired.present[..., None]
            for layer, token in ((pair.reference, paired.reference), (pair.view, paired.view))
        )
        return {
            pair.view.medium.token: {
                "churn_pairs": paired.present.sum(1),
                "churn_reference": reference.sum(1),
                "churn_view": view.sum(1),
                "churn_kept": (reference & view).sum(1),
            }
        }

    def metrics(self, columns: Columns, *, aligned: bool) -> list[Metric]:
        """Return the churn over all experts, with chance and kappa, and of each."""
        pairs = columns["churn_pairs"].astype(np.float64)
        reference, view, kept = (
            columns[f"churn_{name}"].astype(np.float64) for name in ("reference", "view", "kept")
        )
        trials = columns["churn_reference"].sum(1)
        had, stayed = reference.sum(1), kept.sum(1)
        several = pairs > 1
        others = ((reference * view).sum(1) - stayed) / np.where(several, pairs - 1, 1)
        # Share of assignments that stay: as they do, and as they would by chance, of the same images.
        nulls: dict[str, tuple[Statistic, Statistic, NDArray[np.generic]]] = {
            "pooled": (
                Ratio(stayed, had),
                MeanProduct(reference, view, had, pairs),
                with_others(trials),
            ),
            "image": (
                Ratio(np.where(several, stayed, 0.0), np.where(several, had, 0.0)),
                Ratio(np.where(several, others, 0.0), np.where(several, had, 0.0)),
                np.where(several, trials, 0),
            ),
        }
        metrics = [Metric("churn", "", Ratio(had - stayed, had), trials)]
        for null, (stay, chance, counted) in nulls.items():
            metrics.append(Metric("churn_chance", null, Complement(chance), counted))
            metrics.append(Metric("churn_kappa", null, Kappa(stay, chance), counted))
        return metrics + [
            Metric(
                "churn",
                "",
                Ratio(reference[:, expert] - kept[:, expert], reference[:, expert]),
                columns["churn_reference"][:, expert],
                expert=expert,
            )
            for expert in range(reference.shape[1])
        ]
