"""Counts per expert in the forms of many programs: each is read as the same numbers, or refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.recordings.import_experts import ImportedExperts, import_routed_experts
from moeprobe.recordings.reading import TraceFile
from tests.commands import run
from tests.recordings import counting, serving

# Intervals are asserted.
pytestmark = pytest.mark.resamples


LAYERS, EXPERTS, TOP_K = 5, 6, 2


def model(folder: Path, *, experts: int = EXPERTS, dense: int = 1) -> Path:
    """The ``config.json`` of a model whose first layers are dense."""
    path = folder / "config.json"
    fields = {"num_hidden_layers": LAYERS, "first_k_dense_replace": dense, "n_routed_experts": experts}
    path.write_text(json.dumps(fields | {"num_experts_per_tok": TOP_K}))
    return path


def numbers(seed: int = 0, *, experts: int = EXPERTS) -> np.ndarray:
    """Counts ``(4, E)`` as a router would make them; one expert of the second layer is dead."""
    drawn = np.random.default_rng(seed).integers(20, 60, (4, experts))
    drawn[1, 3] = 0
    return drawn


def imported(folder: Path, *files: Path, **more: Any) -> ImportedExperts:
    config = more.pop("config", None) or model(folder)
    return import_routed_experts(
        list(files), folder / "t.parquet", model_config=config, overwrite=True, **more
    )


def counts_by_input(folder: Path) -> dict[str, np.ndarray]:
    """The counts of a trace ``(L, E)`` by input."""
    trace = TraceFile(folder / "t.parquet")
    assert list(trace.layers) == [f"layers.{layer}" for layer in counting.SPARSE]
    return {name: np.stack([trace.counts(layer, [name])[0] for layer in trace.layers]) for name in trace.ids}


def refusal(folder: Path, *files: Path, **more: Any) -> str:
    with pytest.raises(UserError) as error:
        imported(folder, *files, **more)
    assert "\n" not in str(error.value) and not (folder / "t.parquet").exists()
    return str(error.value)


def by_layer(rows: np.ndarray, name: str = "{}") -> dict[str, Any]:
    return {name.format(layer): row for layer, row in zip(counting.SPARSE, rows.tolist(), strict=True)}


def named_experts(rows: np.ndarray) -> dict[str, Any]:
    """Layers and experts by their names; one that nothing chose is missing."""
    return {
        f"layer_{layer}": {f"expert_{expert}": count for expert, count in enumerate(row) if count}
        for layer, row in by_layer(rows).items()
    }


def cells(rows: np.ndarray, **more: Any) -> list[dict[str, Any]]:
    return [
        {"layer": int(layer), "expert": expert, "count": count, **more}
        for layer, row in by_layer(rows).items()
        for expert, count in enumerate(row)
    ]


def wide(path: Path, rows: np.ndarray) -> Path:
    """A line per layer, columns of experts in another order, and a column that says nothing new."""
    order = [3, 0, 5, 1, 4, 2]
    header = ",".join(["total", *(f"expert_{expert}" for expert in order), "layer"])
    lines = [
        (row.sum(), *row[order], f"model.layers.{layer}")
        for layer, row in zip(counting.SPARSE, rows, strict=True)
    ]
    return counting.table(path, header, lines)


ONE_INPUT: dict[str, Callable[[Path, np.ndarray], Path]] = {
    "csv of SGLang": counting.by_count,
    "csv, other names and order": lambda path, rows: counting.table(
        path, '"Num Tokens";"Expert Idx";share;"Layer Idx"',
        [(f"{cell['count']}.0", cell["expert"], 0.5, cell["layer"]) for cell in cells(rows)],
        end="\r\n",
    ),
    "csv, tabs and a mark of the bytes": lambda path, rows: counting.table(
        path, "\ufefflayer\texpert\thits",
        [(f"blk.{cell['layer']}", f"e{cell['expert']}", cell["count"]) for cell in cells(rows)],
    ),
    "csv, wide": wide,
    "list of LMDeploy and DLBlas": lambda path, rows: counting.nested(path, rows.tolist(), indent=2),
    "list in a line": lambda path, rows: counting.nested(path, rows.tolist()),
    "list with dense layers": lambda path, rows: counting.nested(path, [[0] * EXPERTS, *rows.tolist()]),
    "torch of LMDeploy": counting.lmdeploy,
    "torch by number": lambda path, rows: _saved(
        path, {"expert_counts": {place + 1: torch.from_numpy(row) for place, row in enumerate(rows)}}
    ),
    "logical_count of KTransformers": lambda path, rows: _saved(path, {"logical_count": torch.from_numpy(rows)}),
    "layers by number": lambda path, rows: counting.nested(path, by_layer(rows)),
    "layers below a key": lambda path, rows: counting.nested(
        path, {"model": "m", "layers": by_layer(rows, "layers.{}")}
    ),
    "layers and experts by name": lambda path, rows: counting.nested(path, named_experts(rows)),
    "an object per layer": lambda path, rows: counting.lines(
        path, [{"layer": int(layer), "counts": row, "mesh": [2, 4]} for layer, row in by_layer(rows).items()]
    ),
    "an object per count": lambda path, rows: counting.lines(path, cells(rows)),
    "a list of objects below a key": lambda path, rows: counting.nested(
        path, {"layers": [{"layer_id": layer, "expert_counts": row} for layer, row in by_layer(rows).items()]}
    ),
    "imatrix": counting.imatrix,
    "Megatron": lambda path, rows: counting.tokens_per_expert(path, {300: rows}),
}  # fmt: skip


def _saved(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize("form", ONE_INPUT)
def test_each_form_holds_the_same_numbers(form: str, tmp_path: Path) -> None:
    rows = numbers()
    found = imported(tmp_path, ONE_INPUT[form](tmp_path / "counts.any", rows))
    [counted] = counts_by_input(tmp_path).values()
    assert np.array_equal(counted, rows) and found.counted == rows.sum() and found.tokens == 0


STEPS: dict[str, Callable[[Path, list[np.ndarray]], Path]] = {
    "csv": lambda path, steps: counting.table(
        path, "iteration,layer,expert,tokens",
        [(step, *cell.values()) for step, rows in enumerate(steps) for cell in cells(rows)],
    ),
    "csv, ranks added up": lambda path, steps: counting.table(
        path, "step,rank,layer,expert,tokens",
        [
            (step, rank, cell["layer"], cell["expert"], cell["count"] // 2 + rank * (cell["count"] % 2))
            for step, rows in enumerate(steps) for cell in cells(rows) for rank in (0, 1)
        ],
    ),
    "three axes": lambda path, steps: counting.nested(path, np.stack(steps).tolist()),
    "list of objects": lambda path, steps: counting.nested(path, [by_layer(rows) for rows in steps], indent=1),
    "lines": lambda path, steps: counting.lines(path, [{"layers": named_experts(rows)} for rows in steps]),
    "lines of lists": lambda path, steps: counting.lines(path, [rows.tolist() for rows in steps]),
    "lines with steps": lambda path, steps: counting.lines(
        path, [{"step": 10 * step, "counts": rows.tolist()} for step, rows in enumerate(steps)]
    ),
    "an object per layer and pass": lambda path, steps: counting.lines(
        path, [{"layer": int(layer), "counts": row} for rows in steps for layer, row in by_layer(rows).items()]
    ),
    "an object per count and step": lambda path, steps: counting.lines(
        path, [cell for step, rows in enumerate(steps) for cell in cells(rows, iter=step)]
    ),
    "logical_count": lambda path, steps: _saved(path, {"logical_count": torch.from_numpy(np.stack(steps))}),
    "Megatron": lambda path, steps: counting.tokens_per_expert(
        path, {7 * step: rows for step, rows in enumerate(steps)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", STEPS)
def test_steps_are_inputs_in_their_order(form: str, tmp_path: Path) -> None:
    steps = [numbers(seed) for seed in range(11)]
    imported(tmp_path, STEPS[form](tmp_path / "counts.any", steps))
    counted = counts_by_input(tmp_path)
    assert len(set(counted)) == 11
    for got, expected in zip(counted.values(), steps, strict=True):
        assert np.array_equal(got, expected)


def test_names_of_inputs(tmp_path: Path) -> None:
    """A file alone needs no name; several files, and steps, tell their counts apart."""
    rows = numbers()
    imported(tmp_path, counting.by_count(tmp_path / "a.csv", rows))
    assert list(counts_by_input(tmp_path)) == ["all"]
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        counting.lines(tmp_path / folder / "c.jsonl", [{"step": 4, "counts": rows.tolist()}])
    imported(tmp_path, tmp_path / "x" / "c.jsonl", tmp_path / "y" / "c.jsonl")
    assert list(counts_by_input(tmp_path)) == ["x/c.jsonl/step4", "y/c.jsonl/step4"]
    counting.table(
        tmp_path / "b.csv",
        "rank,layer,expert,count",
        [(rank, cell["layer"], cell["expert"], cell["count"]) for rank in (1, 0) for cell in cells(rows)],
    )
    imported(tmp_path, tmp_path / "b.csv")
    assert list(counts_by_input(tmp_path)) == ["rank1", "rank0"]
    assert "named twice" in refusal_of(tmp_path, tmp_path / "b.csv", tmp_path / "x" / ".." / "b.csv")


def refusal_of(folder: Path, *files: Path) -> str:
    (folder / "t.parquet").unlink()
    return refusal(folder, *files)


def test_a_step_without_choices_is_left_out(tmp_path: Path) -> None:
    steps = [numbers(), np.zeros((4, EXPERTS), np.int64), numbers(2)]
    found = imported(tmp_path, counting.nested(tmp_path / "c.json", np.stack(steps).tolist()))
    assert found.left_out == ["window1"] and "1 steps or files have no choices at all" in found.missing[0]
    (tmp_path / "t.parquet").unlink()
    assert "all counts are 0" in refusal(tmp_path, counting.nested(tmp_path / "c.json", steps[1].tolist()))


# Megatron-LM.


def test_ranks_of_megatron_are_added_up(tmp_path: Path) -> None:
    """Data-parallel ranks count all experts, each of its own tokens."""
    of_ranks = [{10: numbers(rank), 20: numbers(rank + 10)} for rank in range(11)]
    files = [
        counting.tokens_per_expert(tmp_path / f"rank{rank}.jsonl", iterations)
        for rank, iterations in enumerate(of_ranks)
    ]
    imported(tmp_path, *files)
    counted = counts_by_input(tmp_path)
    assert list(counted) == ["iter10", "iter20"]
    assert np.array_equal(counted["iter20"], sum(iterations[20] for iterations in of_ranks))


def test_ranks_of_expert_parallelism_hold_their_own_experts(tmp_path: Path) -> None:
    """Rank 10 follows rank 9, in whichever order the files are named."""
    rows = numbers(experts=24)
    files = [
        counting.tokens_per_expert(tmp_path / f"rank{rank}.jsonl", {5: rows[:, 2 * rank : 2 * rank + 2]})
        for rank in range(12)
    ]
    config = model(tmp_path, experts=24)
    imported(tmp_path, *sorted(files, key=str), config=config)
    assert np.array_equal(counts_by_input(tmp_path)["iter5"], rows)
    (tmp_path / "t.parquet").unlink()
    assert "give one file for each rank" in refusal(tmp_path, *files[:11], config=config)


def test_what_does_not_go_together_in_megatron_is_refused(tmp_path: Path) -> None:
    first = counting.tokens_per_expert(tmp_path / "rank0.jsonl", {10: numbers(), 20: numbers()})
    second = counting.tokens_per_expert(tmp_path / "rank1.jsonl", {10: numbers()})
    assert "only one has layer 0 of iter20" in refusal(tmp_path, first, second)
    first.write_text(first.read_text() * 2)
    assert "layer 0 and expert 0, window iter10 have two counts" in refusal(tmp_path, first)
    line = {"iter": 1, "block": "decoder", "layer": 0, "tpe": [[1, 2], [3]]}
    assert "all of the same length" in refusal(tmp_path, counting.lines(second, [line]))
    assert "rank1.jsonl, line 1: iter takes a whole number" in refusal(
        tmp_path, counting.lines(second, [line | {"iter": -1, "tpe": [[1, 2]]}])
    )
    pipeline = counting.tokens_per_expert(second, {10: numbers()[:2]})
    assert "a rank of a pipeline has a part of the layers only" in refusal(tmp_path, pipeline)


def test_layers_of_multi_token_prediction_are_named(tmp_path: Path) -> None:
    path = counting.tokens_per_expert(
        tmp_path / "rank0.jsonl", {step: numbers(step) for step in range(3)}, mtp=True
    )
    assert imported(tmp_path, path).mtp_lines == 3
    config = model(tmp_path)
    printed = run("trace", "import", path, tmp_path / "u.parquet", "--model-config", config).output
    assert "3 lines of layers of multi-token prediction (MTP) are left out" in " ".join(printed.split())
    assert np.array_equal(counts_by_input(tmp_path)["iter2"], numbers(2))


# What the numbers become.


def test_a_single_window_has_values_and_no_intervals(tmp_path: Path) -> None:
    rows = numbers()
    path = counting.nested(tmp_path / "c.json", rows.tolist())
    config = model(tmp_path)
    printed = " ".join(
        run("trace", "import", path, tmp_path / "t.parquet", "--model-config", config).output.split()
    )
    assert "Values will have no intervals: they need at least 20 windows" in printed
    table = api.analyze_trace(tmp_path / "t.parquet").table
    assert table["ci_low"].isna().all() and table["ci_high"].isna().all()
    dead = table[table["metric"] == "dead_experts"].set_index("layer")["value"]
    assert dead["layers.2"] == 1 and dead.sum() == 1
    share = table[(table["metric"] == "expert_share") & (table["layer"] == "layers.3")].set_index("expert")[
        "value"
    ]
    assert np.allclose(share.sort_index(), rows[2] / rows[2].sum())
    result = run("trace", "analyze", tmp_path / "t.parquet")
    assert "no intervals: they need at least 20 requests" in " ".join(result.output.split())


def test_many_windows_have_intervals(tmp_path: Path) -> None:
    steps = {step: numbers(step) for step in range(24)}
    imported(tmp_path, counting.tokens_per_expert(tmp_path / "rank0.jsonl", steps))
    table = api.analyze_trace(tmp_path / "t.parquet").table
    entropy = table[table["metric"] == "load_entropy"]
    assert (entropy["ci_low"] < entropy["ci_high"]).all()
    assert entropy["value"].between(entropy["ci_low"], entropy["ci_high"]).all()
    shares = table[(table["metric"] == "expert_share") & (table["layer"] == "layers.1")].set_index("expert")
    total = np.sum([rows[0] for rows in steps.values()], axis=0)
    assert np.allclose(shares["value"].sort_index(), total / total.sum())


def test_counts_beyond_32_bits_are_exact(tmp_path: Path) -> None:
    rows = numbers() * 10**9
    imported(tmp_path, counting.nested(tmp_path / "c.json", rows.tolist()))
    assert np.array_equal(counts_by_input(tmp_path)["all"], rows)
    table = api.trace_balance(tmp_path / "t.parquet", ranks=3).table
    imbalance = table[(table["metric"] == "rank_imbalance") & (table["layer"] == "layers.1")]["value"]
    of_ranks = rows[0].reshape(3, 2).sum(1)
    assert np.allclose(imbalance, of_ranks.max() / of_ranks.mean())


# What is refused.

REFUSED: dict[str, tuple[str, str]] = {
    "headerless": ("1,2,3\n1,3,4\n", "this CSV has no header; name its columns layer, expert and count"),
    "no layer": ("expert_id,count\n1,2\n", "this CSV has no column of layers (expert_id, count)"),
    "no expert": ("layer,count\n1,2\n", "this CSV has no column of experts (layer, count)"),
    "no count": ("layer,expert,weight\n1,2,0.5\n", "this CSV has no column of counts (layer, expert, weight)"),
    "two counts": ("layer,expert,count,tokens\n1,2,3,4\n", "columns count and tokens may each be the count"),
    "experts from 1": ("layer,e1,e2,e3\n1,2,3,4\n", "neither a column of experts nor columns for the experts 0, 1"),
    "twice": ("layer,expert,count\n1,2,3\n1,2,4\n", "layer 1 and expert 2 have two counts"),
    "half": ("layer,expert,count\n1,2,3.5\n", "counts take whole numbers"),
    "negative": ("layer,expert,count\n1,2,-3\n", "counts take whole numbers from 0"),
    "nan": ("layer,expert,count\n1,2,nan\n", "counts take whole numbers"),
    "short line": ("layer,expert,count\n1,2\n", "this CSV cannot be read"),
    "no lines": ("layer,expert,count\n", "this CSV cannot be read"),
    "physical experts": ("layer,expert,count\n1,8,3\n", "known as physical ids of replicated experts"),
    "ragged": ("[[1, 2, 3], [4, 5]]\n", "counts takes numbers in 2 axes"),
    "json half": ('{"1": [1, 2.5, 3, 4, 5, 6]}\n', "no reader knows"),
    "later half": ('{"1": [1, 2, 3, 4, 5, 6], "2": [1, 2, 3, 4, 5, 0.5]}\n', "counts take whole numbers"),
    "mixed": ('{"1": [1, 2]}\n{"id": "r"}\n', "it is no object of layers with counts of their experts"),
    "other name": ('{"layers": {"1": [1, 2], "router": [3, 4]}}\n', "no reader knows"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_are_no_counts_is_refused(case: str, tmp_path: Path) -> None:
    content, problem = REFUSED[case]
    path = tmp_path / "counts.txt"
    path.write_text(content)
    assert problem in refusal(tmp_path, path)


def test_counts_and_choices_of_other_programs_do_not_mix(tmp_path: Path) -> None:
    counted = counting.by_count(tmp_path / "a.csv", numbers(experts=8))
    path, _ = serving.write(tmp_path, serving.vllm(serving.routing()))
    config = tmp_path / "deepseek.json"
    config.write_text(json.dumps(serving.DEEPSEEK))
    assert "import these files separately" in refusal(tmp_path, counted, path, config=config)


def test_the_same_load_from_a_csv_of_choices_and_of_counts(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, EXPERTS, (90, 4, 1))
    ids = np.concatenate([ids, (ids + 1) % EXPERTS], axis=-1)
    rows = [
        (layer, expert) for place, layer in enumerate(counting.SPARSE) for expert in ids[:, place].ravel()
    ]
    imported(tmp_path, counting.table(tmp_path / "a.csv", "layer,expert", rows))
    choices = pd.read_parquet(tmp_path / "t.parquet")["counts"].map(list).tolist()
    imported(tmp_path, counting.by_count(tmp_path / "b.csv", counting.counts(ids, EXPERTS)))
    assert pd.read_parquet(tmp_path / "t.parquet")["counts"].map(list).tolist() == choices
