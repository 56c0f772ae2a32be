"""The words that tables, help and messages use without saying each time what they mean.

``moeprobe explain`` and the page of terms read them. Metrics, columns and chance levels are declared elsewhere.
"""

from dataclasses import dataclass

from moeprobe.inputs.modality import IMAGE, TEXT


@dataclass(frozen=True)
class GlossaryEntry:
    """What a word means.

    Attributes:
        name: the word.
        about: what it means, in sentences.
        also: other names of it.
        page: where more is said, below docs.
    """

    name: str
    about: str
    also: tuple[str, ...] = ()
    page: str = "concepts/match-and-chance.md"


# By whether less of the value is better: then κ is 1 where nothing moves all the same.
KAPPA_FORMULAS = {False: "(value − chance) / (1 − chance)", True: "1 − value / chance"}
KAPPA_RANGE = "1 where nothing changes, 0 where the value is what chance reaches"

TERMS = (
    GlossaryEntry(
        "match",
        "The share of corresponding patches that choose the same expert in two views of an image. Part of it is "
        "chance, so it is read together with κ.",
        also=("agreement",),
    ),
    GlossaryEntry(
        "chance",
        "What a value would be if the two sides were unrelated. There are several chance levels (the column null), "
        "which differ in the drawn pairs.",
        also=("chance level", "by chance"),
    ),
    GlossaryEntry(
        "kappa",
        f"How far a value is beyond chance: κ = {KAPPA_FORMULAS[False]}, {KAPPA_RANGE}. Where less is better, "
        f"κ = {KAPPA_FORMULAS[True]}. More κ is always better.",
        also=("κ",),
    ),
    GlossaryEntry(
        "stable",
        "A router is more stable than another if its choices change less when the input does: its κ is higher in the "
        "same view, at the same severity. Read κ together with load and accuracy: a collapsed router never changes.",
        also=("robust", "stability", "robustness"),
    ),
    GlossaryEntry(
        "gate",
        "How much a router wants an expert for a token, as a share of all experts, such as a softmax of its scores. "
        "The outputs of the chosen experts are weighted by it.",
        also=("gates", "router weight"),
    ),
    GlossaryEntry(
        "prefix tokens",
        f"Tokens in front of the input's own: {IMAGE.prefix} and registers in image models, {TEXT.prefix} in "
        "language models. They have rows of their own in tables (prefix in the column tokens; before, text and special "
        "around a picture in a prompt).",
        also=("prefix", "prefix token", IMAGE.prefix, TEXT.prefix, "registers"),
    ),
    GlossaryEntry(
        "severity",
        "How strongly a view perturbs, in the view's own unit, such as σ of the noise. The first severity of a view "
        "changes nothing, and all severities share one random draw.",
        page="concepts/perturbations.md",
    ),
    GlossaryEntry(
        "noise",
        "Random numbers added to every pixel and channel: the view gaussian_noise, which noise-sweep and sweep "
        "measure. The severity is its standard deviation σ, where pixels are in [0, 1].",
        also=("sigma", "σ"),
        page="concepts/perturbations.md",
    ),
    GlossaryEntry(
        "draw",
        "One set of a view's random numbers. They depend only on the seed, the image and the number of the draw, so "
        "every checkpoint sees the same ones.",
        page="concepts/intervals.md",
    ),
    GlossaryEntry(
        "confidence interval",
        "[low, high]: the values that the probed images leave open, at 95 %. It is about other images, not about "
        "other trainings; under 20 images there is none.",
        also=("interval", "ci", "95 % interval", "[low, high]"),
        page="concepts/intervals.md",
    ),
    GlossaryEntry(
        "simultaneous interval",
        "A 95 % interval of a difference that holds for a whole family at once: all layers and severities of one "
        "metric and one pair of checkpoints.",
        also=("family", "simultaneous"),
        page="concepts/intervals.md",
    ),
    GlossaryEntry(
        "unit",
        "What was sampled: images, unless --unit names groups of them, such as patients, videos or prompts. Intervals "
        "and verdicts count units; values do not depend on them.",
        also=("sampling unit", "cluster"),
        page="concepts/units.md",
    ),
    GlossaryEntry(
        "separated",
        "Said of the layer, part or expert that is named as most or least of several: its interval and another one's "
        "do not overlap, where the intervals of all hold at once. Others may be as extreme.",
        also=("not separated",),
        page="concepts/intervals.md",
    ),
    GlossaryEntry(
        "key route",
        "The expert that most tokens of a class have, in every MoE layer. Classes with the same experts share a route; "
        "permutations of the images' labels show how many would by chance.",
        also=("route", "key routes"),
        page="guide/routes.md",
    ),
    GlossaryEntry(
        "information",
        "How much a token's expert says about the class of its image, its place or its color: mutual information "
        "minus its value for permuted images; 0 = none, 1 = all that an expert could say.",
        also=("mutual information", "specialization"),
        page="guide/routes.md",
    ),
    GlossaryEntry(
        "batch-wise variation",
        "How differently images load the experts: the variance over images of an expert's summed gates, divided by "
        "their mean.",
        also=("image variation",),
        page="guide/routes.md",
    ),
    GlossaryEntry(
        "lift",
        "How often two experts process the same token, relative to independence: 1 = as if independent.",
        also=("coactivation lift",),
        page="guide/routes.md",
    ),
)
