"""Selected keys of sparse-attention indexers: planted agreement, chance by hand, and faults of capture."""

import itertools
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import RunWarning, UserError
from moeprobe.metrics.stats.hypergeometric import expected_jaccard
from moeprobe.recorded.indexer.overlaps import count_common
from moeprobe.recorded.indexer.sentences import _least_layer
from moeprobe.recordings.indexer import read_selections, scores_beside
from moeprobe.recordings.model_config import read_indexer_shape
from tests.commands import run
from tests.recordings import serving
from tests.recordings.selecting import (
    LAYERS,
    REQUESTS,
    ROWS,
    TOKENS,
    TOP_K,
    Keys,
    capture,
    config,
    selections,
    sglang,
    vllm,
)

# Intervals are asserted.
pytestmark = pytest.mark.resamples


def value(
    table: pd.DataFrame, metric: str, null: str = "", *, layer: str = "", tokens: str = "token"
) -> pd.Series:
    wanted = (table["metric"] == metric) & (table["null"] == null) & (table["layer"] == layer)
    [row] = table[wanted & (table["tokens"] == tokens)].to_dict("records")
    return pd.Series(row)


# Chance.


def brute_force(visible: int, first: int, second: int) -> Fraction:
    """The mean index over all pairs of sets; one of them may be fixed, since keys are alike."""
    fixed = set(range(first))
    indices = [
        Fraction(len(fixed & {*other}), len(fixed | {*other}))
        for other in itertools.combinations(range(visible), second)
    ]
    return sum(indices, Fraction(0)) / len(indices)


def test_chance_is_derived_by_hand() -> None:
    # 2 of 5 keys: 0, 1 or 2 in common with probability 3/10, 6/10, 1/10 and index 0, 1/3, 1.
    assert expected_jaccard(np.array([5]), 2, 2)[0] == pytest.approx(6 / 10 / 3 + 1 / 10, abs=1e-15)
    assert float(brute_force(5, 2, 2)) == pytest.approx(0.3)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 3), (3, 3), (5, 2), (4, 4)])
def test_chance_is_the_mean_over_all_sets(first: int, second: int) -> None:
    visible = np.arange(max(first, second), 11)
    expected = [float(brute_force(int(size), first, second)) for size in visible]
    np.testing.assert_allclose(expected_jaccard(visible, first, second), expected, rtol=1e-12)


def test_chance_of_large_sets_leaves_nothing_out() -> None:
    """By whole numbers: C(t, K) of 2,048 keys has thousands of digits."""
    visible, top_k = 8192, 2048
    ways = [math.comb(top_k, both) * math.comb(visible - top_k, top_k - both) for both in range(top_k + 1)]
    mean = sum(Fraction(way * both, 2 * top_k - both) for both, way in enumerate(ways) if 400 < both < 640)
    expected = mean / math.comb(visible, top_k)
    assert expected_jaccard(np.array([visible]), top_k, top_k)[0] == pytest.approx(float(expected), rel=1e-10)


# Agreement.


def reference_table(first: list[Keys], second: list[Keys]) -> dict[str, float]:
    """The numbers over all layers, query by query with sets."""
    jaccards, lost = [], []
    for one, other in zip(first, second, strict=True):
        for query in range(TOP_K, len(one)):
            for layer in range(LAYERS):
                a, b = set(one[query, layer].tolist()), set(other[query, layer].tolist())
                jaccards.append(len(a & b) / len(a | b))
                lost.append(len(a - b) / len(a))
    return {
        "key_jaccard": float(np.mean(jaccards)),
        "keys_lost": float(np.mean(lost)),
        "trials": len(jaccards),
    }


def test_numbers_are_those_of_a_loop_over_sets(tmp_path: Path) -> None:
    first, second = ([selections(number, noise=noise) for number in range(REQUESTS)] for noise in (0.0, 0.3))
    found = api.indexer(
        capture(tmp_path / "a.jsonl", lambda number: first[number]),
        capture(tmp_path / "b.jsonl", lambda number: second[number], vllm),
        model_config=config(tmp_path),
    )
    expected, table = reference_table(first, second), found.table
    for metric in ("key_jaccard", "keys_lost"):
        row = value(table, metric)
        assert row["value"] == pytest.approx(expected[metric], rel=1e-12)
        assert row["trials"] == expected["trials"] == REQUESTS * LAYERS * (ROWS - TOP_K)
    visible = np.arange(TOP_K + 1, ROWS + 1)
    chance = value(table, "key_jaccard_chance", "random")["value"]
    assert chance == pytest.approx(expected_jaccard(visible, TOP_K, TOP_K).mean())
    assert value(table, "keys_lost_chance", "random")["value"] == pytest.approx(1 - np.mean(TOP_K / visible))
    kappa = value(table, "key_jaccard_kappa", "random")
    assert kappa["value"] == pytest.approx((expected["key_jaccard"] - chance) / (1 - chance))
    assert kappa["images"] == REQUESTS and kappa["ci_low"] < kappa["value"] < kappa["ci_high"]
    # Query by query against another request's at the same position: all are of one length, and go in a circle of two.
    other = [second[number + 1] for number in range(REQUESTS - 1)] + [second[REQUESTS - 2]]
    assert value(table, "key_jaccard_chance", "recency")["value"] == pytest.approx(
        reference_table(first, other)["key_jaccard"]
    )
    kinds = set(table["tokens"])
    assert kinds == {"token", "position 4-7", "position 8-15", "position 16-31"}
    assert (
        sum(value(table, "key_jaccard", tokens=kind)["trials"] for kind in kinds - {"token"})
        == expected["trials"]
    )


