"""What is shown of the committed sweeps: which cells are compared with which, in which numbers."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from reports.scripts.seeds import CLEAN, Column

# What a run's differences say of all its comparisons together, and what follows from the rest.
_OF_A_RUN = [
    "checkpoint_value",
    "reference_value",
    "se",
    "detectable",
    "p",
    "p_holm",
    "sim_low",
    "sim_high",
    "family_cells",
    "margin",
    "verdict",
    "judgement",
    "collapsed",
]


class Number(NamedTuple):
    """A number that is compared: its heading, where it stands, and whether it is of layers."""

    heading: str
    folder: str
    analysis: str
    metric: str
    null: str = ""
    severity: float | None = None
    layered: bool = False

    def rows_of(self, found: pd.DataFrame) -> pd.DataFrame:
        """Return its rows of the differences that its analysis gives of two cells, one per layer.

        Without verdicts, which are of a whole run: here each interval is about its own number.
        """
        if found.empty:
            return found
        keep = (found["metric"] == self.metric) & (found["null"] == self.null) & found["draw"].isna()
        if self.severity is not None:
            keep &= found["severity"] == self.severity
        return found[keep].drop_duplicates("layer").drop(columns=_OF_A_RUN)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What is compared in a sweep.

    Attributes:
        references: a group of cells -> the group that it is compared with; those that are not there are references.
        numbers: what is compared.
        of_trainings: numbers that are compared over trainings alone.
        means: what the page calls the mean difference of some groups -> those groups, each with its reference.
        more: groups of further pairs -> their references; pages say of them in sentences only.
        otherwise: a sweep of the same models, measured otherwise, with which each group is compared too.
    """

    references: dict[str, str]
    numbers: tuple[Number, ...]
    of_trainings: tuple[Number, ...] = ()
    means: dict[str, tuple[str, ...]] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    otherwise: str = ""

    def pairs(self) -> dict[str, list[tuple[str, str]]]:
        """Return what each difference over trainings is of: its name -> groups and their references.

        It is called as its group is; others name the reference too. ``GROUP of SWEEP`` is one of ``otherwise``.
        """
        found = {group: [(group, reference)] for group, reference in self.references.items()}
        for name, groups in self.means.items():
            found[name] = [(group, self.references[group]) for group in groups]
        others = [*self.more.items()]
        if self.otherwise:
            same = [
                (group, f"{group} of {self.otherwise}")
                for group in dict.fromkeys([*self.references, *self.references.values()])
            ]
            others += same
            found[f"all − {self.otherwise}"] = same
        return found | {f"{group} − {reference}": [(group, reference)] for group, reference in others}


@dataclass(frozen=True, kw_only=True)
class Sweep(Compared):
    """What is shown of a sweep beside it.

    Attributes:
        names: groups of cells, and what the page calls them.
        values: numbers of the output that are shown beside.
        of_layers: numbers of layers that are shown beside.
        drawn: numbers of the output or of the first MoE layer that the figure has a panel for.
        curves: figures of learning curves: how the names of their cells begin, and the key that has a panel per value.
        over_experts: numbers that are drawn over the number of experts, a line per router.
    """

    names: dict[str, str]
    values: tuple[Column, ...]
    of_layers: tuple[Column, ...]
    drawn: tuple[Column, ...]
    curves: tuple[tuple[str, str], ...] = ()
    over_experts: tuple[Column, ...] = ()


ACCURACY: Column = ("accuracy", "accuracy", *CLEAN)
NOISY: Column = ("accuracy, σ 0.2", "accuracy", "", "gaussian_noise", 0.2)
TEN_SHOTS: Column = ("10-shot accuracy", "fewshot_accuracy", "", "clean", 10.0)
LOAD: Column = ("load entropy, first choices", "load_entropy_first", *CLEAN)
DEAD: Column = ("dead as first choice", "dead_experts_first", *CLEAN)
HIGHEST: Column = ("highest gate", "gate_highest", *CLEAN)
_OF_ACCURACY = Number("accuracy", "eval", "output", "accuracy")
_OF_NOISY = Number("accuracy, σ 0.2", "noise", "output", "accuracy", severity=0.2)
_NULLS = (("pooled", ""), ("image", " within the image"))
_OF_SHOTS = Number("10-shot accuracy", "fewshot", "fewshot", "fewshot_accuracy", severity=10.0)
_OF_HIGHEST = Number("highest gate", "confidence", "confidence", "gate_highest", layered=True)


