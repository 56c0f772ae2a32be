"""A server that answers as vLLM or SGLang do, from a small model in this process; it can be told to be faulty."""

import base64
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.recordings import serving

Answer = dict[str, Any]


@functools.cache
def _model(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def _routed(folder: Path, ids: list[int]) -> tuple[NDArray[np.int64], list[float]]:
    """The experts of each token ``(T, L, K)``, and the log-probability of each but the first."""
    import torch

    model = _model(folder)
    with torch.no_grad():
        output = model(torch.tensor([ids]), output_router_logits=True)
    top_k = model.config.num_experts_per_tok
    chosen = [layer.reshape(len(ids), -1).topk(top_k).indices.numpy() for layer in output.router_logits]
    scores = output.logits[0, :-1].log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return np.stack(chosen, axis=1), scores.tolist()


@dataclass
class Stub:
    """What a server is, and what was asked of it.

    ``spoil``: changes an answer that is due; it may raise a number, the HTTP status to answer with instead.
    """

    folder: Path
    dialect: str = "vllm"
    spoil: Callable[["Stub", Answer], Answer] = lambda stub, answer: answer
    asked: list[Answer] = field(default_factory=list)
    most_at_once: int = 0
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    address: str = ""
    version: str = "0.32.0"

    def get(self, path: str) -> Answer | None:
        """What a path of the server answers; None = there is none."""
        paths: dict[str, dict[str, Answer]] = {
            "vllm": {"/version": {"version": self.version}, "/v1/models": {"data": [{"id": "small"}]}},
            "sglang": {"/get_server_info": {"model_path": "small", "version": "0.5.23"}, "/flush_cache": {}},
        }
        return paths.get(self.dialect, {}).get(path)

    def post(self, path: str, body: Answer) -> Answer:
        """The answer to a request."""
        assert path == {"vllm": "/v1/completions", "sglang": "/generate"}[self.dialect]
        with self.lock:
            self.asked.append(body)
        vllm = self.dialect == "vllm"
        prompt = body["prompt" if vllm else "input_ids"]
        count = body["max_tokens"] if vllm else body["sampling_params"]["max_new_tokens"]
        generated = np.random.default_rng(prompt).integers(3, 320, count).tolist()
        with self.lock:
            experts, scores = _routed(self.folder, prompt + generated)
        experts, scores = experts[:-1], scores[len(prompt) - 1 :]
        usage = serving.usage(len(prompt), count)
        if vllm:
            choice = {
                "index": 0, "prompt_token_ids": prompt, "token_ids": generated,
                "logprobs": {"token_logprobs": scores}, "routed_experts": serving.npy(experts.astype("uint8")),
            }  # fmt: skip
            return self.spoil(self, {"id": f"cmpl-{body['request_id']}", "choices": [choice], "usage": usage})
        meta = {
            "id": body["rid"], "output_token_logprobs": [[score, 0, None] for score in scores],
            "routed_experts": base64.b64encode(experts.astype("<i4").tobytes()).decode(), **usage,
        }  # fmt: skip
        return self.spoil(self, {"output_ids": generated, "meta_info": meta})


@contextmanager
def running(stub: Stub) -> Iterator[Stub]:
    """The stub behind an address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(stub.get(self.path), 200)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with stub.lock:
                stub.now += 1
                stub.most_at_once = max(stub.most_at_once, stub.now)
            status = 200
            try:
                answer = stub.post(self.path, body)
            except StatusError as error:
                answer, status = {"error": "as it was told"}, error.status
            with stub.lock:
                stub.now -= 1
            self._send(answer, status)

        def _send(self, answer: Answer | None, status: int) -> None:
            content = b"not found" if answer is None else json.dumps(answer).encode()
            if answer is not None and answer.pop("cut off", False):
                content = json.dumps(answer).encode()[:-30]
            try:
                self.send_response(404 if answer is None else status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                pass  # who asked has gone

        def log_message(self, *arguments: object) -> None:
            pass

    port = int(stub.address.rsplit(":", 1)[1]) if stub.address else 0
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    stub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()


class StatusError(Exception):
    """What to answer in place of the answer."""

    def __init__(self, status: int) -> None:
        self.status = status


def late(seconds: float) -> Callable[[Stub, Answer], Answer]:
    """Answers come too late."""

    def spoil(stub: Stub, answer: Answer) -> Answer:
        time.sleep(seconds)
        return answer

    return spoil
