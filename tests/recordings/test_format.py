"""Traces: what is written comes back, whatever the routing; what does not hold together is one sentence."""

import dataclasses
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moeprobe.errors import UserError
from moeprobe.inputs.geometry import Correspondence, PatchGrid
from moeprobe.recordings.format import COLUMNS, KEY, SCHEMA, beside, metadata, writing
from moeprobe.recordings.reading import TraceFile
from moeprobe.recordings.rows import patches_of, to_routing, to_rows
from moeprobe.routing.record import LayerRouting, highest_gates
from tests.routing.routings import expert_choice, routing, soft

IDS = ["test/0", "test/1", "test/2"]


def save(
    path: Path, layers: dict[str, LayerRouting], *, about: dict[str, Any] | None = None, **more: Any
) -> Path:
    with writing(path) as file:
        file.write([to_rows(IDS, name, layer, **more) for name, layer in layers.items()])
        file.close(metadata(checkpoint={"name": "a", "sha256": None}, layers=list(layers)) | (about or {}))
    return path


def back(path: Path, layer: str = "l") -> LayerRouting:
    trace = TraceFile(path)
    return to_routing(trace.read(layer, trace.ids))


@st.composite
def routings(draw: Callable[..., Any]) -> LayerRouting:
    """Any kind of routing, of any number of experts, with absent choices, dropped ones and padding."""
    num_experts = draw(st.sampled_from([1, 2, 3, 5, 31, 32, 64, 257, 300]))
    kind = draw(st.sampled_from([routing, expert_choice, soft]))
    shape: dict[str, Any] = {
        "grid": draw(st.sampled_from([(1, 1), (2, 3), (4, 1)])),
        "num_experts": num_experts,
        "top_k": draw(st.integers(1, min(num_experts, 6))),
        "prefix": draw(st.integers(0, 2)),
        "seed": draw(st.integers(0, 9)),
        "absent": draw(st.sampled_from([0.0, 0.5, 1.0])),
    }
    if kind is expert_choice:
        shape["capacity"] = 1
    layer: LayerRouting = kind(**shape)
    random = torch.Generator().manual_seed(shape["seed"])
    valid = torch.rand(layer.valid.shape, generator=random) < draw(st.sampled_from([0.6, 1.0]))
    kept = torch.rand(layer.processed.shape, generator=random) < 0.8
    sharp = layer.gates.pow(draw(st.sampled_from([1, 8]))).clamp_min(1e-30)
    return dataclasses.replace(
        layer,
        valid=valid,
        processed=layer.processed & kept,
        gates=sharp / sharp.sum(-1, keepdim=True),
        grid=layer.grid if draw(st.booleans()) else None,
    )


