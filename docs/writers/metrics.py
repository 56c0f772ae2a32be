"""The metrics, as the analyses that compute them declare them, and where they apply, as computed on examples."""

from collections.abc import Mapping

import torch

from moeprobe.inputs.geometry import PatchGrid
from moeprobe.metrics import (
    alignment,
    corruption_error,
    costs,
    drifted_layers,
    key_routes,
    load_course,
    one_kind,
    registry,
    relabeled_ranks,
    watched_load,
)
from moeprobe.metrics.base import LayerAnalysis
from moeprobe.metrics.declaration import CHANCE, KAPPA, NULLS, Metric, MetricFamily
from moeprobe.metrics.registry import applicable
from moeprobe.routing.record import LayerPair, LayerRouting
from moeprobe.runtime import catalog
from writers.markdown import code, inline, page, table

Declaration = Metric | MetricFamily
_IMAGES, _TOKENS, _EXPERTS, _CHOICES, _SLOTS = 2, 4, 3, 2, 2
# What is measured of recorded routing alone, and has a page of its own.
TRACES = (
    "touched",
    "unshared",
    "mismatch",
    "hot_experts",
    "rank_load",
    "next_token",
    "reuse_distance",
    "expert_cache",
    "shared_cache",
    "cache_size",
    "prefetch",
    "distinct_experts",
    "asleep",
    "input_experts",
    "indexer",
)
# What is measured of flips and of single experts, and has a page of its own, too.
FLIPS = (
    "choices",
    "critical_noise",
    "expert_outputs",
    "experts",
    "flip_costs",
    "flip_prediction",
    "flips",
    "set_survival",
    "text_flips",
)
# What is measured of two forms of one model alone, and has a page, too.
FORMS = ("changed_margins", "form_loss", "layer_growth")
# What is measured of several trainings, which has a page, too.
TRAININGS = (alignment.measures, costs.measures)
# What is measured of image tokens and words, and of the classes of a run.
SPECIALIZATION = (key_routes.measures, one_kind.measures)
# What is measured of recordings as a whole: title and first sentence by the metrics.
RECORDINGS = {
    relabeled_ranks.measures: (
        "Relabeled ranks",
        "Imbalance of ranks against relabeled experts, in `trace balance`.",
    ),
    load_course.measures: (
        "Loads over time",
        "Whether loads change with time, all experts at once, in `trace balance`.",
    ),
    watched_load.measures: ("Watched load", "Served traffic batch by batch, in `trace balance --every`."),
    drifted_layers.measures: ("Drift of all layers", "How far layers moved, all at once, in `trace drift`."),
}
_HEADINGS = ["metric", "what it is", "better", "unit", "chance levels"]


def pages() -> dict[str, str]:
    """Return the page of all metrics, and those of recorded routing, trainings and flips."""
    kinds = {"tokens choose": tokens_choose, "experts choose": experts_choose, "soft": soft}
    apply = {kind: applicable(pair(make(seed=0), make(seed=1))) for kind, make in kinds.items()}
    of_routing: list[Declaration] = []
    rest: list[tuple[str, tuple[Declaration, ...]]] = []
    for analysis, measures in registry.by_analysis():
        found = catalog.ANALYSES.get(analysis) if analysis else None
        if (
            found is not None
            and issubclass(found, LayerAnalysis)
            and any(map(set(measures).intersection, apply.values()))
        ):
            of_routing += measures
        else:
            rest.append((analysis, measures))
    text = page(
        "Metrics",
        "the declarations of metrics",
        "What the column `metric` of a [table](columns.md) can say. What the numbers mean is explained in "
        "[Match and chance](../concepts/match-and-chance.md), [Perturbations](../concepts/perturbations.md), "
        "[Contagion](../concepts/contagion.md) and [Few shots](../concepts/few-shot.md).",
        f"A metric with chance levels has two more names: NAME`{CHANCE}` is the value that chance reaches, "
        f"NAME`{KAPPA}` (κ) how far the value is beyond it; more κ is always better. "
        "The column `null` names the chance level. Pages of their own have [recorded routing](metrics-traces.md), "
        "[trainings](metrics-trainings.md), [margins, flips and experts](metrics-flips.md), "
        "[forms of one model](metrics-forms.md) and [specialization](metrics-routes.md).",
        "## Of routing\n\nWhat does not apply to a router has no row in a table. *Tokens choose*, *experts choose* "
        "and *soft* are kinds of [routers](routers.md).",
        table([*_HEADINGS, "routers"], ([*row(one), where(one, apply)] for one in of_routing)),
        *(
            section(analysis, measures)
            for analysis, measures in rest
            if analysis not in (*TRACES, *FLIPS, *FORMS, "modality")
            and measures not in (*TRAININGS, *SPECIALIZATION, *RECORDINGS)
        ),
        "## Chance levels",
        table(["null", "what chance is"], ([code(name), inline(null.about)] for name, null in NULLS.items())),
    )  # fmt: skip
    traces = page(
        "Metrics of recorded routing",
        "the declarations of metrics",
        "What the column `metric` of a [table](columns.md) can say of traces, beside what it says of "
        "[any routing](metrics.md): see [Recorded routing](../guide/recorded-routing.md).",
        *(section(analysis, measures) for analysis, measures in rest if analysis in TRACES),
        *(section("", measures) for measures in RECORDINGS),
    )
    trainings = page(
        "Metrics of trainings",
        "the declarations of metrics",
        "What the column `metric` of a [table](columns.md) can say of several trainings, beside what it says of "
        "[any routing](metrics.md): see [Experts of several trainings](../concepts/aligned-experts.md) and "
        "[What a router costs](../guide/tradeoff.md).",
        *(section("", measures) for measures in TRAININGS),
    )
    flips = page(
        "Metrics of margins, flips and experts",
        "the declarations of metrics",
        "What the column `metric` of a [table](columns.md) can say in `margins`, `flips`, `experts` and `regret`, "
        "beside [other metrics](metrics.md): see [Critical noise](../concepts/margins.md), "
        "[Price of a flip](../concepts/flips.md), [Redundant experts](../concepts/experts.md) and "
        "[Is the router right?](../guide/regret.md).",
        *(section(analysis, measures) for analysis, measures in rest if analysis in FLIPS),
    )
    forms = page(
        "Metrics of forms of one model",
        "the declarations of metrics",
        "What the column `metric` of a [table](columns.md) can say in `agree`, beside what it says of "
        "[any routing](metrics.md) and of [sequences](metrics-traces.md): see "
        "[Two forms of one model](../guide/two-forms.md).",
        *(section(analysis, measures) for analysis, measures in rest if analysis in FORMS),
    )
    routes = page(
        "Metrics of specialization",
        "the declarations of metrics",
        "What the column `metric` of a [table](columns.md) can say in `routes` of all layers or all tokens together, "
        "beside [other metrics](metrics.md): see [What the experts specialize in](../guide/routes.md).",
        *(section(analysis, measures) for analysis, measures in rest if analysis == "modality"),
        *(section("", measures) for measures in SPECIALIZATION),
    )
    return {
        "reference/metrics.md": text,
        "reference/metrics-routes.md": routes,
        "reference/metrics-flips.md": flips,
        "reference/metrics-forms.md": forms,
        "reference/metrics-traces.md": traces,
        "reference/metrics-trainings.md": trainings,
    }


