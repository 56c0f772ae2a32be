"""The columns of tables, and the words of the columns `flag` and `verdict`: what each says."""

# Each word of the column `flag`, with what it says of its value.
FLAGS = {
    "collapsed": "chance is 1, so kappa does not exist",
    "no_mismatch": "the mismatch is below its floor, or its interval reaches it, so there is no share of it",
    "no_cost": "the interval of what flips cost holds 0, or one of them has no price, so there is nothing to compare",
    "no_stakes": "no tried choice of experts is known to move the loss beyond rounding, so there is no share of a gain",
    "no_trials": "there was nothing to count",
    "not_measurable": "the interval of the number of dead experts spans more than half of the experts, so these images "
    "do not say the number; or a curve stays below the level that is looked for",
    "unreached": "fewer than half of the tokens change up to the largest σ of the run, so there is no median",
    "at_smallest": "the smallest simulated cache already finds 90 % of the choices, so the size is at most its own",
    "few_images": "fewer than 20 images, so there is no interval",
    "few_carriers": "a mean of losses of which fewer than 10 images carry half (column carriers), so there is no "
    "interval",
    "unstable": "undefined in more than 1 % of the resamples, or a difference of counts with a share at the limit or "
    "of calibration errors less than five times their floors, so there is no interval",
    "maximum": "a largest value, which has no interval: its p and its ratio compare it with relabeled experts",
    "of_images": "its noise is computed over images, so there is no interval over the units of `--unit`",
    "fitted": "its chance level was fitted on other requests, and resamples of these leave out what others would give",
    "level": "what another value is compared with, without an interval",
    "not_finite": "images whose gates or scores are NaN or infinite are left out (--allow-not-finite)",
}
# Words of the column `verdict` for a flag other than a collapse: nothing was judged.
UNJUDGED = {flag.replace("_", " "): FLAGS[flag] for flag in FLAGS if flag != "collapsed"} | {
    "no interval": "the values differ, and nothing says how much of that is chance, as of counts of dead experts",
}
# Each word of the column `verdict`, with what it says of a difference.
VERDICTS = {
    "identical": "the same in every image that was probed",
    "higher": "the simultaneous interval is above 0",
    "lower": "the simultaneous interval is below 0",
    "same": "the simultaneous interval includes 0 and is inside ± `--margin` (0.02; only for shares, κ and gates)",
    "no significant difference": "anything else; reported with the largest loss that the interval does not exclude, "
    "and the minimum difference that this number of images detects at 80 % power",
    "collapsed": "one side sends everything to one choice, so its match, however perfect, means nothing",
    **UNJUDGED,
}
# How the interval of a row is computed that holds for several rows at once.
SIMULTANEOUS = "simultaneous"
# How the interval of a row is computed that holds however often one looks.
ALWAYS_VALID = "always valid"
# How the range of a row is computed that follows from no sample.
EXACT = "exact"
# Each word of the column `interval`, with how such an interval is computed.
INTERVALS = {
    "score": "Wilson's interval of a share, with its standard error over images",
    SIMULTANEOUS: "holds for a whole curve at once, as wide as the resamples' largest deviation along it, or for all "
    "experts of a checkpoint at once (Bonferroni)",
    "percentile": "percentiles of resamples of whole images",
    "permutations": "2.5 % and 97.5 % quantiles over permutations of the images or of their labels, not a confidence "
    "interval",
    EXACT: "2.5 % and 97.5 % quantiles of a known distribution (binomial, `tokens_needed_even`), not a confidence "
    "interval",
    "trainings": "t standard errors to either side over images and over trainings (jackknife), crossed",
    "crossed": "t standard errors to either side over images and over corruptions, crossed (mean of any)",
    ALWAYS_VALID: "holds after every batch of requests at once, however often one looks (`trace balance --every`)",
    "linearized": "t standard errors to either side (delta method), for more than 2,000 images and for the "
    "information of experts; for the calibration error also its floor to the lower side",
}
# Each column of table.csv (and of comparison.csv, which adds `reference`), with what it says.
COLUMNS: dict[str, str] = {
    "run": "name of the output folder",
    "checkpoint": "name of the checkpoint's folder",
    "group": "name shared by checkpoints that differ in their training seed alone; empty if none",
    "train_seed": "seed the checkpoint was trained with",
    "dataset": "data set probed",
    "split": "split of the data set",
    "layer": "MoE layer, e.g. blocks.3; `all` for values of all layers together; empty for the model's output",
    "router": "the layer's router",
    "top_k": "experts chosen per token; empty where tokens do not choose",
    "view": "perturbation; `clean` for none; `clean_again`, `clean_other_batch`, `clean_other_dtype` for the noise "
    "floor",
    "severity": "severity of the view, in its unit; for `fewshot` the shots, for `experts` the `--loss`, for `trace "
    "balance` the window or the batch, for `trace locality` the experts in a cache, for `prefetch` and `trace "
    "prefetch` those loaded ahead, for `trace batches`, `coverage` and `trace coverage` the tokens; empty for pairs of "
    "random views",
    "draw": "number of the random draw; empty when pooled",
    "tokens": "patch, token (of a text), prefix (CLS, BOS), before, text and special (of a prompt around a picture), "
    "or patches of the foreground, the boundary, the background; for recorded sequences also prompt, generated, "
    "position …, unshared (tokens whose experts only one of two checkpoints has) and, where they hold pictures, image, "
    "video, audio, text, special and before; empty for the model's output",
    "metric": "name of the metric",
    "null": "which chance level a `_chance` or `_kappa` is about: pooled, position, image, class or token; of "
    "indexers and hot experts random, of indexers also recency; of reuse along sequences sequence and even, of caches "
    "of experts eviction and even, of experts loaded ahead busiest and even; of tried choices of experts option",
    "expert": "expert the value is about; empty if about none",
    "expert_b": "second expert, for values about two",
    "class": "class the value is about; empty when pooled",
    "value": "the value; empty where it does not exist (see flag)",
    "ci_low": "lower end of the 95 % interval over images",
    "ci_high": "upper end",
    "interval": "; ".join(f"{word}: {meaning}" for word, meaning in INTERVALS.items()),
    "images": "images behind the value: those with at least one trial",
    "trials": "denominator: corresponding patches, tokens or images",
    "seed": "seed of the probing (views and bootstrap)",
    "flag": "; ".join(f"{word}: {meaning}" for word, meaning in FLAGS.items()),
    "carriers": "images that carry half of a mean of losses (half of the sum of what each adds to it, without signs); "
    "only beside the flag few_carriers",
}
# The column that all tables of a run with ``--unit``, or of batches, have beside them.
UNIT = "unit"
UNIT_COLUMNS: dict[str, str] = {
    UNIT: "the sampling unit, only of runs with `--unit` or batches of requests: intervals are over it, and the column "
    "images counts it",
}
# What comparison.csv adds to them.
COMPARISON_COLUMNS: dict[str, str] = {
    "reference": "checkpoint that the difference is from",
    "checkpoint_value": "value of the checkpoint",
    "reference_value": "value of the reference",
    "se": "standard error of the difference over images (delta method)",
    "sim_low": "lower end of the simultaneous 95 % interval, which holds for the whole family at once",
    "sim_high": "upper end",
    "family_cells": "number of layers × views × severities that the simultaneous interval and p_holm cover",
    "p": "p-value of no difference: t = value / se, images − 1 degrees of freedom; 1 if identical",
    "p_holm": "the same after Holm's correction for the family",
    "detectable": "minimum detectable difference at 80 % power (simultaneous interval without 0)",
    "verdict": " or ".join(", ".join(VERDICTS).rsplit(", ", 1)),
    "judgement": "better or worse, where the metric has a better direction and the verdict is higher or lower",
    "collapsed": "who has collapsed onto one choice: checkpoint, reference or both; empty if neither",
    "margin": "differences inside ± margin count as none; empty where the metric has no margin",
}
# What trainings.csv has, the claims of ``moeprobe compare`` about trainings.
TRAININGS_COLUMNS: dict[str, str] = {
    "checkpoint": "group of the checkpoints, or their names where they share none",
    "reference": "the same of the references",
    **{name: COLUMNS[name] for name in ("layer", "view", "severity", "tokens")},
    "trainings": "number of pairs of trainings",
    **{name: COLUMNS[name] for name in ("metric", "null")},
    "value": "mean difference over all pairs and images",
    "error": "its standard error over trainings and images",
    "freedom": "degrees of freedom of the error (Satterthwaite)",
    "spread": "standard deviation of the true differences of pairs of trainings",
    "image_spread": "standard deviation of what images add to the differences of all pairs alike",
    "residual_spread": "standard deviation of what an image adds to the difference of one pair alone",
    "images": "images that each pair was measured on",
    "ci_low": "lower end of the 95 % interval over trainings and images",
    "ci_high": "upper end",
    "sim_low": "lower end of the interval that holds for all comparisons of the metric at once (Šidák)",
    "sim_high": "upper end",
    **{name: COMPARISON_COLUMNS[name] for name in ("verdict", "judgement", "margin")},
}
# What tails.csv has, of ``moeprobe tails``.
TAILS_COLUMNS: dict[str, str] = {
    **{name: COLUMNS[name] for name in ("checkpoint", "layer", "view", "severity", "tokens")},
    "metric": "quantile: the share of tokens that change experts, which a share of the inputs does not exceed; above: "
    "the share of inputs of which more than a share of the tokens change",
    "at": "the share of inputs of a quantile, or the share of tokens of `--above`",
    "value": "the quantile, or the share",
    "ci_low": "lower end of the 95 % interval (ordered values; of a share above Wilson's); empty where inputs are too "
    "few",
    "ci_high": "upper end",
    "inputs": "inputs, or units of `--unit`, with a token to compare",
}
# What plan.csv has, of ``moeprobe plan``.
PLAN_COLUMNS: dict[str, str] = {
    "checkpoint": COLUMNS["checkpoint"],
    "reference": "checkpoint that it is compared with; empty where the run has one checkpoint alone",
    **{name: COLUMNS[name] for name in ("layer", "view", "severity", "tokens", "metric", "null")},
    "unit": "the sampling unit, which the columns images and images_needed count: image, text, request or as `--unit` "
    "named it",
    "images": "images that the run has",
    "se": "standard error of the difference in the run; for one checkpoint alone √2 times the error of its value",
    "factor": "half of the simultaneous interval in standard errors",
    "effect": "design effect of a share: its variance over images divided by the variance for independent tokens",
    "difference": "the difference to be shown",
    "power": "how often so many images show it",
    "images_needed": "images that show it; empty where the run has no standard error",
}
# What plan-trainings.csv has.
PLAN_TRAININGS_COLUMNS: dict[str, str] = {
    **{name: TRAININGS_COLUMNS[name] for name in ("checkpoint", "reference", "layer", "view", "severity")},
    **{name: TRAININGS_COLUMNS[name] for name in ("tokens", "metric", "null")},
    "pairs": "pairs of trainings",
    "images": "images that each pair is measured on; empty for any number",
    "detectable": "least difference that they show at this power",
    "power": "how often they show it",
}
# Those of the above that hold numbers: whole ones that may be empty, counts, which never are, and seeds of any length.
WHOLE = ("draw", "expert", "expert_b", "carriers")
COUNTS = ("images", "trials")
SEEDS = ("train_seed", "seed")
INTEGERS = frozenset((*WHOLE, *COUNTS, "top_k", "family_cells"))
NUMBERS = INTEGERS | {
    *SEEDS, "severity", "value", "ci_low", "ci_high", "checkpoint_value", "reference_value", "se", "sim_low",
    "sim_high", "p", "p_holm", "detectable", "margin",
}  # fmt: skip
TRAININGS_NUMBERS = frozenset(
    ["trainings", "error", "freedom", "spread", "image_spread", "residual_spread"]
    + [name for name in TRAININGS_COLUMNS if name in NUMBERS]
)
# What the table adds to them, in ``moeprobe tradeoff``.
TRADEOFF_COLUMNS: dict[str, str] = {
    "capacity_factor": "c, the tokens an expert takes, divided by an even load; empty where tokens choose",
    "num_experts": "experts per MoE layer; empty for a dense model",
    "source": "run of the probe, a path in `--out` that `compare` takes; `training` if timed by the training itself, "
    "`model` if counted",
}
# What the table of ``moeprobe curves`` has.
CURVE_COLUMNS: dict[str, str] = {
    "run": "the training's name",
    "group": "shared by trainings that differ in their seed alone; its line in the figure",
    "train_seed": "seed of the training",
    "panel": "value of the key given by `--by`; empty without it",
    "step": "optimizer steps made",
    "epoch": "passes over the training data made",
    "metric": "column of metrics.csv",
    "value": "its value: for training, the mean of the steps since the previous row; for validation, on clean images",
}
