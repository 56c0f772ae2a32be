"""What holds for every aggregate analysis of the catalog; a new one is tested the moment its file exists."""

import dataclasses
import inspect
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from moeprobe.adapters.vmoe import Vmoe
from moeprobe.metrics.analyses.cache_size import HitCurve
from moeprobe.metrics.analyses.changed_margins import ReferenceMargins
from moeprobe.metrics.analyses.choices import TriedChoices
from moeprobe.metrics.analyses.critical_noise import NoiseResponse
from moeprobe.metrics.analyses.discontinuity import Path, PathAnalysis
from moeprobe.metrics.analyses.expert_cache import CacheHits
from moeprobe.metrics.analyses.expert_coverage import ExpertTokens
from moeprobe.metrics.analyses.expert_outputs import LayerOutputs
from moeprobe.metrics.analyses.experts import DRAWN, INTERVENTIONS, PER_EXPERT, Interventions, Outcome
from moeprobe.metrics.analyses.flip_costs import PRICED_KINDS, PredictedCosts
from moeprobe.metrics.analyses.flip_prediction import PredictedFlips
from moeprobe.metrics.analyses.flips import FORCED, ForcedFlips
from moeprobe.metrics.analyses.form_loss import FormLosses
from moeprobe.metrics.analyses.hot_experts import WindowLoads
from moeprobe.metrics.analyses.indexer import KeyOverlap
from moeprobe.metrics.analyses.input_experts import InputUses
from moeprobe.metrics.analyses.log_probability import LogProbabilities
from moeprobe.metrics.analyses.match import Match
from moeprobe.metrics.analyses.mismatch import Scores
from moeprobe.metrics.analyses.prefetch import PrefetchHits
from moeprobe.metrics.analyses.rank_load import RankLoads
from moeprobe.metrics.analyses.router_ahead import AheadHits
from moeprobe.metrics.analyses.set_match import SetMatch
from moeprobe.metrics.analyses.set_survival import Survivors
from moeprobe.metrics.analyses.slot_match import SlotMatch
from moeprobe.metrics.analyses.text_flips import ForcedTextFlips
from moeprobe.metrics.analyses.touched import Differences
from moeprobe.metrics.analyses.unshared import Reasons
from moeprobe.metrics.base import (
    Analysis,
    CornerAnalysis,
    Corners,
    Estimator,
    LayerAnalysis,
    ModelAnalysis,
    OutputPair,
)
from moeprobe.metrics.sequences import Sequences
from moeprobe.probes.engine.loop import run
from moeprobe.routing.record import LayerPair, LayerRouting
from moeprobe.runtime import catalog
from tests.results.stores import cells
from tests.routing.routings import (
    Softened,
    Worded,
    aligned,
    checkpoint,
    expert_choice,
    images_of,
    probe,
    routing,
    soft,
)

KINDS = {name: catalog.ANALYSES.get(name) for name in catalog.ANALYSES.names()}
AGGREGATES = {
    name: kind()
    for name, kind in KINDS.items()
    if inspect.isclass(kind) and issubclass(kind, LayerAnalysis | ModelAnalysis | PathAnalysis)
}
LAYERED = {name: analysis for name, analysis in AGGREGATES.items() if isinstance(analysis, LayerAnalysis)}
SEQUENCED = {"touched", "first_layer", "layer_growth"}
CORNERED = {name for name, analysis in AGGREGATES.items() if isinstance(analysis, CornerAnalysis)}
EVERY = pytest.mark.parametrize("name", AGGREGATES)
SIZE = 5
Record = TypeVar("Record")
# What is forced, by its name.
Forced = dict[str, ForcedFlips | ForcedTextFlips]
Asked = (
    LayerPair
    | OutputPair
    | Corners
    | Differences
    | ExpertTokens
    | LogProbabilities
    | NoiseResponse
    | PredictedCosts
    | PredictedFlips
    | Reasons
    | ReferenceMargins
    | FormLosses
    | Scores
    | Survivors
    | KeyOverlap
    | WindowLoads
    | RankLoads
    | LayerOutputs
    | Sequences
    | InputUses
    | CacheHits
    | HitCurve
    | PrefetchHits
    | TriedChoices
    | AheadHits
    | Interventions
    | list[Path]
    | Forced
)