def test_equal_captures_agree_and_independent_ones_do_not(tmp_path: Path) -> None:
    path, shape = tmp_path / "a.jsonl", config(tmp_path)
    capture(path, selections)
    equal = api.indexer(path, capture(tmp_path / "b.jsonl", selections), model_config=shape).table
    for null in ("random", "recency"):
        row = value(equal, "key_jaccard_kappa", null)
        assert row["value"] == 1 and row["ci_low"] > 0.5
    assert value(equal, "keys_lost")["value"] == 0
    others = capture(tmp_path / "c.jsonl", lambda number: selections(number + 500))
    independent = api.indexer(path, others, model_config=shape).table
    for layer in ("", "layers.0", "layers.1"):
        row = value(independent, "key_jaccard_kappa", "random", layer=layer)
        assert row["ci_low"] < 0 < row["ci_high"]
        assert row["ci_high"] - row["ci_low"] < 0.2


def test_near_keys_alone_are_no_agreement_beyond_recency(tmp_path: Path) -> None:
    """Both captures select among the nearest keys, and otherwise independently."""
    table = api.indexer(
        capture(tmp_path / "a.jsonl", lambda number: selections(number, window=TOP_K + 2)),
        capture(tmp_path / "b.jsonl", lambda number: selections(number + 500, window=TOP_K + 2)),
        model_config=config(tmp_path),
    ).table
    assert value(table, "key_jaccard_kappa", "random")["ci_low"] > 0.1
    row = value(table, "key_jaccard_kappa", "recency")
    assert row["ci_low"] < 0 < row["ci_high"]


def test_choices_of_a_request_are_no_samples(tmp_path: Path) -> None:
    def twice(keys: Keys, name: str) -> dict[str, object]:
        response = vllm(keys, name)
        return response | {"choices": [*response["choices"], response["choices"][0] | {"index": 1}]}

    shape = config(tmp_path)
    noisy = lambda number: selections(number, noise=0.3)  # noqa: E731
    once, both = (
        api.indexer(
            capture(tmp_path / f"a{response.__name__}.jsonl", selections, response),
            capture(tmp_path / f"b{response.__name__}.jsonl", noisy, response),
            model_config=shape,
        ).table
        for response in (vllm, twice)
    )
    for metric, null in (("key_jaccard", ""), ("key_jaccard_kappa", "random")):
        one, two = value(once, metric, null), value(both, metric, null)
        assert two["trials"] == 2 * one["trials"] and two["images"] == one["images"] == REQUESTS
        assert two[["value", "ci_low", "ci_high"]].tolist() == pytest.approx(
            one[["value", "ci_low", "ci_high"]].tolist()
        )


def test_the_layer_that_agrees_least_is_named_with_those_not_separated_from_it() -> None:
    """It was picked for its value: with intervals that hold for all layers at once, only the last is apart."""
    kappas = pd.DataFrame({"layer": ["a", "b", "c"], "value": [0.5, 0.53, 0.9]}).assign(
        ci_low=lambda rows: rows["value"] - 0.05, ci_high=lambda rows: rows["value"] + 0.05,
        metric="key_jaccard_kappa", null="random", tokens="token", images=40, flag="", dataset="requests",
    )  # fmt: skip
    assert _least_layer(kappas) == [
        "a agrees least of 3 layers: κ 0.500 [0.450, 0.550], not separated from b."
    ]


