"""Numbers of trainings whose experts are aligned that no analysis computes; ``probes/align`` does.

The agreement of the aligned routing itself is in the metrics of any pair (``set_jaccard``).
"""

from moeprobe.metrics.declaration import Metric

# How the interval of a number of a set of trainings is computed, as the column ``interval`` has it.
TRAININGS = "trainings"
# What tables call a set of trainings that no group names.
ALL = "all trainings"

JOINT_ROUTING = Metric(
    "joint_routing",
    about="share of the tokens of expert `expert` of the first training that expert `expert_b` of the second has, too; "
    "both have their own numbers",
    label="tokens in common",
)
SAME_NUMBERS = Metric(
    "same_numbers",
    about="κ of the overlap of the experts of tokens if expert e of one training is taken for expert e of the other",
    label="κ, not aligned",
    margin=False,
)
FITTED = Metric(
    "fitted",
    about="κ of the overlap of the experts of tokens on the inputs that the alignment was fitted to: too high. Chance "
    "is taken from the loads of all inputs, where expert_overlap_kappa pairs different inputs only",
    label="κ of the loads, in sample",
    margin=False,
)
FITTED_UNRELATED = Metric(
    "fitted_unrelated",
    about="the same of one training's input with another input of the other, aligned anew: mean over random orders of "
    "the inputs; its range holds 95 % of them",
    label="of unrelated inputs",
    below="fitted",
    margin=False,
)
FITTED_P = Metric(
    "fitted_p",
    about="share of random orders of the inputs in which fitted is at least as large; the observed order counts as one",
    label="p",
    unit="probability",
    below="fitted",
    margin=False,
)
SAME_ALIGNMENT = Metric(
    "same_alignment",
    about="share of the experts with tokens that both halves of the inputs align with the same expert",
    label="experts aligned alike",
    margin=False,
)
SHARE_DATA = Metric(
    "share_data",
    about="share of routing that data determine: mean κ (pooled) of all pairs of trainings that differ in their seed",
    label="determined by data",
    noun="share of routing that data determine",
)
SHARE_POSITION = Metric(
    "share_position",
    about="the part of share_data that the position alone explains: chance at each position above pooled chance",
    label="by position alone",
    below="share_data",
)
SHARE_CONTENT = Metric(
    "share_content",
    about="the part of share_data that the position does not explain",
    label="by content",
    below="share_data",
)
SHARE_SEED = Metric(
    "share_seed",
    about="1 minus share_data: what differs between trainings of the same data",
    label="by seed",
    below="share_data",
)

measures = (
    JOINT_ROUTING,
    SAME_NUMBERS,
    FITTED,
    FITTED_UNRELATED,
    FITTED_P,
    SAME_ALIGNMENT,
    SHARE_DATA,
    SHARE_POSITION,
    SHARE_CONTENT,
    SHARE_SEED,
)
