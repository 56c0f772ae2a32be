"""What vLLM and SGLang are asked, and what they have to be started with.

Each request carries its own name, so that runs can be compared. It shares no cache with the same request of another
run: a cached prefix would bring the routing that was stored with it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from moeprobe.errors import UserError
from moeprobe.studies.server.client import Client


@dataclass(frozen=True)
class Dialect(ABC):
    """How a kind of server is asked.

    Attributes:
        server: its name and version.
        path: that requests go to.
        flag: that it returns routed experts with.
    """

    server: str
    path: str
    flag: str

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

    model: str = ""

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
        return VllmRequests(
            f"vLLM {version['version']}",
            "/v1/completions",
            "--enable-return-routed-experts",
            str(entries[0].get("id")),
        )
    for path in ("/get_server_info", "/server_info"):
        info = client.probe(path)
        if isinstance(info, dict) and "model_path" in info:
            return SglangRequests(
                f"SGLang {info.get('version', '')}".strip(), "/generate", "--enable-return-routed-experts"
            )
    raise UserError(
        f"{client.address} is neither vLLM (/version) nor SGLang (/get_server_info); give the address of the server "
        "itself, without a path."
    )