def cut_record(record: Record, rows: slice) -> Record:
    """Some images of a record of tensors."""
    if isinstance(record, TriedChoices):
        some_tokens = record.among((record.source >= rows.start) & (record.source < rows.stop))
        source = some_tokens.source - rows.start
        return dataclasses.replace(some_tokens, inputs=rows.stop - rows.start, source=source)  # type: ignore[return-value]
    if isinstance(record, Interventions):
        outcomes = {name: cut_record(outcome, rows) for name, outcome in record.outcomes.items()}
        return dataclasses.replace(record, outcomes=outcomes)
    kind: Any = type(record)
    fields = [getattr(record, field.name) for field in dataclasses.fields(kind)]
    values = (one if one is None or isinstance(one, tuple | int) else one[rows] for one in fields)
    some: Record = kind(*values)
    return some


def cut(pair: Asked, rows: slice) -> Asked:
    """Some images of a batch."""
    if isinstance(pair, list | dict):
        return (
            pair[rows]
            if isinstance(pair, list)
            else {name: cut_record(forced, rows) for name, forced in pair.items()}
        )
    if isinstance(pair, Differences):
        return Differences(pair.differs[:, rows], pair.trial[rows])
    if isinstance(
        pair,
        Reasons
        | ReferenceMargins
        | FormLosses
        | LogProbabilities
        | NoiseResponse
        | PredictedCosts
        | PredictedFlips
        | Scores
        | Survivors
        | KeyOverlap
        | WindowLoads
        | RankLoads
        | LayerOutputs
        | Sequences
        | InputUses
        | CacheHits
        | HitCurve
        | PrefetchHits
        | TriedChoices
        | AheadHits
        | ExpertTokens
        | Interventions,
    ):
        return cut_record(pair, rows)
    if isinstance(pair, Corners):
        one, two, three, four = (logits[rows] for logits in pair.logits)
        return Corners((one, two, three, four), pair.labels[rows])
    if isinstance(pair, OutputPair):
        return OutputPair(
            None if pair.reference is None else pair.reference[rows], pair.view[rows], pair.labels[rows]
        )
    return LayerPair(
        images_of(pair.reference, rows),
        images_of(pair.view, rows),
        pair.reference_patch[rows],
        pair.view_patch[rows],
        aligned=pair.aligned,
        pixels=None if pair.pixels is None else pair.pixels[rows],
        token_ids=None if pair.token_ids is None else pair.token_ids[rows],
    )