def test_experts_are_numbers_of_a_dictionary(tmp_path: Path) -> None:
    group = pq.read_metadata(save(tmp_path / "t.parquet", {"l": routing()})).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    encoded = {column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings}
    assert {"id", "layer", "experts.list.element"} <= encoded
    assert "token_ids.list.element" not in encoded


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layer=routings(), all_gates=st.booleans())
def test_what_is_written_comes_back(tmp_path: Path, layer: LayerRouting, all_gates: bool) -> None:
    found = back(save(tmp_path / "t.parquet", {"l": layer}, all_gates=all_gates))
    for name in ("selected", "processed", "valid", "slot"):
        one, other = getattr(layer, name), getattr(found, name)
        assert (one is None and other is None) or torch.equal(one, other), name
    for name in (
        "grid",
        "num_prefix_tokens",
        "token_local",
        "router",
        "experts_choose",
        "top_k",
        "num_experts",
    ):
        assert getattr(found, name) == getattr(layer, name), name
    assert found.scores is None
    if all_gates:
        assert torch.equal(found.gates, layer.gates)
    chosen = layer.selected.long().clamp_min(0)
    known = layer.selected >= 0
    same = found.gates.gather(-1, chosen) == layer.gates.gather(-1, chosen)
    assert (same | ~known).all()
    if layer.top_k:
        assert torch.equal(found.weights, layer.weights)
    if layer.num_experts > 1:
        assert found.gates_sum_to_one
        for one, other in zip(highest_gates(layer.gates), highest_gates(found.gates), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
        assert torch.equal(highest_gates(layer.gates)[0], highest_gates(found.gates)[0])


def test_gates_that_are_no_distribution_are_kept_of_the_chosen_alone(tmp_path: Path) -> None:
    layer = routing(gates_sum_to_one=False)
    path = save(tmp_path / "t.parquet", {"l": layer})
    assert not back(path).gates_sum_to_one
    assert torch.equal(back(path).weights, layer.weights)
    assert set(pd.read_parquet(path)["gates_kept"]) == {"chosen"}


@pytest.mark.parametrize("view_first", [[True, False, True], [False] * 3])
def test_corresponding_patches_come_back(tmp_path: Path, view_first: list[bool]) -> None:
    first = np.array(view_first)
    slots = np.array([[0, 1, -1, 3, -1, 5]] * 3)
    partner = np.where(slots >= 0, np.array([[2, 2, 0, 1, 0, 5]] * 3), -1)
    swap = first[:, None]
    pairs = Correspondence(np.where(swap, partner, slots), np.where(swap, slots, partner), first)
    path = save(tmp_path / "t.parquet", {"l": routing()}, pairs=pairs)
    trace = TraceFile(path)
    reference, view, side = patches_of(trace.read("l", trace.ids))
    np.testing.assert_array_equal(reference, pairs.reference)
    np.testing.assert_array_equal(view, pairs.view)
    np.testing.assert_array_equal(side, first)


def test_pandas_alone_reads_it(tmp_path: Path) -> None:
    layer = routing()
    table = pd.read_parquet(save(tmp_path / "t.parquet", {"blocks.1": layer, "blocks.3": layer}))
    assert list(table.columns) == list(COLUMNS)
    row = table[(table["id"] == "test/1") & (table["layer"] == "blocks.3")].iloc[0]
    experts = row["experts"].reshape(row["num_tokens"], row["top_k"])
    np.testing.assert_array_equal(experts, layer.selected[1])
    assert experts.dtype == np.int16


def test_choices_are_compared_with_the_next_of_their_token() -> None:
    choices = np.array([[[1, 1, 0], [0, 2, 2]], [[2, 2, 2], [5, 4, 3]]], np.int16)
    equal = [[[True, False, False], [False, True, False]], [[True, True, False], [False] * 3]]
    assert beside(np.equal, choices).tolist() == equal
    assert beside(np.greater, choices)[1, 1].tolist() == [True, True, False]
    assert not beside(np.equal, np.zeros((4, 1), np.int16)).any()


def test_inputs_are_read_in_any_order_and_across_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    layers = [routing(1, seed=seed) for seed in range(12)]
    with writing(path) as file:
        for number, layer in enumerate(layers):
            file.write([to_rows([f"r{number}"], "l", layer)])
        file.close(metadata(checkpoint={"name": "a"}, layers=["l"]))
    trace = TraceFile(path)
    order = [11, 0, 7, 3, 8, 5]
    found = to_routing(trace.read("l", [f"r{number}" for number in order]))
    assert torch.equal(found.selected, torch.cat([layers[number].selected for number in order]))


def test_writing_holds_one_batch(tmp_path: Path) -> None:
    """Row groups are written as they come: what Arrow holds after 10 is what it held after 2."""
    ids = [f"r{number}" for number in range(64)]
    layer = routing(64, grid=(7, 7), num_experts=64, top_k=8)
    held = []
    with writing(tmp_path / "t.parquet") as file:
        for number in range(10):
            file.write([to_rows([f"{number}/{name}" for name in ids], "l", layer)])
            held.append(pa.total_allocated_bytes())
        file.close(metadata(checkpoint={"name": "a"}, layers=["l"]))
    one = 64 * 50 * 8 * 4
    assert held[-1] - held[1] < one
    assert pq.ParquetFile(tmp_path / "t.parquet").num_row_groups == 10


def test_a_thread_writes_the_same_bytes(tmp_path: Path) -> None:
    paths = []
    for threaded in (False, True):
        paths.append(tmp_path / f"{threaded}.parquet")
        with writing(paths[-1], threaded=threaded) as file:
            for number in range(3):
                file.write([to_rows([f"r{number}"], "l", routing(1, seed=number))])
            file.close(metadata(checkpoint={"name": "a"}, layers=["l"]))
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_an_error_of_the_thread_ends_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def write() -> None:
        with writing(tmp_path / "t.parquet", threaded=True) as file:
            file.write([to_rows(IDS, "l", routing())])
            file.close(metadata(checkpoint={"name": "a"}, layers=["l"]))

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(UserError, match="No space left on device"):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("threaded", [False, True])
def test_nothing_is_left_of_a_trace_that_was_not_finished(tmp_path: Path, threaded: bool) -> None:
    def interrupted() -> None:
        with writing(tmp_path / "t.parquet", threaded=threaded) as file:
            file.write([to_rows(IDS, "l", routing())])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_the_same_routing_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{name}.parquet", {"l": routing()}) for name in "ab"]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def altered(path: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Write the rows of a trace anew, changed, with the metadata it had."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows = change(rows) or rows
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA).replace_schema_metadata(table.schema.metadata), path)


