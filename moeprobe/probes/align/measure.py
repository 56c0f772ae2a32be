"""The work of ``align``: the routing of all trainings is recorded, then the experts of each pair are aligned."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations.options import Options
from moeprobe.declarations.question import Question
from moeprobe.inputs.modality import ORDINARY
from moeprobe.judging.summarize import summarize
from moeprobe.metrics import alignment
from moeprobe.metrics.analyses.expert_overlap import EXPERT_OVERLAP
from moeprobe.metrics.declaration import CHANCE, KAPPA, Metric, NumberName
from moeprobe.metrics.stats.training_pairs import FEWEST, Pair, Quantity, SetShare
from moeprobe.probes.align import Align
from moeprobe.probes.align.fit import Fit, Halves, fit_layer, with_numbers
from moeprobe.probes.engine import origins
from moeprobe.probes.engine.checks import check_choices, make_analyses, make_spec
from moeprobe.probes.engine.leading import leading_sentences
from moeprobe.probes.engine.run import Plan, ProbeWork, TableWork, Work, time_sample
from moeprobe.probes.engine.run_spec import make_request
from moeprobe.probes.trace import recording
from moeprobe.recorded.engine.paired_sums import PairedSums
from moeprobe.recordings.pairs import NamedTrace, clusters_of, common_ids, common_layers
from moeprobe.recordings.reading import TraceFile
from moeprobe.results import summaries
from moeprobe.results.columns import COLUMNS
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.layouts.agreement import difference_label
from moeprobe.results.palette import colors
from moeprobe.results.sidecars import NAMES, choose_names
from moeprobe.results.stored import SumsStore, concat
from moeprobe.results.tables import with_rows
from moeprobe.results.values import CellValues, Evaluator
from moeprobe.routing.record import LayerPair
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.files import Scratch
from moeprobe.runtime.progress import Progress

# What the column ``view`` calls images that an alignment was not fitted to.
HELD_OUT = "held_out"
# Stands between the names of a pair.
BETWEEN = " with "
# Range of the random orders that a table gives.
_ENDS = (0.025, 0.975)


@dataclass(frozen=True)
class RecordedTraining:
    """A model whose experts are aligned with another's.

    Attributes:
        name: what tables call it.
        group: shared by trainings that differ in their seed alone; empty = not known.
        trace: its routing.
    """

    name: str
    group: str
    trace: TraceFile


class Alignment(TableWork[Result], ProbeWork[Result]):
    """The routing of several trainings of the same inputs, recorded and compared pair by pair."""

    def __init__(
        self, probe: Align, models: Sequence[Checkpoint], data: str | None, options: Options
    ) -> None:
        self.probe, self.models, self.options = probe, models, options
        check_choices(
            models, "its experts have no tokens of their own to be aligned by", layers=options.layers
        )
        names = choose_names(options.names, [model.name for model in models]).get(NAMES, {})
        self._names = [names.get(model.name, model.name) for model in models]
        self.data = origins.choose_data(data, models)
        self.spec = make_spec(probe, models, data=self.data, options=options)
        request = make_request(probe, self.spec, models, data=self.data, options=options)
        # Lines of the table are about pairs, and not about a checkpoint.
        trainings = request.pop("checkpoints")
        self.request = request | {"aligned": True, "trainings": trainings, "called": self._names}

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Record the routing, align each pair, and put the tables together."""
        options = self.options
        # A folder that disappears: traces are needed only until experts are aligned.
        scratch = Scratch()
        trainings, skipped = [], []
        for number, (model, name) in enumerate(zip(self.models, self._names, strict=True)):
            progress.start(f"{self.probe.kind}: {name}", len(self.spec.indices))
            path = scratch.path / str(number)
            [view] = recording.recorded_views(self.spec, model.framing, data=self.data, split=options.split)
            skipped += recording.write(
                self.spec, model, path, views=[view], all_gates=False, progress=progress.advance
            )
            trainings.append(RecordedTraining(name, model.group, TraceFile(path / f"{view.name}.parquet")))
        aligned = AlignedTrainings(
            trainings, layers=None, permutations=self.probe.permutations, seed=options.seed
        )
        return align_trainings(
            self,
            self.probe,
            aligned,
            progress,
            trainings=origins.describe_origins(
                self.models, self.spec.dataset, self.data, split=options.split
            ),
            # An image may be skipped for several checkpoints.
            skipped_images=sorted(set(skipped)),
            notes=[],
            batch_size=options.batch_size,
            workers=self.spec.workers,
            device=str(choose_device(options.device)),
        )

    def plan(self) -> Plan:
        """Return what recording would take, by running two batches of each checkpoint."""
        framing = self.models[0].framing
        views = recording.recorded_views(self.spec, framing, data=self.data, split=self.options.split)
        run = partial(recording.run, views=views, all_gates=False)
        images = 2 * self.options.batch_size
        return time_sample(self.spec, self.models, images=images, passes=1, run=run)


