"""Load over windows of requests and over ranks: planted recordings whose numbers are known."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.metrics.stats.linearized import linearize_all
from moeprobe.metrics.stats.rank_load import RELABELINGS, Placed, RankImbalance, busiest_ranks
from moeprobe.recorded.trace_balance import course
from moeprobe.recorded.trace_balance.relabeled import JudgedPlacement, relabeled_loads, relabeled_rows
from moeprobe.recordings.import_experts import import_routed_experts
from moeprobe.recordings.import_log import import_trace
from moeprobe.recordings.placement import consecutive, greedy, read_placement
from tests.commands import refused, run
from tests.recordings import serving
from tests.recordings.test_load_only import imported, stat

# Intervals are asserted.
pytestmark = pytest.mark.resamples


EXPERTS, REQUESTS, TOKENS, LAYERS = 16, 40, 16, ("layers.0", "layers.1")
Ids = NDArray[np.int64]
# From the number of a request and of a layer to the experts of its tokens (T, K).
Choose = Callable[[int, int], Ids]


def highest(number: int, layer: int, hot: dict[int, float], *, top_k: int = 2) -> Ids:
    """Random choices of a request's tokens, some experts more often."""
    scores = np.random.default_rng([number, layer]).random((TOKENS, EXPERTS))
    for expert, bonus in hot.items():
        scores[:, expert] += bonus
    return np.argsort(-scores, axis=1)[:, :top_k]


def uniform(number: int, layer: int) -> Ids:
    return highest(number, layer, {})


def fixed(number: int, layer: int) -> Ids:
    """All tokens choose experts 3 and 2."""
    return highest(number, layer, {3: 2.0, 2: 1.0})


def recording(folder: Path, choose: Choose, *, requests: int = REQUESTS, name: str = "t") -> Path:
    path, log = folder / f"{name}.parquet", folder / f"{name}.jsonl"
    lines = [
        {
            "id": f"r{number}",
            "layer": layer,
            "num_experts": EXPERTS,
            "experts": choose(number, index).tolist(),
        }
        for number in range(requests)
        for index, layer in enumerate(LAYERS)
    ]
    log.write_text("\n".join(json.dumps(line) for line in lines))
    import_trace(log, path)
    return path


def value(
    table: pd.DataFrame, metric: str, *, layer: str = LAYERS[0], view: str = "", null: str = ""
) -> pd.Series:
    rows = table[(table["metric"] == metric) & (table["layer"] == layer) & table["severity"].isna()]
    rows = rows[(rows["null"] == null) & (rows["view"].isin([view]) if view else True)]
    [row] = rows.to_dict("records")
    return pd.Series(row)


# Hot experts over time.


def test_fixed_hot_experts_stay_hot(tmp_path: Path) -> None:
    table = api.trace_balance(recording(tmp_path, fixed)).table
    for layer in LAYERS:
        for metric in ("hot_overlap", "hot_overlap_ends", "hot_overlap_shuffled", "hot_next_share"):
            assert value(table, metric, layer=layer)["value"] == 1
        assert value(table, "hot_overlap_kappa", layer=layer, null="random")["value"] == 1
        assert value(table, "load_change", layer=layer)["value"] == 0
        assert value(table, "load_correlation", layer=layer)["value"] == pytest.approx(1)
    assert "rank_imbalance" not in set(table["metric"])


def test_layers_whose_hot_experts_stay_alike_may_have_other_shares(tmp_path: Path) -> None:
    """The second layer's hot experts stay hot as well, with fewer of its choices."""

    def one_strong(number: int, layer: int) -> Ids:
        return highest(number, layer, {3: 0.6, 2: 0.6}) if layer else fixed(number, layer)

    found = api.trace_balance(recording(tmp_path, one_strong))
    least = value(found.table, "hot_next_share", layer=LAYERS[1])["value"]
    assert least < 0.9 and value(found.table, "hot_overlap", layer=LAYERS[1])["value"] == 1
    said = found.leading(found)[0]
    assert "in each of 2 layers" in said
    assert f"They get {least:.3f} to 1.000 of the next window's choices (chance 0.125)." in said


