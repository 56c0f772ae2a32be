"""Send requests and keep every answer; an interrupted run continues where it ended."""

import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError
from moeprobe.recordings.readers.base import KEY
from moeprobe.runtime.files import atomic_file, is_there, write_text
from moeprobe.runtime.progress import Progress
from moeprobe.studies.server.client import Client
from moeprobe.studies.server.dialects import Dialect


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
        at_once: requests that are on their way at the same time.
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
                f"The server answers without routed experts; start {dialect.server} with {dialect.flag}."
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