def _of_match(view: str) -> tuple[Number, ...]:
    """Return κ of first experts under a view and under noise."""
    return tuple(
        Number(f"κ{within}, {heading}", folder, "match", "top1_match_kappa", null, severity, layered=True)
        for heading, folder, severity in ((view, f"match-{view}", None), ("noise σ 0.2", "noise", 0.2))
        for null, within in _NULLS
    )


def _kappa(view: str) -> Column:
    return f"κ of first experts, {view}", "top1_match_kappa", "pooled", view, None


_PERTURBED = (
    ("random_crop", "match-random_crop", None),
    ("prc_crops", "match-prc_crops", None),
    ("noise σ 0.2", "noise", 0.2),
)
_ALL_OF_WEIGHTS = tuple(
    Number(f"κ{within}, {heading}", folder, "weights", "weight_cosine_kappa", null, severity, layered=True)
    for null, within in _NULLS
    for heading, folder, severity in _PERTURBED
)
_OF_WEIGHTS = tuple(number for number in _ALL_OF_WEIGHTS if number.folder == "match-random_crop")
_OF_SETS = tuple(
    Number(
        f"κ of sets, {heading}", folder, "set_match", "set_jaccard_kappa", "pooled", severity, layered=True
    )
    for heading, folder, severity in _PERTURBED
)
_FLOPS: Column = ("MFLOPs per image", "flops_per_image", "", None, None)
_WEIGHTS: Column = ("κ of weights, random_crop", "weight_cosine_kappa", "pooled", "random_crop", None)
_PRC = "prc-diagonal_weight-{}-offdiagonal_weight-{}"
_ABLATION = {
    "balanced": "importance and load (V-MoE)",
    "balanced-importance_weight-0-load_weight-0": "no loss on the routing",
    "jsd-weight-0.05": "JSD, weight 0.05",
    "jsd-weight-0.5": "JSD, weight 0.5",
    "jsd-weight-5": "JSD, weight 5",
    _PRC.format(0, 0.5): "PRC ×10, off the diagonal alone",
    _PRC.format(0.05, 0): "PRC ×10, the diagonal alone",
    _PRC.format(0.005, 0.05): "PRC ×1, the paper's weights",
    _PRC.format(0.05, 0.5): "PRC ×10",
    _PRC.format(0.2, 2): "PRC ×40",
    _PRC.format(0.5, 5): "PRC ×100",
    _PRC.format(0.05, 0.5) + "-noisy-True": "PRC ×10, noise in S",
    "prc_released-diagonal_weight-0.05-offdiagonal_weight-0.5": "PRC ×10 as released",
}
_LABELS = "labeled-{}-unlabeled-{}-{}"
_SHARES = (0.05, 0.1, 0.25)
_WITH = {
    "V-MoE, labeled images only": (False, "balanced"),
    "PRC ×10, labeled images only": (False, _PRC.format(0.05, 0.5)),
    "PRC ×10, all images": (True, _PRC.format(0.05, 0.5)),
}
_OF_STAGES = {
    "token-choice": "token choice",
    "priority": "priority routing",
    "expert-choice": "expert choice",
    "dense": "dense transformer",
    "moe": "dense to sparse",
    "moe-kl": "dense to sparse, gates near to the dense ones",
    "moe-whole_expert_dropout-0.1": "dense to sparse, 10 % of the experts dropped",
    "moe-expert_dropout-0.1": "dense to sparse, 10 % of the units dropped",
}
# Both ways to weigh the experts' outputs, and the ways to choose them.
_COMBINED = {"softmax": "softmax", "plan": "transport plan"}
_CHOOSING = {
    f"{router}-combine-{{}}-{size}": f"{name}, {said}"
    for router, name, sizes in (
        ("sinkhorn_token_choice", "Sinkhorn token choice", {"k1": "k = 1", "k2": "k = 2"}),
        ("sinkhorn_expert_choice", "Sinkhorn expert choice", {"c1": "c = 1", "c2": "c = 2"}),
        ("sparse_expert_choice", "sparse expert choice", {"c1": "c = 1", "c2": "c = 2"}),
    )
    for size, said in sizes.items()
}


