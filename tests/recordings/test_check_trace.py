"""Faults of capture, planted in trace files: each is named, and a sound trace has none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.recordings.capture_check import CaptureCheck
from moeprobe.recordings.format import SCHEMA, metadata, writing
from moeprobe.recordings.log_rows import Row
from moeprobe.recordings.responses import group_rows
from tests.commands import refused, run
from tests.recordings import serving
from tests.recordings.serving import routing

Ids = NDArray[np.int64]
REQUESTS, TOKENS, PROMPT = 6, 20, 8


def saved(
    path: Path, ids: Ids, *, experts: int = 8, names: list[str] | None = None, marked: bool = True
) -> Path:
    """A trace of requests ``(R, T, L, K)``, whatever they hold; sets, with the prompt marked if wanted."""
    layers = names or [f"layers.{layer}" for layer in range(ids.shape[2])]
    alike = {
        "num_experts": experts, "top_k": ids.shape[3], "num_prefix_tokens": 0, "router": "recorded",
        "token_local": False, "gates_kept": "none", "ordered_by": None,
    }  # fmt: skip
    generated = np.arange(ids.shape[1]) >= PROMPT if marked else None

    def rows() -> list[tuple[Row, int]]:
        return [
            (
                Row(
                    f"r{number}",
                    layer,
                    alike,
                    chosen,
                    chosen >= 0,
                    (chosen >= 0).any(-1),
                    None,
                    None,
                    generated,
                ),
                0,
            )
            for number, request in enumerate(ids.astype(np.int16))
            for place, layer in enumerate(layers)
            for chosen in [request[:, place]]
        ]

    with writing(path) as file:
        for batch in group_rows(rows(), progress=lambda count: None):
            file.write([batch])
        file.close(metadata(checkpoint={"name": path.stem}, layers=layers))
    return path


def requests(seed: int = 0, *, top_k: int = 2, layers: int = 4) -> Ids:
    return np.stack(
        [routing(100 * seed + one, rows=TOKENS, layers=layers, top_k=top_k) for one in range(REQUESTS)]
    )


def planted(where: Any, value: Any, *, top_k: int = 2) -> Ids:
    ids = requests(top_k=top_k)
    ids[where] = value
    return ids


EVERY = slice(None)


def frozen(ids: Ids, *, of: int = REQUESTS) -> Ids:
    """The same routing, but for the generated tokens of some requests, which carry the choice of the first one."""
    ids = ids.copy()
    ids[:of, PROMPT:] = ids[:of, PROMPT : PROMPT + 1]
    return ids


FAULTS: dict[str, tuple[Ids, str, str]] = {
    "all zero": (requests() * 0, "all zero", "known as an all-zero capture"),
    "all zero, one expert": (requests(top_k=1) * 0, "all zero", "known as an all-zero capture"),
    "all -1": (requests() * 0 - 1, "all unset", "known as an all -1 capture"),
    "all -1, one expert": (requests(top_k=1) * 0 - 1, "all unset", "known as an all -1 capture"),
    "255": (requests() * 0 + 255, "255 fill", "known as a 255 fill"),
    "some 255": (planted((2, 5), 255), "255 fill", "4 choices of tokens in layers.0, layers.1, layers.2, layers.3 are"),
    "prompt zero": (
        planted((EVERY, slice(PROMPT)), 0), "prompt rows zero", "6 inputs begin with rows of zeros in all layers",
    ),
    "prompt zero, one expert": (
        planted((EVERY, slice(PROMPT)), 0, top_k=1), "prompt rows zero", "6 inputs begin with rows of zeros",
    ),
    "prefix zero": (planted((3, slice(4)), 0), "leading rows zero", "1 inputs begin with rows of zeros"),
    "request zero": (planted(4, 0), "inputs zero", "1 inputs are 0 in all layers for every token"),
    "rows zero": (planted((1, slice(12, 15)), 0), "rows zero", "3 tokens are 0 for every choice"),
    "dense": (planted((EVERY, EVERY, 0), 0), "dense layer zero-filled", "layers.0 is 0 for all tokens: known as a"),
    "twice": (planted((5, 19, 2), 6), "duplicate expert", "1 choices of tokens in layers.2 have an expert twice"),
    "physical": (planted((0, 3, 1, 1), 9), "expert out of range", "known as physical ids of replicated experts"),
    "frozen": (
        frozen(requests()), "generated tokens frozen",
        "In 6 of 6 inputs all generated tokens carry one and the same choice in every layer: 66 of 66 tokens repeat "
        "the first one's. In the prompts 0 of 42 do. Known of CUDA graphs",
    ),
    "frozen, one expert": (frozen(requests(top_k=1)), "generated tokens frozen", "6 of 6 inputs"),
    "frozen in most": (frozen(requests(), of=4), "generated tokens frozen", "In 4 of 6 inputs"),
    "frozen without a prompt": (
        frozen(planted((EVERY, slice(PROMPT)), -1)), "generated tokens frozen", "In the prompts 0 of 0 do",
    ),
    "alike": (requests()[:, :, [0, 1, 1, 2]], "layers alike", "layers.1, layers.2 hold the same choices"),
}  # fmt: skip
NOTES: dict[str, tuple[Ids, str, str]] = {
    "prompt unset": (planted((EVERY, slice(PROMPT)), -1), "prompt rows unset", "6 inputs have no expert for any"),
    "prefix unset": (planted((2, slice(3)), -1), "leading rows unset", "1 inputs begin with tokens without an expert"),
    "holes": (planted((2, slice(9, 12)), -1), "rows unset", "1 inputs have tokens without an expert later"),
    "one layer zero, one expert": (
        planted((EVERY, EVERY, 1), 0, top_k=1), "dense layer zero-filled", "or as a router that has collapsed",
    ),
    "constant": (planted((EVERY, EVERY, 1), [3, 5]), "constant layer", "layers.1 is the same for all tokens"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_and_no_other(fault: str, tmp_path: Path) -> None:
    ids, name, words = FAULTS[fault]
    found = api.check_trace(saved(tmp_path / "t.parquet", ids)).findings
    assert [one.name for one in found if one.fault] == [name] and words in found[0].sentence
    assert all(one.name == "prompt rows unset" for one in found[1:])


@pytest.mark.parametrize("note", NOTES)
def test_what_is_missing_or_odd_is_no_fault(note: str, tmp_path: Path) -> None:
    ids, name, words = NOTES[note]
    checked = api.check_trace(saved(tmp_path / "t.parquet", ids))
    assert [one.name for one in checked.findings] == [name] and words in checked.findings[0].sentence
    assert checked.sound


def test_tokens_that_rightly_carry_one_choice_are_not_frozen(tmp_path: Path) -> None:
    # A router that sends whole requests one way does so in their prompts too.
    collapsed = np.repeat(requests()[:, :1], TOKENS, axis=1)
    # One request of a few, and no more.
    single = frozen(requests(), of=1)
    for name, ids in {"collapsed": collapsed, "single": single}.items():
        assert api.check_trace(saved(tmp_path / f"{name}.parquet", ids)).findings == []
    assert api.check_trace(saved(tmp_path / "unmarked.parquet", frozen(requests()), marked=False)).sound


def test_text_that_repeats_one_token_is_not_frozen(tmp_path: Path) -> None:
    path = saved(tmp_path / "t.parquet", frozen(requests()))
    table = pq.read_table(path)
    for word, sound in ((7, True), (None, False)):
        ids = [[*range(PROMPT), *(word or 100 + t for t in range(TOKENS - PROMPT))]] * table.num_rows
        place = table.schema.get_field_index("token_ids")
        changed = table.set_column(
            place, table.schema.field(place), pa.array(ids, table.schema.field(place).type)
        )
        pq.write_table(changed, path)
        assert api.check_trace(path).sound == sound


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_sound_trace_has_no_finding(top_k: int, tmp_path: Path) -> None:
    path = saved(tmp_path / "t.parquet", requests(top_k=top_k))
    checked = api.check_trace(path, against=saved(tmp_path / "same.parquet", requests(top_k=top_k)))
    assert checked.sound and checked.findings == []
    assert checked.overlap is not None
    assert (checked.overlap.here, checked.overlap.layers, checked.overlap.positions) == (1.0, 0, 0)
    assert checked.overlap.chance == pytest.approx(top_k / 8, abs=0.03)


def test_rows_missing_in_a_layer(tmp_path: Path) -> None:
    path = saved(tmp_path / "t.parquet", requests())
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[6] |= {"num_tokens": 17, "experts": rows[6]["experts"][:34], "processed": [True] * 34, "valid": [True] * 17,
                "generated": [False] * 17}  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA).replace_schema_metadata(table.schema.metadata), path)
    found = api.check_trace(path).findings
    assert [(one.name, one.count, one.fault) for one in found] == [("rows missing", 1, True)]


def some_noise(ids: Ids, share: float = 0.2) -> Ids:
    """The same routing, but for a share of the tokens."""
    random = np.random.default_rng(5)
    other = requests(7, layers=ids.shape[2])[:, : ids.shape[1]]
    return np.where(random.random(ids.shape[:3])[..., None] < share, other, ids)


SHIFTS: dict[str, tuple[Callable[[Ids], Ids], str, tuple[int, int]]] = {
    "layers": (
        lambda ids: np.concatenate([requests(9)[:, :, :1], ids], axis=2)[:, :, :4],
        "layers shifted",
        (1, 0),
    ),
    "one off": (lambda ids: ids[:, 1:], "positions shifted", (0, -1)),
    "a start": (
        lambda ids: np.concatenate([requests(9)[:, :2], ids], axis=1)[:, :TOKENS],
        "positions shifted",
        (0, 2),
    ),
}


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_shift_is_found_by_the_overlap(shift: str, tmp_path: Path) -> None:
    change, name, expected = SHIFTS[shift]
    ids = requests()
    path, other = (
        saved(tmp_path / "t.parquet", ids),
        saved(tmp_path / "other.parquet", change(some_noise(ids))),
    )
    checked = api.check_trace(path, against=other)
    assert checked.overlap is not None and not checked.sound
    assert (checked.overlap.layers, checked.overlap.positions) == expected
    assert [one.name for one in checked.findings] == [name]
    # By hand: of 80 % of the tokens all choices are the same, of the others as many as chance makes.
    assert checked.overlap.shifted == pytest.approx(0.8 + 0.2 / 4, abs=0.05)
    assert checked.overlap.here == pytest.approx(checked.overlap.chance, abs=0.1)
    assert f"is the other's {'layer l' if expected[0] else 'token t'}" in checked.findings[0].sentence


def test_physical_ids_within_the_range_are_found_by_the_overlap(tmp_path: Path) -> None:
    ids = requests()
    moved = np.random.default_rng(3).permutation(8)[some_noise(ids)]
    checked = api.check_trace(
        saved(tmp_path / "a.parquet", ids), against=saved(tmp_path / "b.parquet", moved)
    )
    assert [one.name for one in checked.findings] == ["experts renumbered"]
    assert checked.overlap is not None and checked.overlap.renumbered == pytest.approx(0.85, abs=0.05)
    unlike = saved(tmp_path / "c.parquet", requests(4))
    again = api.check_trace(tmp_path / "a.parquet", against=unlike)
    assert not again.sound and [one.name for one in again.findings] == ["overlap by chance"]


def with_draft(ids: Ids, *layers: int) -> Ids:
    """The same routing, but for layers that hold another router's choices."""
    changed = ids.copy()
    changed[:, :, list(layers)] = requests(8)[:, :, list(layers)]
    return changed


