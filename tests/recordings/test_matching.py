"""Inputs that belong together by their tokens: other names, other orders, copies, a token more or less."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.recordings.matching import match_traces
from moeprobe.recordings.reading import TraceFile
from tests.commands import refused, run
from tests.recordings import serving

LAYERS, EXPERTS, TOP_K, PROMPT = 3, 8, 2, 4
Sequence = tuple[str, list[int], NDArray[np.uint8]]


def sequences(number: int, *, seed: int = 0) -> list[Sequence]:
    """Names, tokens and experts ``(T, L, K)`` of some requests of 6 to 12 tokens."""
    random = np.random.default_rng(seed)
    lengths = random.integers(6, 13, number)
    return [
        (
            f"r{index}",
            random.integers(0, 500, length).tolist(),
            np.argsort(random.random((length, LAYERS, EXPERTS)))[..., :TOP_K].astype("uint8"),
        )
        for index, length in enumerate(lengths)
    ]


def imported(path: Path, recorded: list[Sequence], *, ids: bool = True) -> Path:
    """A trace as a server writes it: nothing routes the last token."""
    config = {"num_hidden_layers": LAYERS, "num_experts": EXPERTS, "num_experts_per_tok": TOP_K}
    (path.parent / "config.json").write_text(json.dumps(config))
    lines = []
    for name, tokens, experts in recorded:
        line: dict[str, Any] = {
            "id": name, "usage": serving.usage(PROMPT, len(tokens) - PROMPT),
            "choices": [{"index": 0, "routed_experts": serving.npy(experts[:-1])}],
        }  # fmt: skip
        if ids:
            line |= {"prompt_token_ids": tokens[:PROMPT]}
            line["choices"][0]["token_ids"] = tokens[PROMPT:]
        lines.append(json.dumps(line))
    responses = path.with_suffix(".jsonl")
    responses.write_text("\n".join(lines) + "\n")
    api.import_routed_experts(responses, path, model_config=path.parent / "config.json")
    return path


def renamed(recorded: list[Sequence]) -> list[Sequence]:
    """The same in another order, by other names."""
    return [(f"cmpl-{len(tokens)}-{name}", tokens, experts) for name, tokens, experts in reversed(recorded)]


def test_other_names_and_another_order_give_the_same_numbers(tmp_path: Path) -> None:
    first, other = sequences(24), sequences(24)
    for _, _, experts in other[::3]:
        experts[2, 1] = [0, 1]
    paths = [imported(tmp_path / f"{name}.parquet", rows) for name, rows in (("a", first), ("b", other))]
    called = imported(tmp_path / "c.parquet", renamed(other))
    by_name = api.analyze_trace(paths).table
    with pytest.raises(UserError, match=r"have no input in common.*match them by their tokens"):
        api.analyze_trace([paths[0], called])
    by_tokens = api.analyze_trace([paths[0], called], match="tokens")
    columns = ["metric", "layer", "value", "ci_low", "ci_high", "images", "trials"]
    assert by_tokens.table[columns].equals(by_name[columns])
    assert by_tokens.sidecar["request"]["match"] == "tokens" and "whose tokens" not in str(
        by_tokens.sidecar.notes
    )
    result = run("trace", "check", called, "--against", paths[0], "--match", "tokens")
    assert result.exit_code == 0 and "in the first 16 of 24 common inputs, enough to see a shift" in " ".join(
        result.output.split()
    )


@pytest.mark.parametrize(
    "command", ["trace analyze", "trace align", "trace drift", "trace check --against", "audit"]
)
def test_what_an_error_recommends_mends_it(command: str, tmp_path: Path) -> None:
    """A command whose inputs have other names recommends an option that it has."""
    rows = sequences(21, seed=2)
    first = imported(tmp_path / "first.parquet", rows)
    other = imported(tmp_path / "other.parquet", renamed(rows))
    words, *flag = command.split(" --")
    files = [first, *[f"--{name}" for name in flag], other]
    said = refused(*words.split(), *files)
    [recommended] = re.findall(r"--match \w+", said)
    result = run(*words.split(), *files, *recommended.split())
    assert result.exit_code == 0, result.output


def test_an_audit_says_how_to_match_as_it_did(tmp_path: Path) -> None:
    rows = sequences(23, seed=4)
    first = imported(tmp_path / "first.parquet", rows)
    other = imported(tmp_path / "other.parquet", renamed(rows))
    audited = api.audit([first, other], match="tokens")
    assert audited.sidecar["request"]["match"] == "tokens"
    commands = audited.verdicts.set_index("property")["command"]
    assert commands["recorded"] == f"moeprobe trace check {other} --against {first} --match tokens"
    assert "--match is names or tokens" in refused("audit", first, other, "--match", "prompt")


def test_a_token_more_on_either_side(tmp_path: Path) -> None:
    """What a server does not route, a model does."""
    whole = sequences(3)
    shorter = [(f"s-{name}", tokens[:-1], experts[:-1]) for name, tokens, experts in whole]
    longer, cut = (
        imported(tmp_path / name, rows) for name, rows in (("a.parquet", whole), ("b.parquet", shorter))
    )
    for first, second in ((longer, cut), (cut, longer)):
        (one, other), notes = match_traces([TraceFile(first), TraceFile(second)], "tokens")
        assert other.ids == one.ids and notes == []
        assert [
            abs(count)
            for count in one.num_tokens("layers.0", one.ids) - other.num_tokens("layers.0", one.ids)
        ] == [1] * 3


def test_copies_are_paired_in_order_and_are_one_sample(tmp_path: Path) -> None:
    first = sequences(22)
    copies = [(f"copy-{name}", tokens, experts) for name, tokens, experts in first[:2]]
    one = imported(tmp_path / "a.parquet", [*first, *copies])
    other = imported(tmp_path / "b.parquet", renamed([*first, *copies, *sequences(1, seed=9)]))
    (_, matched), notes = match_traces([TraceFile(one), TraceFile(other)], "tokens")
    assert set(matched.ids) == {name for name, *_ in [*first, *copies]}
    # In reverse order in the other file, so that its copy comes first.
    assert matched.num_tokens("layers.0", ["r0", "copy-r0"]).tolist() == [len(first[0][1]) - 1] * 2
    assert matched.about["clusters"] == {"copy-r0": "r0", "copy-r1": "r1"}
    assert notes == [
        "1 of the 25 inputs of b.parquet, whose tokens no other side has",
        "which is which of 4 inputs of b.parquet with the tokens of another one: they are paired in the order of the "
        "files, and count as 2 samples",
    ]
    table = api.analyze_trace([one, other], match="tokens").table
    [row] = table.query("metric == 'pairs_differ' and tokens == 'token'").to_dict("records")
    assert row["images"] == 22 and row["value"] == 0


def test_what_cannot_be_matched_by_tokens(tmp_path: Path) -> None:
    rows = sequences(3)
    known = imported(tmp_path / "known.parquet", rows)
    nameless = imported(tmp_path / "nameless.parquet", rows, ids=False)
    others = imported(tmp_path / "others.parquet", sequences(3, seed=5))
    said = refused("trace", "analyze", known, nameless, "--match", "tokens")
    assert "holds no token ids, by which inputs could be matched" in said and "--match names" in said
    assert "has the same tokens as one of the 3" in refused(
        "trace", "analyze", known, others, "--match", "tokens"
    )
    assert "--match is names or tokens; got 'ids'." in refused("trace", "check", known, "--match", "ids")