def put(name: str, value: Any, row: int = 1) -> Callable[[list[dict[str, Any]]], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[row][name] = value(rows[row][name]) if callable(value) else value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("experts", lambda found: [5, *found[1:]]), "test/1 has experts outside of -1 to 4"),
        (put("experts", lambda found: [-2, *found[1:]]), "experts outside of -1 to 4"),
        (put("experts", lambda found: [found[1], *found[1:]]), "test/1 has one expert twice for a token"),
        (put("experts", lambda found: [-1, *found[1:]]), "a choice after an absent one"),
        (put("experts", lambda found: found[:-1]), "experts of l holds 13 values, expected 14"),
        (put("experts", lambda found: [None, *found[1:]]), "experts of l holds"),
        (put("valid", lambda found: [*found, True]), "valid of l holds 8 values, expected 7"),
        (put("gates", lambda found: found[:2]), "gates of l holds 2 values, expected 14"),
        (put("gates", lambda found: [float("nan"), *found[1:]]), "gates that are no numbers from 0 up"),
        (put("rest", None), "some rows of l have rest and some have none"),
        (put("num_tokens", 6), "6 tokens|do not fill a grid|values, expected"),
        (put("num_experts", 4), "num_experts of l is not the same for all inputs (5, 4)"),
        (put("top_k", 3), "top_k of l is not the same"),
        (put("grid_rows", 3), "grid_rows of l is not the same"),
        (put("id", "test/0"), "holds l of test/0 twice"),
        (put("layer", "m"), "holds a layer m that its metadata do not name"),
        (lambda rows: [row | {"top_k": 9} for row in rows], "a token cannot choose 9 of 5 experts"),
        (lambda rows: [row | {"gates_kept": "some"} for row in rows], "gates_kept is one of none"),
        (lambda rows: [row | {"ordered_by": "luck"} for row in rows], "ordered_by is one of gates, logits, scores"),
        (put("ordered_by", None), "ordered_by of l is not the same"),
        (put("token_ids", [3] * 6), "token_ids of l holds 6 values, expected 7"),
        (put("token_ids", [-5] * 7), "test/1 has a token_id below 0"),
        (lambda rows: [row | {"gates_kept": "none"} for row in rows], "has gates, though gates_kept is none"),
        (lambda rows: [row | {"grid_columns": None} for row in rows], "a grid has rows, columns and a patch size"),
        (lambda rows: [row | {"experts_choose": True} for row in rows], "where experts choose"),
        (lambda rows: [row | {"partner": [9] * 6, "view_first": True} for row in rows], "a partner that is no patch"),
        (lambda rows: [row | {"partner": [0] * 6} for row in rows], "partner and view_first go together"),
        (lambda rows: rows[:0] or [], ""),
    ],
)  # fmt: skip
def test_rows_that_do_not_hold_together_are_told(tmp_path: Path, change: Any, words: str) -> None:
    path = save(tmp_path / "t.parquet", {"l": routing()})
    back(path)
    altered(path, change)
    if not words:
        back(path)  # nothing was changed: the check itself
        return
    with pytest.raises(UserError) as error:
        back(path)
    assert any(word in str(error.value) for word in words.split("|")), error.value
    assert str(path) in str(error.value)


def test_a_layer_that_an_input_lacks_is_told(tmp_path: Path) -> None:
    path = save(tmp_path / "t.parquet", {"l": routing(), "m": routing()})
    altered(path, lambda rows: rows[:-1])
    with pytest.raises(UserError, match="has no m of test/2, of which it has other layers"):
        TraceFile(path)
    altered(path, lambda rows: rows[:3])
    with pytest.raises(UserError, match="has no m of test/0"):
        TraceFile(path)


