"""Responses that a server sent as an event stream: lines of ``data: {…}``, each with a few tokens.

vLLM's ``/inference/v1/generate`` has the routed experts of the whole sequence in the last event, so its events are put
together. Streams of its other paths never have any.
"""

import json
from collections.abc import Iterator
from typing import Any

from moeprobe.recordings.log_rows import Fault

_MARK = b"data:"
_END = b"[DONE]"
# Lists that go on from event to event.
_GROWING = (
    "token_ids",
    "content",
    "token_logprobs",
    "tokens",
    "top_logprobs",
    "text_offset",
    "output_token_logprobs",
)
_KEY = b'"routed_experts"'


def is_event_stream(beginning: bytes) -> bool:
    """Whether a file that begins so is an event stream."""
    return beginning.startswith(_MARK)


def responses_of_events(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the responses of a stream, one after the other; events of one response have the same id.

    Raises:
        Fault: an event is no JSON object, or no event has routed experts.
    """
    if _KEY not in content:
        raise Fault(
            "it is an event stream without routed experts, which servers send for completions and chat; ask without "
            "stream"
        )
    response: dict[str, Any] | None = None
    for number, event in enumerate(_events(content), start=1):
        if not isinstance(event, dict):
            raise Fault(f"event {number} is no JSON object")
        if response is not None and _name(event) != _name(response):
            yield response
            response = None
        response = event if response is None else _join_parts(response, event)
    if response is not None:
        yield response


def _events(content: bytes) -> Iterator[Any]:
    for number, line in enumerate(content.splitlines(), start=1):
        text = line.removeprefix(_MARK).strip()
        if not line.startswith(_MARK) or not text or text == _END:
            continue
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            raise Fault(f"line {number} of the event stream is no JSON; it was cut off") from None


def _name(event: dict[str, Any]) -> Any:
    return event.get("id") or event.get("request_id")


def _join_parts(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Return two parts as one: lists of tokens are joined, choices by their index, and else the later value holds."""
    joined = dict(earlier)
    for name, value in later.items():
        before = earlier.get(name)
        if value is None:
            continue
        if name == "choices" and isinstance(value, list) and isinstance(before, list):
            joined[name] = _choices(before, value)
        elif name in _GROWING and isinstance(value, list) and isinstance(before, list):
            joined[name] = before + value
        elif isinstance(value, dict) and isinstance(before, dict):
            joined[name] = _join_parts(before, value)
        else:
            joined[name] = value
    return joined


def _choices(earlier: list[Any], later: list[Any]) -> list[Any]:
    """Return the choices of two parts; a part has those alone that went on."""
    by_index = {_index(choice, position): choice for position, choice in enumerate(earlier)}
    for position, choice in enumerate(later):
        index = _index(choice, position)
        if isinstance(choice, dict) and isinstance(by_index.get(index), dict):
            by_index[index] = _join_parts(by_index[index], choice)
        else:
            by_index[index] = choice
    return list(by_index.values())


def _index(choice: Any, default: int) -> Any:
    index = choice.get("index") if isinstance(choice, dict) else None
    return default if type(index) is not int else index
