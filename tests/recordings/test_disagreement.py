"""What two routings of the same sequences differ in: planted flips are found where they are, against loops."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.metrics.analyses.touched import AnyOf, Observed
from tests.commands import run
from tests.recordings.test_check_trace import PROMPT, saved

# Intervals are asserted.
pytestmark = pytest.mark.resamples


Ids = NDArray[np.int64]
REQUESTS, TOKENS, LAYERS, EXPERTS, TOP_K = 40, 50, 5, 16, 3


def recorded(seed: int = 0) -> Ids:
    scores = np.random.default_rng(seed).random((REQUESTS, TOKENS, LAYERS, EXPERTS))
    return np.sort(np.argsort(scores, axis=-1)[..., :TOP_K], axis=-1)


def flipped(ids: Ids, which: NDArray[np.bool_]) -> Ids:
    """One expert of these tokens and layers ``(R, T, L)`` exchanged for one that they did not have."""
    found = ids.copy()
    for place in np.argwhere(which):
        chosen = found[tuple(place)]
        chosen[1] = min(set(range(EXPERTS)) - set(chosen.tolist()))
    return found


def analyzed(folder: Path, one: Ids, other: Ids, **more: Any) -> pd.DataFrame:
    traces = [
        saved(folder / f"{name}.parquet", ids, experts=EXPERTS)
        for name, ids in (("one", one), ("other", other))
    ]
    return api.analyze_trace(traces, **more).table


def rows(table: pd.DataFrame, metric: str, tokens: str = "token") -> pd.DataFrame:
    return table[(table["metric"] == metric) & (table["tokens"] == tokens)]


def value(table: pd.DataFrame, metric: str, tokens: str = "token") -> float:
    return float(rows(table, metric, tokens)["value"].item())


def test_a_planted_flip_is_found_there_and_nowhere_else(tmp_path: Path) -> None:
    """1 % of the choices of layer 3."""
    ids = recorded()
    which = np.zeros(ids.shape[:3], bool)
    which[..., 3] = np.random.default_rng(1).random(ids.shape[:2]) < 0.01
    share = which[..., 3].mean()
    assert 0.005 < share < 0.02
    table = analyzed(tmp_path, ids, flipped(ids, which))
    by_layer = rows(table, "choice_differs").set_index("layer")
    assert by_layer["value"].to_dict() == pytest.approx(
        {f"layers.{n}": share if n == 3 else 0 for n in range(LAYERS)}
    )
    found = by_layer.loc["layers.3"]
    assert found["ci_low"] < 0.01 < found["ci_high"] and found["ci_low"] > 0 and found["ci_high"] < 0.03
    # The interval is that of requests as units: about two standard errors of the mean over requests to either side.
    error = which[..., 3].mean(1).std(ddof=1) / np.sqrt(REQUESTS)
    assert found["ci_high"] - found["ci_low"] == pytest.approx(4 * error, rel=0.25)
    assert (by_layer["ci_low"].drop("layers.3") == 0).all()
    for metric in ("top3_set_match", "top3_set_match_kappa"):
        match = table[
            (table["metric"] == metric) & (table["tokens"] == "token") & table["null"].isin(["", "pooled"])
        ]
        exact = match.set_index("layer")["value"]
        assert (exact.drop("layers.3") == 1).all() and exact["layers.3"] == pytest.approx(1 - share, abs=1e-4)
    first = rows(table, "first_layer_share").set_index("layer")["value"]
    assert first.to_dict() == {f"layers.{n}": float(n == 3) for n in range(LAYERS)}
    assert value(table, "pairs_differ") == pytest.approx(share / LAYERS)
    for metric in ("tokens_touched", "tokens_touched_independent"):
        assert value(table, metric) == pytest.approx(share)


@pytest.fixture(scope="module")
def differing() -> NDArray[np.bool_]:
    """Flips that gather on the same tokens, and are more frequent later on."""
    random = np.random.default_rng(2)
    prone = random.random((REQUESTS, TOKENS, 1)) < np.linspace(0.05, 0.4, TOKENS)[:, None]
    which = prone & (random.random((REQUESTS, TOKENS, LAYERS)) < np.array([0.1, 0.5, 0.2, 0.6, 0.3]))
    which[:5] = False
    return which


def test_all_numbers_by_loops(differing: NDArray[np.bool_], tmp_path: Path) -> None:
    ids = recorded()
    table = analyzed(tmp_path, ids, flipped(ids, differing))
    first_layer, first_position, touched = np.zeros(LAYERS), [], 0
    for request in differing:
        first = None
        for position, token in enumerate(request):
            if token.any():
                touched += 1
                first_layer[list(token).index(True)] += 1
                first = position if first is None else first
        first_position += [] if first is None else [first]
    assert value(table, "tokens_touched") == pytest.approx(touched / (REQUESTS * TOKENS))
    rates = [differing[..., layer].mean() for layer in range(LAYERS)]
    independent = 1 - np.prod([1 - rate for rate in rates])
    assert value(table, "tokens_touched_independent") == pytest.approx(independent)
    assert value(table, "tokens_touched_ratio") == pytest.approx(touched / (REQUESTS * TOKENS) / independent)
    assert value(table, "tokens_touched_ratio") < 0.8, "they gather on the same tokens"
    assert value(table, "sequences_touched") == pytest.approx(len(first_position) / REQUESTS)
    assert value(table, "first_touched_position") == pytest.approx(np.mean(first_position))
    shares = rows(table, "first_layer_share").set_index("layer")["value"]
    assert shares.tolist() == pytest.approx((first_layer / touched).tolist())
    for tokens, part in {"prompt": slice(PROMPT), "generated": slice(PROMPT, None), "position 0": slice(1),
                         "position 8-15": slice(8, 16), "position 32-63": slice(32, None)}.items():  # fmt: skip
        assert value(table, "pairs_differ", tokens) == pytest.approx(differing[:, part].mean())
        by_layer = rows(table, "choice_differs", tokens)["value"].tolist()
        assert by_layer == pytest.approx(differing[:, part].mean((0, 1)).tolist())
    kinds = {name for name in table["tokens"] if name.startswith("position")}
    assert len(kinds) == 7  # 0, 1, 2-3, 4-7, 8-15, 16-31, 32-63
    of_parts = rows(table, "set_jaccard_kappa", "generated")
    assert set(of_parts["null"]) >= {"pooled", "position"} and of_parts["value"].between(0, 1).all()


def test_what_one_side_lacks_is_left_out_and_counted(differing: NDArray[np.bool_], tmp_path: Path) -> None:
    """A server has one row less than the model that reads the same tokens, and requests that were cut off more."""
    ids = recorded()
    cut = flipped(ids, differing)[:, : TOKENS - 3]
    traces = [
        saved(tmp_path / "one.parquet", ids, experts=EXPERTS),
        saved(tmp_path / "other.parquet", cut, experts=EXPERTS),
    ]
    result = api.analyze_trace(traces, out=tmp_path / "out")
    assert value(result.table, "pairs_differ") == pytest.approx(differing[:, : TOKENS - 3].mean())
    assert (rows(result.table, "choice_differs")["trials"] == REQUESTS * (TOKENS - 3)).all()
    assert result.sidecar["ignored"] == [f"{3 * REQUESTS:,} extra tokens of one"]
    printed = run("trace", "analyze", *traces, "--out", tmp_path / "out").output  # read from its folder
    assert f"; {3 * REQUESTS:,} extra tokens of one were ignored." in " ".join(printed.split())


def test_tokens_after_the_first_other_token_are_left_out(tmp_path: Path) -> None:
    experts, other = [[0], [1], [2], [3], [1]], [[0], [1], [3], [2], [1]]
    paths = []
    for name, choices, tokens in (("a", experts, [5, 6, 7, 8, 9]), ("b", other, [5, 6, 7, 4, 9])):
        line = {"id": "r", "layer": "l", "num_experts": 4, "experts": choices, "token_ids": tokens}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line))
        paths.append(api.import_trace(tmp_path / f"{name}.jsonl", tmp_path / f"{name}.parquet").path)
    result = api.analyze_trace(paths)
    assert rows(result.table, "choice_differs")[["value", "trials"]].to_numpy().tolist() == [[1 / 3, 3]]
    assert result.sidecar["ignored"] == ["2 extra tokens of a and 2 extra tokens of b"]


@pytest.mark.pictures
def test_the_command_says_it_in_words_and_draws_it(differing: NDArray[np.bool_], tmp_path: Path) -> None:
    ids, out = recorded(), tmp_path / "out"
    one = saved(tmp_path / "one.parquet", ids, experts=EXPERTS)
    other = saved(tmp_path / "other.parquet", flipped(ids, differing), experts=EXPERTS)
    result = run("trace", "analyze", one, other, "--out", out)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "of the pairs of token and layer" in said and "affected in at least one layer" in said
    assert (
        "The share of such pairs is" in said
        and "for prompt tokens" in said
        and "differ first in layers.1" in said
    )
    assert (out / "figures" / "disagreement.png").is_file()


@pytest.mark.parametrize("kind", ["any", "ratio"])
def test_influences_are_derivatives(kind: str) -> None:
    random = np.random.default_rng(0)
    trials = random.integers(1, 9, 6).astype(float)
    hits = np.minimum(random.integers(0, 5, (6, 3)), trials[:, None]).astype(float)
    independent = AnyOf(hits, trials)
    statistic = independent if kind == "any" else Observed(hits.max(1), independent)
    weights = np.ones((6, 7))
    step = 1e-6
    weights[np.arange(6), np.arange(6)] += step
    values = statistic.evaluate(weights)
    influence = statistic.influence()
    assert ((values[:6] - values[6]) / step).tolist() == pytest.approx(influence.tolist(), rel=1e-4)
    assert influence.sum() == pytest.approx(0, abs=1e-12)
    assert statistic.value(statistic.totals()) == pytest.approx(values[6])
