"""A server of raw bytes: it answers GET as vLLM does, and otherwise says what it is told, however wrong."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Speak = Callable[[socket.socket], None]
# Seconds after which what should have been given up ends by itself, so that a test fails and does not hang.
_END = 20.0
_VLLM = {"/version": b'{"version": "0.32.0"}', "/v1/models": b'{"data": [{"id": "small"}]}'}


def reply(body: bytes, *, status: str = "200 OK", headers: str = "", length: int | None = None) -> Speak:
    """An answer; ``length``: what its header says, whatever the body has."""
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {size}\r\n\r\n".encode()
    return lambda connection: connection.sendall(head + body)


def drip(head: bytes, byte: bytes = b" ") -> Speak:
    """A beginning, and then a byte now and then."""

    def speak(connection: socket.socket) -> None:
        connection.sendall(head)
        end = time.monotonic() + _END
        while time.monotonic() < end:
            connection.sendall(byte)
            time.sleep(0.03)

    return speak


def flood(head: bytes, piece: bytes = bytes(2**16), size: int = 2**28) -> Speak:
    """A beginning, and then as many bytes as are taken, up to a size."""

    def speak(connection: socket.socket) -> None:
        connection.sendall(head)
        for _ in range(size // len(piece)):
            connection.sendall(piece)

    return speak


@dataclass
class Rude:
    """What is said, and what was asked for.

    ``get``: says something else than vLLM does at ``/version``. ``post``: answers requests.
    """

    get: Speak | None = None
    post: Speak = field(default_factory=lambda: reply(b"{}"))
    asked: list[str] = field(default_factory=list)
    address: str = ""

    def speak(self, connection: socket.socket) -> None:
        """Read a request and answer it."""
        with connection, suppress(OSError):
            # All of it: what is closed with bytes unread is reset, and its answer lost.
            stream = connection.makefile("rb")
            method, path = stream.readline().decode("latin-1").split(" ")[:2]
            stream.read(int(http.client.parse_headers(stream).get("Content-Length", 0)))
            self.asked.append(f"{method} {path}")
            if method == "POST":
                self.post(connection)
            elif self.get is not None and path == "/version":
                self.get(connection)
            else:
                status = "200 OK" if path in _VLLM else "404 Not Found"
                reply(_VLLM.get(path, b""), status=status)(connection)


@contextmanager
def listening(rude: Rude) -> Iterator[Rude]:
    """The server behind an address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        rude.address = f"http://127.0.0.1:{server.getsockname()[1]}"

        def accept() -> None:
            with suppress(OSError):  # the server is closed
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=rude.speak, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield rude
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