def test_uniform_routing_is_at_chance_and_nearly_even(tmp_path: Path) -> None:
    found = api.trace_balance(recording(tmp_path, uniform), ranks=4)
    table = found.table
    # Two sets of 2 of 16: 0, 1 or 2 in common, with index 0, 1/3 and 1.
    chance = (2 * 14 / 3 + 1) / (16 * 15 / 2)
    for layer in LAYERS:
        overlap = value(table, "hot_overlap", layer=layer)
        assert value(table, "hot_overlap_chance", layer=layer, null="random")["value"] == pytest.approx(
            chance
        )
        assert overlap["ci_low"] <= chance <= overlap["ci_high"]
        share = value(table, "hot_next_share", layer=layer)
        assert share["ci_low"] < 2 / 16 < share["ci_high"] < 0.2
    for metric in ("rank_imbalance", "window_imbalance"):
        row = value(table, metric, layer="", view="consecutive")
        assert row["flag"] == "maximum" and np.isnan(row["ci_low"]), "a maximum has no interval"
        relabeled, ratio, p = (
            value(table, f"{metric}_{name}", layer="", view="consecutive")
            for name in ("relabeled", "ratio", "p")
        )
        assert relabeled["ci_low"] < relabeled["value"] < relabeled["ci_high"] < 1.3
        assert relabeled["interval"] == "permutations"
        assert ratio["value"] == pytest.approx(row["value"] / relabeled["value"])
        assert 0.9 < ratio["value"] < 1.1 and p["value"] > 1 / (1 + RELABELINGS)
    assert any("no expert is known to stay hot" in line for line in found.leading(found))
    assert any("Nothing shows that the load changes with time" in line for line in found.leading(found))


def test_experts_that_are_hot_in_turn(tmp_path: Path) -> None:
    """In each of eight windows another pair of experts gets everything."""

    def turns(number: int, layer: int) -> Ids:
        window = number * 8 // REQUESTS
        return highest(number, layer, {2 * window: 2.0, 2 * window + 1: 2.0})

    found = api.trace_balance(recording(tmp_path, turns), ranks=8)
    table = found.table
    assert value(table, "hot_overlap")["value"] == value(table, "hot_next_share")["value"] == 0
    assert value(table, "load_change")["value"] == 1
    assert value(table, "load_change_shuffled")["ci_high"] < 1
    # Over all windows each rank has its turn; within one, a single rank works.
    assert value(table, "rank_imbalance", layer="", view="consecutive")["value"] == pytest.approx(1)
    assert value(table, "window_imbalance", layer="", view="consecutive")["value"] == pytest.approx(8)
    [said] = [line for line in found.leading(found) if "The load changes with time" in line]
    assert "(p = 0.005, 32 experts of 2 layers at once). 32 of 32 experts are named, in 2 layers" in said
    # All change as much, so none of them is said to change most.
    assert said.endswith("Their shares have standard deviations of up to 0.177 between windows.")
    rates = (table["metric"] == "load_course_rate") & ~(
        (table["layer"] == "layers.0") & (table["expert"] == 3)
    )
    [said] = course.sentences(table.assign(value=table["value"].mask(rates, 1.0)))
    assert (
        "Of 32 experts one is named, expert 3 of layers.0, at a false discovery rate of 5%: its share has"
        in said
    )
    assert any("The load moves most in" in line for line in found.leading(found))
    # An expert has all choices or half of them in one window of eight.
    spread = table[table["metric"] == "load_course_spread"].set_index(["layer", "expert"])["value"]
    assert len(spread) == 32 and np.allclose(spread, 0.5 / np.sqrt(8), rtol=0.01)


# Ranks.


def by_hand(choose: Choose, ranks: list[list[int]], requests: range) -> float:
    """The imbalance over layers, choice by choice."""
    busiest = mean = 0.0
    for layer in range(len(LAYERS)):
        loads = [0.0] * len(ranks)
        for number in requests:
            for expert in choose(number, layer).ravel().tolist():
                homes = [rank for rank, experts in enumerate(ranks) if expert in experts]
                for rank in homes:
                    loads[rank] += 1 / len(homes)
        busiest += max(loads)
        mean += sum(loads) / len(loads)
    return busiest / mean


def skewed(number: int, layer: int) -> Ids:
    return highest(number, layer, {layer: 0.5, 1: 0.3, 2: 0.2, 9: 0.3})


