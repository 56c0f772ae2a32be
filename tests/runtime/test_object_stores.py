"""Traces in an object store: a small server speaks S3's protocol, and Arrow's own client reads from it."""

import threading
from collections.abc import Iterator
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from moeprobe.errors import UserError
from moeprobe.recordings.reading import TraceFile
from moeprobe.recordings.trace_paths import find_parts, is_trace_path
from moeprobe.runtime import object_stores
from moeprobe.runtime.object_stores import address_of, copies_of
from moeprobe.runtime.progress import Progress
from tests.commands import refused, run

SETS = Path(__file__).parents[1] / "recordings/version_1/sets.parquet"


class Bucket(ThreadingHTTPServer):
    """The bucket ``routing``: objects by name, how often bytes of each were sent, and how often it said what it has."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.objects: dict[str, bytes] = {}
        self.changed: dict[str, int] = {}
        self.reads: list[str] = []
        self.lookups = 0
        self.shortened = False

    def put(self, name: str, content: bytes, *, time: int = 1_700_000_000) -> None:
        self.objects[name], self.changed[name] = content, time

    def address(self, name: str) -> str:
        return (
            f"s3://routing/{name}?endpoint_override=127.0.0.1:{self.server_port}&scheme=http&region=us-east-1"
        )


class _Requests(BaseHTTPRequestHandler):
    server: Bucket
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        name = self._name()
        self.server.lookups += 1
        if name in self.server.objects:
            self._send(200, b"", of=name, length=len(self.server.objects[name]))
        else:
            self._send(200 if not name else 404, b"")

    def do_GET(self) -> None:
        name, query = self._name(), parse_qs(urlsplit(self.path).query)
        if not name:
            self.server.lookups += 1
            self._send(200, self._listing(query))
            return
        content = self.server.objects[name]
        start, _, end = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = content[int(start) : int(end) + 1]
        self.server.reads.append(name)
        self.close_connection = self.server.shortened
        self._send(206, part[:100] if self.server.shortened else part, of=name, length=len(part))

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/routing").lstrip("/")

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(content)}</Size>"
            "<LastModified>2023-11-14T22:13:20.000Z</LastModified></Contents>"
            for name, content in sorted(self.server.objects.items())
            if name.startswith(prefix) and not (delimiter and delimiter in name[len(prefix) :])
        )
        count = entries.count("<Key>")
        return (
            f"<ListBucketResult><Name>routing</Name><KeyCount>{count}</KeyCount><IsTruncated>false</IsTruncated>"
            f"{entries}</ListBucketResult>"
        ).encode()

    def _send(self, status: int, content: bytes, *, of: str = "", length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        if of:
            self.send_header("Last-Modified", formatdate(self.server.changed[of], usegmt=True))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("XDG_CACHE_HOME", str(tmp_path / "cache")),
    ):
        monkeypatch.setenv(name, value)
    with Bucket() as server:
        threading.Thread(target=partial(server.serve_forever, 0.01), daemon=True).start()
        yield server
        server.shutdown()


def test_an_object_is_copied_once_and_again_when_it_has_changed(bucket: Bucket) -> None:
    content = SETS.read_bytes()
    bucket.put("served.parquet", content)
    address = bucket.address("served.parquet")

    class Megabytes(Progress):
        def __init__(self) -> None:
            self.total = self.done = 0

        def start(self, description: str, total: int) -> None:
            self.total += total

        def advance(self, count: int) -> None:
            self.done += count

    watcher = Megabytes()
    (copy,) = copies_of(address, suffix=".parquet", watcher=watcher)
    assert copy.read_bytes() == content
    assert watcher.total == watcher.done > 0
    reads = len(bucket.reads)
    assert reads
    assert find_parts(Path(address)) == [copy]
    assert len(bucket.reads) == reads
    # Of the same size: only its time tells.
    bucket.put("served.parquet", content[::-1], time=1_700_000_100)
    assert [part.read_bytes() for part in find_parts(Path(address))] == [content[::-1]]


def test_a_damaged_copy_is_made_again(bucket: Bucket) -> None:
    bucket.put("served.parquet", SETS.read_bytes())
    (copy,) = find_parts(Path(bucket.address("served.parquet")))
    copy.write_bytes(b"PAR1")
    assert find_parts(Path(bucket.address("served.parquet")))[0].read_bytes() == SETS.read_bytes()


def test_folders_and_patterns_are_their_parts_in_order(bucket: Bucket) -> None:
    for name in (
        "day/b.parquet",
        "day/a.parquet",
        "day/_notes.parquet",
        "day/log.txt",
        "other/deep/c.parquet",
    ):
        bucket.put(name, SETS.read_bytes())

    def names(address: str) -> list[str]:
        return [part.name for part in find_parts(Path(bucket.address(address)))]

    assert names("day") == ["a.parquet", "b.parquet"]
    assert names("*/*.parquet") == ["a.parquet", "b.parquet"]
    assert names("day/?.parquet") == ["a.parquet", "b.parquet"]
    assert names("**/*.parquet") == ["a.parquet", "b.parquet", "c.parquet"]
    assert names("other/*/[c-d].parquet") == ["c.parquet"]


def test_a_trace_in_a_store_reads_as_the_local_file(bucket: Bucket) -> None:
    bucket.put("served.parquet", SETS.read_bytes())
    remote, local = TraceFile(Path(bucket.address("served.parquet"))), TraceFile(SETS)
    assert remote.ids == local.ids
    assert remote.parts.sha256() == local.parts.sha256()
    address = bucket.address("served.parquet")
    printed = [run("trace", "check", path).stdout for path in (address, str(SETS))]
    assert "2 inputs" in printed[0]
    assert printed[0].replace(f"'{address}'", str(SETS)) == printed[1]


def test_a_command_lists_an_address_once_and_the_next_one_anew(bucket: Bucket) -> None:
    bucket.put("day/a.parquet", SETS.read_bytes())
    address = bucket.address("day")
    find_parts(Path(address))
    bucket.lookups = 0
    assert len(find_parts(Path(address))) == 1  # the copy is there
    of_one, bucket.lookups = bucket.lookups, 0
    # Arguments are checked first, and the trace is opened then.
    covered = run("trace", "coverage", address, "--need", 1)
    assert covered.exit_code == 0, covered.output
    assert bucket.lookups == of_one
    bucket.put("day/b.parquet", b"PAR1")
    assert "b.parquet cannot be read" in refused("trace", "coverage", address)


def test_what_cannot_be_read_is_said_in_a_sentence(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("day/log.txt", b"text")
    for name, words in (
        ("none.parquet", "s3://routing/none.parquet: there is no such object"),
        ("day", "s3://routing/day: the folder has no .parquet files"),
        ("day/*.parquet", "s3://routing/day/*.parquet: no object matches the pattern"),
    ):
        assert words in refused("trace", "check", bucket.address(name))
    bucket.put("served.parquet", SETS.read_bytes())
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=7))
    with pytest.raises(UserError, match=r"has 4,\d+ bytes, and .* has room for 7; let XDG_CACHE_HOME"):
        find_parts(Path(bucket.address("served.parquet")))


@pytest.mark.slow  # Arrow's client asks again for seconds
def test_less_than_the_whole_object_is_no_copy(bucket: Bucket) -> None:
    bucket.put("served.parquet", SETS.read_bytes())
    bucket.shortened = True
    with pytest.raises(UserError, match=r"Cannot read s3://routing/served\.parquet"):
        find_parts(Path(bucket.address("served.parquet")))
    bucket.shortened = False
    assert find_parts(Path(bucket.address("served.parquet")))[0].read_bytes() == SETS.read_bytes()


def test_other_stores_are_read_through_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fsspec.filesystem("memory").pipe("/traces/served.parquet", SETS.read_bytes())
    first, again = (find_parts(Path("fsspec+memory://traces/served.parquet")) for _ in range(2))
    assert first == again
    assert first[0].read_bytes() == SETS.read_bytes()


def test_addresses_are_shown_without_settings_and_take_no_keys() -> None:
    assert address_of(Path("s3://bucket/a.parquet?region=eu-west-1")) == "s3://bucket/a.parquet"
    assert is_trace_path("s3://bucket/traces")
    assert not is_trace_path("hf:/models/olmoe")
    for address in ("s3://key:se/cret@bucket/a.parquet", "s3://bucket/a.parquet?secret_key=abc"):
        with pytest.raises(UserError, match="takes no keys") as refusal:
            copies_of(Path(address), suffix=".parquet")
        assert "cret@" not in str(refusal.value)
        assert "abc" not in str(refusal.value)


def test_copies_of_two_hosts_are_two_and_settings_are_told_from_patterns() -> None:
    """In HDFS and Azure the name of an object lacks its host."""
    homes = {object_stores._home(f"hdfs://{host}/a.parquet", "/a.parquet") for host in ("first", "second")}
    assert len(homes) == 2
    address = Path("s3://b/run-?/day=5/x.parquet?endpoint_override=http://host:9")
    assert object_stores._split(address) == (
        "s3", "b/run-?/day=5/x.parquet", "endpoint_override=http://host:9"
    )  # fmt: skip
    assert object_stores.spell(address) == "s3://b/run-?/day=5/x.parquet?endpoint_override=http://host:9"


def test_nothing_is_written_into_a_store(tmp_path: Path) -> None:
    sentence = "s3://bucket/x: name a local path"
    assert sentence in refused("trace", "balance", str(SETS), "--out", "s3://bucket/x")
    log = tmp_path / "log.jsonl"
    log.write_text("{}\n")
    assert "name a local path" in refused("trace", "import", str(log), "s3://bucket/x.parquet")
