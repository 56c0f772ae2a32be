"""Coverage of experts by data: the coupon collector, brute force, and planted recordings."""

import json
from pathlib import Path

import numpy as np
import pytest

from moeprobe import api
from moeprobe.probes.coverage.collect import EvenRouter, Orders, greedy_subset
from moeprobe.probes.coverage.uses import Uses
from moeprobe.results.stored import of_table
from moeprobe.results.stored_cell import DamagedSumsError
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table
from tests.commands import refused, run
from tests.recordings.test_locality import EXPERTS, LAYERS, TOP_K, Ids, cell, served

ROWS = 12


def evenly(request: int) -> Ids:
    random = np.random.default_rng([13, request])
    return random.random((ROWS, LAYERS, EXPERTS)).argsort(2)[..., :TOP_K]


def narrow(request: int) -> Ids:
    """Expert 19 of layer 1 is used by request 5 alone, three times."""
    ids = evenly(request)
    random = np.random.default_rng(request)
    ids[:, 1] = random.random((ROWS, EXPERTS - 1)).argsort(1)[:, :TOP_K]
    if request == 5:
        ids[:3, 1, 0] = EXPERTS - 1
    return ids


def one_token_requests(number: int, experts: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(seed).integers(0, experts, number)
    return np.eye(experts, dtype=np.int64)[drawn], np.ones(number, np.int64)


def test_an_even_router_is_the_coupon_collector() -> None:
    """E tokens of H_E each: 12 · (1 + 1/2 + … + 1/12) = 37.2 for one token of each of twelve experts."""
    needed = np.concatenate(
        [
            Orders.of(*one_token_requests(400, 12, seed), need=1, seed=seed, orders=20).needed()
            for seed in range(30)
        ]
    )
    expectation = 12 * sum(1 / number for number in range(1, 13))
    # 30 draws with 20 orders each; the standard deviation of one is 13.
    assert needed.mean() == pytest.approx(expectation, abs=3)
    even = EvenRouter(((12, 1),), 1)
    assert even.quantile(0.5) == pytest.approx(np.median(needed), abs=3)
    assert even.quantile(0.025) < expectation < even.quantile(0.975)
    # With several tokens of each and several layers, against draws.
    many = EvenRouter(((8, 2), (8, 2)), 5)
    random = np.random.default_rng(0)
    times = []
    for _ in range(300):
        uses = (random.random((2, 200, 8)).argsort(2) < 2).cumsum(1)
        times.append(int((uses < 5).any((0, 2)).sum()) + 1)
    assert many.quantile(0.5) == pytest.approx(np.median(times), abs=2)
    assert many.covered(20) == pytest.approx(
        np.mean([((random.random((20, 8)).argsort(1) < 2).sum(0) >= 5).mean() for _ in range(400)]), abs=0.02
    )


def test_orders_are_those_of_loops() -> None:
    random = np.random.default_rng(2)
    uses, tokens = random.poisson(0.6, (15, 7)), random.integers(3, 9, 15)
    uses[3] += 4
    found = Orders.of(uses, tokens, 4, seed=0, orders=5)
    for order, reached in zip(found.tokens, found.reached, strict=True):
        # Tokens identify the order but for requests of equal length; counts are then compared by their sums.
        assert order[-1] == tokens.sum() and (np.diff(order) > 0).all()
        assert ((reached == 15) == (uses.sum(0) < 4)).all()
    assert (found.covered([0])[:, 0] == 0).all()
    assert (found.covered([int(tokens.sum())])[:, 0] == (uses.sum(0) >= 4).mean()).all()
    always = Orders.of(np.full((6, 3), 2), np.full(6, 5), 4, seed=0, orders=3)
    assert always.needed().tolist() == [10, 10, 10]
    assert always.covered([9, 10]).tolist() == [[0, 1]] * 3


def test_a_greedy_subset_is_enough_and_small() -> None:
    random = np.random.default_rng(4)
    for _ in range(20):
        uses, tokens = random.poisson(0.5, (30, 10)), random.integers(1, 20, 30)
        chosen = greedy_subset(uses, tokens, 3)
        assert len(set(chosen)) == len(chosen)
        reachable = uses.sum(0) >= 3
        assert (uses[chosen].sum(0)[reachable] >= 3).all()
        assert tokens[chosen].sum() < tokens.sum()
        # Plain greedy, counted anew each time.
        missing, plain = np.where(reachable, 3, 0), list[int]()
        while missing.any():
            rates = np.minimum(uses, missing).sum(1) / tokens
            rates[plain] = -1
            plain.append(int(rates.argmax()))
            missing = np.maximum(missing - uses[plain[-1]], 0)
        assert tokens[chosen].sum() == pytest.approx(tokens[plain].sum(), rel=0.15)


def test_a_planted_recording_lacks_one_expert(tmp_path: Path) -> None:
    narrow_trace, even_trace = (
        served(tmp_path / f"{name}.parquet", ids) for name, ids in (("narrow", narrow), ("even", evenly))
    )
    subset = tmp_path / "subset.jsonl"
    found = api.trace_coverage([narrow_trace, even_trace], need=8, write=subset)
    whole = {
        (name, metric): cell(found.table, metric, layer="", checkpoint=name)
        for name in ("narrow", "even")
        for metric in ("experts_below", "tokens_needed", "subset_tokens", "subset_inputs")
    }
    assert whole["narrow", "experts_below"]["value"] == 1
    assert np.isnan(whole["narrow", "tokens_needed"]["value"])
    assert any("expert 19 of layers.1 has 3" in note for note in found.sidecar["notes"])
    needed = whole["even", "tokens_needed"]
    assert whole["even", "experts_below"]["value"] == 0
    assert needed["ci_low"] <= needed["value"] <= needed["ci_high"] < 24 * ROWS
    # Tokens are drawn evenly here, so it is the coupon collector, but for whole requests.
    even = cell(found.table, "tokens_needed_even", layer="", checkpoint="even")
    assert even["value"] - 3 < needed["value"] < even["value"] + 2 * ROWS
    # No inputs are put in another order for it.
    assert (even["interval"], needed["interval"]) == ("exact", "permutations")
    lines = [json.loads(line) for line in subset.read_text().splitlines()]
    of_even = [line for line in lines if line["recording"] == "even"]
    assert len(of_even) == whole["even", "subset_inputs"]["value"]
    assert sum(line["tokens"] for line in of_even) == whole["even", "subset_tokens"]["value"]
    curve = found.table[(found.table["metric"] == "experts_covered") & (found.table["checkpoint"] == "even")]
    assert curve["value"].is_monotonic_increasing and curve["value"].iloc[-1] == 1
    # Requests bring as many tokens as they have, k times.
    brought = found.table[(found.table["metric"] == "expert_tokens") & (found.table["layer"] == "layers.0")]
    assert brought.groupby("checkpoint")["value"].sum().to_list() == pytest.approx([ROWS * TOP_K] * 2)


def test_counts_take_as_few_bits_as_the_longest_input_or_unit_needs() -> None:
    """Layers of two and three experts; one expert gets all 200 tokens of each of four inputs."""
    names, tokens = list("abcd"), np.full(4, 200)
    brought = {
        "first": np.array([[200, 0]] * 4),
        "second": np.array([[0, row, 200 - row] for row in range(4)]),
    }
    accumulator = Accumulator()
    for layer, uses in brought.items():
        columns = {"covered_tokens": tokens, "covered_uses": uses}
        accumulator.add(Cell(layer, "router", 1), names, columns)
    stored = list(of_table(image_table(accumulator, checkpoint="a")))
    found = Uses.of_cells(stored)
    assert found.counts.dtype == np.uint8 and found.counts.tolist() == np.hstack([*brought.values()]).tolist()
    units = found.by_unit({"a": "x", "b": "x", "c": "y", "d": "x"})
    assert units.names == ["x", "y"] and units.tokens.tolist() == [600, 200]
    assert units.counts.tolist() == [[600, 0, 0, 4, 596], [200, 0, 0, 2, 198]]
    # One row sums up to more than a byte holds.
    assert len(found.subset(500)) == 3
    assert "expert 1 of first has 0, expert 1 of second has 6" in found.lacking(500)
    of_orders = Orders.of(found.counts, found.tokens, 500, seed=0, orders=3)
    assert of_orders.reached.tolist() == [[2, 4, 4, 4, 2]] * 3


@pytest.mark.parametrize("uses", [201, 300, -1])
def test_counts_above_the_tokens_of_their_input_are_damage(uses: int) -> None:
    accumulator = Accumulator()
    columns = {"covered_tokens": np.array([200]), "covered_uses": np.array([[uses, 0]])}
    accumulator.add(Cell("first", "router", 1), ["a"], columns)
    with pytest.raises(DamagedSumsError, match="first has more tokens than its input"):
        Uses.of_cells(list(of_table(image_table(accumulator, checkpoint="a"))))


@pytest.mark.pictures
def test_the_command_prints_the_finding_first(tmp_path: Path) -> None:
    trace = served(tmp_path / "a.parquet", evenly)
    result = run("trace", "coverage", trace, "--need", "8", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert "no confidence intervals. 24 requests; seed 0." in printed
    assert printed.startswith("a: every expert has enough after")
    assert "1.000 [1.000" not in printed  # with all tokens there are no orders to tell apart
    assert (tmp_path / "run" / "figures" / "coverage.png").exists()
    # What is finished is not computed again, but the subset is written.
    asked = ("trace", "coverage", trace, "--need", "8", "--write", tmp_path / "subset.jsonl")
    assert run(*asked, "--out", tmp_path / "run").exit_code == 0
    subset = (tmp_path / "subset.jsonl").read_bytes()
    again = run(*asked, "--overwrite")
    assert subset and again.exit_code == 0
    said = again.output.replace("\n", "")
    assert f"Written: {tmp_path / 'subset.jsonl'}" in said and "Nothing else was written" in said
    assert (tmp_path / "subset.jsonl").read_bytes() == subset
    (tmp_path / "mine.jsonl").write_text("precious")
    assert "exists; choose another name" in refused(
        "trace", "coverage", trace, "--write", tmp_path / "mine.jsonl"
    )
    assert (tmp_path / "mine.jsonl").read_text() == "precious"
    assert "takes a whole number from 1 up" in refused("trace", "coverage", trace, "--need", "0")