def test_patches_without_a_place_and_their_prompt_come_back(tmp_path: Path) -> None:
    layer = routing(grid=(1, 6), num_experts=8, top_k=2, prefix=4)
    leading = (("before", 3), ("special", 1))
    numbered = dataclasses.replace(layer, grid=PatchGrid(1, 6, 0), leading=leading)
    found = back(save(tmp_path / "t.parquet", {"l": numbered}))
    assert (found.grid, found.leading, found.num_prefix_tokens) == (numbered.grid, leading, 4)
    plain = back(save(tmp_path / "p.parquet", {"l": layer}))
    assert plain.leading == ()


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"version": 5}, "is a trace of version 5, and this moeprobe reads versions 1 to 4"),
        ({"format": "other"}, "is a trace of version 4"),
        ({"layers": "l"}, "layers in its metadata is not as a trace has it"),
        ({"layers": ["l", "l"]}, "layers in its metadata is not"),
        ({"checkpoint": {}}, "name in its metadata is not"),
        ({"severity": "much"}, "severity in its metadata is not"),
        ({"inputs": 3}, "inputs in its metadata is not"),
        ({"skipped": [3]}, "skipped in its metadata is not"),
    ],
)
def test_other_versions_and_metadata_are_refused(tmp_path: Path, about: dict[str, Any], words: str) -> None:
    path = save(tmp_path / "t.parquet", {"l": routing()}, about=about)
    with pytest.raises(UserError) as error:
        TraceFile(path)
    assert words in str(error.value)


@pytest.mark.parametrize("about", ['{"data": "\\ud800", ', '{"more": ' + "[" * 100_000])
def test_metadata_that_cannot_be_written_again_are_refused(tmp_path: Path, about: str) -> None:
    path = save(tmp_path / "t.parquet", {"l": routing()})
    table = pq.read_table(path)
    rest = table.schema.metadata[KEY].decode().removeprefix("{").replace('"data": null, ', "")
    pq.write_table(table.replace_schema_metadata({KEY: about + rest}), path)
    with pytest.raises(UserError, match="not a trace, or is damaged"):
        TraceFile(path)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "t.parquet", {"l": routing()})
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], b"PAR1", whole[len(whole) // 2 :]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="not a trace, or is damaged"):
            TraceFile(path)
    pd.DataFrame({"id": ["a"]}).to_parquet(path)
    with pytest.raises(UserError, match="no routing trace of moeprobe"):
        TraceFile(path)
    table = pa.table({"id": ["a"]}).replace_schema_metadata(
        {KEY: json.dumps(metadata(checkpoint={"name": "a"}, layers=["l"]))}
    )
    pq.write_table(table, path)
    with pytest.raises(UserError, match="the column layer is not as a trace has it"):
        TraceFile(path)
    with pytest.raises(UserError, match="There is no trace"):
        TraceFile(tmp_path / "none.parquet")
    (tmp_path / "recorded").mkdir()
    path.rename(tmp_path / "recorded" / "t.parquet")
    with pytest.raises(
        UserError, match=r"is a folder; name the traces in it, e\.g\. .*/recorded/t\.parquet\."
    ):
        TraceFile(tmp_path)


def test_what_is_no_trace_is_refused_with_what_makes_one(tmp_path: Path) -> None:
    """What users have at hand: responses, also compressed or as one document, a checkpoint, nothing at all."""
    for name, content, said in (
        ("log.jsonl", b"{}", "looks like a log; make a trace of it"),
        ("log.json", b" [{}]", "looks like a log; make a trace of it"),
        ("log.jsonl.gz", gzip.compress(b"{}"), "is compressed: expand it if it is a trace"),
        (
            "log.zst",
            pa.compress(b"{}", codec="zstd", asbytes=True),
            "is compressed: expand it if it is a trace",
        ),
        (
            "a.safetensors",
            (31520).to_bytes(8, "little") + b'{"a": 0}',
            "is a file of safetensors, and no trace",
        ),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name} {said}"):
            TraceFile(tmp_path / name)
    (tmp_path / "nothing.parquet").write_bytes(b"")
    with pytest.raises(UserError, match=r"nothing\.parquet is empty"):
        TraceFile(tmp_path / "nothing.parquet")
    (tmp_path / "model").mkdir()
    with pytest.raises(UserError, match="model is a folder without traces; name a file"):
        TraceFile(tmp_path / "model")
    (tmp_path / "model" / "last.safetensors").touch()
    with pytest.raises(
        UserError, match="model is a checkpoint; record its routing first: moeprobe trace record"
    ):
        TraceFile(tmp_path / "model")


def test_damaged_bytes_are_a_sentence_or_change_nothing(tmp_path: Path) -> None:
    path = save(tmp_path / "t.parquet", {"l": routing()})
    whole, random = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        content = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            content[place] = random.integers(0, 256)
        path.write_bytes(content)
        try:
            back(path)
        except UserError:
            refused += 1
    assert refused > 20


def test_a_flipped_bit_among_the_choices_is_found(tmp_path: Path) -> None:
    """Nothing but a checksum tells one valid expert from another."""
    path = save(tmp_path / "t.parquet", {"l": routing()})
    column = pq.ParquetFile(path).metadata.row_group(0).column(SCHEMA.names.index("experts"))
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a trace, or is damaged"):
        back(path)
