"""A language model's trace of texts: one input per text, with its tokens, whatever stood beside it in a batch."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from tests.commands import refused, run

pytest.importorskip("transformers")

from tests.adapters.tiny_texts import olmoe, texts, tokenizer
from tests.recordings.test_sequences import plain

LINES = texts(24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    olmoe(folder / "one")
    rows = [json.dumps({"id": f"t{number}", "text": text}) for number, text in enumerate(LINES)]
    (folder / "lines.jsonl").write_text("\n".join(rows))
    return folder


def record(folder: Path, out: Path, *more: object) -> Path:
    result = run(
        "trace", "record", f"hf:{folder}/one", "--data", f"text:{folder}/lines.jsonl", "--out", out, *more
    )
    assert result.exit_code == 0, result.output
    return out / "one"


@pytest.mark.slow
@pytest.mark.promise
def test_rows_are_those_of_each_text_alone(folder: Path, tmp_path: Path) -> None:
    written = [record(folder, tmp_path / str(size), "--batch-size", size) for size in (1, 7)]
    tables = [
        pd.read_parquet(one / "clean.parquet").sort_values(["id", "layer"], ignore_index=True)
        for one in written
    ]
    pd.testing.assert_frame_equal(
        *(table.drop(columns=["gates", "highest", "second", "rest"]) for table in tables)
    )
    table = tables[1]
    assert len(table) == 2 * len(LINES) and set(table["id"]) == {f"t{number}" for number in range(24)}
    tokens = tokenizer()
    for text, (name, rows) in zip(
        LINES, ((f"t{n}", table[table["id"] == f"t{n}"]) for n in range(24)), strict=True
    ):
        ids = tokens(text)["input_ids"]
        expected = plain(folder / "one", ids)
        for layer, row in enumerate(rows.to_dict("records")):
            assert row["token_ids"].tolist() == ids, name
            assert row["generated"] is None and row["num_prefix_tokens"] == 1
            assert row["num_tokens"] == len(ids) and row["valid"].all()
            assert np.array_equal(row["experts"].reshape(-1, 2), expected[:, layer])


@pytest.mark.slow
@pytest.mark.promise
def test_traces_of_texts_are_compared_and_give_the_numbers_of_the_probe(folder: Path, tmp_path: Path) -> None:
    place = record(folder, tmp_path / "t", "--view", "embedding_noise", "--severities", "0.4")
    files = [place / "clean.parquet", place / "embedding_noise-0.4.parquet"]
    compared = api.analyze_trace(files).table
    swept = api.sweep(
        f"hf:{folder}/one", data=f"text:{folder}/lines.jsonl", view="embedding_noise", severities=[0.4]
    ).table
    chosen = ["layer", "metric", "tokens", "value", "ci_low", "ci_high", "trials"]
    for metric in ("top1_match", "set_jaccard", "set_jaccard_kappa"):
        one, other = (
            table[
                (table["metric"] == metric)
                & (table["severity"] == 0.4)
                & (table["null"].fillna("") != "token")
            ][chosen]
            for table in (compared, swept)
        )
        one = one[one["tokens"].isin(other["tokens"])]
        assert len(one) and one["value"].tolist() == pytest.approx(other["value"].tolist(), nan_ok=True), (
            metric
        )
        assert one["trials"].tolist() == other["trials"].tolist()
    assert run("trace", "analyze", *files).exit_code == 0


def test_screen_and_refusals(folder: Path, tmp_path: Path) -> None:
    command = ("trace", "record", f"hf:{folder}/one", "--out", tmp_path / "t", "--data")
    said = run(*command, f"text:{folder}/lines.jsonl", "--limit", 5)
    assert f"5 texts of text:{folder}/lines.jsonl" in " ".join(said.output.split()).replace("- ", "-")
    moved = refused(*command, f"text:{folder}/lines.jsonl", "--view", "typos", "--out", tmp_path / "u")
    assert "typos moves the tokens of a text" in moved and "--view embedding_noise" in moved
    assert "reads texts and no images; name texts" in refused(*command, "digits", "--out", tmp_path / "u")
    assert not (tmp_path / "u").exists() or not any((tmp_path / "u").rglob("*.parquet"))
