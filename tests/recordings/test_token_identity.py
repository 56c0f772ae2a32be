"""What a token's identity alone explains: a null of its own, and layers that route by nothing else."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from tests.recordings import serving
from tests.recordings.serving import Ids

# Intervals are asserted.
pytestmark = pytest.mark.resamples

SEQUENCES, LENGTH, VOCABULARY = 40, 30, 6
HASHED = serving.DEEPSEEK | {"mlp_layer_types": ["dense", "hash_moe", "moe", "moe", "moe"]}


def served(folder: Path, name: str, tokens: Ids, layers: list[Ids], *, ids: bool = True) -> Path:
    """A trace of layers ``(sequences, length, 2)``."""
    responses = []
    for row in range(len(tokens)):
        choice = {"routed_experts": serving.npy(np.stack([one[row] for one in layers], 1).astype("uint8"))}
        more = {"prompt_token_ids": tokens[row].tolist(), "token_ids": [1]} if ids else {}
        responses.append({"id": f"r{row}", "choices": [choice]} | more)
    (folder / name).mkdir()
    path, model = serving.write(folder / name, *responses, config=HASHED)
    api.import_routed_experts(path, folder / f"{name}.parquet", model_config=model)
    return folder / f"{name}.parquet"


def row(table: pd.DataFrame, layer: str, metric: str, null: str) -> pd.Series:
    found = table[(table["layer"] == layer) & (table["metric"] == metric) & (table["null"] == null)]
    [one] = [row for _, row in found[found["tokens"] == "token"].iterrows()]
    return one


def test_a_router_that_knows_the_token_alone_has_kappa_zero_within_tokens(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, (SEQUENCES, LENGTH))
    shape = (SEQUENCES, LENGTH)
    by_id = serving.routing(1, rows=VOCABULARY, layers=1)[:, 0][tokens]
    # Two experts of the three that the token has: by chance among these, anew on each side.
    three = serving.routing(2, rows=VOCABULARY, layers=1, top_k=3)[:, 0]

    def of_token() -> Ids:
        left = rng.permuted(three[tokens].reshape(-1, 3), axis=1)[:, :2]
        return left.reshape(*shape, 2)

    steady = serving.routing(3, rows=SEQUENCES * LENGTH, layers=1)[:, 0].reshape(*shape, 2)
    one = served(tmp_path, "one", tokens, [by_id, of_token(), steady, steady])
    other = served(tmp_path, "other", tokens, [by_id, of_token(), steady, steady[::-1].copy()])
    result = api.analyze_trace([one, other])
    table = result.table[result.table["checkpoint"] == "other"]
    # By construction alike: nothing is left that a token does not explain, and that is said.
    hashed = row(table, "layers.1", "set_jaccard_kappa", "token")
    assert np.isnan(hashed["value"]) and hashed["flag"] == "collapsed"
    assert row(table, "layers.1", "set_jaccard", "")["value"] == 1
    known = row(table, "layers.2", "set_jaccard_kappa", "token")
    assert known["ci_low"] < 0 < known["ci_high"] and abs(known["value"]) < 0.05
    assert row(table, "layers.2", "set_jaccard_kappa", "pooled")["value"] > 0.3
    assert row(table, "layers.3", "set_jaccard_kappa", "token")["value"] == 1
    assert abs(row(table, "layers.4", "set_jaccard_kappa", "token")["value"]) < 0.05
    # Of all layers together those that choose by the token are left out, and named.
    touched = table[(table["metric"] == "pairs_differ") & (table["tokens"] == "token")]
    differs = [row(table, f"layers.{number}", "choice_differs", "")["value"] for number in (2, 3, 4)]
    np.testing.assert_allclose(touched["value"], [np.mean(differs)])
    first = table[(table["metric"] == "first_layer_share") & (table["tokens"] == "token")]
    assert set(first["layer"]) == {"layers.2", "layers.3", "layers.4"}
    notes = json.dumps(result.sidecar["notes"])
    assert "layers.1 in numbers on all layers together: there the token's id alone decides" in notes


def test_without_token_ids_there_is_no_such_null(tmp_path: Path) -> None:
    tokens = np.zeros((SEQUENCES, LENGTH), np.int64)
    layers = [
        serving.routing(one, rows=SEQUENCES * LENGTH, layers=1).reshape(SEQUENCES, LENGTH, 2)
        for one in range(4)
    ]
    one = served(tmp_path, "one", tokens, layers, ids=False)
    other = served(tmp_path, "other", tokens, layers[::-1], ids=False)
    assert "token" not in set(api.analyze_trace([one, other]).table["null"])
    # One of two traces that knows them is enough.
    known = served(tmp_path, "known", tokens, layers[::-1])
    assert "token" in set(api.analyze_trace([one, known]).table["null"])
