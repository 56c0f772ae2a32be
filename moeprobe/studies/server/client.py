"""How an inference server is asked: over HTTP, in its own dialect, for many answers that are all kept."""

import json
import threading
import time
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from moeprobe.errors import UserError, option
from moeprobe.recordings.log_probs import tokens_of
from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import KEY
from moeprobe.runtime.characters import quote
from moeprobe.runtime.files import atomic_file, is_there, write_text
from moeprobe.runtime.progress import Progress
from moeprobe.studies.server.bounded_http import NoAnswerError, TooLongError, fetch, shorten

# Seconds before the second try; each later pause is twice as long.
PAUSE = 0.5
# Bytes of any answer, and of what a server says about itself. Those of a request grow with its tokens: text, ids and
# log-probabilities of each, and its experts, as numbers of 64 bits in base64 or in a list.
_LARGEST, _SMALL = 2**29, 2**20
_BYTES_PER_TOKEN, _BYTES_PER_EXPERT = 2**12, 16
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
        timeout: seconds from the beginning of a request to the end of its answer.

    Raises:
        UserError: the address is none of HTTP.
    """

    address: str
    timeout: float = 120.0

    def __post_init__(self) -> None:
        if not _is_address(self.address):
            raise UserError(
                f"A server's address is like http://127.0.0.1:8000; got {quote(self.address)}. Give scheme, host and "
                "port."
            )

    def probe(self, path: str) -> Any:
        """Return what a path answers; None where the server has no such path, or no JSON there.

        Raises:
            UserError: no server answers, or with more than a server says about itself.
        """
        url = self._url(path)
        try:
            answer = fetch(url, None, timeout=self.timeout, most_bytes=_SMALL)
        except NoAnswerError as error:
            raise UserError(
                f"No server answers at {url} ({error}); start it, or give another address."
            ) from None
        except TooLongError:
            raise UserError(
                f"{url} answers with more than {_SMALL:,} bytes; give the address of vLLM or SGLang."
            ) from None
        if answer.is_redirect:
            raise UserError(_redirect_error(url, answer.detail))
        try:
            return json.loads(answer.content)
        except ValueError:
            return None
        except RecursionError:
            raise UserError(
                f"{url} answers with JSON that is nested too deeply; give the address of vLLM or SGLang."
            ) from None

    def post(self, path: str, body: dict[str, Any], *, what: str, most_bytes: int) -> dict[str, Any]:
        """Return the answer to a request, sent again where none came.

        Args:
            path: of the address.
            body: sent as JSON.
            what: names the request in errors.
            most_bytes: of the answer.

        Raises:
            UserError: the server refuses it, does not answer, or answers with something else than an object, or with
                more bytes.
        """
        problem = ""
        for number in range(_TRIES):
            if number:
                time.sleep(PAUSE * 2 ** (number - 1))
            try:
                answer = fetch(
                    self._url(path), json.dumps(body).encode(), timeout=self.timeout, most_bytes=most_bytes
                )
                if answer.is_redirect:
                    raise UserError(_redirect_error(f"The server, asked for {what},", answer.detail))
                if answer.status >= 400:
                    problem = f"HTTP {answer.status}: {answer.detail}"
                    if answer.status not in _BUSY:
                        raise UserError(f"The server refuses {what} ({problem}).")
                    continue
                content = json.loads(answer.content)
            except NoAnswerError as error:
                problem = str(error)
            except TooLongError:
                raise UserError(
                    f"The server answers {what} with more than {most_bytes:,} bytes, which no answer of the tokens "
                    "that were asked for has; mend the server."
                ) from None
            except ValueError:
                problem = "it is no JSON, or was cut off"
            except RecursionError:
                problem = "its JSON is nested too deeply"
            else:
                if isinstance(content, dict):
                    return content
                raise UserError(f"The server answers {what} with something else than a JSON object.")
        raise UserError(
            f"The server gave no answer to {what} in {_TRIES} tries ({problem}). The answers so far are kept: run "
            f"the command again, with a longer {option('timeout')} if the server is slow."
        )

    def _url(self, path: str) -> str:
        return self.address.rstrip("/") + path


def _is_address(text: str) -> bool:
    """Whether a text is an address of HTTP; what only a browser would take, such as a password in it, is none."""
    try:
        parts = urllib.parse.urlsplit(text)
        # Reading the port checks it; encoding the host, its labels.
        _, host = parts.port, (parts.hostname or "").encode("idna")
    except ValueError:
        return False
    plain = text.isprintable() and " " not in text and not any(mark in text for mark in "@?#")
    return parts.scheme in ("http", "https") and bool(host) and plain


def _redirect_error(who: str, location: str) -> str:
    return f"{who} redirects to '{location}', which is not followed; give the address of the server itself."


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

    def label_answer(self, answer: dict[str, Any], name: str, ids: list[int]) -> dict[str, Any]:
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

    def label_answer(self, answer: dict[str, Any], name: str, ids: list[int]) -> dict[str, Any]:
        """Return an answer with the ids of its prompt, which SGLang does not repeat."""
        return super().label_answer(answer, name, ids) | {"input_ids": ids}


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
        return VllmRequests(_server_name("vLLM", version), str(entries[0].get("id")))
    for path in ("/get_server_info", "/server_info"):
        info = client.probe(path)
        if isinstance(info, dict) and "model_path" in info:
            return SglangRequests(_server_name("SGLang", info))
    raise UserError(
        f"{client.address} is neither vLLM (/version) nor SGLang (/get_server_info); give the address of the server "
        "itself, without a path."
    )


def _server_name(name: str, info: Mapping[str, Any]) -> str:
    """Return a server's name and version, which becomes a heading: it may say anything."""
    version = info.get("version")
    return f"{name} {shorten(version) if isinstance(version, str) else ''}".strip()


