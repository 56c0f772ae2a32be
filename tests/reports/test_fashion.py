"""The report on Fashion-MNIST: its differences and its figure are those of its tables."""

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from reports.scripts import fashion_figures
from tests.docs.facts import REPORTS, rows


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gaps_are_differences_of_the_accuracies(seed: int) -> None:
    run = f"fashion/seed{seed}"
    accuracy = rows(f"{run}/eval/table.csv", metric="accuracy").set_index("checkpoint")["value"]
    at = {
        (objective, top_k): accuracy[f"fashion-{objective}-k{top_k}-seed{seed}"]
        for objective in ("baseline", "prc")
        for top_k in (2, 1)
    }
    by_hand = {
        "V-MoE with PRC, k = 2, less V-MoE, k = 2": at["prc", 2] - at["baseline", 2],
        "V-MoE with PRC, k = 1, less V-MoE, k = 1": at["prc", 1] - at["baseline", 1],
        "V-MoE with PRC, k = 1, less V-MoE, k = 2": at["prc", 1] - at["baseline", 2],
        "the difference at k = 1 less that at k = 2": at["prc", 1]
        - at["baseline", 1]
        - at["prc", 2]
        + at["baseline", 2],
    }
    gaps = rows(f"{run}/gaps.csv").set_index("contrast")
    for name, expected in by_hand.items():
        row = gaps.loc[name]
        assert row["value"] == pytest.approx(expected, abs=1e-9), name
        assert row["images"] == 10_000, name
        assert row["ci_low"] < row["value"] < row["ci_high"], name
    # The first stands in the run's own comparison, too, with the same interval.
    own = rows(f"{run}/eval/comparison.csv", metric="accuracy", checkpoint=f"fashion-prc-k2-seed{seed}")
    # There the interval is that of a family of one, whose quantile is drawn.
    for column in ("value", "ci_low", "ci_high"):
        found = gaps.loc["V-MoE with PRC, k = 2, less V-MoE, k = 2", column]
        assert own[column].item() == pytest.approx(found, abs=1e-4), column


def test_the_figure_over_capacity_shows_the_differences() -> None:
    drawn = fashion_figures.capacity(REPORTS / "fashion")
    for ax, objective in zip(drawn.axes, ("baseline", "prc"), strict=True):
        name = f"fashion-{objective}-k2-seed0"
        table = f"fashion/seed0/capacity-{name}/comparison.csv"
        for container, priority in zip(ax.containers, ("order", "gate"), strict=True):
            assert isinstance(container, ErrorbarContainer)
            points = np.asarray(container.lines[0].get_xydata())
            assert len(points) == 6
            for factor, value in points:
                served = f"{name},capacity={float(factor)},priority={priority}"
                expected = rows(table, metric="accuracy", checkpoint=served)["value"].item()
                assert value == pytest.approx(expected), served