@pytest.mark.parametrize(
    ("layers", "names"), [([0], ["layers.0"]), ([2], ["layers.2"]), ([0, 2], ["layers.0", "layers.2"])]
)
def test_a_draft_models_choices_in_place_of_a_layers_are_found(
    layers: list[int], names: list[str], tmp_path: Path
) -> None:
    ids = requests()
    path = saved(tmp_path / "t.parquet", with_draft(ids, *layers))
    checked = api.check_trace(path, against=saved(tmp_path / "other.parquet", some_noise(ids)))
    [finding] = checked.findings
    assert (finding.name, finding.count, finding.fault) == ("layers of another router", len(names), True)
    assert checked.overlap is not None and checked.overlap.foreign_layers == names
    assert finding.sentence.startswith(f"{', '.join(names)}: agreement")


def test_layers_that_differ_down_to_the_last_are_no_draft_models(tmp_path: Path) -> None:
    """An error in attention does that: what a layer does wrong reaches those behind it."""
    ids = requests()
    other = saved(tmp_path / "other.parquet", some_noise(ids))
    for layers in ([3], [2, 3], [1, 2, 3], [0, 1, 2, 3]):
        checked = api.check_trace(saved(tmp_path / "t.parquet", with_draft(ids, *layers)), against=other)
        assert checked.overlap is not None and checked.overlap.foreign_layers == []
        assert checked.sound == (len(layers) < 4)  # where no layer agrees, it is another model