class AlignedTrainings:
    """Trainings whose experts are aligned, each pair of a set by itself.

    Args:
        trainings: recorded on the same inputs.
        layers: MoE layers; None = all.
        permutations: random orders of the inputs.
        seed: of the halves, the orders and the intervals.

    Attributes:
        labels: what tables call the pairs, in their order.

    Raises:
        UserError: the traces have no input or no layer in common.
    """

    def __init__(
        self,
        trainings: Sequence[RecordedTraining],
        *,
        layers: Sequence[str] | None,
        permutations: int,
        seed: int,
    ) -> None:
        self._trainings, self._permutations, self._seed = trainings, permutations, seed
        traces = [training.trace for training in trainings]
        self._layers = common_layers(traces, layers, mapped=True)
        clusters = clusters_of(traces)
        # Clusters stay in one half, or the other half would not be independent.
        self._halves = Halves.of(common_ids(traces, self._layers), clusters, seed=seed)
        self._in_second = dict(zip(self._halves.ids, self._halves.second.tolist(), strict=True))
        groups = [training.group for training in trainings]
        self._sets, self._of_seed = _sets(groups), _of_seed(groups)
        self._pairs = {
            # Only pairs within a set: trainings of other groups differ in more than the seed.
            pair: pair_label(*(trainings[number].name for number in pair))
            for members in self._sets.values()
            for pair in itertools.combinations(members, 2)
        }
        self.labels = list(self._pairs.values())

    def describe_names(self) -> dict[str, dict[str, Any]]:
        """Return what a sidecar says of the names in the column ``checkpoint``."""
        pairs: dict[str, dict[str, Any]] = {
            label: {"trainings": [self._trainings[number].name for number in pair]}
            for pair, label in self._pairs.items()
        }
        sets = {
            name: {"trainings": [self._trainings[number].name for number in members]}
            for name, members in self._of_seed.items()
        }
        reference = next(iter(sets), "")
        differences = {
            difference_label(name, reference): {
                "trainings": [*content["trainings"], *sets[reference]["trainings"]]
            }
            for name, content in sets.items()
            if name != reference
        }
        return pairs | sets | differences

    def measure(self, run_info: Any, progress: Progress) -> tuple[pd.DataFrame, SumsStore]:
        """Return the table, and the sums per input of each pair.

        Args:
            run_info: makes what all lines share (``Work.run_info``).
            progress: receives the progress.
        """
        groups = {
            label: name
            for name, members in self._sets.items()
            for label in (self._pairs[pair] for pair in itertools.combinations(members, 2))
        } | {name: name for name in self._of_seed}
        info = run_info(aligned=True, train_seeds={}, groups=groups)
        fit_of: dict[tuple[Pair, str], Fit] = {}
        parts = []
        for pair, label in self._pairs.items():
            progress.start(f"{Align.kind}: {label}", len(self._halves.ids))
            traces = self._trace_views(pair)
            for layer in self._layers:
                fit_of[pair, layer] = fit_layer(
                    traces, layer, self._halves, orders=self._permutations, seed=self._seed
                )
            paired = PairedSums(
                traces,
                self._layers,
                self._halves.ids,
                # Not measured alone: only pairs matter here.
                alone=False,
                analyses=Align.analyses,
                renumber=partial(
                    self._renumber_experts, {layer: fit_of[pair, layer] for layer in self._layers}
                ),
            )
            parts.append(paired.sums(progress))
        sums = concat(parts)
        table, _ = summarize(sums, analyses=make_analyses(Align.analyses), run_info=info)
        # Nothing is measured in a layer whose tokens all have all experts.
        measured = set(zip(table["checkpoint"], table["layer"], strict=True))
        rows = [
            row
            for (pair, layer), fit in fit_of.items()
            if (self._pairs[pair], layer) in measured
            for row in self._lines(_Lines(table, info, self._pairs[pair], layer), fit)
        ]
        shares = self._shares(table, sums, info)
        rows += [
            line.row(metric, share.value, share.ends(line.images), interval=alignment.TRAININGS)
            for line, by_metric in shares.values()
            for metric, share in by_metric.items()
        ]
        return with_rows(table, [*rows, *_differences(shares)]), sums

    def _trace_views(self, pair: Pair) -> tuple[NamedTrace, NamedTrace]:
        label = self._pairs[pair]
        first, second = (
            NamedTrace(self._trainings[number].trace, label, HELD_OUT, float("nan"), has_moved=False)
            for number in pair
        )
        return first, second

    def _renumber_experts(
        self, layer_fits: Mapping[str, Fit], layer: str, ids: Sequence[str], subject: LayerPair
    ) -> LayerPair:
        """Return a pair in which each input's experts have the numbers that the other half was fitted to."""
        of_first, of_second = layer_fits[layer].numbers
        in_second = np.array([self._in_second[name] for name in ids])
        # Each half is judged by the alignment of the other half.
        numbers = np.where(in_second[:, None], of_first, of_second)
        return with_numbers(subject, torch.from_numpy(numbers))

    def _lines(self, line: "_Lines", fit: Fit) -> list[dict[str, Any]]:
        """Return the lines of a pair and layer that belong to no input."""
        # Some permutations may have no value.
        low, high = np.nanquantile(fit.unrelated, _ENDS)
        tokens = fit.joint.first
        rows = [
            line.row(alignment.FITTED, fit.fitted),
            line.row(
                alignment.FITTED_UNRELATED,
                float(np.nanmean(fit.unrelated)),
                (low, high),
                interval="permutations",
            ),
            line.row(alignment.FITTED_P, fit.p),
            line.row(alignment.SAME_ALIGNMENT, fit.same_alignment),
            *([] if fit.same_numbers is None else [line.row(alignment.SAME_NUMBERS, fit.same_numbers)]),
        ]
        return rows + [
            line.row(
                alignment.JOINT_ROUTING,
                float(count / max(int(tokens[expert]), 1)),
                expert=expert,
                expert_b=expert_b,
                trials=int(tokens[expert]),
            )
            for (expert, expert_b), count in np.ndenumerate(fit.joint.common)
        ]

    def _shares(self, table: pd.DataFrame, sums: SumsStore, info: summaries.About) -> "_Shares":
        """Return which share of routing data determine, by set of trainings and layer."""
        value = Evaluator(make_analyses(Align.analyses), aligned=True, seed=self._seed, influences=True)
        by_label = {label: pair for pair, label in self._pairs.items()}
        of_pairs: dict[tuple[Pair, str], dict[Metric, Quantity]] = {
            (by_label[stored.checkpoint], stored.cell.layer): _shares_of_pair(value(stored))
            for stored in sums
            # Texts also have a cell that belongs to no layer.
            if stored.cell.tokens in ORDINARY and stored.cell.layer in self._layers
        }
        shares: _Shares = {}
        for (name, members), layer in itertools.product(self._of_seed.items(), self._layers):
            pairs = list(itertools.combinations(members, 2))
            # A set needs all of its pairs: a mean over some would depend on which are missing.
            if all((pair, layer) in of_pairs for pair in pairs):
                line = _Lines(table, info, self._pairs[pairs[0]], layer, name=name)
                shares[name, layer] = (
                    line,
                    {
                        metric: SetShare.over_pairs({pair: of_pairs[pair, layer][metric] for pair in pairs})
                        for metric in of_pairs[pairs[0], layer]
                    },
                )
        return shares


