"""Texts in a file: names, labels, blank lines, and what is wrong with a file in one sentence."""

import json
import pickle
from pathlib import Path

import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.data.text import Text
from moeprobe.inputs.modality import TEXT


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("  one\n\n \t\ntwo words\r\nŁódź\n", encoding="utf-8")
    data = Text(split="test", location=str(path))
    assert data.modality is TEXT and data.class_names is None and len(data) == 3
    assert list(data.image_ids) == ["lines/0", "lines/3", "lines/4"]
    assert [data.example(index).text for index in range(3)] == ["one", "two words", "Łódź"]
    assert data.labels().tolist() == [-1, -1, -1]
    copy = pickle.loads(pickle.dumps(data))
    assert copy.example(2) == data.example(2)


def test_objects_with_names_and_labels(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        {"text": "good", "id": "a", "label": "praise"},
        {"text": "bad", "id": 7, "label": "blame", "more": [1]},
        {"text": "fine\nthough", "label": "praise", "id": None},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    data = Text(split="val", location=str(path))
    assert list(data.image_ids) == ["a", "7", "rows/2"]
    assert data.class_names == ("blame", "praise") and data.labels().tolist() == [1, 0, 1]
    assert data.example(2).text == "fine\nthough" and data.example(1).label == 0


@pytest.mark.parametrize(("name", "line"), [("a.txt", "one"), ("a.jsonl", '{"text": "one"}')])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / name).write_text(line, encoding="utf-8-sig")
    assert Text(split="test", location=str(tmp_path / name)).example(0).text == "one"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b" \n\n", "holds no text"),
        ("a.txt", b"\xff\xfe", "not written in UTF-8"),
        ("a.csv", b"x", "a .txt .* or a .jsonl"),
        ("a.jsonl", b'{"text": "x"}\n{"text"\n', "Line 2 of .* is not JSON"),
        ("a.jsonl", b'["x"]', 'no object with a string "text"'),
        ("a.jsonl", b'{"text": 3}', 'no object with a string "text"'),
        ("a.jsonl", b'{"text": "x", "label": 0.5}', '"label" in line 1'),
        ("a.jsonl", b'{"text": "x\\ud800"}', '"text" in line 1 .* half a character'),
        ("a.jsonl", b'{"text": "x", "id": "\\udfff"}', '"id" in line 1 .* half a character'),
        ("a.jsonl", b'{"text": "x", "id": true}', '"id" in line 1'),
        ("a.jsonl", b'{"text": "x", "id": 1}\n{"text": "y", "id": "1"}', "have one id"),
        ("a.jsonl", b'{"text": "x", "label": 1}\n{"text": "y"}', "some have none"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=reason):
        Text(split="test", location=str(tmp_path / name))


def test_no_file_or_split(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a file"):
        Text(split="test")
    with pytest.raises(UserError, match="no file of texts"):
        Text(split="test", location=str(tmp_path / "none.txt"))
    with pytest.raises(UserError, match="no split 'holdout'"):
        Text(split="holdout", location=str(tmp_path / "none.txt"))