def test_a_layer_whose_experts_were_moved_is_no_draft_models(tmp_path: Path) -> None:
    ids = requests()
    moved = ids.copy()
    moved[:, :, 0] = np.roll(np.arange(8), 3)[ids[:, :, 0]]
    path, other = saved(tmp_path / "t.parquet", moved), saved(tmp_path / "other.parquet", some_noise(ids))
    checked = api.check_trace(path, against=other)
    assert checked.overlap is not None and checked.overlap.foreign_layers == []


def test_a_router_that_has_collapsed_in_both_is_no_draft_models(tmp_path: Path) -> None:
    ids = planted((EVERY, EVERY, 1), [2, 5])
    paths = [saved(tmp_path / f"{name}.parquet", ids) for name in "ab"]
    checked = api.check_trace(paths[0], against=paths[1])
    assert [one.name for one in checked.findings] == ["constant layer"]


def test_two_models_are_not_one_with_other_numbers(tmp_path: Path) -> None:
    """Few experts have most tokens of either model, and are paired: that explains a little more than chance."""
    rng = np.random.default_rng(5)
    of_both = [np.sort(rng.zipf(1.4, size=requests().shape) % 8, axis=-1) for _ in range(2)]
    paths = [
        saved(tmp_path / f"{number}.parquet", np.stack([ids[..., 0], (ids[..., 0] + 1) % 8], axis=-1))
        for number, ids in enumerate((of_both[0], 7 - of_both[1]))
    ]
    checked = api.check_trace(paths[0], against=paths[1])
    assert checked.overlap is not None and checked.overlap.renumbered is not None
    assert checked.overlap.renumbered > checked.overlap.here + 0.1
    assert [one.name for one in checked.findings if one.name == "experts renumbered"] == []