def test_only_the_common_beginning_is_compared(tmp_path: Path) -> None:
    """Generated tokens differ from the second on, so that later queries read other keys."""

    def other_tokens(keys: Keys, name: str) -> dict[str, object]:
        return vllm(keys, name, token_ids=[0, 1, 9, 9, 9])

    found = api.indexer(
        capture(tmp_path / "a.jsonl", selections, vllm),
        capture(tmp_path / "b.jsonl", selections, other_tokens),
        model_config=config(tmp_path),
    )
    common = TOKENS - 3
    assert value(found.table, "key_jaccard")["trials"] == REQUESTS * LAYERS * (common - TOP_K)
    assert any("after the first token" in note for note in found.sidecar.notes)
    assert value(found.table, "key_jaccard", tokens="generated")["trials"] == REQUESTS * LAYERS * 2


def test_attention_on_lost_keys(tmp_path: Path) -> None:
    """Half of the attention is on the key that the second capture loses, whatever K is."""

    def with_scores(keys: Keys, name: str) -> dict[str, object]:
        scores = np.where(keys == keys[..., :1], TOP_K - 1, 1).astype(np.float32)
        return sglang(keys, name, indexer_topk_scores=serving.b64(scores.tobytes()))

    def without_first(number: int) -> Keys:
        keys = selections(number)
        for row in range(TOP_K, ROWS):
            for layer in range(LAYERS):
                free = np.setdiff1d(np.arange(row + 1), keys[row, layer])
                keys[row, layer, 0] = free[0]
        return keys

    table = api.indexer(
        capture(tmp_path / "a.jsonl", selections, with_scores),
        capture(tmp_path / "b.jsonl", without_first),
        model_config=config(tmp_path),
    ).table
    assert value(table, "attention_lost")["value"] == pytest.approx(0.5)
    assert value(table, "keys_lost")["value"] == pytest.approx(1 / TOP_K)


def test_counts_of_common_keys_are_those_of_sets() -> None:
    random = np.random.default_rng(0)
    first, second = (np.argsort(random.random((3, 5, 30)), axis=-1)[..., :8] for _ in range(2))
    expected = [
        [len(set(a) & set(b)) for a, b in zip(*rows, strict=True)]
        for rows in zip(first.tolist(), second.tolist(), strict=True)
    ]
    assert count_common(first.astype(np.uint16), second.astype(np.int32)).tolist() == expected


# Faults of capture.


def shifted_rows(number: int) -> Keys:
    """The selection of each token's successor."""
    return selections(number, rows=ROWS + 1)[1:]


def late_rows(number: int) -> Keys:
    keys = selections(number)
    return np.concatenate([np.full_like(keys[:1], -1), keys[:-1]])


def doubled(number: int) -> Keys:
    keys = selections(number)
    keys[-1, 0, 0] = keys[-1, 0, 1]
    return keys


def cut_off(number: int) -> Keys:
    keys = selections(number)
    keys[8:, :, -1] = -1
    return keys


def below(number: int) -> Keys:
    keys = selections(number)
    keys[-1, 0, 0] = -7
    return keys


FAULTS = {
    "physical slots": lambda number: np.where((keys := selections(number)) < 0, -1, keys * 64 + 4096),
    "counted from 1": lambda number: np.where((keys := selections(number)) < 0, -1, keys + 1),
    "begin one token late": shifted_rows,
    "token before": late_rows,
    "duplicates": doubled,
    "truncated rows": cut_off,
    "below -1": below,
    "all-zero": lambda number: selections(number) * 0,
    "all -1": lambda number: np.full_like(selections(number), -1),
}


@pytest.mark.parametrize("words", FAULTS)
def test_faults_of_a_capture_are_named(words: str, tmp_path: Path) -> None:
    path = capture(tmp_path / "faulty.jsonl", FAULTS[words])
    with pytest.raises(UserError, match=words) as caught:
        api.indexer(path, capture(tmp_path / "b.jsonl", selections), model_config=config(tmp_path))
    assert "faulty.jsonl" in str(caught.value) and str(caught.value).count(". ") == 0


def test_missing_rows_are_refused_unless_it_is_said_where_they_begin(tmp_path: Path) -> None:
    shape, leading = config(tmp_path), 6
    paths = [
        capture(tmp_path / f"{name}.jsonl", lambda number: selections(number)[leading:]) for name in "ab"
    ]
    with pytest.raises(
        UserError, match=rf"13 rows .* for 20 tokens, known as truncated rows.*start={leading}"
    ):
        api.indexer(*paths, model_config=shape)
    table = api.indexer(*paths, model_config=shape, start=leading).table
    assert value(table, "key_jaccard")["trials"] == REQUESTS * LAYERS * (ROWS - leading)


