"""HTTP requests to a server that nobody vouches for: one deadline and one bound for all that it answers.

A socket's timeout is for one read, so a server that sends a byte now and then would be waited for without end. Here
each read has the time that is left to the request, and every byte counts, also in headers. Redirects are not
followed: a request, with its prompts, goes to the address that the user gave.
"""

import contextlib
import http.client
import io
import socket
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from moeprobe.runtime.characters import in_one_line

# Bytes read at once: a body of the length that its header claims would be allocated before it comes.
_PIECE = 2**16
# Bytes of an error that are read, and characters of any text of a server that are shown.
_BEGINNING, _SHOWN = 2000, 200
_FAILURES = (OSError, http.client.HTTPException, ValueError)


class NoAnswerError(Exception):
    """Why no answer came, as a clause."""


class TooLongError(Exception):
    """An answer has more bytes than it may."""


@dataclass(frozen=True)
class HttpAnswer:
    """What came.

    Attributes:
        status: e.g. 200.
        content: the whole body; of an error or a redirect nothing.
        detail: what an error says, or where a redirect leads, in one short line.
    """

    status: int
    content: bytes = b""
    detail: str = ""

    @property
    def is_redirect(self) -> bool:
        """Whether the answer is elsewhere."""
        return 300 <= self.status < 400


def shorten(text: str) -> str:
    """Return a server's text as a sentence may hold it: one line of up to 200 characters, with escapes."""
    return in_one_line(text[:_SHOWN])[:_SHOWN]


def fetch(url: str, body: bytes | None, *, timeout: float, most_bytes: int) -> HttpAnswer:
    """Return what a server answers to GET, or with a body to POST.

    Args:
        url: http or https.
        body: JSON.
        timeout: seconds from connecting to the last byte. A host with several addresses has them for each.
        most_bytes: of the answer, with its headers.

    Raises:
        NoAnswerError: none came, or not in time.
        TooLongError: it has more bytes.
    """
    opener = urllib.request.OpenerDirector()
    limits = _Limits(timeout, most_bytes)
    # Neither what follows redirects nor what raises errors by status; proxies are as in all programs.
    for handler in (urllib.request.ProxyHandler(), urllib.request.UnknownHandler(), _Handler(limits)):
        opener.add_handler(handler)
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with opener.open(request, timeout=timeout) as response:
            if 300 <= response.status < 400:
                return HttpAnswer(response.status, detail=shorten(response.headers.get("Location", "")))
            if response.status >= 400:
                text = _beginning(response).decode("utf-8", errors="replace") or response.reason
                return HttpAnswer(response.status, detail=shorten(text))
            return HttpAnswer(response.status, b"".join(iter(lambda: response.read(_PIECE), b"")))
    except _FAILURES as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, TimeoutError):
            raise NoAnswerError(f"none came within {timeout:g} s") from None
        cause = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise NoAnswerError(shorten(cause)) from None


def _beginning(response: http.client.HTTPResponse) -> bytes:
    """Return what came of an error's body, which may be cut off, or never end."""
    content = b""
    with contextlib.suppress(*_FAILURES, TooLongError):
        while len(content) < _BEGINNING and (piece := response.read1(_BEGINNING)):
            content += piece
    return content


class _Limits:
    """What is left to a request."""

    def __init__(self, timeout: float, most_bytes: int) -> None:
        self._deadline, self._bytes = time.monotonic() + timeout, most_bytes

    def seconds(self) -> float:
        """Return the time that is left; raises ``TimeoutError`` where there is none."""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def count(self, size: int) -> None:
        """Note bytes that came; raises ``TooLongError`` where they are too many."""
        self._bytes -= size
        if self._bytes < 0:
            raise TooLongError


class _Received(io.RawIOBase):
    """What a socket receives, within limits; in place of the socket for ``HTTPResponse``, which only makes a file."""

    def __init__(self, sock: socket.socket, limits: _Limits) -> None:
        self._socket, self._stream, self._limits = sock, sock.makefile("rb", buffering=0), limits

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the file that an answer is read from."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for the next bytes as long as the request may; return how many came."""
        self._socket.settimeout(self._limits.seconds())
        size = self._stream.readinto(buffer) or 0
        self._limits.count(size)
        return size

    def close(self) -> None:
        """Close the file; the socket closes with the last of its files."""
        self._stream.close()
        super().close()


class _Connection(http.client.HTTPConnection):
    limits: _Limits

    def connect(self) -> None:
        """Connect; all later steps, the handshake of TLS first, have the time that is left."""
        super().connect()
        self.sock.settimeout(self.limits.seconds())


# In this order of bases: the handshake follows what ``_Connection.connect`` does.
class _TlsConnection(http.client.HTTPSConnection, _Connection):
    pass


class _Handler(urllib.request.HTTPHandler):
    """Opens http and https within limits."""

    def __init__(self, limits: _Limits) -> None:
        super().__init__()
        self._limits = limits

    https_request = urllib.request.HTTPHandler.http_request

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open an address of http."""
        return self._open(_Connection, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open an address of https."""
        return self._open(_TlsConnection, req)

    def _open(self, kind: type[_Connection], req: urllib.request.Request) -> http.client.HTTPResponse:
        def response(sock: Any, *args: Any, **settings: Any) -> http.client.HTTPResponse:
            received: Any = _Received(sock, self._limits)
            return http.client.HTTPResponse(received, *args, **settings)

        def connection(host: str, **settings: Any) -> _Connection:
            opened: Any = kind(host, **settings)
            opened.limits, opened.response_class = self._limits, response
            return opened

        return self.do_open(connection, req)
