"""The parts of the benchmark at sizes that take no time: they run, and their contestants agree."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks.speed import parts
from benchmarks.speed.parts.base import Settings
from benchmarks.speed.parts.layer import (
    ALONE,
    CASES,
    DENSE,
    HUGGING_FACE,
    LAYOUTS,
    OURS,
    S_32,
    Case,
    tokens_for,
)
from benchmarks.speed.parts.recorded import LOOPS, OURS_IMPORT, OURS_PAIR, OURS_REUSE, PLAIN
from benchmarks.speed.parts.routers import REFERENCE, Sizes, layer, places
from benchmarks.speed.parts.sweep import BARE
from benchmarks.speed.plain_layers import Weights, experts_alone
from benchmarks.speed.run import bench
from moeprobe.runtime.catalog import ROUTERS
from tests.benchmarks.commands import bench_command


def measured(part: str, out: Path) -> pd.DataFrame:
    """The table of a part, as its command leaves it."""
    done = bench_command(part, "--quick", "--out", out)
    assert done.exit_code == 0, done.output
    return pd.read_csv(out / "table.csv", keep_default_na=False)


@pytest.mark.parametrize("name", parts.names())
def test_every_part_says_what_it_is(name: str) -> None:
    assert (type(parts.part(name)).__doc__ or "").strip().endswith(".")


def test_recorded_routing_beside_numpy_and_loops(tmp_path: Path) -> None:
    """Both ways read as many requests, and find the same shares of tokens that differ, of reuse and of hits."""
    table = measured("recorded", tmp_path / "out")
    races = table.groupby("race", sort=False)["contestant"].agg(list)
    assert list(races) == [[OURS_IMPORT, PLAIN], [OURS_PAIR, PLAIN], [OURS_REUSE, LOOPS]]
    ours = table[table["role"] == "ours"]
    assert list(ours["against"]) == [PLAIN, PLAIN, LOOPS]


@pytest.mark.slow
def test_probes_beside_their_passes(tmp_path: Path) -> None:
    """Two views of an image are two passes up to the last router; a price of flips has gradients too."""
    table = measured("probes", tmp_path / "out")
    match_ratio, flips = table["race"].unique()
    assert float(match_ratio.split(": ")[1].split()[0]) <= 2 and "with gradients" in flips
    assert (table.loc[table["contestant"] == OURS, "against"] == BARE).all()


def test_the_layer(tmp_path: Path) -> None:
    table = measured("layer", tmp_path / "out")
    assert (table["rounds"] == 2).all() and (table["reached"] == "").all()
    races = table.groupby("race", sort=False)["contestant"].agg(set)
    assert len(races) == 4 * sum(case.layout == S_32 for case in CASES) + 4
    for name, contestants in races.items():
        if not str(name).startswith("from"):
            assert contestants >= {OURS, DENSE, "loop + index_add", "padded bmm"}
            assert (HUGGING_FACE in contestants) == ("no limit" in str(name))
            assert ("one-hot einsum" in contestants) == ("E 8 " in str(name))
    growth = table[table["race"].str.startswith("from") & (table["target"] != "")]
    assert list(growth["contestant"]) == ["E 64 k 1"] * 4 and set(growth["target"]) == {"≤ 1.3"}
    ours = table[(table["contestant"] == OURS) & (table["target"] != "")]
    assert set(ours.loc[ours["against"] == DENSE, "target"]) == {"≥ 0.8"}
    assert set(ours.loc[ours["against"] == ALONE, "target"]) == {"≥ 0.9"}
    assert not ours[ours["race"].str.contains("skewed")]["against"].isin([DENSE, ALONE]).any()


@pytest.mark.parametrize("top_k", [1, 2])
def test_experts_alone_do_the_products_of_tokens_in_order(top_k: int) -> None:
    """Seven tokens for three experts: token ``i`` of the ``top_k * 7`` rows goes to expert ``i // ceil(rows / 3)``."""
    width, hidden, experts = 4, 5, 3
    weights = Weights(
        torch.zeros(experts, width),
        torch.randn(experts, width, hidden),
        torch.randn(experts, hidden),
        torch.randn(experts, hidden, width),
        torch.randn(experts, width),
    )
    tokens = torch.randn(7, width)
    expected = torch.zeros(7, width)
    share = math.ceil(7 * top_k / experts)
    for row in range(7 * top_k):
        expert = row // share
        between = tokens[row % 7] @ weights.w1[expert] + weights.b1[expert]
        between = torch.nn.functional.gelu(between, approximate="tanh")
        expected[row % 7] += between @ weights.w2[expert] + weights.b2[expert]
    assert torch.allclose(experts_alone(tokens, weights, top_k), expected, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tokens_go_where_the_case_says(case: Case) -> None:
    sizes = LAYOUTS[case.layout]
    gate = torch.nn.init.orthogonal_(torch.empty(case.num_experts, sizes.width))
    tokens = tokens_for(gate, sizes, case)
    chosen = (tokens @ gate.T).topk(case.top_k).indices
    loads = torch.bincount(chosen.flatten(), minlength=case.num_experts)
    mean = chosen.numel() / case.num_experts
    if case.skewed:
        assert loads.max() / mean == pytest.approx(case.skew, rel=0.02) and loads.argmax() == 0
        assert loads[1:].max() - loads[1:].min() <= 5
    else:
        assert (loads - mean).abs().max() <= 2


def test_routers(tmp_path: Path) -> None:
    table = measured("routers", tmp_path / "out").set_index(["race", "contestant"])
    for race in ("training step", "router alone"):
        assert sorted([*table.loc[race].index, "dense"]) == ROUTERS.names()
        assert set(table.loc[race].drop(REFERENCE)["against"]) == {REFERENCE}


def test_routers_get_as_many_places() -> None:
    sizes = Sizes(images=8, tokens=5, width=8, hidden=16, experts=4, top_k=2)
    tokens = torch.randn(8, 5, 8)
    # In groups of 8 images 40 · 2 · 1.05 / 4 = 21 places per expert, of one image 5 · 2.1 / 4 = 2.6 so 3.
    assert places(layer(REFERENCE, sizes).route(tokens)) == 21 * 4
    assert places(layer("softmax_expert_choice", sizes).route(tokens)) == 3 * 4 * 8


@pytest.mark.slow
@pytest.mark.promise
def test_startup() -> None:
    """Ten processes."""
    table = bench(["startup"], settings=Settings(quick=True, rounds=1)).table
    assert set(table.loc[table["target"] != "", "contestant"]) == {
        "moeprobe --help",
        "moeprobe list",
        "moeprobe inspect",
        "a mistyped view",
        "api.load_model",
        "api.match_ratio, two images",
        "trace analyze, a small file",
        "compare, a finished run",
        "report, a finished run",
    }
    assert (table["median"] > 0).all()