def align_trainings(
    work: Work[Result], probe: Question[Result], aligned: AlignedTrainings, progress: Progress, **facts: Any
) -> Result:
    """Return the result of ``work``; ``facts`` are what its sidecar says of the trainings."""
    table, sums = aligned.measure(work.run_info, progress)
    sidecar = work.make_sidecar(
        checkpoints=aligned.describe_names(),
        colors=colors(aligned.labels),
        wall_seconds=work.seconds,
        **facts,
    )
    leading = partial(leading_sentences, layout=probe.layout)
    return Result(table, None, sums, sidecar, probe.draw, leading)


def pair_label(first: str, second: str) -> str:
    """Return what tables call a pair, e.g. ``digits-seed0 with seed1``; its names' common beginning stands once."""
    parts, of_first = (re.split(r"(?<=[-_./ ])", name) for name in (second, first))
    common = sum(
        1 for _ in itertools.takewhile(lambda both: both[0] == both[1], zip(parts, of_first, strict=False))
    )
    return f"{first}{BETWEEN}{''.join(parts[min(common, len(parts) - 1) :])}"


def _shares_of_pair(values: CellValues) -> dict[Metric, Quantity]:
    """Return the shares of one pair of trainings: of data, of position, of content, of the seed.

    A model in evaluation repeats its routing of an image exactly, so what two trainings do not agree on is the seed's.
    κ is, with equal loads, the intraclass correlation of membership: the covariance of a token's memberships in two
    trainings, added up over the experts, over their variance. It is split at the token's position.
    """

    def number(suffix: str, null: str) -> Quantity | None:
        name = NumberName(f"{EXPERT_OVERLAP.name}{suffix}", null, None, None)
        if name not in values.numbers:
            return None
        return Quantity(values.numbers[name].point, values.influences[name])

    kappa, pooled, position = number(KAPPA, "pooled"), number(CHANCE, "pooled"), number(CHANCE, "position")
    assert kappa is not None and pooled is not None
    unity = Quantity(1.0, np.zeros_like(kappa.influence))
    shares = {alignment.SHARE_DATA: kappa, alignment.SHARE_SEED: unity.minus(kappa)}
    if position is not None:
        shares[alignment.SHARE_POSITION] = position.minus(pooled).over(unity.minus(pooled))
        shares[alignment.SHARE_CONTENT] = kappa.minus(shares[alignment.SHARE_POSITION])
    return shares


