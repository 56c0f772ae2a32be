"""How an inference server is asked: over HTTP, in its own dialect, for many answers that are all kept."""

import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from moeprobe.errors import UserError, option
from moeprobe.recordings.readers.base import KEY
from moeprobe.runtime.files import atomic_file, is_there, write_text
from moeprobe.runtime.progress import Progress

# Seconds before the second try; each later pause is twice as long.
PAUSE = 0.5
# Bytes of an answer: as of a response in a file.
_LARGEST = 2**29
# What a server says while it is busy or starting, and a proxy while it cannot reach one.
_BUSY = (429, 500, 502, 503, 504)
# How often a request is sent before the run ends.
_TRIES = 3
# Makes vLLM and SGLang return routed experts.
_FLAG = "--enable-return-routed-experts"


@dataclass(frozen=True)
class Client:
    """The address of a server, and how patient to be.

    Attributes:
        address: e.g. ``http://127.0.0.1:8000``.
        timeout: seconds to wait for an answer.

    Raises:
        UserError: the address is none of HTTP.
    """

    address: str
    timeout: float = 120.0

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
        for number in range(_TRIES):
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
            f"The server gave no answer to {what} in {_TRIES} tries ({problem}). The answers so far are kept: run "
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


# Dialects: what vLLM and SGLang are asked. Each request carries its own name, so that runs can be compared, and shares
# no cache with the same request of another run: a cached prefix would bring the routing that was stored with it.


@dataclass(frozen=True)
class Dialect(ABC):
    """How a kind of server is asked.

    Attributes:
        path: that requests go to.
        server: its name and version.
    """

    path: ClassVar[str]
    server: str

    @abstractmethod
    def body(self, name: str, ids: list[int], *, run: str, max_tokens: int) -> dict[str, Any]:
        """Return a request for the continuation of token ids; ``run``: no other run may share its cache."""

    @abstractmethod
    def begin(self, client: Client) -> None:
        """Empty the cache before a run, where its requests have no caches of their own."""

    def saved(self, answer: dict[str, Any], name: str, ids: list[int]) -> dict[str, Any]:
        """Return an answer as it is kept: by the name of its request, whatever the server called it."""
        return answer | {"id": name}


@dataclass(frozen=True)
class VllmRequests(Dialect):
    """vLLM: completions of token ids. ``model``: its name at the server."""

    path = "/v1/completions"
    model: str

    def begin(self, client: Client) -> None:
        """Do nothing: each request has a salt."""

    def body(self, name: str, ids: list[int], *, run: str, max_tokens: int) -> dict[str, Any]:
        """Return a request with a name and a salt of its own."""
        return {
            "model": self.model, "prompt": ids, "max_tokens": max_tokens, "temperature": 0, "logprobs": 1,
            "return_token_ids": True, "request_id": name, "cache_salt": f"{run}-{name}",
        }  # fmt: skip


@dataclass(frozen=True)
class SglangRequests(Dialect):
    """SGLang: its own ``/generate``, whose cache is emptied before each run."""

    path = "/generate"

    def body(self, name: str, ids: list[int], *, run: str, max_tokens: int) -> dict[str, Any]:
        """Return a request with a name of its own."""
        return {
            "input_ids": ids, "sampling_params": {"max_new_tokens": max_tokens, "temperature": 0},
            "return_routed_experts": True, "return_logprob": True, "rid": f"{run}-{name}",
        }  # fmt: skip

    def begin(self, client: Client) -> None:
        """Empty the cache of prefixes."""
        client.probe("/flush_cache")

    def saved(self, answer: dict[str, Any], name: str, ids: list[int]) -> dict[str, Any]:
        """Return an answer with the ids of its prompt, which SGLang does not repeat."""
        return super().saved(answer, name, ids) | {"input_ids": ids}


def detect(client: Client) -> Dialect:
    """Return how to ask a server.

    Raises:
        UserError: no server answers, or it is neither vLLM nor SGLang.
    """
    version = client.probe("/version")
    if isinstance(version, dict) and "version" in version:
        models = client.probe("/v1/models")
        entries = models.get("data") if isinstance(models, dict) else None
        if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
            raise UserError(
                f"{client.address} is vLLM, and names no model at /v1/models; wait until it is loaded."
            )
        return VllmRequests(f"vLLM {version['version']}", str(entries[0].get("id")))
    for path in ("/get_server_info", "/server_info"):
        info = client.probe(path)
        if isinstance(info, dict) and "model_path" in info:
            return SglangRequests(f"SGLang {info.get('version', '')}".strip())
    raise UserError(
        f"{client.address} is neither vLLM (/version) nor SGLang (/get_server_info); give the address of the server "
        "itself, without a path."
    )


# Many requests, every answer kept; an interrupted run continues where it ended.


def ask_all(
    path: Path,
    parts: Path,
    prompts: Mapping[str, list[int]],
    *,
    client: Client,
    dialect: Dialect,
    max_tokens: int,
    at_once: int,
    progress: Progress,
) -> None:
    """Send all requests, a number of them at once, and write their answers: JSON lines in the order of the requests.

    Args:
        path: of the file; if it is there, nothing is asked.
        parts: folder of the answers that came so far, which are not asked for again.
        prompts: token ids by name of request.
        client: the server.
        dialect: how it is asked.
        max_tokens: to generate.
        at_once: concurrent requests.
        progress: hears of every answer.

    Raises:
        UserError: the server refuses, does not answer, or answers without routed experts.
    """
    if is_there(path):
        return
    part_of = {name: parts / f"{name}.json" for name in prompts}
    missing = [name for name, part in part_of.items() if not is_there(part)]
    progress.start(f"server: {path.stem}", len(prompts))
    progress.advance(len(prompts) - len(missing))
    if missing:
        dialect.begin(client)

    failed = threading.Event()

    def ask(name: str) -> None:
        # Until the first failure is heard of, the next request would be sent.
        if not failed.is_set():
            try:
                ask_one(name)
            except BaseException:
                failed.set()
                raise

    def ask_one(name: str) -> None:
        body = dialect.body(name, prompts[name], run=path.stem, max_tokens=max_tokens)
        answer = client.post(dialect.path, body, what=f"request {name}")
        if not has_experts(answer):
            raise UserError(
                f"The server answers without routed experts; start {dialect.server} with {_FLAG}."
            )
        write_text(part_of[name], json.dumps(dialect.saved(answer, name, prompts[name])) + "\n")

    with ThreadPoolExecutor(at_once) as pool:
        try:
            # In the order of the requests: the first that fails ends the run.
            for _ in pool.map(ask, missing):
                progress.advance(1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for part in part_of.values():
            file.write(part.read_text(encoding="utf-8"))


def has_experts(answer: Any) -> bool:
    """Whether routed experts are anywhere in an answer."""
    if isinstance(answer, dict):
        return answer.get(KEY) is not None or any(map(has_experts, answer.values()))
    return isinstance(answer, list) and any(map(has_experts, answer))
