"""Long base64 in lines of JSON: what is cut out and decoded in parts is what a parser would have read."""

import base64
import io
import json

import numpy as np
import pytest

from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.long_text import LONG, LongArray, LongText, parse_without, read_line

CONTENT = np.random.default_rng(0).integers(0, 256, 3 * LONG // 4 + 7, dtype=np.uint8).tobytes()
TEXT = base64.b64encode(CONTENT).decode()


def long_text(text: str = TEXT) -> LongText:
    return LongText(memoryview(text.encode()), "it")


@pytest.mark.parametrize("parts", [(0, 5), (1, 2), (1000, 3001), (len(CONTENT) - 4, len(CONTENT)), (7, 7)])
def test_a_part_is_that_of_the_whole(parts: tuple[int, int]) -> None:
    assert long_text().size == len(CONTENT)
    assert long_text().part(*parts) == CONTENT[slice(*parts)]


def test_rows_are_those_of_the_array() -> None:
    array = np.arange(3 * 7 * 11, dtype="<i4").reshape(7, 3, 11)
    text = long_text(base64.b64encode(b"header" + array.tobytes()).decode())
    lazy = LongArray(text, 6, array.dtype, array.shape)
    assert len(lazy) == 7
    for rows in (slice(0, 7), slice(2, 3), slice(5, 20), slice(3, 3)):
        np.testing.assert_array_equal(lazy[rows], array[rows])


def test_only_long_texts_under_a_key_are_cut() -> None:
    response = {
        "a": {"key": TEXT, "more": "cut 0"},
        "key": "short",
        "text": f'"key": "{TEXT}"',
        "other": TEXT,
        "list": [{"key": TEXT}, {"key": None}],
    }
    line = json.dumps(response).encode()
    parsed = parse_without(line, ["key"])
    for holder in (parsed["a"], parsed["list"][0]):
        found = holder.pop("key")
        assert isinstance(found, LongText) and found.part(0, found.size) == CONTENT
    for holder in (response["a"], response["list"][0]):  # type: ignore[index]
        del holder["key"]  # type: ignore[union-attr]
    assert parsed == response
    assert parse_without(line, []) == json.loads(line)


def test_what_is_escaped_is_left_to_the_parser() -> None:
    line = json.dumps({"key": TEXT}).replace("/", "\\/").encode()
    assert parse_without(line, ["key"]) == {"key": TEXT}


@pytest.mark.parametrize("broken", [TEXT[:-1], f"{TEXT[:99]}!{TEXT[100:]}", f"{TEXT[:100]}===={TEXT[104:]}"])
def test_what_is_not_base64_is_a_fault(broken: str) -> None:
    with pytest.raises(Fault, match="it is not base64"):
        long_text(broken).part(0, len(CONTENT))


def test_a_truncated_line_is_no_json() -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_without(f'{{"key": "{TEXT}'.encode(), ["key"])


@pytest.mark.parametrize("limit", [5, 2**20, 2**20 + 3, 2**22])
def test_lines_are_those_of_readline(limit: int) -> None:
    content = b"a\n" + bytes(2**21) + b"\nend"
    ours, theirs = io.BytesIO(content), io.BytesIO(content)
    for _ in range(4):
        assert read_line(ours, limit) == theirs.readline(limit)