@pytest.mark.parametrize(
    "ranks",
    [
        [list(range(start, start + 4)) for start in (0, 4, 8, 12)],
        [[0, 4, 8, 12, 1], [5, 9, 13, 2, 1], [6, 10, 14, 3], [7, 11, 15]],
    ],
    ids=["consecutive", "with a copy"],
)
def test_imbalance_is_that_of_a_loop_over_choices(tmp_path: Path, ranks: list[list[int]]) -> None:
    placement = tmp_path / "mine.json"
    placement.write_text(json.dumps(ranks))
    table = api.trace_balance(recording(tmp_path, skewed), placement=placement).table
    half = range(REQUESTS // 2, REQUESTS)
    for view, requests in (("mine", range(REQUESTS)), ("mine, second half", half)):
        row = value(table, "rank_imbalance", layer="", view=view)
        assert row["value"] == pytest.approx(by_hand(skewed, ranks, requests))
        assert row["images"] == len(requests)
    windows = table[(table["metric"] == "rank_imbalance") & table["severity"].notna()]
    assert windows["severity"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    expected = [by_hand(skewed, ranks, range(start, start + 5)) for start in range(0, REQUESTS, 5)]
    assert windows["value"].tolist() == pytest.approx(expected)


def test_hot_experts_on_one_rank_have_the_known_imbalance(tmp_path: Path) -> None:
    """Experts 3 and 2 get everything: on one rank it has N times the mean, on two N / 2, and so does greedy."""
    path = recording(tmp_path, fixed)
    table = api.trace_balance(path, ranks=4).table
    assert value(table, "rank_imbalance", layer="", view="consecutive")["value"] == 4
    assert value(table, "rank_imbalance", layer="", view="greedy, second half")["value"] == 2
    shares = table[(table["metric"] == "rank_share") & (table["view"] == "consecutive")]
    shares = shares[(shares["layer"] == "") & shares["severity"].isna()]
    assert shares["expert"].tolist() == [0, 1, 2, 3] and shares["value"].tolist() == [1, 0, 0, 0]
    placement = tmp_path / "apart.csv"
    ranks = {expert: expert % 4 for expert in range(EXPERTS)}
    placement.write_text("expert,rank\n" + "\n".join(f"{expert},{rank}" for expert, rank in ranks.items()))
    apart = api.trace_balance(path, placement=placement).table
    assert value(apart, "rank_imbalance", layer="", view="apart")["value"] == 2


def test_greedy_is_made_on_the_first_half(tmp_path: Path) -> None:
    """The hot experts of the first half say nothing of the second: the placement must not know these."""

    def halves(number: int, layer: int) -> Ids:
        first = number < REQUESTS // 2
        return highest(number, layer, dict.fromkeys((0, 1) if first else (4, 5), 2.0))

    path = recording(tmp_path, halves)
    seen = greedy({"layers.0": np.eye(16)[0] + np.eye(16)[1]}, 8).shares["layers.0"]
    assert seen[0].argmax() != seen[1].argmax() and (seen.sum(0) == 2).all()
    table = api.trace_balance(path, ranks=8).table
    first = {
        layer: sum(np.bincount(halves(number, index).ravel(), minlength=16) for number in range(20))
        for index, layer in enumerate(LAYERS)
    }
    second = greedy({layer: np.asarray(load, float) for layer, load in first.items()}, 8)
    expected = [8 if (second.shares[layer][4] == second.shares[layer][5]).all() else 4 for layer in LAYERS]
    row = value(table, "rank_imbalance", layer="", view="greedy, second half")
    assert row["value"] == pytest.approx(np.mean(expected))


# Relabeled experts.

Counts = NDArray[np.int32]


def even(rng: np.random.Generator, requests: int) -> Counts:
    """Each request spreads its choices evenly."""
    return np.stack([rng.multinomial(32, np.full(EXPERTS, 1 / EXPERTS)) for _ in range(requests)]).astype(
        np.int32
    )


def unlike(rng: np.random.Generator, requests: int) -> Counts:
    """Each request has hot experts of its own, and any expert is as hot as any other in the long run."""
    preferred = rng.dirichlet(np.full(EXPERTS, 0.2), size=requests)
    sizes = rng.integers(8, 200, requests)
    return np.stack([rng.multinomial(*one) for one in zip(sizes, preferred, strict=True)]).astype(np.int32)


def persistent(rng: np.random.Generator, requests: int) -> Counts:
    """The first experts are hot in all requests."""
    preferred = rng.dirichlet(np.geomspace(1.0, 0.2, EXPERTS), size=requests)
    return np.stack([rng.multinomial(64, one) for one in preferred]).astype(np.int32)


def p_of(choices: dict[str, Counts], *, ranks: int = 4, windows: int = 4) -> dict[str, float]:
    """The numbers of all layers together."""
    requests = len(next(iter(choices.values())))
    placement = consecutive(dict.fromkeys(choices, EXPERTS), ranks)
    judged = JudgedPlacement("consecutive", placement, 0, np.arange(requests) * windows // requests)
    loads = relabeled_loads(choices, [judged])["consecutive"]
    assert loads.shape == (1 + RELABELINGS, len(choices), 1 + windows)
    rows = list(relabeled_rows(choices, judged, loads, by_window=False))
    return {metric: numbers[0] for metric, numbers in rows[-1].numbers.items()}


def test_relabeling_keeps_what_a_request_chooses_and_moves_it() -> None:
    """By a loop over requests: the mean of the busiest rank's load over random orders of the experts."""
    rng = np.random.default_rng(0)
    choices = {"a": unlike(rng, 12), "b": unlike(rng, 12)}
    found = p_of(choices)["rank_imbalance_relabeled"]
    draws = []
    for _ in range(2000):
        orders = [rng.permutation(EXPERTS) for _ in range(12)]
        busiest = mean = 0.0
        for counts in choices.values():
            loads = np.zeros(4)
            for row, order in zip(counts, orders, strict=True):
                for expert in range(EXPERTS):
                    loads[expert // 4] += row[order[expert]]
            busiest, mean = busiest + loads.max(), mean + loads.mean()
        draws.append(busiest / mean)
    assert found == pytest.approx(np.mean(draws), abs=4 * np.std(draws) / np.sqrt(RELABELINGS))


def test_copies_of_an_expert_share_its_load_when_it_is_relabeled() -> None:
    shares = np.array([[0.5, 0.5], [1, 0], [0, 1]])
    choices = np.array([[6, 0, 0], [0, 2, 0], [0, 0, 4]])
    assert busiest_ranks(choices, shares, np.array([0, 2])).tolist() == [7, 5, 4]


def outcomes(
    draw: Callable[[np.random.Generator, int], Counts], *, requests: int, runs: int
) -> dict[str, float]:
    """How often p is at most .05, and how often the interval of the maximum that there was lay above 1."""
    rng = np.random.default_rng([3, requests])
    false = dict.fromkeys(("ranks", "windows", "interval"), 0)
    shares = np.repeat(np.eye(8), EXPERTS // 8, axis=0)
    for _ in range(runs):
        choices = {f"layers.{number}": draw(rng, requests) for number in range(6)}
        numbers = p_of(choices, ranks=8)
        false["ranks"] += numbers["rank_imbalance_p"] <= 0.05
        false["windows"] += numbers["window_imbalance_p"] <= 0.05
        loads = np.stack([counts @ shares for counts in choices.values()], axis=1)
        imbalance = RankImbalance(Placed(loads, np.zeros(requests, np.int64), 1))
        number = linearize_all(imbalance, loads.sum((1, 2)))
        assert number.interval().flag == "maximum" and number.error is not None
        false["interval"] += number.point - 1.96 * number.error > 1
    return {name: count / runs for name, count in false.items()}


@pytest.mark.slow
@pytest.mark.promise
def test_requests_that_merely_differ_are_told_from_experts_that_stay_hot() -> None:
    rate = outcomes(unlike, requests=40, runs=40)
    assert rate["ranks"] <= 0.15 and rate["windows"] <= 0.15
    assert rate["interval"] > 0.5, "an interval of the maximum lies above 1, the truth of many requests"
    assert outcomes(persistent, requests=40, runs=10)["ranks"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("requests", "runs"), [(40, 400), (200, 200), (1000, 100)])
@pytest.mark.parametrize("draw", [even, unlike])
def test_p_is_small_as_often_as_it_says(
    draw: Callable[[np.random.Generator, int], Counts], requests: int, runs: int
) -> None:
    rate = outcomes(draw, requests=requests, runs=runs)
    print(f"{draw.__name__}, {requests} requests: {rate}")
    bound = 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / runs)
    assert rate["ranks"] <= bound and rate["windows"] <= bound
    assert rate["interval"] > 0.5


# Samples.


def test_choices_of_a_request_are_one_sample(tmp_path: Path) -> None:
    """Twice as many choices of the same requests: the same numbers, and intervals no narrower."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(serving.DEEPSEEK))
    tables = []
    for copies in (1, 2):
        responses = [serving.vllm(serving.routing(number)) | {"id": f"r{number}"} for number in range(24)]
        for response in responses:
            response["choices"] = [response["choices"][0] | {"index": index} for index in range(copies)]
            response["usage"] = serving.usage(generated=copies * serving.GENERATED)
        path = tmp_path / f"{copies}.jsonl"
        path.write_text("\n".join(json.dumps(response) for response in responses))
        trace = import_routed_experts(path, tmp_path / f"{copies}.parquet", model_config=config).path
        tables.append(api.trace_balance(trace, ranks=4, windows=4).table)
    once, twice = tables
    assert (twice["images"] == once["images"]).all() and once["images"].max() == 24
    columns = ["value", "ci_low", "ci_high"]
    np.testing.assert_allclose(twice[columns].to_numpy(float), once[columns].to_numpy(float))
    trials = once["trials"].to_numpy()
    assert (twice["trials"].to_numpy() == 2 * trials).all()


def test_the_different_experts_of_an_input_are_counted(tmp_path: Path) -> None:
    """Requests by their tokens, and steps of a batch by their counts."""
    table = api.trace_balance(recording(tmp_path, uniform)).table
    for index, layer in enumerate(LAYERS):
        experts = [len(np.unique(uniform(number, index))) for number in range(REQUESTS)]
        row = value(table, "distinct_experts_of_input", layer=layer)
        assert row["value"] == pytest.approx(np.mean(experts)) and row["trials"] == REQUESTS
        assert row["ci_low"] < row["value"] < row["ci_high"]
    ids = serving.routing(rows=12)
    steps = imported(tmp_path, stat(tmp_path / "stat.pt", ids, steps=6)).path
    row = value(api.trace_balance(steps, windows=2).table, "distinct_experts_of_input", layer="layers.1")
    assert row["value"] == pytest.approx(np.mean([len(np.unique(part[:, 0])) for part in np.split(ids, 6)]))
    assert row["value"] < 4


def test_counts_without_tokens_are_enough(tmp_path: Path) -> None:
    """Each step of SGLang's recorder is an input."""
    trace = imported(tmp_path, stat(tmp_path / "stat.pt", serving.routing(rows=64), steps=4)).path
    table = api.trace_balance(trace, ranks=2, windows=4).table
    assert value(table, "rank_imbalance", layer="layers.1", view="consecutive")["trials"] == 64 * 2
    assert "too few for 8 windows" in refused("trace", "balance", trace)


@pytest.mark.pictures
def test_one_input_has_a_load_and_no_course(tmp_path: Path) -> None:
    """Counts of a whole file: how even ranks are, against experts in any other order."""
    ids = serving.routing(rows=64)
    trace = imported(tmp_path, stat(tmp_path / "stat.pt", ids, steps=1)).path
    out = tmp_path / "r"
    result = run("trace", "balance", trace, "--ranks", "4", "--out", out)
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert "It is one input, so nothing says whether the same experts stay hot" in printed
    assert "hot experts over time and a greedy placement, which take two inputs" in printed
    assert (out / "figures" / "balance.png").exists()
    table = pd.read_csv(
        out / "table.csv",
        dtype={"null": str},
        keep_default_na=False,
        na_values={"ci_low": [""], "severity": [""]},
    )
    of_input = table[table["view"] != "consecutive"]
    assert set(of_input["metric"]) == {"distinct_experts_of_input"} and table["severity"].isna().all()
    for place, layer in enumerate(("layers.1", "layers.2", "layers.3", "layers.4")):
        loads = np.bincount(ids[:, place].ravel(), minlength=8).reshape(4, 2).sum(1)
        row = value(table, "rank_imbalance", layer=layer, view="consecutive")
        assert np.isclose(row["value"], loads.max() / loads.mean()) and np.isnan(row["ci_low"])
    assert "use --ranks to see how even its load is" in " ".join(refused("trace", "balance", trace).split())


# Refusals.


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([[0, 1], [2, 3]], "no rank has expert 4 (12 of 16 are missing)"),
        ([list(range(16)), [16]], "rank 1 has expert 16, and the layer has experts 0 to 15"),
        ({"layers.0": [list(range(16))]}, "lacks layer layers.1"),
        ({"layers.0": [list(range(16))], "layers.1": [list(range(16)), [0]]}, "1 ranks in layers.0 and 2"),
        ([0, 1, 2], "holds no placement of experts for layers.0"),
        ([[]] * 4097, "has 4,097 ranks in layers.0, and at most 4,096 are read"),
        ({"layer_list": [{"device_list": [{"device_expert": list(range(16))}]}]}, "1 layers, and the trace has 2"),
        ({"layer_list": [{}, {}]}, "has a layer_list, and not the device_list"),
    ],
)  # fmt: skip
def test_a_placement_that_does_not_fit_is_refused(tmp_path: Path, content: object, problem: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError) as error:
        read_placement(path, dict.fromkeys(LAYERS, EXPERTS), every_layer=LAYERS)
    assert problem in error.value.sentence


def test_an_expert_map_of_vllm_ascend_is_by_layer(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    ranks = [[[0, 1], [2, 3]], [[3, 0], [1, 2]]]
    devices = [
        [{"device_id": rank, "device_expert": experts} for rank, experts in enumerate(layer)]
        for layer in ranks
    ]
    layers = [{"layer_id": index, "device_list": device_list} for index, device_list in enumerate(devices)]
    path.write_text(json.dumps({"moe_layer_count": 2, "layer_list": layers}))
    placement = read_placement(path, dict.fromkeys(LAYERS, 4), every_layer=LAYERS)
    assert placement.shares["layers.0"].argmax(1).tolist() == [0, 0, 1, 1]
    assert placement.shares["layers.1"].argmax(1).tolist() == [0, 1, 1, 0]


def test_layers_that_a_placement_has_and_the_trace_has_not_cost_no_time(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    lines = [f"{layer},{expert},{expert // 8}" for layer in LAYERS for expert in range(EXPERTS)]
    lines += [f"other.{number},0,4000" for number in range(20_000)]
    path.write_text("layer,expert,rank\n" + "\n".join(lines))
    before = time.process_time()
    placement = read_placement(path, dict.fromkeys(LAYERS, EXPERTS), every_layer=LAYERS)
    assert time.process_time() - before < 5, "each of them had a list of 4,000 ranks"
    assert placement.num_ranks == 2
    path.write_text("expert,rank\n" + "0,0\n" * 5000 + "1,4096")
    with pytest.raises(UserError, match=r"from 0 to 4096; number them from 0 on, at most 4,096"):
        read_placement(path, dict.fromkeys(LAYERS, EXPERTS), every_layer=LAYERS)


def test_what_cannot_be_measured_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = recording(tmp_path, uniform, requests=3)
    placement = tmp_path / "p.csv"
    placement.write_text("expert,place\n1,2")
    for options, problem in (
        (("--ranks", 5, "--windows", 2), "--ranks 5 does not divide the 16 experts of layers.0"),
        (
            ("--ranks", 4),
            "has 3 independent requests, too few for 8 windows; record more, or use --windows 3",
        ),
        (("--placement", placement, "--windows", 2), "is no CSV with the columns expert,rank"),
    ):
        assert problem in refused("trace", "balance", path, *options)
    placement.write_text(json.dumps([list(range(16))]))
    good = tmp_path / "p.json"
    good.write_text(placement.read_text())
    assert "leave --ranks out" in refused("trace", "balance", path, "--ranks", 4, "--placement", good)


@pytest.mark.pictures
def test_the_command_prints_sentences_tables_and_writes_a_figure(tmp_path: Path) -> None:
    path, out = recording(tmp_path, skewed), tmp_path / "out"
    result = run("trace", "balance", path, "--ranks", 4, "--out", out)
    assert result.exit_code == 0, result.output
    for text in (
        "Hot experts of one window and the next",
        "greedy, second half",
        "relabeled within each request",
    ):
        assert text in " ".join(result.output.split())
    assert (out / "figures" / "balance.png").stat().st_size > 10_000