def test_a_shift_between_two_captures_is_found(tmp_path: Path) -> None:
    """Rows of long sequences, of which no query selects all: only the two together show it."""
    start, shape = 64, config(tmp_path)

    def late(number: int, offset: int) -> Keys:
        return selections(number, rows=start + 40)[start + offset :][:30]

    def without_counts(keys: Keys, name: str) -> dict[str, object]:
        return sglang(keys, name, prompt_tokens=None)

    first = capture(tmp_path / "a.jsonl", lambda number: late(number, 1), without_counts)
    second = capture(tmp_path / "b.jsonl", lambda number: late(number, 0), without_counts)
    with pytest.warns(RunWarning, match=r"shifted by one.*overlap 1\.000.*rows are one later"):
        found = api.indexer(first, second, model_config=shape, start=start + 1)
    assert "shifted by one" in found.sidecar.checkpoints["b"]["warning"]


def test_layers_are_those_of_the_configuration(tmp_path: Path) -> None:
    hidden = {"num_hidden_layers": 4, "index_topk": 8}
    path = config(tmp_path, **hidden)
    assert read_indexer_shape(path).layers == (0, 1, 2, 3) == read_indexer_shape(path).computing
    assert read_indexer_shape(config(tmp_path, num_hidden_layers=1, index_topk=8)).computing == (0,)
    path = config(tmp_path, **hidden, index_topk_freq=2, index_skip_topk_offset=1)
    assert read_indexer_shape(path).computing == (0, 2)
    path = config(tmp_path, **hidden, index_topk_pattern="FSF")
    assert read_indexer_shape(path).computing == (0, 2, 3)
    path = config(tmp_path, **hidden, compress_ratios=[0, 4, 128, 4, 0])
    shape = read_indexer_shape(path)
    assert shape.layers == (1, 3) and shape.tokens_per_key == 4
    path.write_text(json.dumps({"num_hidden_layers": 4}))
    with pytest.raises(UserError, match="no sparse-attention indexer"):
        read_indexer_shape(path)


def test_keys_of_compressed_layers_are_groups_of_tokens(tmp_path: Path) -> None:
    """A query at position p sees (p + 1) // 4 keys."""
    shape = config(tmp_path, index_topk=2, compress_ratios=[4, 4])

    def grouped(number: int) -> Keys:
        every = selections(number, top_k=2, rows=ROWS // 4 + 1)
        keys = np.full((ROWS, LAYERS, 2), -1, np.int32)
        for row in range(3, ROWS):
            keys[row] = every[(row + 1) // 4 - 1]
        return keys

    paths = [capture(tmp_path / f"{name}.jsonl", grouped) for name in "ab"]
    table = api.indexer(*paths, model_config=shape).table
    # Those that see more than two keys: from position 11 on.
    assert value(table, "key_jaccard_kappa", "random")["value"] == 1
    assert value(table, "key_jaccard")["trials"] == REQUESTS * LAYERS * (ROWS - 11)


@pytest.mark.pictures
def test_the_command_prints_the_verdict_and_writes_a_run(tmp_path: Path) -> None:
    shape = config(tmp_path)
    capture(tmp_path / "a.jsonl", selections)
    capture(tmp_path / "b.jsonl", lambda number: selections(number, noise=0.3))
    command = (
        "trace", "indexer", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--model-config", str(shape),
        "--out", str(tmp_path / "run"),
    )  # fmt: skip
    printed = run(*command).output
    assert "κ of the selected keys is 0." in printed and "κ, recency" in printed
    assert (tmp_path / "run" / "figures" / "indexer.png").exists()
    again = run(*command).output
    assert "κ of the selected keys is 0." in again


@pytest.mark.parametrize("response", [sglang, vllm])
def test_long_texts_are_read_as_short_ones(
    response: Callable[..., dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(keys: Keys, name: str) -> dict[str, object]:
        found: Any = response(keys, name)
        scores = np.random.default_rng(len(name)).random(keys.shape, np.float32)
        encoded = serving.b64(scores.tobytes()) if response is sglang else serving.npy(scores)
        holder = found["meta_info"] if response is sglang else found["choices"][0]
        holder["indexer_topk_scores"] = encoded
        return dict(found)

    path, shape = capture(tmp_path / "a.jsonl", selections, scored), read_indexer_shape(config(tmp_path))
    short = read_selections(path, shape, tmp_path / "short", start=None)
    monkeypatch.setattr("moeprobe.recordings.long_text.LONG", 1)
    long = read_selections(path, shape, tmp_path / "long", start=None)
    assert short.sequences.keys() == long.sequences.keys() and short.complete == long.complete
    for kept, beside in ((short.file, long.file), (scores_beside(short.file), scores_beside(long.file))):
        assert kept.read_bytes() == beside.read_bytes() and kept.stat().st_size > 0
    broken = path.read_text().replace('_topk": "', '_topk": "AAAA')
    path.write_text(broken)
    with pytest.raises(UserError, match=r"it is truncated, or its shape|is not base64 of an .npy file"):
        read_selections(path, shape, tmp_path / "broken", start=None)
