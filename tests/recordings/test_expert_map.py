"""Two checkpoints with different experts: agreement over the experts of both, the other tokens counted apart."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.recordings.import_log import import_trace
from tests.commands import refused, run
from tests.recordings.serving import routing

# Intervals are asserted.
pytestmark = pytest.mark.resamples


LAYERS = ("layers.0", "layers.1")
# Of eight experts 2 and 7 are removed, and 4 and 5 become one.
MAP: list[int | None] = [3, 0, None, 1, 4, 4, 2, None]
NEW = 5
Ids = np.ndarray


def trace(path: Path, ids: Ids, experts: int, *, ordered: bool = False, valid: Ids | None = None) -> Path:
    """A trace of requests of 20 tokens, of ``(N, L, K)`` experts, -1 last where there is none."""
    lines = []
    for start in range(0, len(ids), 20):
        for place, layer in enumerate(LAYERS):
            line: dict[str, Any] = {
                "id": f"r{start // 20:03d}", "layer": layer, "num_experts": experts,
                "experts": ids[start : start + 20, place].tolist(),
            }  # fmt: skip
            if valid is not None:
                line["valid"] = valid[start : start + 20, place].tolist()
            lines.append(line | ({"ordered_by": "scores"} if ordered else {}))
    log = path.with_suffix(".jsonl")
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    import_trace(log, path, overwrite=True, name=path.stem)
    return path


def renumbered(ids: Ids) -> tuple[Ids, Ids, Ids]:
    """What is left of old choices in new numbers, and which tokens lost an expert, or had two become one."""
    found = np.full_like(ids, -1)
    removed, merged = np.zeros(ids.shape[:2], bool), np.zeros(ids.shape[:2], bool)
    for token, layer in np.ndindex(*ids.shape[:2]):
        left: list[int] = []
        for expert in ids[token, layer]:
            new = MAP[expert]
            if new is None:
                removed[token, layer] = True
            elif new in left:
                merged[token, layer] = True
            else:
                left.append(new)
        found[token, layer, : len(left)] = left
    return found, removed, merged


def new_choices(ids: Ids) -> Ids:
    """What a pruned model chooses: the experts that are left, filled up by others."""
    found, _, _ = renumbered(ids)
    for token, layer in np.ndindex(*ids.shape[:2]):
        own = [expert for expert in found[token, layer] if expert >= 0]
        own += [expert for expert in range(NEW) if expert not in own]
        found[token, layer] = own[: ids.shape[2]]
    return found


def rows(table: pd.DataFrame, metric: str, tokens: str = "token", null: str = "") -> pd.DataFrame:
    wanted = (table["metric"] == metric) & (table["tokens"] == tokens) & (table["null"].fillna("") == null)
    return table[wanted & (table["checkpoint"] == "new")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "map.json").write_text(json.dumps(MAP))
    return tmp_path


@pytest.mark.parametrize("ordered", [True, False])
def test_only_what_was_planted_differs(ordered: bool, folder: Path) -> None:
    old = routing(rows=600, layers=2, top_k=2)
    chosen = new_choices(old)
    _, removed, merged = renumbered(old)
    shared = ~(removed | merged)
    # A twentieth of the tokens of both sides' experts choose another one in the last layer.
    planted = np.flatnonzero(shared[:, 1])[::20]
    for token in planted:
        chosen[token, 1, 0] = next(one for one in range(NEW) if one not in chosen[token, 1])
    paths = (
        trace(folder / "old.parquet", old, 8, ordered=ordered),
        trace(folder / "new.parquet", chosen, NEW, ordered=ordered),
    )
    table = api.analyze_trace(paths, expert_map=folder / "map.json").table
    differs = rows(table, "choice_differs")
    assert differs["value"].tolist() == pytest.approx([0, len(planted) / shared[:, 1].sum()])
    assert differs["trials"].tolist() == shared.sum(0).tolist()
    for metric, which in (("expert_removed", removed), ("experts_merged", merged)):
        own = rows(table, metric)
        assert own["value"].tolist() == pytest.approx(which.mean(0).tolist())
        assert own["trials"].tolist() == [600, 600] and own["ci_low"].notna().all()
    assert rows(table, "expert_added")["value"].tolist() == [0, 0]
    kappa = rows(table, "set_jaccard_kappa", null="pooled")
    assert kappa["value"].iloc[0] == 1 and kappa["ci_low"].iloc[1] < kappa["value"].iloc[1] < 1
    # One expert of those that lost the other is still chosen.
    apart = rows(table, "set_jaccard", tokens="unshared")
    assert apart["trials"].tolist() == (~shared & (renumbered(old)[0][..., 0] >= 0) | ~shared).sum(0).tolist()
    assert bool((apart["value"] > 0.4).all()) and bool((apart["value"] <= 0.5).all())
    assert len(rows(table, "top1_match")) == (2 if ordered else 0)


def test_the_numbers_are_those_of_renumbered_traces_without_the_other_tokens(folder: Path) -> None:
    old, chosen = routing(rows=600, layers=2, top_k=2), routing(5, rows=600, layers=2, experts=NEW, top_k=2)
    left, removed, merged = renumbered(old)
    shared = ~(removed | merged)
    paths = trace(folder / "old.parquet", old, 8), trace(folder / "new.parquet", chosen, NEW)
    table = api.analyze_trace(paths, expert_map=folder / "map.json").table
    by_hand = api.analyze_trace(
        [trace(folder / "hand.parquet", left, NEW, valid=shared), folder / "new.parquet"]
    ).table
    for metric in ("set_jaccard", "choice_differs", "pairs_differ", "tokens_touched"):
        one, other = rows(table, metric), rows(by_hand, metric)
        assert len(one) and one[["value", "ci_low", "ci_high", "trials"]].equals(
            other[["value", "ci_low", "ci_high", "trials"]].set_axis(one.index)
        ), metric
    for metric in ("set_jaccard_chance", "set_jaccard_kappa"):
        one, other = (rows(side, metric, null="pooled") for side in (table, by_hand))
        assert one["value"].tolist() == other["value"].tolist()
    low, high = (rows(table, "set_jaccard_kappa", null="pooled")[name] for name in ("ci_low", "ci_high"))
    assert bool(((low < 0) & (high > 0)).all()), "they choose independently of one another"


def test_more_experts_than_before(folder: Path) -> None:
    old = routing(rows=400, layers=2, experts=5, top_k=2)
    chosen = old.copy()
    chosen[:40, 0, 1] = 6
    (folder / "same.json").write_text(json.dumps({layer: {str(e): e for e in range(5)} for layer in LAYERS}))
    paths = trace(folder / "old.parquet", old, 5), trace(folder / "new.parquet", chosen, 8)
    assert "say which became which: --expert-map" in refused("trace", "analyze", *paths)
    table = api.analyze_trace(paths, expert_map=folder / "same.json").table
    assert rows(table, "expert_added")["value"].tolist() == pytest.approx([0.1, 0])
    assert rows(table, "choice_differs")["value"].tolist() == [0, 0]


@pytest.mark.pictures
def test_the_command_and_its_refusals(folder: Path) -> None:
    old = routing(rows=400, layers=2, top_k=2)
    paths = trace(folder / "old.parquet", old, 8), trace(folder / "new.parquet", new_choices(old), NEW)
    result = run(
        "trace", "analyze", *paths, "--expert-map", folder / "map.json", "--out", folder / "r", "--full"
    )
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert (
        "tokens whose expert was removed" in said
        and "map.json removes (2 of layers.0, 2 of layers.1)" in said
    )
    assert {path.name for path in (folder / "r" / "figures").iterdir()} >= {"disagreement.png"}

    def refusal(content: Any) -> str:
        (folder / "bad.json").write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(UserError) as error:
            api.analyze_trace(paths, expert_map=folder / "bad.json")
        sentence = str(error.value)
        assert sentence.endswith(".") and "\n" not in sentence
        return sentence

    assert "old expert 7 is missing; say null" in refusal(MAP[:7])
    assert "'8' is none of the 8 old experts" in refusal([*MAP, 0])
    assert "'x' is none of the 8 old experts" in refusal({"x": 1})
    assert "new expert 5 is none of the 5 of" in refusal([5, *MAP[1:]])
    assert "every expert was removed" in refusal([None] * 8)
    assert "becomes the number of a new one, or null; got 1.5" in refusal([1.5, *MAP[1:]])
    assert "lacks layer layers.1" in refusal({"layers.0": MAP})
    assert "maps layer blocks.9" in refusal({"layers.0": MAP, "layers.1": MAP, "blocks.9": MAP})
    assert "maps no experts" in refusal([]) and "it is not JSON" in refusal("{")
    lacking = refused("trace", "analyze", *paths, "--expert-map", folder / "none.json", "--out", folder / "s")
    assert "none.json" in lacking and not (folder / "s").exists()