def _plans(*routers: str) -> tuple[str, ...]:
    """Return the groups of routers whose names begin so, with the plan's weights."""
    return tuple(group.format("plan") for group in _CHOOSING if group.startswith(routers))


# Expert choice among the tokens of one image or of eight.
_GROUPS = {
    f"{router}_expert_choice-group_images-{images}": f"{name} expert choice, {said}"
    for router, name in (("softmax", "softmax"), ("sinkhorn", "Sinkhorn"), ("sparse", "sparse"))
    for images, said in ((1, "one image"), (8, "eight images"))
}
_UNSERVED = Number("patches without an expert", "confidence", "unserved", "unserved", layered=True)
_IN_GROUPS = Sweep(
    names=_GROUPS,
    references={group: f"{group[:-1]}1" for group in _GROUPS if group.endswith("8")},
    numbers=(_OF_ACCURACY, _OF_NOISY, _OF_SHOTS, *_OF_WEIGHTS),
    of_trainings=(_UNSERVED,),
    means={"mean of the routers": tuple(group for group in _GROUPS if group.endswith("8"))},
    values=(ACCURACY, NOISY, TEN_SHOTS),
    of_layers=(
        ("patches without an expert", "unserved", *CLEAN),
        ("experts per patch", "experts_per_token", *CLEAN),
        _WEIGHTS,
    ),
    drawn=(
        ACCURACY,
        NOISY,
        _WEIGHTS,
    ),
)
# One expert per token, or as many as its share of room; 32 slots per image.
_EXPERTS = {
    **{
        f"{router}-num_experts-{experts}": f"{name}, E = {experts}"
        for router, name in (
            ("softmax_token_choice-k1", "token choice"),
            ("softmax_expert_choice-c1", "expert choice"),
        )
        for experts in (1, 2, 4, 8, 16, 32)
    },
    **{
        f"soft_moe-slots-{32 // experts}-num_experts-{experts}": f"soft MoE, E = {experts}"
        for experts in (2, 4, 8, 16, 32)
    },
}
SWEEPS = {
    "prc-ablation": Sweep(
        names=_ABLATION,
        references={group: "balanced" for group in _ABLATION if group != "balanced"},
        # What one term, or the noise in S, changes in PRC.
        more={
            group: _PRC.format(0.05, 0.5)
            for group in (
                _PRC.format(0.05, 0),
                _PRC.format(0, 0.5),
                _PRC.format(0.05, 0.5) + "-noisy-True",
            )
        },
        numbers=(_OF_ACCURACY, _OF_NOISY, *_of_match("prc_crops")),
        values=(ACCURACY, NOISY),
        of_layers=(
            HIGHEST,
            ("sum of the rest", "gate_rest", *CLEAN),
            ("entropy of the gates", "gate_entropy", *CLEAN),
            LOAD,
            DEAD,
        ),
        drawn=(_kappa("prc_crops"), HIGHEST, DEAD),
    ),
    # How many tokens find no room is a number of the trainings: cells are measured with room for all.
    "drops-digits": Sweep(
        names={
            "balanced": "importance and load",
            "balanced-importance_weight-0-load_weight-0": "no loss on the routing",
        },
        references={"balanced-importance_weight-0-load_weight-0": "balanced"},
        numbers=(_OF_ACCURACY, *_OF_WEIGHTS),
        values=(ACCURACY,),
        of_layers=(LOAD, DEAD),
        drawn=(LOAD, HIGHEST, DEAD),
    ),
    # Each group with the one before it: what PRC adds to the labeled images, then what the others add to PRC.
    "labels-digits": Sweep(
        names={
            _LABELS.format(share, *how): f"{100 * share:.0f} % labeled: {what}"
            for share in _SHARES
            for what, how in _WITH.items()
        },
        references={
            _LABELS.format(share, *how): _LABELS.format(share, *before)
            for share in _SHARES
            for before, how in pairwise(_WITH.values())
        },
        numbers=(_OF_ACCURACY, _OF_NOISY, *_of_match("random_crop")),
        values=(ACCURACY, NOISY),
        of_layers=(HIGHEST, LOAD, DEAD),
        drawn=(ACCURACY, _kappa("random_crop"), HIGHEST, DEAD),
        means={
            what: tuple(_LABELS.format(share, *_WITH[how]) for share in _SHARES)
            for how, what in (
                ("PRC ×10, labeled images only", "PRC"),
                ("PRC ×10, all images", "unlabeled images"),
            )
        },
    ),
    # The plan less the softmax, each with the same choices of k or c.
    "combine-digits": Sweep(
        names={
            group.format(combine): f"{name}: {said}"
            for group, name in _CHOOSING.items()
            for combine, said in _COMBINED.items()
        },
        references={group.format("plan"): group.format("softmax") for group in _CHOOSING},
        numbers=(_OF_ACCURACY, _OF_SHOTS, *_OF_WEIGHTS),
        values=(ACCURACY, TEN_SHOTS),
        of_layers=(HIGHEST, LOAD),
        drawn=(ACCURACY, TEN_SHOTS, HIGHEST),
        curves=(
            ("sinkhorn_token_choice", "model.top_k"),
            ("sinkhorn_expert_choice", "model.capacity_factor"),
            ("sparse_expert_choice", "model.capacity_factor"),
        ),
        means={
            "Sinkhorn token choice": _plans("sinkhorn_token"),
            "expert choice": _plans("sinkhorn_expert", "sparse_expert"),
            "all Sinkhorn routers": _plans("sinkhorn"),
        },
        of_trainings=(_OF_HIGHEST,),
    ),
    # Token choice from the start is the reference; of what is changed in dense-to-sparse training, that without it.
    "thesis-digits": Sweep(
        names=_OF_STAGES,
        references={
            group: "moe" if group.startswith("moe-") else "token-choice" for group in [*_OF_STAGES][1:]
        },
        numbers=(_OF_ACCURACY, _OF_NOISY, *_OF_WEIGHTS),
        values=(ACCURACY, NOISY),
        of_layers=(HIGHEST, LOAD),
        drawn=(
            ACCURACY,
            _WEIGHTS,
            LOAD,
        ),
    ),
    "mixup-digits": Sweep(
        names={
            "balanced": "V-MoE",
            "one-view": "V-MoE, one view per image",
            "mixup": "V-MoE, one view per image and mixup",
            "prc": "V-MoE with PRC ×10",
        },
        references={"one-view": "balanced", "mixup": "one-view", "prc": "mixup"},
        more={"prc": "balanced"},
        numbers=(_OF_ACCURACY, _OF_NOISY, *_of_match("prc_crops")),
        values=(ACCURACY, NOISY),
        of_layers=(HIGHEST, LOAD, DEAD),
        drawn=(ACCURACY, NOISY, _kappa("prc_crops")),
    ),
    "manual-digits": Sweep(
        names={"learned": "token choice from the start", "manual": "by class, then a learned gate"},
        references={"manual": "learned"},
        numbers=(_OF_ACCURACY, _OF_NOISY, *_of_match("random_crop")),
        values=(ACCURACY, NOISY),
        of_layers=(HIGHEST, LOAD, DEAD),
        drawn=(ACCURACY, _kappa("random_crop"), LOAD),
    ),
    # Trained in groups of one and of eight; measured in groups of eight, and of one.
    "groups-digits": replace(_IN_GROUPS, otherwise="groups-alone-digits"),
    "groups-alone-digits": _IN_GROUPS,
    # Four experts are the reference: there the thesis has a plateau.
    "experts-digits": Sweep(
        names=_EXPERTS,
        references={
            group: next(
                other
                for other in _EXPERTS
                if other.startswith(group.split("-")[0]) and other.endswith("-num_experts-4")
            )
            for group in _EXPERTS
            if not group.endswith("-num_experts-4")
        },
        numbers=(_OF_ACCURACY, _OF_NOISY, _OF_SHOTS, *_OF_WEIGHTS),
        values=(ACCURACY, NOISY, TEN_SHOTS, _FLOPS),
        of_layers=(_WEIGHTS, LOAD),
        drawn=(ACCURACY, NOISY, _WEIGHTS),
        over_experts=(ACCURACY, NOISY, TEN_SHOTS, _WEIGHTS),
    ),
    "dense-digits": Sweep(
        names={
            "softmax_token_choice-k1": "8 experts of 128 units, k = 1",
            "layers-none-hidden_width-128": "dense, 128 units: the FLOPs of k = 1",
            "softmax_token_choice-k2": "8 experts of 128 units, k = 2",
            "layers-none-hidden_width-192": "dense, 192 units: the FLOPs of k = 2",
            "layers-none-hidden_width-576": "dense, 576 units: the parameters of both",
        },
        references={
            "layers-none-hidden_width-128": "softmax_token_choice-k1",
            "layers-none-hidden_width-192": "softmax_token_choice-k2",
            "layers-none-hidden_width-576": "softmax_token_choice-k2",
        },
        means={
            "mean at equal FLOPs": ("layers-none-hidden_width-128", "layers-none-hidden_width-192"),
        },
        numbers=(_OF_ACCURACY, _OF_SHOTS),
        values=(ACCURACY, TEN_SHOTS, _FLOPS),
        of_layers=(LOAD,),
        drawn=(ACCURACY, TEN_SHOTS),
    ),
}