def _differences(shares: "_Shares") -> list[dict[str, Any]]:
    """Return the lines of the differences of all sets of trainings from the first."""
    reference = next((name for name, _ in shares), "")
    rows = []
    for (name, layer), (line, by_metric) in shares.items():
        if name != reference and (reference, layer) in shares:
            of_reference = shares[reference, layer][1]
            for metric, share in by_metric.items():
                change = share.minus(of_reference[metric])
                row = line.row(metric, change.value, change.ends(line.images), interval=alignment.TRAININGS)
                rows.append(row | {"checkpoint": difference_label(name, reference), "group": ""})
    return rows


def _sets(groups: Sequence[str]) -> dict[str, list[int]]:
    """Return the sets of trainings that are compared: each group, or all where a group has a single one."""
    members = _members(groups)
    if "" in members or any(len(numbers) < 2 for numbers in members.values()):
        return {alignment.ALL: list(range(len(groups)))}
    return members


def _of_seed(groups: Sequence[str]) -> dict[str, list[int]]:
    """Return the sets of enough trainings that differ in their seed alone: groups, or all where none is known.

    What trainings of several groups do not agree on is not the seed's alone.
    """
    members = _members(groups)
    if {*members} == {""}:
        members = {alignment.ALL: members[""]}
    return {name: numbers for name, numbers in members.items() if name and len(numbers) >= FEWEST}


def _members(groups: Sequence[str]) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    return members


class _Lines:
    """Lines of a table that belong to no single input: what all of a layer share.

    Args:
        table: the table of the pairs.
        info: what all lines share.
        label: the pair whose cells are like theirs.
        layer: which.
        name: what the lines are about; empty = the pair.
    """

    def __init__(
        self, table: pd.DataFrame, info: summaries.About, label: str, layer: str, *, name: str = ""
    ) -> None:
        of_layer = table[
            (table["checkpoint"] == label) & (table["layer"] == layer) & table["tokens"].isin(ORDINARY)
        ]
        template = of_layer.iloc[0]
        self.images = int(template["images"])
        self._shared = {column: template[column] for column in COLUMNS} | {"seed": info.seed}
        if name:
            self._shared |= {"checkpoint": name, "group": info.groups.get(name, "")}

    def row(
        self,
        metric: Metric,
        value: float,
        ends: tuple[float, float] = (np.nan, np.nan),
        *,
        interval: str = "",
        expert: int | None = None,
        expert_b: int | None = None,
        trials: int | None = None,
    ) -> dict[str, Any]:
        """Return a line."""
        has_ends = ends[0] == ends[0]
        of_trials = {} if trials is None else {"trials": trials}
        return self._shared | of_trials | {
            "metric": metric.name, "null": "", "expert": expert, "expert_b": expert_b, "value": value,
            "ci_low": ends[0], "ci_high": ends[1], "interval": interval if has_ends else "",
            "flag": "" if value == value else "collapsed",
        }  # fmt: skip


# By set of trainings and layer: the columns that its lines have in common, and its shares.
_Shares = dict[tuple[str, str], tuple[_Lines, dict[Metric, SetShare]]]
