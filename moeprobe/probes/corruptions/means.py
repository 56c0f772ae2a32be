"""Values averaged over severities, over the corruptions of a family, and over all of them.

A mean is of the same images everywhere, and its resamples are theirs, so that intervals are paired over images.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from moeprobe.errors import UserError
from moeprobe.inputs.corruptions import FAMILIES, MEAN, STANDARD
from moeprobe.metrics.analyses.output import ACCURACY
from moeprobe.metrics.corruption_error import CORRUPTION_ERROR
from moeprobe.metrics.declaration import NumberName
from moeprobe.metrics.stats.bootstrap import Replicates, average
from moeprobe.results.sums import Cell
from moeprobe.results.values import CellValues

_EVERY = float("nan")
_ACCURACY, _ERROR = NumberName(ACCURACY.name, ""), NumberName(CORRUPTION_ERROR.name, "")
# View and severity.
At = tuple[str, float]


@dataclass(frozen=True)
class Mean:
    """A mean: its view and severity in tables (NaN = over all severities), and what it is of."""

    view: str
    severity: float
    parts: tuple[At, ...]


def means_of(views: Sequence[str], severities: Sequence[float]) -> list[Mean]:
    """Return the means of a run over these views (corruptions and controls).

    Of a corruption over severities; of each family and of all standard corruptions, at each severity and over all. A
    run of none of the standard ones has means over those that it has.
    """
    standard = [view for view in views if view in STANDARD] or list(views)
    groups = {view: [view] for view in views}
    families = {family: [view for view in standard if view in names] for family, names in FAMILIES.items()}
    together = {family: members for family, members in families.items() if members} | {MEAN: standard}
    at_each = [
        Mean(name, severity, tuple((view, severity) for view in members))
        for name, members in together.items()
        for severity in severities
    ]
    over_all = [
        Mean(name, _EVERY, tuple(itertools.product(members, severities)))
        for name, members in (groups | together).items()
    ]
    return [*at_each, *over_all]


def mean_values(
    valued: Sequence[Sequence[CellValues]], *, means: Sequence[Mean], baseline: str | None
) -> Iterable[list[CellValues]]:
    """Yield the values of each mean, one of each checkpoint.

    Args:
        valued: of each view and severity of one layer and kind of tokens, one of each checkpoint.
        means: the means to take.
        baseline: the checkpoint whose errors divide the others' errors; None = nothing is divided.

    Raises:
        UserError: not all values are of the same images.
    """
    values_of: dict[str, dict[At, CellValues]] = {}
    for values in itertools.chain.from_iterable(valued):
        values_of.setdefault(values.checkpoint, {})[values.cell.view, values.cell.severity] = values
    divided = _errors(values_of.get(baseline, {})) if baseline is not None else {}
    for mean in means:
        of_checkpoints = []
        for by_view in values_of.values():
            members = [by_view[at] for at in mean.parts if at in by_view]
            if len(members) == len(mean.parts):
                of_checkpoints.append(_mean(mean, members, _errors(by_view), divided))
        if of_checkpoints:
            yield of_checkpoints


def _errors(values: Mapping[At, CellValues]) -> dict[At, Replicates]:
    """Return 1 minus the accuracy at each view and severity; empty for a layer."""
    return {
        at: cell.numbers[_ACCURACY].complement() for at, cell in values.items() if _ACCURACY in cell.numbers
    }


def _mean(
    mean: Mean,
    members: Sequence[CellValues],
    errors: Mapping[At, Replicates],
    divided: Mapping[At, Replicates],
) -> CellValues:
    """Return the mean of values of one checkpoint."""
    first = members[0]
    if any(member.image_ids != first.image_ids for member in members):
        raise UserError(
            f"{first.checkpoint} was probed on different images under {first.cell.view} and another corruption, so no "
            "mean is paired; leave out the images that cannot be read."
        )
    shared = reduce(
        lambda names, member: [name for name in names if name in member.numbers], members, [*first.numbers]
    )
    numbers = {
        name: average([member.numbers[name] for member in members]) for name in shared if name.expert is None
    }
    if divided and mean.severity != mean.severity:
        by_view = [
            average([errors[at] for at in parts]).over(average([divided[at] for at in parts]))
            for _, group in itertools.groupby(mean.parts, key=lambda at: at[0])
            for parts in [list(group)]
        ]
        numbers[_ERROR] = average(by_view)
    return CellValues(
        checkpoint=first.checkpoint,
        cell=Cell(
            layer=first.cell.layer,
            router=first.cell.router,
            top_k=first.cell.top_k,
            view=mean.view,
            severity=mean.severity,
            tokens=first.cell.tokens,
        ),
        image_ids=first.image_ids,
        numbers=numbers,
        influences={},
        not_finite=any(member.not_finite for member in members),
        num_experts=first.num_experts,
    )
