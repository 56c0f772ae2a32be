"""HTTP to an inference server: JSON in, JSON out, again where an answer failed to come."""

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from moeprobe.errors import UserError, option

# Seconds before the second try; each later pause is twice as long.
PAUSE = 0.5
# Bytes of an answer: as of a response in a file.
_LARGEST = 2**29
# What a server says while it is busy or starting, and a proxy while it cannot reach one.
_BUSY = (429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Client:
    """The address of a server, and how patient to be.

    Attributes:
        address: e.g. ``http://127.0.0.1:8000``.
        timeout: seconds to wait for an answer.
        tries: how often a request is sent before the run ends.

    Raises:
        UserError: the address is none of HTTP.
    """

    address: str
    timeout: float = 120.0
    tries: int = 3

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UserError(f"A server's address is like http://127.0.0.1:8000; got {self.address!r}.")

    def probe(self, path: str) -> Any:
        """Return what a path answers; None where the server has no such path, or no JSON there.

        Raises:
            UserError: no server answers.
        """
        try:
            return self._send(path, None)
        except urllib.error.HTTPError as error:
            error.close()
            return None
        except ValueError:
            return None
        except (OSError, http.client.HTTPException) as error:
            raise UserError(
                f"No server answers at {self.address} ({_reason(error)}); start it, or give another address."
            ) from None

    def post(self, path: str, body: dict[str, Any] | None, *, what: str) -> dict[str, Any]:
        """Return the answer to a request, sent again where none came.

        Args:
            path: of the address.
            body: sent as JSON; None = nothing is sent.
            what: names the request in errors.

        Raises:
            UserError: the server refuses it, does not answer, or answers with something else than an object.
        """
        problem = ""
        for number in range(self.tries):
            if number:
                time.sleep(PAUSE * 2 ** (number - 1))
            try:
                answer = self._send(path, body)
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}: {_detail(error)}"
                if error.code not in _BUSY:
                    raise UserError(f"The server refuses {what} ({problem}).") from None
            except ValueError:
                problem = "it is no JSON, or was cut off"
            except TimeoutError:
                problem = f"none came within {self.timeout:g} s"
            except (OSError, http.client.HTTPException) as error:
                problem = _reason(error)
            else:
                if isinstance(answer, dict):
                    return answer
                raise UserError(f"The server answers {what} with something else than a JSON object.")
        raise UserError(
            f"The server gave no answer to {what} in {self.tries} tries ({problem}). The answers so far are kept: run "
            f"the command again, with a longer {option('timeout')} if the server is slow."
        )

    def _send(self, path: str, body: dict[str, Any] | None) -> Any:
        request = urllib.request.Request(
            self.address.rstrip("/") + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=self.timeout) as answer:
            return json.loads(answer.read(_LARGEST))


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return " ".join(str(getattr(reason, "strerror", None) or reason or type(error).__name__).split())[:160]


def _detail(error: urllib.error.HTTPError) -> str:
    """Return the beginning of what a server says about an error."""
    with error:
        return " ".join(error.read(2000).decode("utf-8", errors="replace").split())[:200] or error.reason
