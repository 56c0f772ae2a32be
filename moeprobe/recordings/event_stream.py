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
        if response is None:
            response = event
        else:
            _extend(response, event)
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


class _Choices(list[Any]):
    """Choices that grow from event to event, each found by its index: to look for it would take longer each time."""

    def __init__(self, choices: list[Any]) -> None:
        super().__init__()
        self._places: dict[int, int] = {}
        self.join(choices)

    def join(self, choices: list[Any]) -> None:
        """Add the choices of an event, which has those alone that went on."""
        for position, choice in enumerate(choices):
            slot = self._places.setdefault(_index(choice, position), len(self))
            if slot == len(self):
                self.append(choice)
            elif isinstance(choice, dict) and isinstance(self[slot], dict):
                _extend(self[slot], choice)
            else:
                self[slot] = choice


def _extend(response: dict[str, Any], event: dict[str, Any]) -> None:
    """Add an event to a response: lists of tokens grow, choices go by their index, and else the later value holds."""
    for name, value in event.items():
        before = response.get(name)
        if value is None:
            continue
        if name == "choices" and isinstance(value, list) and isinstance(before, list):
            if not isinstance(before, _Choices):
                before = response[name] = _Choices(before)
            before.join(value)
        # In place, since a copy for each event would take longer each time.
        elif name in _GROWING and isinstance(value, list) and isinstance(before, list):
            before.extend(value)
        elif isinstance(value, dict) and isinstance(before, dict):
            _extend(before, value)
        else:
            response[name] = value


def _index(choice: Any, default: int) -> int:
    index = choice.get("index") if isinstance(choice, dict) else None
    return default if type(index) is not int else index
