"""Tables 3 to 6 of Teo's thesis: our trainings of digits, its values (CIFAR-100; of Table 6 MNIST) beside."""

from pathlib import Path

import pandas as pd

from reports.scripts.seeds import middle_of

# What the thesis calls the cells of the sweep, and its values: Table 3's accuracy and variation, Table 4's millions of
# parameters; None where it has none.
THEIRS: dict[str, tuple[str, float | None, float | None, float | None]] = {
    "dense": ("dense transformer", 0.724, None, 4.8),
    "moe": ("MoE, dense to sparse", 0.751, 32.3, 5.1),
    "moe-kl": ("the same, gates near to the dense ones", None, None, None),
    "expert-choice": ("expert choice", 0.744, 9.9, 5.1),
    "token-choice": ("token choice", 0.732, 10.3, 5.1),
    "priority": ("priority routing", 0.728, 10.2, 5.1),
    "moe-whole_expert_dropout-0.1": ("MoE, 10 % of the experts dropped", 0.747, None, None),
    "moe-expert_dropout-0.1": ("MoE, 10 % of the units dropped", None, None, None),
}
# Table 5: with the experts, and without any.
OFF: dict[str, tuple[float | None, float | None]] = {
    "moe": (0.753, 0.248),
    "moe-whole_expert_dropout-0.1": (0.747, 0.656),
    "moe-expert_dropout-0.1": (None, None),
    "moe-kl": (None, None),
    "token-choice": (None, None),
    "priority": (None, None),
    "expert-choice": (None, None),
}
# Table 6.
MANUAL = {"learned": ("token choice", 0.887), "manual": ("manual, then a learned gate", 0.914)}


def accuracy_and_variation(folder: Path) -> list[str]:
    """Return Table 3: accuracy, and how much batch-wise gates vary, as the mean over the MoE layers."""
    models = _read(folder / "models.csv")
    head = ["model", "accuracy", "theirs", "variation", "theirs", "share of the maximum"]
    return _table(
        head,
        [
            [name, _value(models, group, "accuracy"), _share(accuracy), _value(models, group, "variation"),
             _plain(variation), _value(models, group, "variation, share")]
            for group, (name, accuracy, variation, _) in THEIRS.items()
        ],
    )  # fmt: skip


def sizes(folder: Path) -> list[str]:
    """Return Table 4: parameters and multiplications."""
    models = _read(folder / "models.csv")
    head = ["model", "parameters, M", "theirs, M", "MFLOPs per image"]
    return _table(
        head,
        [
            [name, _value(models, group, "parameters", 1e-6), _plain(size),
             _value(models, group, "FLOPs per image", 1e-6)]
            for group, (name, _, _, size) in THEIRS.items()
        ],
    )  # fmt: skip


def without_experts(folder: Path) -> list[str]:
    """Return Table 5: the same checkpoints with no expert added to any token."""
    models = _read(folder / "models.csv")
    head = ["model", "accuracy", "theirs", "experts off", "theirs"]
    return _table(
        head,
        [
            [THEIRS[group][0], _value(models, group, "accuracy"), _share(on),
             _value(models, group, "accuracy, experts off"), _share(off)]
            for group, (on, off) in OFF.items()
        ],
    )  # fmt: skip


def manual_routing(folder: Path) -> list[str]:
    """Return Table 6: experts trained by class and then a gate, and a gate from the start."""
    manual = _read(folder / "manual.csv")
    head = ["routing", "accuracy, by the gate", "theirs", "on validation, with the labels: not comparable"]
    return _table(
        head,
        [
            [name, _value(manual, group, "accuracy"), _share(theirs),
             _value(manual, group, "validation accuracy with the labels")]
            for group, (name, theirs) in MANUAL.items()
        ],
    )  # fmt: skip


def _read(path: Path) -> pd.DataFrame:
    """Return the committed numbers; none where nothing is trained."""
    columns = ["group", "seed", "number", "value", "ci_low", "ci_high"]
    return pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=columns)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [lines[0], f"|{'---|' * len(head)}", *lines[1:]]


def _value(table: pd.DataFrame, group: str, number: str, scale: float = 1.0) -> str:
    return middle_of(table[(table["group"] == group) & (table["number"] == number)], scale=scale)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"
