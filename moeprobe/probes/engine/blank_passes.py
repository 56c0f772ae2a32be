"""What passes over a blank input show of a model: the kind of each layer's routing, its head and features.

Models of ``hf:`` take turns in memory (``adapters.residence``), so the answers of each are kept. Otherwise each check
that asks would read a model from the disk again.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from moeprobe.adapters.base import Checkpoint
from moeprobe.probes.engine.run_spec import chosen_layers
from moeprobe.routing.record import LayerRouting

T = TypeVar("T")
# Kept on the model that a command has loaded. Others may be changed by their owner between two runs.
_ANSWERS = "_blank_answers"
_HAS_OUTPUT = "has output"


def keep_answers(checkpoint: Checkpoint) -> None:
    """Keep from now on what a model that the command has loaded shows of a blank input."""
    setattr(checkpoint.model, _ANSWERS, {})


def once(checkpoint: Checkpoint, question: Any, answer: Callable[[], T]) -> T:
    """Return an answer that does not change while a model is what it is; it is computed once where it is kept."""
    answers: dict[Any, T] | None = getattr(checkpoint.model, _ANSWERS, None)
    if answers is None:
        return answer()
    if question not in answers:
        answers[question] = answer()
    return answers[question]


def routing_of_blank_input(checkpoint: Checkpoint, layers: Sequence[str] | None) -> list[LayerRouting]:
    """Return the routing of one black image, or short text: its kind does not depend on the input."""
    model = checkpoint.model
    names = chosen_layers(model.layer_names, layers)
    if not names:
        return []
    blank = checkpoint.framing.blank()
    return once(
        checkpoint,
        _routing_of(names),
        lambda: list(model.trace(blank, layers=names, logits=False)[1].layers.values()),
    )


def has_output(checkpoint: Checkpoint) -> bool:
    """Return whether a model gives scores or features beside its routing."""
    model = checkpoint.model
    return once(checkpoint, _HAS_OUTPUT, lambda: model.trace(checkpoint.framing.blank())[0] is not None)


def learn(checkpoint: Checkpoint, layers: Sequence[str] | None) -> None:
    """Answer both questions above by one pass, while the model is in memory."""
    model = checkpoint.model
    names = chosen_layers(model.layer_names, layers)
    if not names:
        return
    output, routing = model.trace(checkpoint.framing.blank(), layers=names)
    once(checkpoint, _routing_of(names), lambda: list(routing.layers.values()))
    once(checkpoint, _HAS_OUTPUT, lambda: output is not None)


def _routing_of(names: Sequence[str]) -> tuple[str, ...]:
    return ("routing", *names)