def where(one: Declaration, apply: Mapping[str, list[Declaration]]) -> str:
    """Return of which kinds of routers a metric has a value."""
    kinds = [kind for kind, found in apply.items() if one in found]
    return "all" if len(kinds) == len(apply) else ", ".join(kinds)


def section(analysis: str, measures: tuple[Declaration, ...]) -> str:
    """Return what one analysis computes that is not about the routing of a layer, or what trainings cost."""
    if analysis:
        title, about = analysis.replace("_", " ").capitalize(), catalog.ANALYSES.describe(analysis)
    elif measures is alignment.measures:
        title, about = "Aligned experts", "Agreement of trainings whose experts are aligned, in `align`."
    elif measures is key_routes.measures:
        title, about = "Key routes", "Key routes of classes over all MoE layers, in `routes`."
    elif measures is one_kind.measures:
        title, about = "Exchanged places", "Image tokens and words of a sequence, in `routes`."
    elif measures in RECORDINGS:
        title, about = RECORDINGS[measures]
    elif measures is corruption_error.measures:
        title, about = "Corruption error", "Errors relative to a baseline, in `corruptions --baseline`."
    else:
        title, about = "Costs", "What trainings and models cost, in `tradeoff`."
    return f"## {title}\n\n{inline(about)}\n\n{table(_HEADINGS, map(row, measures))}"


def row(one: Declaration) -> list[str]:
    """Return what is declared of a metric, or of a family of them by one of its metrics."""
    metric = one if isinstance(one, Metric) else one.representative
    name = code(one.name) if one is metric else f"{code(one.name)}, as {code(metric.name)}"
    unit = metric.unit if metric.unit != "other" else ""
    return [name, inline(metric.about), metric.better, unit, ", ".join(metric.nulls)]


def pair(reference: LayerRouting, view: LayerRouting) -> LayerPair:
    """Return two routings whose patches correspond one to one."""
    patches = torch.arange(_TOKENS).expand(_IMAGES, _TOKENS)
    return LayerPair(reference, view, patches, patches, aligned=True, pixels=torch.rand(_IMAGES, 3, 16, 16))


def tokens_choose(seed: int) -> LayerRouting:
    """Return a routing in which each token chooses two experts."""
    gates = _gates(seed, _EXPERTS)
    return _routing(gates, gates.topk(_CHOICES).indices)


def experts_choose(seed: int) -> LayerRouting:
    """Return a routing in which each expert takes two tokens."""
    gates = _gates(seed, _EXPERTS)
    taken = torch.zeros_like(gates).scatter(1, gates.topk(_CHOICES, dim=1).indices, 1.0).bool()
    chosen = torch.arange(_EXPERTS).expand_as(gates).where(taken, -1)
    return _routing(gates, chosen, experts_choose=True, token_local=False)


def soft(seed: int) -> LayerRouting:
    """Return a routing in which each token gets a share of every slot."""
    slots = _gates(seed, _EXPERTS * _SLOTS)
    gates = slots.unflatten(-1, (_EXPERTS, _SLOTS)).sum(-1)
    nothing = torch.empty(_IMAGES, _TOKENS, 0)
    return _routing(gates, nothing, slot=slots.argmax(-1), token_local=False)


def _gates(seed: int, number: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(_IMAGES, _TOKENS, number, generator=random).softmax(-1)


def _routing(
    gates: torch.Tensor, chosen: torch.Tensor, *, token_local: bool = True, **kind: object
) -> LayerRouting:
    return LayerRouting(
        gates=gates,
        scores=None,
        selected=chosen.to(torch.int16),
        processed=chosen >= 0,
        valid=torch.ones(_IMAGES, _TOKENS, dtype=torch.bool),
        grid=PatchGrid(2, 2, 8),
        num_prefix_tokens=0,
        gates_sum_to_one=True,
        token_local=token_local,
        router="example",
        **kind,  # type: ignore[arg-type]
    )
