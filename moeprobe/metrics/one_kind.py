"""What is said of experts that serve image tokens or words alone, and of places that are exchanged in all sequences.

The numbers follow from the choices at each place of a sequence, summed over all pictures; ``probes/routes`` computes
them. A permutation exchanges the places, the same way in every picture: so many places at random are the words. That is
a stricter level than to exchange the kinds in each picture anew, since a place keeps whatever it always chooses.
"""

from moeprobe.metrics.declaration import Metric

# A kind's share of an expert's choices, both kinds weighed alike, from which on the expert serves that kind alone.
ALONE = 0.95

_EXCHANGED = "with the places of the sequence exchanged, the same way in every picture (1,000 permutations)"

EXCHANGED = (
    Metric(
        "modality_divergence_exchanged",
        about=f"mean of modality_divergence_plain {_EXCHANGED}; its range holds 95 % of them",
        label="by exchanged places", unit="other", below="modality_divergence",
    ),
    Metric(
        "modality_divergence_p",
        about="share of these permutations in which modality_divergence_plain is at least as large as observed; the "
        "observed order counts as one of them",
        label="p", unit="probability", below="modality_divergence", margin=False,
    ),
)  # fmt: skip

ONE_KIND = (
    Metric(
        "one_kind_experts",
        about=f"share of the experts in use that serve one kind nearly alone: at least {ALONE:.0%} of their choices "
        "come from image tokens, or from words, both kinds weighed alike",
        label="experts of one kind of token",
    ),
    Metric(
        "one_kind_experts_permuted",
        about=f"mean of one_kind_experts {_EXCHANGED}; its range holds 95 % of them",
        label="by exchanged places", below="one_kind_experts",
    ),
    Metric(
        "one_kind_experts_p",
        about="share of these permutations in which one_kind_experts is at least as large as observed; the observed "
        "order counts as one of them",
        label="p", unit="probability", below="one_kind_experts", margin=False,
    ),
)  # fmt: skip

measures = (*EXCHANGED, *ONE_KIND)
