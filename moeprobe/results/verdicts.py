"""The words for a difference: what its simultaneous interval allows to be said, and nothing more."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.families import Difference, Judged
from moeprobe.results.numbers import number

MARGIN = 0.02

# Images of a side were left out since their gates or scores are no numbers.
NOT_FINITE = "not finite"


def verdict(difference: Difference, judged: Judged | None, *, margin: float) -> str:
    """Return one word or two, from the simultaneous interval alone (``judged`` None: a side has collapsed).

    * collapsed: a side sends everything to one choice, so its match says nothing;
    * no trials, few images, unstable: there is no interval (as in the column ``flag``);
    * identical: the same in every image;
    * higher, lower: the interval excludes 0;
    * no difference: it includes 0 and is inside ± margin (NaN = the metric has none);
    * cannot tell: anything else.
    """
    flag = difference.replicates.interval().flag
    if judged is None or flag:
        return "collapsed" if judged is None else flag.replace("_", " ")
    if difference.identical:
        return "identical"
    if judged.sim_low > 0:
        return "higher"
    if judged.sim_high < 0:
        return "lower"
    return "no difference" if -margin < judged.sim_low and judged.sim_high < margin else "cannot tell"


NO_DIFFERENCE = "no significant difference"
# Of a difference that is 0 in every input.
SAME = "the same"
# How people read a word of the column ``verdict``: "no difference" is inside the margin.
_READ = {"no difference": "same", "cannot tell": NO_DIFFERENCE}


def phrase(verdict: str, judgement: str = "") -> str:
    """Return how a verdict reads: better, worse, higher, lower, identical, same, no significant difference, …."""
    return judgement or _READ.get(verdict, verdict)


def judgement(metric: str, word: str) -> str:
    """Return better, worse, or nothing where the verdict or the metric has no such side."""
    sign = find(metric).direction * {"higher": 1, "lower": -1}.get(word, 0)
    return {1: "better", -1: "worse"}.get(sign, "")


@dataclass(frozen=True)
class Line:
    """One comparison of a family, as its sentence needs it."""

    verdict: str
    judgement: str
    value: float
    low: float
    high: float
    detectable: float
    images: int
    collapsed: str


def sentence(
    lines: Sequence[Line],
    *,
    checkpoint: str,
    reference: str,
    margin: float,
    units: str = "images",
    whole_numbers: bool = False,
) -> str:
    """Summarize a family: each kind of verdict with its number of comparisons.

    Args:
        lines: the comparisons of the family.
        checkpoint: the compared checkpoint.
        reference: the checkpoint to compare with.
        margin: up to where a difference is called small.
        units: the sampling units.
        whole_numbers: whether the values are whole numbers.
    """
    words = Counter(phrase(line.verdict, line.judgement) for line in lines)
    parts = []
    for word, times in words.most_common():
        these = [line for line in lines if phrase(line.verdict, line.judgement) == word]
        share = "" if len(lines) == 1 else f" in {times} of {len(lines)} comparisons"
        parts.append(f"{word}{share}{_detail(word, these, margin, units, 0 if whole_numbers else 3)}")
    return f"{checkpoint} against {reference}: {'; '.join(parts)}."


def _detail(word: str, lines: Sequence[Line], margin: float, units: str, decimals: int) -> str:
    if word == "collapsed":
        who = ", ".join(dict.fromkeys(line.collapsed for line in lines if line.collapsed))
        return f" ({who}: everything goes to one choice)" if who else " (chance is 1)"
    if word in ("better", "worse", "higher", "lower"):
        small = all(max(abs(line.low), abs(line.high)) < margin for line in lines)
        inside = f", all by less than {margin:g}" if small else ""
        return f" ({_range([line.value for line in lines], signed=True, decimals=decimals)}{inside})"
    if word == phrase("no difference"):
        return f" (all inside ±{margin:g})"
    if word == phrase("cannot tell"):
        detectables = [line.detectable for line in lines if line.detectable == line.detectable]
        images = min(line.images for line in lines)
        return f" ({images:,} {units} detect {_range(detectables)})" if detectables else ""
    return ""


def _range(values: Sequence[float], *, signed: bool = False, decimals: int = 3) -> str:
    texts = [number(value, signed=signed, decimals=decimals) for value in (min(values), max(values))]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"
