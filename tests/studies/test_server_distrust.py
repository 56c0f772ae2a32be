"""A server that drips, floods, lies or leads elsewhere: one sentence, soon, in little memory."""

import base64
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moeprobe import api
from moeprobe.errors import UserError
from tests.commands import refused
from tests.studies.rude_server import Rude, Speak, drip, flood, listening, reply
from tests.studies.server_stub import Answer, Stub, running

pytest.importorskip("transformers")


# Real processes and servers, which take their time.
pytestmark = [pytest.mark.slow, pytest.mark.promise, pytest.mark.usefixtures("impatient")]

_HEAD = b"HTTP/1.1 200 OK\r\n"
_DEEP = b"[" * 100_000 + b"]" * 100_000
_SLOW = "none came within 0.3 s"


@pytest.fixture
def little_memory(model: Path) -> Iterator[None]:
    # What loads a model the first time is not meant.
    api.load_model(f"hf:{model}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def ended(rude: Rude, model: Path, out: Path) -> str:
    """The sentence that a check of a server ends in."""
    with listening(rude):
        line = ("server", rude.address, "--model", model, "--requests", 2, "--max-tokens", 4, "--out", out)
        return refused(*line, "--timeout", 0.3)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("get", "words"),
    [
        (drip(_HEAD + b"X-A: "), _SLOW),
        (drip(_HEAD + b"Content-Length: 1000\r\n\r\n"), _SLOW),
        (drip(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"), _SLOW),
        (drip(b"", b""), _SLOW),
        (flood(_HEAD + b"\r\n"), "more than 1,048,576 bytes"),
        (flood(_HEAD + b"Content-Length: 200000000\r\n\r\n"), "more than 1,048,576 bytes"),
        (flood(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n"), "more than 1,048,576 bytes"),
        (flood(_HEAD + b"X-A: "), "No server answers at"),
        (flood(_HEAD, b"X-A: 1\r\n" * 2**10), "No server answers at"),
        (flood(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 2**10), "more than 1,048,576"),
        (reply(_DEEP), "JSON that is nested too deeply"),
        (reply(b'{"version": ' + b"9" * 100_000 + b"}"), "is neither vLLM"),
        (lambda connection: None, "No server answers at"),
        (lambda connection: connection.sendall(b"\x00\xff" * 100), "No server answers at"),
    ],
    ids=["headers drip", "body drips", "chunks drip", "silent", "endless", "200 MB", "negative chunk",
         "endless header", "many headers", "endless continue", "deep", "long number", "closes", "no HTTP"],
)  # fmt: skip
def test_what_a_server_says_about_itself(get: Speak, words: str, model: Path, tmp_path: Path) -> None:
    rude = Rude(get)
    said = ended(rude, model, tmp_path / "out")
    assert words in said and f"{rude.address}" in said and len(said) < 500
    assert "neither" in words or f"{rude.address}/version" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("post", "words"),
    [
        (drip(_HEAD + b"X-A: "), _SLOW),
        (drip(_HEAD + b"Content-Length: 1000\r\n\r\n"), _SLOW),
        (flood(_HEAD + b"\r\n"), "more than 1,"),
        (flood(_HEAD + b"Content-Length: 200000000\r\n\r\n"), "more than 1,"),
        (reply(_DEEP), "its JSON is nested too deeply"),
        # Deep enough for one of the steps after the reading, on some version of Python.
        (reply(b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}"), ""),
        (reply(b"cut", status="400 Bad Request", length=100), "refuses request r0 (HTTP 400: cut)"),
        (drip(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 9\r\n\r\nhangs", b""), "(HTTP 400: hangs)"),
        (drip(b"HTTP/1.1 503 Busy\r\n\r\nslow"), "in 3 tries (HTTP 503: slow"),
        (reply(b"", status=f"400 {'A' * 9000}"), "refuses request r0"),
        (reply(b"\x1b[2J\xff", status="400 Bad"), r"refuses request r0 (HTTP 400: \x1b[2J"),
    ],
    ids=["headers drip", "body drips", "endless", "200 MB", "deep", "less deep", "error cut", "error hangs",
         "error drips", "long reason", "error steers"],
)  # fmt: skip
def test_what_a_server_answers_to_a_request(post: Speak, words: str, model: Path, tmp_path: Path) -> None:
    said = ended(Rude(post=post), model, tmp_path / "out")
    assert words in said and "\x1b" not in said and len(said) < 600
    assert not words or "request r" in said


def test_nothing_is_sent_where_a_server_leads(model: Path, tmp_path: Path) -> None:
    with listening(Rude()) as other:
        for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"):
            away = reply(b"", status=status, headers=f"Location: {other.address}/version\r\n")
            said = ended(Rude(get=away), model, tmp_path / "out")
            assert f"/version redirects to '{other.address}/version', which is not followed" in said
            said = ended(Rude(post=away), model, tmp_path / "out")
            assert "asked for request r" in said and f"redirects to '{other.address}" in said
    assert not other.asked
    hostile = reply(b"", status="302 Found", headers="Location: http://[\x1b[2J" + "a" * 9000 + "\r\n")
    said = ended(Rude(get=hostile), model, tmp_path / "out")
    assert "redirects" in said and "\x1b" not in said and len(said) < 600


def check(stub: Stub, out: Path) -> api.ServerResult:
    with running(stub):
        settings: dict[str, Any] = {"requests": 2, "batches": (1,), "max_tokens": 4, "figures": False}
        return api.check_server(stub.address, model=str(stub.folder), out=out, **settings)


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("number", "words"),
    [(5, "answers request r0 with 5 generated tokens, and 4 were asked for"), (10**6, "more than 1,")],
)
def test_more_tokens_than_asked_for(
    number: int, words: str, dialect: str, model: Path, tmp_path: Path
) -> None:
    def spoil(stub: Stub, answer: Answer) -> Answer:
        part = answer["choices"][0] if dialect == "vllm" else answer
        part["token_ids" if dialect == "vllm" else "output_ids"] = [7] * number
        return answer

    with pytest.raises(UserError, match=words):
        check(Stub(model, dialect, spoil=spoil), tmp_path / "out")


def test_token_ids_that_are_none_are_named_with_their_request(model: Path, tmp_path: Path) -> None:
    def spoil(stub: Stub, answer: Answer) -> Answer:
        answer["choices"][0]["token_ids"] = [10**400]
        return answer

    with pytest.raises(
        UserError, match="answers request r0 with a fault: token_ids takes a list of token ids"
    ):
        check(Stub(model, spoil=spoil), tmp_path / "out")


def test_an_array_whose_header_numpy_cannot_split(model: Path, tmp_path: Path) -> None:
    def spoil(stub: Stub, answer: Answer) -> Answer:
        header = b"\x93NUMPY\x01\x00\x76\x00" + b"(".ljust(117) + b"\n"
        answer["choices"][0]["routed_experts"] = base64.b64encode(header).decode()
        return answer

    with pytest.raises(UserError, match=r"routed_experts is not base64 of an \.npy file"):
        check(Stub(model, spoil=spoil), tmp_path / "out")


HOSTILE = (
    "1 <script>alert(1)</script> [here](http://evil) **b**\n# heading\n\x1b[2J\x07\u202e " + "9" * 500_000
)


@pytest.fixture(scope="module")
def hostile(model: Path, tmp_path_factory: pytest.TempPathFactory) -> api.ServerResult:
    """The check of a server whose answers are right, and what stands beside them is not."""

    def spoil(stub: Stub, answer: Answer) -> Answer:
        answer["choices"][0]["logprobs"]["token_logprobs"][0] = -(10**400)
        return answer | {"metrics": "x" * 2**20}

    return check(Stub(model, spoil=spoil, version=HOSTILE), tmp_path_factory.mktemp("hostile") / "out")


def test_an_answer_that_is_large_for_its_tokens_is_taken(hostile: api.ServerResult) -> None:
    lines = (hostile.folder / "responses/alone.jsonl").read_text().splitlines()
    assert [len(line) > 2**20 for line in lines] == [True, True]


def test_a_log_probability_that_no_float_holds_is_left_out(hostile: api.ServerResult) -> None:
    [left_out] = hostile.left_out
    assert "was not measured" in left_out and "log-probabilities are a list of numbers up to 0" in left_out


def test_a_version_that_would_be_a_program_is_text_everywhere(hostile: api.ServerResult) -> None:
    assert len(hostile.server) < 250
    markdown, page, *sidecars = [
        (hostile.folder / name).read_text() for name in ("tables.md", "server.html", "run.json", "table.json")
    ]
    for text in (hostile.server, repr(hostile), markdown, page, *sidecars):
        assert not any(mark in text for mark in "\x1b\x07\u202e")
        assert "9" * 300 not in text and "\n# heading" not in text
    assert markdown.startswith("# vLLM 1 &lt;script&gt;") and "<script" not in markdown + page
    assert r"\](http" in markdown and r"\*\*b\*\*" in markdown


@pytest.mark.parametrize(
    "address",
    ["http://[", "http://", "http://a:b", "http://a:99999", "http://:80", "http://u:p@h", "http://a b", "http://h/#x",
     "file:///etc/passwd", "http://" + "a" * 70 + ".b", "http://h\x1b", "http://" + "x" * 10_000],
)  # fmt: skip
def test_what_is_no_address(address: str, model: Path, tmp_path: Path) -> None:
    said = refused("server", address, "--model", model, "--out", tmp_path / "out")
    assert "address is like http://127.0.0.1:8000" in said and len(said) < 400


@pytest.mark.parametrize("timeout", ["inf", "1e10", "nan", "0"])
def test_no_deadline_that_a_clock_cannot_hold(timeout: str, model: Path, tmp_path: Path) -> None:
    said = refused("server", "http://127.0.0.1:1", "--model", model, "--timeout", timeout, "--out", tmp_path)
    assert "--timeout takes a number from 0.1 to 86,400" in said