def test_the_command_returns_a_status(tmp_path: Path) -> None:
    good, bad = saved(tmp_path / "good.parquet", requests()), saved(tmp_path / "bad.parquet", requests() * 0)
    result = run("trace", "check", good, "--against", good)
    assert result.exit_code == 0
    assert "6 inputs, 4 layers (layers.0 to layers.3)." in result.output
    assert "Overlap of the choices in all 6 common inputs: 1.000" in result.output
    assert "No fault of capture is known that looks like this." in result.output
    result = run("trace", "check", bad)
    assert (
        result.exit_code == 3 and "Fault, all zero: Every expert is 0: known as an all-zero" in result.output
    )
    said = json.loads(run("trace", "check", bad, "--json").stdout)
    assert said["sound"] is False and said["findings"][0]["name"] == "all zero"
    assert "There is no trace" in refused("trace", "check", tmp_path / "none.parquet")
    stranger = saved(tmp_path / "stranger.parquet", requests(), experts=9)
    assert "differ in their numbers of experts or choices" in refused(
        "trace", "check", good, "--against", stranger
    )


def test_parts_say_what_the_whole_says(tmp_path: Path) -> None:
    table = pq.read_table(saved(tmp_path / "t.parquet", FAULTS["prompt zero"][0]))
    whole, parts = CaptureCheck(), CaptureCheck()
    whole.add(table)
    for start in range(0, table.num_rows, 5):
        parts.add(table.slice(start, 5))
    assert whole.findings() == parts.findings() != []


def test_rows_with_and_without_marks_are_counted_together(tmp_path: Path) -> None:
    """Frozen inputs in rows beside some that do not say which tokens were generated."""
    marked = pq.read_table(saved(tmp_path / "marked.parquet", frozen(requests())))
    unmarked = pq.read_table(saved(tmp_path / "u.parquet", requests(1), names=list("abcd"), marked=False))
    other_names = pa.array([f"other {name}" for name in unmarked["id"].to_pylist()])
    unmarked = unmarked.set_column(0, SCHEMA.field("id"), other_names)
    alone, beside = CaptureCheck(), CaptureCheck()
    alone.add(marked)
    beside.add(pa.concat_tables([unmarked, marked]).combine_chunks())
    [finding] = alone.findings()
    assert finding.name == "generated tokens frozen"
    assert beside.findings() == [finding]


def test_a_list_that_is_too_short_is_refused(tmp_path: Path) -> None:
    table = pq.read_table(saved(tmp_path / "t.parquet", requests()))
    marks = table["generated"].to_pylist()
    marks[3] = marks[3][:-1]
    column = SCHEMA.get_field_index("generated")
    table = table.set_column(column, SCHEMA.field(column), pa.array(marks, SCHEMA.field(column).type))
    with pytest.raises(UserError, match="generated of r0 holds 19 values, expected 20; record it again"):
        CaptureCheck().add(table)


def test_imports_run_it(tmp_path: Path) -> None:
    """A log whose experts are all 0, with one expert per token, was taken without a word."""
    log, trace = tmp_path / "log.jsonl", tmp_path / "t.parquet"
    line = {"id": "r", "layer": "l", "num_experts": 8, "experts": [[0]] * 9}
    log.write_text(json.dumps(line))
    assert "every expert is 0: known as an all-zero capture" in refused("trace", "import", log, trace)
    log.write_text(json.dumps(line | {"experts": [[-1]] * 9}))
    assert "no token has an expert: known as an all -1 capture" in refused("trace", "import", log, trace)
    assert not trace.exists()
    log.write_text(
        "\n".join(json.dumps(line | {"layer": layer, "experts": [[1], [2], [0]] * 9}) for layer in "lm")
    )
    result = run("trace", "import", log, trace)
    assert result.exit_code == 0 and "Fault, layers alike: l, m hold the same choices" in result.output
    ids = routing(rows=30)
    ids[:, 2] = ids[:, 1]
    path, model = serving.write(tmp_path, {"id": "r", "routed_experts": serving.nemo(ids)})
    result = run("trace", "import", path, trace, "--model-config", model, "--overwrite")
    assert result.exit_code == 0 and "Fault, layers alike: layers.2, layers.3 hold the same" in result.output
