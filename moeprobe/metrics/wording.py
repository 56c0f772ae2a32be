"""What metrics and values are called wherever people read them, on the screen and in reports; what is read first."""

from collections.abc import Iterable, Mapping
from typing import Any

from moeprobe.inputs.medium import IMAGE, Medium

METRICS: dict[str, str] = {
    "top1_match": "top-1 match",
    "top2_match": "top-2 match",
    "top2_set_match": "top-2 match, any order",
    "set_jaccard": "overlap of expert sets",
    "slot_match": "same slot",
    "weight_cosine": "cosine of the weights",
    "weight_distance": "JS distance of the weights",
    "unweighted": "pairs without weights",
    "churn": "churn: tokens an expert lost",
    "unserved": "tokens without an expert",
    "unserved_both": "pairs without an expert",
    "s_diagonal": "mean S_ii",
    "s_offdiagonal": "mean S_ij, i ≠ j",
    "prc_diagonal": "PRC loss: mean (1 − S_ii)²",
    "prc_offdiagonal": "PRC loss: mean S_ij², i ≠ j",
    "gate_highest": "highest gate",
    "gate_second": "second gate",
    "gate_rest": "sum of the rest",
    "gate_margin": "first − second",
    "load_entropy": "load entropy (1 = even)",
    "accuracy": "accuracy",
    "top5_accuracy": "top-5 accuracy",
    "fewshot_accuracy": "few-shot accuracy",
    "loss": "cross-entropy",
    "prediction_agreement": "same prediction as clean",
    "switches": "switches",
    "switched_tokens": "tokens switched",
    "jump_sum": "sum of the jumps",
    "jump_largest": "largest jump",
    "jump_mean": "jump of a switch",
    **{
        f"{kind}_contagion{suffix}": f"{kind} contagion{words}"
        for kind in ("batch", "token", "attention")
        for suffix, words in (("", ""), ("_dropped", ": dropping alone"), ("_distance", ": distance"))
    },
}
KAPPA: dict[str, str] = {
    "pooled": "κ",
    "position": "κ, position",
    "image": "κ, within {source}",
    "class": "κ, within class",
}
# How much two sides agree, what says most of a router first: where tokens choose, where anything is chosen, where slots
# are shared, anywhere.
AGREEMENTS = {
    "top1_match": "top-1",
    "set_jaccard": "set overlap",
    "slot_match": "same slot",
    "weight_cosine": "weight cosine",
}
# Of these the value and one kappa are enough at first.
_BESIDE = ("weight_cosine", "weight_distance", "churn")
# What is read first of a comparison, after the agreement: metric -> what it is called there.
COMPARED = {
    "accuracy": "accuracy",
    "fewshot_accuracy": "few-shot accuracy",
    "prediction_agreement": "same prediction as clean",
    "loss": "cross-entropy",
    "gate_highest": "highest gate",
    "load_entropy": "load entropy",
    "unserved": "tokens without an expert",
}
# Along severities there are many differences: of these each is shown, of the others what they come to.
COMPARED_ALONG_SEVERITIES = ("accuracy", "fewshot_accuracy", "prediction_agreement")
SWEEP_OUTPUT = tuple((name, "", METRICS[name]) for name in ("accuracy", "prediction_agreement", "loss"))
# What is attributed -> its columns.
ATTRIBUTION = {
    name: tuple((f"{value}_{share}", "", share) for share in ("features", "switching", "interaction"))
    for value, name in (("class_probability", "class probability"), ("accuracy", "accuracy"))
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


def agreement(measured: Iterable[tuple[str, str]]) -> str:
    """Return the agreement that is read first, of (checkpoint, metric): the first one that all checkpoints have.

    Checkpoints whose routers differ in kind are thus told by one measure. One of which nothing agrees (a single expert)
    does not silence the others.
    """
    of: dict[str, set[str]] = {}
    for checkpoint, metric in measured:
        if metric in AGREEMENTS:
            of.setdefault(checkpoint, set()).add(metric)
    shared = set.intersection(*of.values()) if of else set()
    return next((metric for metric in AGREEMENTS if metric in shared), next(iter(AGREEMENTS)))


def compared_first(first: str) -> dict[tuple[str, str], str]:
    """Return what is read first of a comparison, (metric, null) -> title, by the agreement that is read first."""
    beyond = f"{first}_kappa"
    titles = {
        (beyond, "pooled"): f"{full_label(beyond, 'pooled')} (pooled)",
        (first, ""): full_label(first, ""),
    }
    # Where tokens choose without a limit, none is ever without an expert.
    rest = {name: title for name, title in COMPARED.items() if name != "unserved" or first != "top1_match"}
    return titles | {(name, ""): title for name, title in rest.items()}


def kappa(null: str, medium: Medium = IMAGE) -> str:
    """Return what κ by a chance level is called: by whom the level is given."""
    return KAPPA.get(null, f"κ, {null}").format(source=medium.name)


def sweep_routing(first: str, medium: Medium = IMAGE) -> tuple[tuple[str, str, str], ...]:
    """Return the columns of a table along a severity, (metric, null, heading), by the agreement that is read first."""
    columns = [
        (first, "", AGREEMENTS[first]),
        *((f"{first}_kappa", null, kappa(null, medium)) for null in KAPPA),
    ]
    columns.append(("gate_highest", "", "highest gate"))
    if first == "top1_match":
        return (*columns, ("load_entropy", "", "load entropy"))
    return (
        *columns,
        ("weight_distance", "", "JS distance"),
        ("churn", "", "churn"),
        ("unserved", "", "unserved"),
    )


def read_first(metric: str, null: str, *, first: str) -> bool:
    """Whether a short table shows a number, given the agreement that is read first."""
    base = metric.removesuffix("_chance").removesuffix("_kappa")
    beside = base in _BESIDE and base != first
    if metric.endswith("_chance"):
        return null == "pooled" and not beside
    return not (metric.endswith("_kappa") and beside) or null == "pooled" or base == "weight_distance"


def label(metric: str, null: str, medium: Medium = IMAGE) -> str:
    """Return how a metric is called where it stands below the match that it belongs to."""
    if metric.endswith("_chance"):
        return "  by chance"
    if metric.endswith("_kappa"):
        return f"  {kappa(null, medium)}"
    for depth in range(3, 100):
        if metric == f"top{depth}_match":
            return f"top-{depth} match"
        if metric == f"top{depth}_set_match":
            return f"top-{depth} match, any order"
    if metric.startswith("switches_above_"):
        return f"  with jumps > {metric.removeprefix('switches_above_').replace('e-06', 'e-6')}"
    return METRICS.get(metric, metric.replace("_", " "))


def full_label(metric: str, null: str, medium: Medium = IMAGE) -> str:
    """Return how a metric is called where it stands alone, e.g. ``κ of top-1 match, within image``."""
    if metric.endswith("_chance"):
        of = "" if null == "pooled" else f", {medium.name if null == 'image' else null}"
        return f"chance of {label(metric.removesuffix('_chance'), '')}{of}"
    if metric.endswith("_kappa"):
        of = kappa(null, medium).removeprefix("κ")
        return f"κ of {label(metric.removesuffix('_kappa'), '')}{of}"
    return label(metric, null)


def random_router(checkpoint: str, lowest: float, *, first: str) -> str:
    """Return a sentence on a checkpoint whose clean images agree with themselves no better than ``lowest``."""
    kept = f"{number(lowest)} of the tokens keep their first expert"
    other = f"{number(lowest)} of {full_label(first, '')}"
    return f"{checkpoint} is random at evaluation: run again unchanged, only {kept if first == 'top1_match' else other}"


def number(value: float, *, signed: bool = False, decimals: int = 3) -> str:
    """Return a value with three decimals, or as many as are said; a dash where there is none."""
    if value != value:
        return "–"
    value = round(value, decimals) + 0.0  # no minus before a zero
    return f"{value:{'+' if signed else ''},.{decimals}f}"


def decimals_of(row: Mapping[str, Any]) -> int:
    """Return how many decimals a table's row is shown with: two more where all of it is small, none of thousands."""
    ends = [abs(row[name]) for name in ("value", "ci_low", "ci_high") if row[name] == row[name]]
    largest = max(ends, default=0)
    if largest >= 1000:
        return 0
    return 5 if 0 < largest < 0.01 else 3


def between(row: Mapping[str, Any], *, signed: bool = False) -> str:
    """Return ``[low, high]`` of a table's row, and its flag in brackets: alone where there is no interval."""
    flag = f"({row['flag'].replace('_', ' ')})" if row["flag"] else ""
    if row["ci_low"] != row["ci_low"]:
        return flag
    ends = [number(row[name], signed=signed, decimals=decimals_of(row)) for name in ("ci_low", "ci_high")]
    return f"[{', '.join(ends)}] {flag}".rstrip()


def interval(row: Mapping[str, Any], *, signed: bool = False, stacked: bool = False) -> str:
    """Return ``value [low, high]`` of a table's row, with its flag where there is no interval.

    ``stacked`` puts the interval on a line of its own, for narrow windows.
    """
    text = number(row["value"], signed=signed, decimals=decimals_of(row))
    ends = between(row, signed=signed)
    return f"{text}{chr(10) if stacked and ends.startswith('[') else ' '}{ends}".rstrip()
