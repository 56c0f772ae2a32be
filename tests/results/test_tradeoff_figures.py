"""Figures of trainings side by side, against means and ranges taken by hand."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.results.figures.panels import Named, panels, spread, write_beside
from moeprobe.results.figures.tradeoff import draw
from moeprobe.results.figures.tradeoff.rows import deviations, groups, numbers_of, setting, shared_kappa

SEEDS = (0, 1, 2)
KINDS = (("softmax_token_choice", 1, np.nan), ("softmax_token_choice", 2, np.nan), ("soft_moe", np.nan, 1))


def trainings(seeds: tuple[int, ...] = SEEDS) -> pd.DataFrame:
    """Nine cells: accuracy and step time, κ in two layers, load entropy where tokens choose."""
    rows: list[dict[str, Any]] = []

    def add(base: dict[str, Any], metric: str, value: float, **more: Any) -> None:
        rows.append(base | {"metric": metric, "value": value} | more)

    for number, (router, top_k, factor) in enumerate(KINDS):
        group = f"{router}-{number}"
        for seed in seeds:
            base: dict[str, Any] = {
                "checkpoint": f"{group}-seed{seed}", "group": group, "train_seed": seed, "dataset": "digits",
                "split": "test", "router": router, "top_k": top_k, "capacity_factor": factor, "tokens": "patch",
                "layer": "", "null": "", "view": "", "severity": np.nan, "draw": np.nan, "flag": "", "images": 360,
                "ci_low": np.nan, "ci_high": np.nan,
            }  # fmt: skip
            value = 0.9 + 0.01 * number + 0.002 * seed**2

            add(base, "training_steps", 100.0)
            add(base, "step_seconds", 0.1 * (1 + number) + 0.01 * seed)
            add(base, "flops_per_image", 5e6 + number * 1e6)
            bars = {"ci_low": value - 0.02, "ci_high": value + 0.01}
            add(base, "accuracy", value, view="clean", **bars)
            for layer, shift in (("blocks.1", 0.0), ("blocks.3", 0.5)):
                kappa = {"layer": layer, "null": "pooled", "view": "random_crop"}
                add(base, "weight_cosine_kappa", 0.1 + shift + value / 10, **kappa)
                if router != "soft_moe":
                    add(base, "load_entropy", 0.4 + shift + value / 10, layer=layer, view="clean")
    return pd.DataFrame(rows)


def titled(figure: Figure) -> dict[str, Axes]:
    return {axes.get_title(loc="left").split("\n")[0]: axes for axes in figure.axes if axes.has_data()}


def drawn(axes: Axes, marks: tuple[str, ...]) -> list[np.ndarray]:
    """The points (n, 2) of each line with one of these marks, in the order of drawing."""
    lines = [np.asarray(line.get_xydata(), float) for line in axes.get_lines() if line.get_marker() in marks]
    return [points for points in lines if len(points)]


def test_marks_are_means_over_seeds_and_bars_reach_from_the_lowest_to_the_highest() -> None:
    table = trainings()
    figures = draw(table)
    assert set(figures) == {"tradeoff", "steadiness", "time"}
    accuracy = titled(figures["tradeoff"])["accuracy"]
    bars = [points[:, 0] for points in drawn(accuracy, ("None",))][:3]
    marks = [points[0] for points in drawn(accuracy, ("o", "s"))]
    values = [[0.9 + 0.01 * number + 0.002 * seed**2 for seed in SEEDS] for number in range(3)]
    # k = 1 and k = 2 of one router share a line, k = 1 above.
    np.testing.assert_allclose(bars, np.array([(min(of), max(of)) for of in values]))
    np.testing.assert_allclose([x for x, _ in marks], np.array(values).mean(1))
    places = [y for _, y in marks]
    assert places[0] < 0 < places[1] < 1 and round(places[2]) == 1
    (gray,) = drawn(accuracy, ("|",))
    np.testing.assert_allclose(np.ptp(gray[:, 0]), 0.03)
    assert [text.get_text() for text in accuracy.get_yticklabels()] == [
        "softmax_token_choice", "soft_moe", "95 % over images",
    ]  # fmt: skip


def test_a_single_training_has_its_interval_over_images_as_a_bar() -> None:
    accuracy = titled(draw(trainings((1,)))["tradeoff"])["accuracy"]
    bars = [points[:, 0] for points in drawn(accuracy, ("None",))][:3]
    values = [0.9 + 0.01 * number + 0.002 for number in range(3)]
    np.testing.assert_allclose(bars, np.array([(value - 0.02, value + 0.01) for value in values]))
    assert "\n" not in accuracy.get_title(loc="left")


def test_a_title_says_how_far_means_and_seeds_are_apart() -> None:
    accuracy = titled(draw(trainings())["tradeoff"])["accuracy"]
    means = [0.9 + 0.01 * number + 0.002 * 5 / 3 for number in range(3)]
    between = float(np.sqrt(sum((mean - np.mean(means)) ** 2 for mean in means) / 2))
    seeds = [0.002 * seed**2 for seed in SEEDS]
    within = float(np.sqrt(sum((one - np.mean(seeds)) ** 2 for one in seeds) / 2))
    assert f"sd of the means {between:.2g}, of seeds {within:.2g}" in accuracy.get_title(loc="left")
    costs = numbers_of(trainings())["flops_per_image"]
    assert deviations(groups(trainings()), costs) is None


def test_the_first_layer_leads_and_what_does_not_exist_is_named() -> None:
    numbers = numbers_of(trainings())
    assert set(numbers["κ, random_crop"]["layer"]) == set(numbers["load entropy"]["layer"]) == {"blocks.1"}
    load = titled(draw(trainings())["steadiness"])["load entropy"]
    assert [(text.get_text(), text.get_position()[1]) for text in load.texts] == [("does not exist", 1)]


def test_the_kappa_of_a_few_shot_accuracy_is_not_that_of_routing() -> None:
    """As of dense models beside sparse ones: every cell has the first, and not every cell the second."""
    table = trainings()
    output = table[table["metric"] == "accuracy"].assign(metric="fewshot_accuracy_kappa", null="pooled")
    dense = table["checkpoint"].str.startswith("soft_moe") & (table["layer"] != "")
    of_most = pd.concat([output, table[~dense]], ignore_index=True)
    assert shared_kappa(of_most) == "weight_cosine_kappa"
    assert "κ, random_crop" in numbers_of(of_most)
    assert shared_kappa(output) is None


def test_time_has_a_panel_per_budget_and_names_every_router() -> None:
    figure = draw(trainings())["time"]
    assert [axes.get_title() for axes in figure.axes] == ["k = 1, c = 1", "k = 2"]
    one, two = figure.axes
    assert [text.get_text() for text in one.texts] == ["softmax_token_choice", "soft_moe"]
    assert [text.get_text() for text in two.texts] == ["softmax_token_choice"]
    # 100 steps of 0.1 s, and 0.01 s more from seed to seed.
    np.testing.assert_allclose(drawn(one, ("o",))[0][0, 0], 11.0)
    assert one.get_ylim() == two.get_ylim()


def test_a_dense_model_stands_beside_every_budget() -> None:
    table = trainings()
    dense = table[(table["top_k"] == 1) & (table["layer"] == "")]
    dense = dense.assign(
        group="dense", router="none", top_k=np.nan, checkpoint=dense["checkpoint"] + "-dense"
    )
    figures = draw(pd.concat([table, dense]))
    assert [axes.get_title() for axes in figures["time"].axes] == ["k = 1, c = 1", "k = 2"]
    assert all("none" in [text.get_text() for text in axes.texts] for axes in figures["time"].axes)
    labels = [text.get_text() for text in titled(figures["tradeoff"])["accuracy"].get_yticklabels()]
    assert labels[2] == "none"


def test_groups_of_one_router_and_budget_are_told_apart_by_their_names() -> None:
    table = trainings()
    assert [group.label for group in groups(table)] == [
        "softmax_token_choice",
        "softmax_token_choice",
        "soft_moe",
    ]
    table.loc[table["top_k"] == 2, "top_k"] = 1
    assert [group.label for group in groups(table)] == [
        f"{router}-{n}" for n, (router, *_) in enumerate(KINDS)
    ]
    assert [setting(row) for _, row in table.drop_duplicates("group").iterrows()] == [
        "k = 1",
        "k = 1",
        "c = 1",
    ]


def test_one_figure_of_each_kind_per_data_set() -> None:
    table = trainings()
    both = pd.concat([table, table.assign(dataset="shapes:64")])
    assert set(draw(both)) == {
        f"{name}-{of}" for name in ("tradeoff", "steadiness", "time") for of in ("digits", "shapes-64")
    }


@pytest.mark.parametrize("seed", range(20))
def test_names_are_spread_to_the_nearest_places_that_are_apart(seed: int) -> None:
    random = np.random.default_rng(seed)
    wanted, gap = random.random(4).round(1), 0.2
    found = spread(wanted, gap)
    assert (np.diff(np.sort(found)) >= gap - 1e-9).all()
    assert found.min() >= -1e-9 and found.max() <= 1 + 1e-9
    # Against all places on a grid, in the order of the wanted ones.
    order = np.argsort(wanted, kind="stable")
    grid = np.linspace(0, 1, 21)
    apart = [of for of in itertools.combinations(grid, 4) if min(np.diff(of)) >= gap - 1e-9]
    best = min(((np.array(of) - wanted[order]) ** 2).sum() for of in apart)
    assert ((found - wanted) ** 2).sum() <= best + 1e-9


def test_names_keep_their_order_and_leave_out_what_is_not_there() -> None:
    _, axes = panels(1, 1)
    axes[0, 0].plot([0, 1], [0, 1])
    points = [Named(1, 0.51, "b", "k"), Named(1, 0.5, "a", "k"), Named(1, np.nan, "c", "k")]
    write_beside(axes[0, 0], points, height=2.0)
    names = {text.get_text(): text.xyann[1] for text in axes[0, 0].texts}
    assert set(names) == {"a", "b"} and names["a"] < names["b"]


def test_the_number_of_experts_is_an_axis_where_it_varies() -> None:
    table = trainings().assign(num_experts=8)
    few = table.assign(num_experts=2, group=table["group"] + "-2", checkpoint=table["checkpoint"] + "-2")
    few.loc[few["metric"] == "accuracy", "value"] -= 0.1
    assert "experts" not in draw(table)
    figures = draw(pd.concat([table, few]))
    accuracy, kappa = figures["experts"].axes
    assert (accuracy.get_ylabel(), kappa.get_ylabel()) == ("accuracy", "κ, random_crop")
    names = {text.get_text() for text in accuracy.texts}
    assert names == {"softmax_token_choice, k = 1", "softmax_token_choice, k = 2", "soft_moe, c = 1"}
    mean = 0.9 + 0.002 * 5 / 3
    np.testing.assert_allclose(drawn(accuracy, ("o",))[0], [(2, mean - 0.1), (8, mean)])
    labels = [text.get_text() for text in titled(figures["tradeoff"])["accuracy"].get_yticklabels()]
    assert labels[:2] == ["softmax_token_choice, E = 8", "soft_moe, E = 8"] and len(labels) == 5