def _scores() -> list[Asked]:
    scores = [-torch.rand(SIZE, 7, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    missing = torch.rand(SIZE, 7, generator=torch.Generator().manual_seed(2)) < 0.3
    one, other = (score.masked_fill(missing, float("nan")) for score in scores)
    return [LogProbabilities(one, other), LogProbabilities(None, one)]


def _reasons() -> list[Asked]:
    random = torch.Generator().manual_seed(0)
    return [Reasons(*(torch.rand(SIZE, 7, generator=random) < share for share in (0.3, 0.2, 0.1, 0.8)))]


def _mismatches() -> list[Asked]:
    [both, _] = _scores()
    assert isinstance(both, LogProbabilities)
    assert both.reference is not None
    return [Scores(both.view, both.reference, both.reference * 0.9)]


def _reference_margins() -> list[Asked]:
    """Margins, one of which is not known, in an input where nothing changes and in others."""
    random = torch.Generator().manual_seed(0)
    margin, changed = (torch.rand(SIZE, 7, generator=random) for _ in range(2))
    margin[0, 2] = torch.nan
    changed[3] = 1
    return [ReferenceMargins(margin, changed < 0.3)]


def _form_losses() -> list[Asked]:
    """Log-probabilities of two forms, with the choices of each other and without."""
    [both, _] = _scores()
    assert isinstance(both, LogProbabilities) and both.reference is not None
    sides = both.reference, both.view
    return [FormLosses(*sides, 1.1 * both.view, 0.9 * both.reference), FormLosses(*sides)]


def _key_overlaps() -> list[Asked]:
    """Overlaps of selected keys: of queries that are no trials, without another request, and without scores."""
    random = torch.Generator().manual_seed(0)
    jaccard, chance, lost, lost_chance, recency, attention = (
        torch.rand(SIZE, 7, generator=random).double() for _ in range(6)
    )
    jaccard[1, :3] = jaccard[2] = torch.nan
    recency[3] = recency[4, :2] = torch.nan
    without = KeyOverlap(jaccard, chance, lost, lost_chance, recency * torch.nan, attention * torch.nan)
    return [KeyOverlap(jaccard, chance, lost, lost_chance, recency, attention), without]


def _windows() -> Tensor:
    """Five requests in three windows."""
    return torch.nn.functional.one_hot(torch.tensor([0, 0, 1, 2, 2]))


def _window_loads() -> list[Asked]:
    random = torch.Generator().manual_seed(0)
    return [WindowLoads(torch.randint(3, 2000, (SIZE, 16), generator=random), _windows())]


def _rank_loads() -> list[Asked]:
    """Loads of four ranks in two layers, over three windows and in one."""
    random = torch.Generator().manual_seed(0)
    loads = 10 * torch.rand(SIZE, 2, 4, generator=random).double()
    choices = loads.sum(-1).long()
    one = torch.nn.functional.one_hot(torch.ones(SIZE, dtype=torch.int64))
    return [RankLoads(loads, choices, window) for window in (_windows(), one)]


def _text_flips() -> list[Asked]:
    """Flips of texts, of tokens not flipped too."""
    random = torch.Generator().manual_seed(0)
    weight, next_fall, following = (torch.rand(SIZE, 4, generator=random).double() for _ in range(3))
    return [
        {forced: ForcedTextFlips(weight * (weight > 0.4), next_fall, following - 0.5) for forced in FORCED}
    ]


def _flips() -> list[Asked]:
    """Prices of flips: with the layer's output and without, of an image without a label, of tokens not flipped."""
    random = torch.Generator().manual_seed(0)

    def flips(*, has_output: bool) -> ForcedFlips:
        weight, price, fall, output = (torch.rand(SIZE, 7, generator=random).double() for _ in range(4))
        price[1] = torch.nan
        answer = torch.rand(SIZE, 7, generator=random) < 0.3
        return ForcedFlips(weight * (weight > 0.4), price, fall, answer, output if has_output else None)

    return [{forced: flips(has_output=has) for forced in FORCED} for has in (True, False)]


def _tried_choices() -> list[Asked]:
    """Other choices of tokens: one without a label, one that nothing moves, an input without tokens, equal gates."""
    random = torch.Generator().manual_seed(0)
    rise, gates = torch.randn(8, 3, generator=random).double(), torch.rand(8, 4, generator=random).double()
    rise[1], rise[4], gates[6] = torch.nan, 0, 0.25
    source = torch.tensor([0, 0, 1, 1, 2, 4, 4, 4])
    return [TriedChoices(SIZE, source, 1 + source.double(), rise, gates, 0.01)]


def _flip_costs() -> list[Asked]:
    """Flips of one and of several perturbations, with a decile in which nothing was priced."""
    random = torch.Generator().manual_seed(0)
    weight = torch.randint(1, 3, (SIZE, PRICED_KINDS), generator=random).double()
    weight[:, 4] = 0
    corners = torch.rand(SIZE, 3, 4, generator=random).double() - torch.tensor([0, 1, 3, 8])
    flips = torch.randint(0, 4, (SIZE, 3, PRICED_KINDS), generator=random)
    fold = torch.tensor([0, 1, 1, 0, 1])
    costs = PredictedCosts(fold, flips, weight, weight * torch.rand(weight.shape, generator=random), corners)
    return [costs, costs.of(0)]


def _margins() -> tuple[list[Asked], list[Asked], list[Asked]]:
    """Margins of tokens under noise: one image without tokens, one token without a margin."""
    random = torch.Generator().manual_seed(0)
    present = torch.rand(SIZE, 7, generator=random) < 0.8
    present[1] = False
    margin, sensitivity, probability = (torch.rand(SIZE, 7, generator=random).double() for _ in range(3))
    margin[2, 3] = torch.nan
    first = torch.randint(0, 3, (SIZE, 7), generator=random)
    response = NoiseResponse(present, first, (0.1, 0.3), margin, sensitivity)
    predicted = [
        PredictedFlips(present, first < 2, margin, margin / sensitivity, one)
        for one in (probability / 2, None)
    ]
    return [response], [*predicted], [Survivors(present, first > 0)]


def _experts() -> list[Asked]:
    """Interventions on images, one without a label, and on texts, which have no answers; the texts' on some experts."""
    random = torch.Generator().manual_seed(0)

    def outcome(number: int, *, is_text: bool) -> Outcome:
        price = torch.randn(SIZE, number, generator=random).double()
        trials = torch.randint(3, 7, (SIZE,), generator=random) if is_text else torch.tensor([1, 0, 1, 1, 1])
        correct, answer = (torch.rand(SIZE, number, generator=random) < 0.4 for _ in range(2))
        price, correct = price * (trials > 0)[:, None], correct & (trials > 0)[:, None]
        return Outcome(price, trials, None if is_text else correct, None if is_text else answer)

    def interventions(*, is_text: bool) -> dict[str, Outcome]:
        return {name: outcome(3 if name in PER_EXPERT else 1, is_text=is_text) for name in INTERVENTIONS}

    drawn = {f"{name}{DRAWN}": outcome(2, is_text=True) for name in PER_EXPERT}
    # All interventions on an input have the same trials.
    texts = interventions(is_text=True) | drawn
    trials = texts["without"].trials
    texts = {name: dataclasses.replace(one, trials=trials) for name, one in texts.items()}
    return [
        Interventions(interventions(is_text=False), num_experts=3),
        Interventions(texts, num_experts=9, measured=[1, 4, 8]),
    ]


def _expert_outputs() -> list[Asked]:
    """Outputs of experts that resemble one another, on few patches of an image."""
    random = torch.Generator().manual_seed(0)
    shared, own = (torch.randn(SIZE, 7, count, 4, generator=random) for count in (1, 3))
    weights = torch.rand(SIZE, 7, 3, generator=random)
    valid = torch.arange(7) < torch.tensor([7, 6, 3, 7, 5])[:, None]
    return [LayerOutputs(shared + own, weights * (weights > 0.4), valid)]


def _sequences() -> list[Asked]:
    """Sequences with gaps, one without tokens, one of a single token, and tokens with fewer experts than others."""
    random = torch.Generator().manual_seed(0)
    experts = torch.rand(SIZE, 24, 6, generator=random).argsort(-1)[..., :2].to(torch.int16)
    present = torch.rand(SIZE, 24, generator=random) < 0.97
    experts[2, :4, 1] = -1
    present[1] = False
    present[3, 1:] = False
    return [Sequences(experts, present, 6)]


def _expert_tokens() -> list[Asked]:
    """Inputs of several lengths, one without tokens."""
    random = torch.Generator().manual_seed(0)
    uses = torch.randint(0, 9, (SIZE, 6), generator=random)
    uses[1] = 0
    return [ExpertTokens(uses.sum(1), uses)]


def _input_uses() -> list[Asked]:
    """Experts of one or several inputs of a sample; one has no choice."""
    return [InputUses(torch.tensor([9, 7, 0, 12, 5]), torch.tensor([2, 1, 0, 3, 1]))]


def _caches() -> list[Asked]:
    """Hits of caches in one layer, and in all layers with bytes and a bandwidth; one sequence has no tokens."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.tensor([9, 7, 0, 12, 5])
    hits = 8 * tokens[:, None] * torch.rand(SIZE, 5, generator=random).double()
    even, size, bandwidth = (
        torch.full((SIZE,), value).double() * scale
        for value, scale in ((0.25, 8 * tokens), (3e6, 1), (2e9, 1))
    )
    return [
        CacheHits(hits, 8 * tokens, even),
        CacheHits(hits, 8 * tokens, even, tokens, size, bandwidth),
    ]


def _predictions() -> list[Asked]:
    """Hits of predictions, of one sequence without tokens; the first layer has no layer before."""
    random = torch.Generator().manual_seed(0)
    choices = torch.tensor([90, 70, 0, 120, 50])[:, None].expand(-1, 3)
    first = choices * torch.tensor([0, 1, 0])
    hits, busiest = ((part * torch.rand(SIZE, 3, generator=random)).long() for part in (choices, choices / 2))
    return [
        PrefetchHits(hits, busiest, choices, choices * 0.25),
        PrefetchHits(hits * (first > 0), busiest * (first > 0), first, first * 0.25),
    ]


def _ahead() -> list[Asked]:
    """What a router found a layer earlier, in one layer and in two; one input has no choice."""
    uses = torch.randint(0, 1000, (SIZE, 2, 6), generator=torch.Generator().manual_seed(0))
    uses[2] = 0
    return [AheadHits(part.sum((1, 2)) // 2, part, 2) for part in (uses[:, :1], uses)]


def _hit_curves() -> list[Asked]:
    """Hits of caches of four sizes, the last of which finds all."""
    random = torch.Generator().manual_seed(0)
    choices = torch.tensor([90, 70, 0, 120, 50])
    shares = torch.rand(SIZE, 4, 5, generator=random).double().cumsum(1)
    return [
        HitCurve(
            choices[:, None, None] * shares / shares[:, -1:],
            choices,
            torch.tensor([4, 6, 8, 16]).expand(SIZE, -1),
        )
    ]


OF_TOKENS = {
    "critical_noise": lambda: _margins()[0],
    "flip_prediction": lambda: _margins()[1],
    "set_survival": lambda: _margins()[2],
    "log_probability": _scores,
    "unshared": _reasons,
    "changed_margins": _reference_margins,
    "form_loss": _form_losses,
    "mismatch": _mismatches,
    "flips": _flips,
    "text_flips": _text_flips,
    "flip_costs": _flip_costs,
    "choices": _tried_choices,
    "indexer": _key_overlaps,
    "hot_experts": _window_loads,
    "rank_load": _rank_loads,
    "input_experts": _input_uses,
    "next_token": _sequences,
    "reuse_distance": _sequences,
    "expert_cache": _caches,
    "shared_cache": lambda: _caches()[:1],
    "cache_size": _hit_curves,
    "distinct_experts": _sequences,
    "asleep": _sequences,
    "expert_coverage": _expert_tokens,
    "prefetch": _predictions,
    "router_ahead": _ahead,
    "experts": _experts,
    "expert_outputs": _expert_outputs,
}


def examples(name: str) -> list[Asked]:
    labels = torch.tensor([0, -1, 3, 8, 2])
    if isinstance(AGGREGATES[name], PathAnalysis):
        return [[path(number) for number in range(SIZE)]]
    if name in SEQUENCED:
        random = torch.Generator().manual_seed(0)
        trial = torch.rand(SIZE, 7, generator=random) < 0.8
        return [Differences(torch.rand(3, SIZE, 7, generator=random) < 0.2, trial)]
    if name in OF_TOKENS:
        return OF_TOKENS[name]()
    if name in CORNERED:
        return [
            Corners(
                (torch.randn(SIZE, 9), torch.randn(SIZE, 9), torch.randn(SIZE, 9), torch.randn(SIZE, 9)),
                labels,
            )
        ]
    if name not in LAYERED:
        # Features have no meaning by themselves: they are compared.
        references = (torch.randn(SIZE, 9),) if name == "output_features" else (torch.randn(SIZE, 9), None)
        return [OutputPair(one, torch.randn(SIZE, 9), labels) for one in references]
    valid = torch.rand(SIZE, 7, generator=torch.Generator().manual_seed(0)) < 0.8
    layers = [
        (routing(SIZE, seed=1), routing(SIZE, seed=2)),
        (routing(SIZE, seed=1, prefix=0, top_k=1), routing(SIZE, seed=2, prefix=0, top_k=1)),
        (routing(SIZE, seed=1, top_k=3), routing(SIZE, seed=2, top_k=3, valid=valid)),
        (routing(SIZE, seed=1, ordered=False), routing(SIZE, seed=2, ordered=False)),
        (
            routing(SIZE, seed=1, places=torch.full((SIZE,), 7.5)),
            routing(SIZE, seed=2, places=torch.full((SIZE,), 7.5)),
        ),
        (expert_choice(SIZE, seed=1), expert_choice(SIZE, seed=2)),
        (expert_choice(SIZE, seed=1, capacity=1, valid=valid), expert_choice(SIZE, seed=2, capacity=1)),
        (soft(SIZE, seed=1), soft(SIZE, seed=2)),
        (soft(SIZE, seed=1, prefix=0), soft(SIZE, seed=2, prefix=0)),
    ]
    if name == "modality":
        more: dict[str, Any] = {"prefix": 4, "leading": (("before", 1), ("text", 3))}
        padded = valid.repeat(1, 2)[:, :10]
        layers = [
            (routing(SIZE, seed=1, **more), routing(SIZE, seed=2, **more)),
            (routing(SIZE, seed=1, valid=padded, **more), routing(SIZE, seed=2, valid=padded, **more)),
        ]
    pixels = torch.rand(SIZE, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    found: list[Asked] = [
        dataclasses.replace(aligned(*both), pixels=pixels, token_ids=_some_tokens(both[0].valid))
        for both in layers
        if LAYERED[name].applies(both[1])
    ]
    assert found
    return found


def _some_tokens(like: Tensor) -> Tensor:
    """Token ids ``(B, T)``, few of them different."""
    return torch.randint(0, 3, like.shape, generator=torch.Generator().manual_seed(4))


def path(number: int) -> Path:
    """A path with as many switches as its number."""
    random = np.random.default_rng(number)
    jump, tokens = random.normal(0, 0.03, number), random.integers(0, 3, (number, 2))
    severity = np.linspace(0, 1, 5)
    return Path(str(number), "a", 0, severity, random.random(5), np.sort(random.random(number)), jump, tokens)


def sums(name: str, pair: Asked) -> dict[str, dict[str, Tensor]]:
    found = AGGREGATES[name].sums(pair)  # type: ignore[arg-type]
    return found if name in LAYERED else {"": found}  # type: ignore[return-value, dict-item]


@EVERY
def test_sums_are_whole_numbers_or_floats_one_entry_per_image(name: str) -> None:
    for pair in examples(name):
        for tokens, columns in sums(name, pair).items():
            assert tokens in ("", "patch", "prefix")
            assert AGGREGATES[name].signature in columns
            for column in columns.values():
                assert len(column) == SIZE
                assert column.dtype in (torch.int64, torch.int32, torch.int16, torch.float32, torch.float64)
                assert not column.requires_grad


@EVERY
def test_lists_of_trials_are_told_from_histograms(name: str) -> None:
    """Numbers as small as experts, slots and sets are entries of a list, which must be named as one."""
    listed = AGGREGATES[name].trial_lists
    seen: set[str] = set()
    for pair in examples(name):
        for columns in sums(name, pair).values():
            for column, values in columns.items():
                seen.update(start for start in listed if column.startswith(start))
                small = values.dtype in (torch.int16, torch.int32)
                assert not small or column.startswith(listed), column
    assert seen == set(listed)


@EVERY
def test_the_sums_of_a_batch_are_those_of_its_images(name: str) -> None:
    for pair in examples(name):
        whole = sums(name, pair)
        parts = [sums(name, cut(pair, rows)) for rows in (slice(0, 1), slice(1, 4), slice(4, 5))]
        for tokens, columns in whole.items():
            assert all(part[tokens].keys() == columns.keys() for part in parts)
            for key, column in columns.items():
                joined = torch.cat([part[tokens][key] for part in parts])
                torch.testing.assert_close(
                    joined, column, rtol=1e-6, atol=0 if column.dtype == torch.int64 else 1e-6
                )


@EVERY
def test_metrics_are_named_once_and_follow_from_sums_over_images(name: str) -> None:
    for pair in examples(name):
        for columns in sums(name, pair).values():
            arrays = {key: column.numpy() for key, column in columns.items()} | {"label": np.arange(SIZE) % 2}
            doubled = {key: np.concatenate([array, array]) for key, array in arrays.items()}
            analysis = AGGREGATES[name]
            found, twice = (analysis.estimators(a, aligned=True) for a in (arrays, doubled))
            names = [metric.key for metric in found]
            assert names and len(set(names)) == len(names)
            for one, two in zip(found, twice, strict=True):
                assert one.trials.shape == (SIZE,)
                if (
                    one.null not in ("", "image")
                    or one.name.startswith("load_entropy")
                    or "information" in one.name
                    or one.name.startswith("modality_divergence")
                    or one.name.endswith("_shuffled")
                ):
                    # Of pairs of *other* images: a copy is one, the same image drawn twice is not. Permutations of
                    # more images leave less.
                    continue
                value = one.statistic.evaluate(np.full((SIZE, 1), 2.0))[0]
                # Drawing every image twice, and having every image twice, are the same thing.
                assert two.statistic.evaluate(np.ones((2 * SIZE, 1)))[0] == pytest.approx(value, nan_ok=True)


@EVERY
def test_influence_is_the_derivative_by_the_weights_of_the_images(name: str) -> None:
    """What comparisons take their standard errors from, for every number of every analysis."""
    # Whole weights, which every statistic takes exactly: 4096 ± 1 times each image is 1 ± 1/4096 of it.
    many, even = 4096, np.ones((SIZE, 1))
    for pair in examples(name):
        for columns in sums(name, pair).values():
            arrays = {key: column.numpy() for key, column in columns.items()} | {"label": np.arange(SIZE) % 2}
            for metric in metrics_of(AGGREGATES[name], arrays):
                up, down = (metric.statistic.evaluate(many * even + sign * np.eye(SIZE)) for sign in (1, -1))
                influence = metric.statistic.influence()
                assert influence.shape == (SIZE,)
                value = metric.statistic.evaluate(even)[0]
                if metric.name.startswith("load_entropy") and value == 1:
                    continue  # The corrected entropy is cut off there, its influence is not.
                if metric.name.startswith("dead_experts"):
                    continue  # A count that moves in steps: tests/metrics/stats/test_below.py.
                if metric.name.startswith("flip_ece"):
                    continue  # The influence is that of the raw form: tests/metrics/stats/test_calibration.py.
                if not np.isnan(value):
                    np.testing.assert_allclose(
                        influence, (up - down) * many / 2, atol=1e-5, err_msg=metric.name
                    )


def metrics_of(analysis: Analysis, arrays: dict[str, np.ndarray]) -> list[Estimator]:
    """All that an analysis can say, matches with every null."""
    if isinstance(analysis, Match | SetMatch | SlotMatch):
        analysis = type(analysis)(class_null=True)
        return [*analysis.estimators(arrays, aligned=True), *analysis.estimators(arrays, aligned=False)]
    return analysis.estimators(arrays, aligned=True)


def test_signatures_tell_the_analyses_apart() -> None:
    for name in AGGREGATES:
        others = {analysis.signature for other, analysis in AGGREGATES.items() if other != name}
        for pair in examples(name):
            assert all(not others & columns.keys() for columns in sums(name, pair).values())


@pytest.mark.parametrize("name", LAYERED)
def test_what_does_not_apply_gets_no_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = LAYERED[name]
    monkeypatch.setattr(type(analysis), "applies", lambda *_: False)
    asked = probe("clean", None, indices=range(3), analyses=(analysis,))
    needs: dict[str, dict[str, Any]] = {
        "experts_per_token": {"router": "softmax_expert_choice"},
        "buffer_fill": {"trained_capacity": True, "eval_capacity_factor": 1.0},
    }
    router = needs.get(name, {})
    model = checkpoint(adapter={"slot_match": Softened, "modality": Worded}.get(name, Vmoe), **router)
    images, _ = run(asked, model)
    assert images.num_rows == 0
    monkeypatch.undo()
    images, _ = run(asked, model)
    assert {cell.layer for _, cell, _, _ in cells(images)} == {"blocks.1", "blocks.3"}


GATES = ("confidence", "s_matrix")
USE = ("information", "variation", "color_bias")
CONTAGION = ("batch_contagion", "token_contagion", "attention_contagion")


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (
            routing(),
            {
                "match",
                "set_match",
                "weights",
                "churn",
                "expert_overlap",
                "load",
                "balance",
                "busiest_expert",
                "coactivation",
                "unserved",
                "dropped",
                "disagreement",
                "selection",
            }
            | {*USE, *GATES, *CONTAGION},
        ),
        (
            expert_choice(),
            {
                "set_match",
                "weights",
                "churn",
                "expert_overlap",
                "coactivation",
                "unserved",
                "experts_per_token",
                "selection",
            }
            | {*USE, *GATES, *CONTAGION},
        ),
        (soft(), {"slot_match", "weights", *USE, *GATES, "batch_contagion", "attention_contagion"}),
        (soft(gates_sum_to_one=False), {"slot_match", "weights", "information", "color_bias"}),
        (routing(num_experts=1, top_k=1), {"unserved", "dropped", *CONTAGION}),
        (
            routing(num_experts=3, top_k=3),
            {"match", "weights", "churn", "load", "balance", "coactivation", "unserved", "dropped"}
            | {*USE, *GATES, *CONTAGION},
        ),
    ],
)
def test_each_says_where_it_applies(layer: LayerRouting, expected: set[str]) -> None:
    assert {name for name, analysis in LAYERED.items() if analysis.applies(layer)} == expected


def test_all_of_them_add_up() -> None:
    assert AGGREGATES.keys() == KINDS.keys()