@dataclass(frozen=True)
class AnswerBounds:
    """What an answer may hold.

    Attributes:
        max_tokens: to generate.
        bytes_per_token: some times what servers send for a token of the prompt or a generated one.
    """

    max_tokens: int
    bytes_per_token: int

    @classmethod
    def of(cls, shape: MoeShape, max_tokens: int) -> "AnswerBounds":
        """Return the bounds for a model."""
        # Some servers capture a layer of multi-token prediction that the configuration does not count.
        experts = (shape.num_layers + max(shape.mtp_layers, 1)) * shape.top_k
        return cls(max_tokens, _BYTES_PER_TOKEN + _BYTES_PER_EXPERT * experts)

    def most_bytes(self, prompt: list[int]) -> int:
        """Return the bytes that the answer to a prompt may have."""
        return min(_LARGEST, _SMALL + (len(prompt) + self.max_tokens) * self.bytes_per_token)

    def check(self, answer: Mapping[str, Any], what: str) -> None:
        """Raise ``UserError`` where an answer has more generated tokens, or token ids that are none.

        Args:
            answer: with the ids of its prompt.
            what: names the request.
        """
        try:
            sequences = tokens_of(answer)
        except Fault as fault:
            raise UserError(f"The server answers {what} with a fault: {fault}.") from None
        generated = sum(int(tokens.generated.sum()) for tokens in sequences if tokens is not None)
        if generated > self.max_tokens:
            raise UserError(
                f"The server answers {what} with {generated:,} generated tokens, and {self.max_tokens:,} were asked "
                "for; it ignores max_tokens, so mend the server."
            )


# Many requests, every answer kept; an interrupted run continues where it ended.


def ask_all(
    path: Path,
    parts: Path,
    prompts: Mapping[str, list[int]],
    *,
    client: Client,
    dialect: Dialect,
    bounds: AnswerBounds,
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
        bounds: tokens to generate, and bytes of an answer.
        at_once: concurrent requests.
        progress: hears of every answer.

    Raises:
        UserError: the server refuses, does not answer, or answers without routed experts or with too many tokens.
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
        prompt, what = prompts[name], f"request {name}"
        body = dialect.body(name, prompt, run=path.stem, max_tokens=bounds.max_tokens)
        answer = client.post(dialect.path, body, what=what, most_bytes=bounds.most_bytes(prompt))
        try:
            if not has_experts(answer):
                raise UserError(
                    f"The server answers without routed experts; start {dialect.server} with {_FLAG}."
                )
            answer = dialect.label_answer(answer, name, prompt)
            bounds.check(answer, what)
            line = json.dumps(answer)
        except RecursionError:  # JSON can be read that is too deep for anything else
            raise UserError(f"The server answers {what} with JSON that is nested too deeply.") from None
        write_text(part_of[name], line + "\n")

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
