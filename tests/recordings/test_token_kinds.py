"""Kinds of tokens in recorded sequences with pictures: ids say which, and each kind is measured by itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.inputs.modality import TOKEN_KINDS
from moeprobe.recorded.trace_balance.figure import draw
from moeprobe.recorded.trace_balance.sentences import sentences
from moeprobe.recordings.format import KEY
from moeprobe.recordings.matching import match_traces
from moeprobe.recordings.media_tokens import find_media_tokens
from moeprobe.recordings.reading import TraceFile
from tests.commands import refused, run
from tests.recordings import serving

# A layer of eight experts, two a token; pictures of 12 tokens between a beginning (6) and an end (7).
IMAGE, BEGIN, END, PATCHES = 4, 6, 7, 12
CONFIG: dict[str, Any] = {
    "model_type": "made_up_vl",
    "image_token_id": IMAGE,
    "vision_start_token_id": BEGIN,
    "text_config": {
        "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2, "eos_token_id": [2, END],
    },
}  # fmt: skip
REQUESTS, GENERATED = 24, 5
PROMPT = [20, 21, BEGIN, *[IMAGE] * PATCHES, END, 22, 23]
KINDS = ["before"] * 3 + ["image"] * PATCHES + ["special", "text", "text"] + ["text"] * GENERATED
Experts = list[NDArray[np.int64]]


def experts(seed: int = 0) -> Experts:
    """Routing of each request ``(rows, 2, 2)``; the last token has no row."""
    return [serving.routing(100 * seed + number, rows=len(KINDS) - 1, layers=2) for number in range(REQUESTS)]


def responses(folder: Path, routing: Experts, *, prompt: list[int] = PROMPT) -> Path:
    """The responses of a vLLM to requests with one picture each."""
    folder.mkdir(exist_ok=True)
    lines = []
    for number, ids in enumerate(routing):
        choice = {
            "index": 0,
            "token_ids": [30 + number] * GENERATED,
            "routed_experts": serving.npy(ids.astype("uint8")),
        }
        lines.append({"id": f"r{number}", "prompt_token_ids": prompt, "choices": [choice],
                      "usage": serving.usage(len(KINDS) - GENERATED, GENERATED)})  # fmt: skip
    serving.write(folder, *lines, config=CONFIG)
    return folder


def imported(folder: Path, routing: Experts, **more: Any) -> Path:
    responses(folder, routing)
    api.import_routed_experts(
        folder / "responses.jsonl",
        folder / "t.parquet",
        model_config=folder / "config.json",
        name=folder.name,
        **more,
    )
    return folder / "t.parquet"


def kinds_of(path: Path, name: str = "r0") -> list[str]:
    kinds = TraceFile(path).read("layers.0", [name]).kinds
    assert kinds is not None
    return [TOKEN_KINDS[kind] for kind in kinds[0]]


def swapped(routing: Experts, kind: str, *, share: float = 1.0, layer: int = 0) -> Experts:
    """Routing in which some tokens of a kind have other sets of experts: no set of two is shifted into itself."""
    random, found = np.random.default_rng(5), [ids.copy() for ids in routing]
    for ids in found:
        chosen = (np.array(KINDS[:-1]) == kind) & (random.random(len(ids)) < share)
        ids[chosen, layer] = (ids[chosen, layer] + 1) % 8
    return found


def value(table: pd.DataFrame, metric: str, tokens: str, **wanted: Any) -> float:
    rows = table[(table["metric"] == metric) & (table["tokens"] == tokens)]
    for column, wish in wanted.items():
        rows = rows[rows[column] == wish]
    return float(rows["value"].item())


@pytest.mark.parametrize(
    ("config", "media", "special"),
    [
        ({"image_token_id": 4, "video_token_id": 5, "vision_start_token_id": 6}, {"image": {4}, "video": {5}}, {6}),
        ({"image_token_index": 9, "boi_token_index": 8, "eoi_token_index": 7}, {"image": {9}}, {7, 8}),
        ({"audio_token_id": 3, "text_config": {"eos_token_id": [1, 2], "pad_token_id": None}}, {"audio": {3}}, {1, 2}),
        ({"eos_token_id": 2, "vocab_size": 300}, None, None),
        ({"image_token_id": None, "bos_token_id": 1}, None, None),
    ],
)  # fmt: skip
def test_a_configuration_names_the_tokens_of_pictures(
    config: dict[str, Any], media: dict[str, set[int]] | None, special: set[int] | None
) -> None:
    found = find_media_tokens(config)
    assert (found and found.media) == media and (found and found.special) == special


def test_an_import_marks_the_tokens_of_pictures(tmp_path: Path) -> None:
    path = imported(tmp_path, experts())
    assert kinds_of(path) == KINDS[:-1]
    # The tokenizer beside the configuration knows of more special tokens.
    added = [{"id": 22, "content": "<x>", "special": True}, {"id": 23, "content": "y", "special": False}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    arguments = [str(tmp_path / name) for name in ("responses.jsonl", "again.parquet", "config.json")]
    result = run("trace", "import", *arguments[:2], "--model-config", arguments[2])
    assert result.exit_code == 0
    # The last token has no row.
    assert (
        f"Tokens by kind: {24 * 5} text, {24 * 12} image, {24 * 2} special, {24 * 3} before." in result.output
    )
    assert kinds_of(tmp_path / "again.parquet")[-6:] == ["special", "text", *["text"] * (GENERATED - 1)]


def test_an_id_takes_the_place_of_a_configuration_that_names_none(tmp_path: Path) -> None:
    responses(tmp_path, experts())
    (tmp_path / "config.json").write_text(json.dumps(CONFIG["text_config"]))
    arguments: dict[str, Any] = {"model_config": tmp_path / "config.json", "overwrite": True}
    api.import_routed_experts(tmp_path / "responses.jsonl", tmp_path / "t.parquet", **arguments)
    assert TraceFile(tmp_path / "t.parquet").read("layers.0", ["r0"]).kinds is None
    found = api.import_routed_experts(
        tmp_path / "responses.jsonl", tmp_path / "t.parquet", image_token_id=IMAGE, **arguments
    )
    assert found.kinds["image"] == REQUESTS * PATCHES
    with pytest.raises(UserError, match=r"^image_token_id takes the id of a token"):
        api.import_routed_experts(
            tmp_path / "responses.jsonl", tmp_path / "t.parquet", image_token_id=-3, **arguments
        )
    log = tmp_path / "log.jsonl"
    log.write_text('{"id": "a", "layer": "l", "num_experts": 8, "experts": [[1]]}')
    command = ("trace", "import", str(log), str(tmp_path / "l.parquet"), "--image-token-id", "4")
    assert "--image-token-id is for a server's responses" in refused(*command)


def test_ids_of_before_the_expansion_are_refused(tmp_path: Path) -> None:
    short = [20, 21, BEGIN, IMAGE, END, 22, 23]
    responses(tmp_path, experts(), prompt=short)
    with pytest.raises(UserError, match=r"22 rows and 12 token ids .* save the ids that the server returns"):
        api.import_routed_experts(
            tmp_path / "responses.jsonl", tmp_path / "t.parquet", model_config=tmp_path / "config.json"
        )


def test_tokens_do_not_tell_pictures_apart(tmp_path: Path) -> None:
    path = imported(tmp_path, experts())
    assert match_traces([TraceFile(path), TraceFile(path)], "tokens")[1] == []
    # All requests ask the same about pictures of one size, and get one answer.
    lines = [json.loads(line) for line in (tmp_path / "responses.jsonl").read_text().splitlines()]
    for line in lines:
        line["choices"][0]["token_ids"] = [30] * GENERATED
    (tmp_path / "responses.jsonl").write_text("\n".join(map(json.dumps, lines)))
    api.import_routed_experts(
        tmp_path / "responses.jsonl", path, model_config=tmp_path / "config.json", overwrite=True
    )
    with pytest.raises(UserError, match=f"{REQUESTS} inputs have the tokens of another one"):
        match_traces([TraceFile(path), TraceFile(path)], "tokens")
    assert match_traces([TraceFile(path), TraceFile(path)], "names")[1] == []


def test_a_log_may_say_the_kinds(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    line = {"id": "a", "layer": "layers.0", "num_experts": 8, "experts": [[1], [2], [3]]}
    log.write_text(json.dumps(line | {"kinds": ["before", "image", "text"]}))
    api.import_trace(log, tmp_path / "l.parquet")
    assert kinds_of(tmp_path / "l.parquet", "a") == ["before", "image", "text"]
    for kinds, message in (
        (["image"], "kinds takes 3 kinds of tokens"),
        (["image", "text", "cat"], "got 'cat'"),
    ):
        log.write_text(json.dumps(line | {"kinds": kinds}))
        with pytest.raises(UserError, match=message):
            api.import_trace(log, tmp_path / "l.parquet", overwrite=True)


def test_a_difference_in_image_tokens_is_found_there_alone(tmp_path: Path) -> None:
    first = experts()
    traces = [
        imported(tmp_path / "one", first),
        imported(tmp_path / "other", swapped(first, "image", share=0.5)),
    ]
    table = api.analyze_trace(traces).table
    rows = table[table["checkpoint"] == "other"]
    others = [
        (np.array(KINDS[:-1]) == "image") & (ids[:, 0] != was[:, 0]).any(1)
        for was, ids in zip(first, swapped(first, "image", share=0.5), strict=True)
    ]
    share = np.sum(others) / (REQUESTS * PATCHES)
    assert 0.4 < share < 0.6
    assert value(rows, "choice_differs", "image", layer="layers.0") == pytest.approx(share)
    assert value(rows, "pairs_differ", "image") == pytest.approx(share / 2)
    for kind in ("text", "special", "before"):
        assert value(rows, "choice_differs", kind, layer="layers.0") == 0
        assert value(rows, "tokens_touched", kind) == 0
    trials = rows[(rows["metric"] == "choice_differs") & (rows["layer"] == "layers.0")].set_index("tokens")[
        "trials"
    ]
    assert trials["image"] + trials["text"] + trials["special"] + trials["before"] == trials["token"]


def test_chance_stays_within_a_kind(tmp_path: Path) -> None:
    """Image tokens go to experts 0 to 3 and words to 4 to 7: chance over all tokens is lower than within a kind."""
    is_image = np.array(KINDS[:-1]) == "image"

    def split(seed: int) -> Experts:
        return [
            np.where(is_image[:, None, None], ids % 4, 4 + ids % 4)
            for ids in (
                serving.routing(seed + number, rows=len(is_image), layers=2, experts=4)
                for number in range(REQUESTS)
            )
        ]

    sides = split(0), split(1000)
    table = api.analyze_trace(
        [imported(tmp_path / name, ids) for name, ids in zip("ab", sides, strict=True)]
    ).table
    rows = table[(table["checkpoint"] == "b") & (table["layer"] == "layers.0") & (table["null"] == "pooled")]
    for kind, mask in (("image", is_image), ("token", np.ones_like(is_image))):
        # By a loop: the Jaccard index of any set of the one trace with any of the other, of other requests too.
        found: list[list[frozenset[int]]] = [
            [frozenset(experts.tolist()) for ids in side for experts in ids[mask, 0]] for side in sides
        ]
        expected = np.mean([len(one & two) / len(one | two) for one in found[0] for two in found[1]])
        assert value(rows, "set_jaccard_chance", kind) == pytest.approx(expected, abs=0.01)
    assert value(rows, "set_jaccard_chance", "image") > 1.3 * value(rows, "set_jaccard_chance", "token")


def test_load_is_counted_by_kind(tmp_path: Path) -> None:
    routing = [np.where((np.array(KINDS[:-1]) == "image")[:, None, None], [0, 1], ids) for ids in experts()]
    table = api.analyze_trace([imported(tmp_path, routing)]).table
    assert value(table, "dead_experts", "image", layer="layers.0") == 6
    assert value(table, "dead_experts", "text", layer="layers.0") == 0


def test_balance_counts_each_kind_by_itself(tmp_path: Path) -> None:
    """Image tokens choose experts 0 and 1, which are on rank 0 of 4; words choose anything."""
    is_image = (np.array(KINDS[:-1]) == "image")[:, None, None]
    routing = [np.where(is_image, [0, 1], ids) for ids in experts()]
    path = imported(tmp_path, routing)
    found = api.trace_balance(path, ranks=4, windows=2)
    rows = found.table[found.table["severity"].isna() & (found.table["view"] != "windows")]
    rows = rows[rows["view"] == rows["view"].iloc[0]]
    # All of their load on one rank of four.
    assert value(rows, "rank_imbalance", "image", layer="") == 4
    # By a loop over the words of all layers: each layer has its busiest rank.
    words = np.array(KINDS[:-1]) == "text"
    loads = [
        np.bincount(np.concatenate([ids[words, layer] for ids in routing]).ravel() // 2) for layer in range(2)
    ]
    expected = sum(load.max() for load in loads) / sum(load.mean() for load in loads)
    assert value(rows, "rank_imbalance", "text", layer="") == pytest.approx(expected)
    assert value(found.table, "distinct_experts_of_input", "image", layer="layers.0") == 2
    assert value(found.table, "distinct_experts_of_input", "token", layer="layers.0") > 4
    with_kinds = found.table
    sentence = next(line for line in sentences(with_kinds) if line.startswith("Kind by kind"))
    assert "4.000 for image tokens" in sentence
    assert set(draw(found)) == {"balance"}
    printed = run(
        "trace", "balance", str(path), "--ranks", "4", "--windows", "2", "--out", str(tmp_path / "out")
    )
    assert printed.exit_code == 0 and "tokens" in printed.output
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[KEY]) | {"version": 3}
    pq.write_table(table.drop_columns(["kinds"]).replace_schema_metadata({KEY: json.dumps(about)}), path)
    plain = api.trace_balance(path, ranks=4, windows=2).table
    kept = with_kinds[~with_kinds["tokens"].isin(TOKEN_KINDS)]
    pd.testing.assert_frame_equal(kept.reset_index(drop=True), plain)


def test_kinds_add_rows_and_change_none(tmp_path: Path) -> None:
    first = experts()
    traces = [
        imported(tmp_path / "one", first),
        imported(tmp_path / "other", swapped(first, "text", share=0.3)),
    ]
    with_kinds = api.analyze_trace(traces).table
    for path in traces:
        # As an earlier version wrote it: version 3 has no kinds.
        table = pq.read_table(path)
        about = json.loads(table.schema.metadata[KEY]) | {"version": 3}
        plain = table.drop_columns(["kinds"]).replace_schema_metadata({KEY: json.dumps(about)})
        pq.write_table(plain, path)
    without = api.analyze_trace(traces).table
    added = with_kinds[with_kinds["tokens"].isin(TOKEN_KINDS)]
    assert set(added["tokens"]) == {"text", "image", "special", "before"}
    pd.testing.assert_frame_equal(with_kinds.drop(added.index).reset_index(drop=True), without)


def test_texts_alone_have_no_kinds_in_tables(tmp_path: Path) -> None:
    words = [24] * (len(KINDS) - GENERATED)
    responses(tmp_path, experts(), prompt=words)
    path = tmp_path / "t.parquet"
    found = api.import_routed_experts(
        tmp_path / "responses.jsonl", path, model_config=tmp_path / "config.json"
    )
    assert found.kinds == {} and set(kinds_of(path)) == {"text"}
    assert not set(api.analyze_trace([path]).table["tokens"]) & set(TOKEN_KINDS)


def test_a_kind_that_is_none_is_damage(tmp_path: Path) -> None:
    path = imported(tmp_path, experts())
    table = pq.read_table(path)
    place = table.schema.get_field_index("kinds")
    kinds = [[9 for _ in row] for row in table["kinds"].to_pylist()]
    field = table.schema.field(place)
    column = pa.chunked_array([pa.array(kinds, field.type)])
    pq.write_table(table.set_column(place, field, column), path)
    trace = TraceFile(path)
    with pytest.raises(UserError, match="a token of no known kind"):
        trace.read("layers.0", ["r0"])