# V-MoE's router, with which the other routers of a layout are compared at the same k or c and seed.
VMOE = "softmax_token_choice"
# What is compared of them.
OF_ROUTERS = (_OF_ACCURACY, _OF_SHOTS, _OF_NOISY, *_ALL_OF_WEIGHTS)
_ROUTERS = {
    "priority": "k",
    "sinkhorn_token_choice": "k",
    "sparse_token_choice": "k",
    "hash": "k",
    "random_fixed": "k",
    "softmax_expert_choice": "c",
    "sinkhorn_expert_choice": "c",
    "sparse_expert_choice": "c",
    "soft_moe": "c",
}
# Those of "Routers in Vision MoE".
_OF_PAPER = (
    "sinkhorn_token_choice",
    "softmax_expert_choice",
    "sinkhorn_expert_choice",
    "sparse_expert_choice",
    "soft_moe",
)


def _layout(routers: Iterable[str], *budgets: int) -> Compared:
    """Return what is compared of routers with k or c of these sizes."""
    groups = {budget: [f"{router}-{_ROUTERS[router]}{budget}" for router in routers] for budget in budgets}
    return Compared(
        references={group: f"{VMOE}-k{budget}" for budget, of_size in groups.items() for group in of_size},
        numbers=OF_ROUTERS,
        of_trainings=_OF_SETS,
        means={
            f"balanced plans and expert choice, k or c = {budget}": tuple(
                group for group in of_size if group.startswith(("sinkhorn", "sparse", "softmax"))
            )
            for budget, of_size in groups.items()
        },
    )


# The layouts with three trainings of each router.
LAYOUTS = {
    "routers-digits": _layout(_ROUTERS, 2, 1),
    "routers-shapes": _layout(_ROUTERS, 2),
    "routers-digits-patch4": _layout(_OF_PAPER, 2, 1),
}
# The sweeps with three trainings of each group.
COMPARED: dict[str, Compared] = {**SWEEPS, **LAYOUTS}


def name_of(folder: Path) -> str:
    """Return the name of a sweep whose tables lie in a folder of ``reports/sweeps`` or ``reports/routers``."""
    return f"routers-{folder.name}" if folder.parent.name == "routers" else folder.name
