"""Whole sequences in any other form: keys and layouts are recognized, or named by the user.

Axes: T rows, L layers, K experts per token, E experts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import option
from moeprobe.recordings.batch_layout import layout_of
from moeprobe.recordings.field_search import (
    LOGITS,
    ROUTING,
    Keys,
    TokenSearch,
    flat,
    is_logits,
    routing_fields,
)
from moeprobe.recordings.log_rows import Fault, Tokens
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import NPY, Capture, Reader, Stated, stated
from moeprobe.recordings.responses import CONTENT, GatheredResponse, array_of
from moeprobe.recordings.router_logits import check_logits, highest_experts, weights_by_layer
from moeprobe.recordings.routing_values import ExpertRows, axes_of, is_pair, is_shaped, rows_of
from moeprobe.recordings.unknown_file import not_recognized

# Keys of the log-probabilities of generated tokens.
_SCORES = (
    "completion_logprobs",
    "rollout_log_probs",
    "rollout_logprobs",
    "response_logprobs",
    "logprobs",
    "log_probs",
)
_NUMBER, _LAYER = re.compile(r"\d{1,9}"), re.compile(r"(?:layers?|blocks?|h)[._](\d{1,9})")
# How texts begin that say their own shape.
_WITH_SHAPE = (NPY, "nrlre1:")


class Generic(Reader):
    """Other keys and layouts: nested lists, lists of arrays, packed batches, pairs of shape and base64, saved logits.

    What a field holds is told by its key, else by its form, where one reading alone fits.

    Args:
        keys: as a user gives them.
    """

    fallback: ClassVar[bool] = True

    def __init__(self, keys: Keys | None = None) -> None:
        self._keys = keys or Keys()

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether a field may hold routing."""
        return bool(self._objects(response))

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each sequence."""
        objects = self._objects(response)
        if not objects:
            key = self._keys.routing
            raise not_recognized(
                f"{option('routing_key', key)} is no field" if key else "no field holds routing"
            )
        captures = [
            capture for fields in objects for capture in _Sequences(fields, self._keys).captures(shape)
        ]
        if isinstance(response, GatheredResponse) and len(captures) > 1:
            return [replace(capture, name=str(number)) for number, capture in enumerate(captures)]
        return captures

    def sequences(self, response: Mapping[str, Any]) -> Sequence[tuple[str, Tokens | None]]:
        """Return the sequences. A file of torch may hold several: they are named by number, others as the response."""
        sequences = [
            tokens
            for fields in self._objects(response)
            for tokens in _Sequences(fields, self._keys).sequences()
        ]
        several = isinstance(response, GatheredResponse) and len(sequences) > 1
        return [(str(number) if several else "", tokens) for number, tokens in enumerate(sequences)]

    def log_probabilities(self, response: Mapping[str, Any]) -> Sequence[Any]:
        """Return the log-probabilities of each sequence; nothing where no usual key has them."""
        values = [_scores(fields) for fields in self._objects(response)]
        return [part for parts in values for part in parts] if all(values) else []

    def _objects(self, response: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the fields of each object with routing: entries of a list (choices, samples), else the response."""
        fields = dict(flat(response))
        for path, value in fields.items():
            if not isinstance(value, list) or not value or not isinstance(value[0], dict):
                continue
            entries = [dict(flat(entry)) for entry in value if isinstance(entry, dict)]
            if any(routing_fields(entry, self._keys) for entry in entries):
                shared = {name: entry for name, entry in fields.items() if name != path}
                return [shared | entry for entry in entries]
        return [fields] if routing_fields(fields, self._keys) else []


class _Sequences:
    """The sequences of one object.

    Args:
        fields: of the object, by their paths.
        keys: as a user gives them.
    """

    def __init__(self, fields: Mapping[str, Any], keys: Keys) -> None:
        self._fields, self._keys = fields, keys
        self._layout = layout_of(fields)

    def captures(self, shape: MoeShape) -> list[Capture]:
        """Return the routing of each sequence; of an object without any (an aborted request) that it has none."""
        key = self._key(shape)
        if key is None:
            return [Capture(None, tokens=tokens) for tokens in self.sequences()]
        if is_logits(key, self._fields[key]) or self._holds_logits(key):
            return self._of_logits(key, shape)
        values = self._parts(key)
        if any(isinstance(value, str) and not value.startswith(_WITH_SHAPE) for value in values):
            # Its shape follows from the number of tokens.
            tokens = self._tokens(None, len(values))
            sizes = [None if sequence is None else len(sequence.ids) for sequence in tokens]
            rows = [rows_of(value, key, shape, size) for value, size in zip(values, sizes, strict=True)]
        else:
            rows = [rows_of(value, key, shape, None) for value in values]
            tokens = self._tokens([part.start + len(part.ids) for part in rows], len(rows))
        return [self._capture(part, sequence) for part, sequence in zip(rows, tokens, strict=True)]

    def sequences(self) -> list[Tokens | None]:
        """Return the token ids of each sequence, where they are there."""
        keys = routing_fields(self._fields, self._keys)
        if not keys:
            return self._tokens(None, 1)
        if is_logits(keys[0], self._fields[keys[0]]) or self._holds_logits(keys[0]):
            values = self._layout.parts(_layers(self._fields[keys[0]])[0], keys[0], axes=2)
            return self._tokens([len(value) for value in values], len(values))
        values = self._parts(keys[0])
        if any(isinstance(value, str) and not value.startswith(_WITH_SHAPE) for value in values):
            return self._tokens(None, len(values))
        rows = [rows_of(value, keys[0], None, None) for value in values]
        return self._tokens([part.start + len(part.ids) for part in rows], len(rows))

    def _key(self, shape: MoeShape) -> str | None:
        """Return the field of the routing: the only one, or the only one that fits the model.

        Raises:
            Fault: several fit, or none.
        """
        keys = routing_fields(self._fields, self._keys)
        if len(keys) < 2 and (not keys or keys[0] == self._keys.routing or _is_usual(keys[0])):
            return keys[0] if keys else None
        fitting = [key for key in keys if self._fits_model(key, shape)]
        if len(fitting) > 1:
            raise Fault(
                f"its routing may be {' or '.join(fitting[:4])}; say which with {option('routing_key', fitting[0])}"
            )
        if not fitting:
            raise not_recognized(
                f"{' and '.join(keys[:4])} may be routing, but no field has the layers of the model and {shape.top_k} "
                "experts per token"
            )
        return fitting[0]

    def _fits_model(self, key: str, shape: MoeShape) -> bool:
        """Whether a field has as many layers and experts per token as the model."""
        value = self._fields[key]
        try:
            if is_logits(key, value):
                layers = _layers(value)
                return len(layers) == len(shape.sparse) and layers[0].shape[1] == shape.num_experts
            rows = [rows_of(part, key, shape, None).ids for part in self._parts(key)]
        except Fault:
            return False
        return all(
            part.shape[1] in (shape.num_layers, len(shape.sparse)) and part.shape[2] == shape.top_k
            for part in rows
            if part.size
        )

    def _holds_logits(self, key: str) -> bool:
        """Whether the field that a user named has real numbers."""
        value = self._fields[key]
        return axes_of(list(value.values()) if isinstance(value, dict) else value) == (3, "f")

    def _parts(self, key: str) -> list[Any]:
        """Return what holds the experts of each sequence."""
        value = self._fields[key]
        if isinstance(value, str) or is_shaped(value) or is_pair(value):
            return [value]
        if isinstance(value, list | tuple) and any(
            isinstance(part, str | dict) or is_pair(part) for part in value
        ):
            return list(value)
        return self._layout.parts(value, key, axes=3)

    def _tokens(self, rows: list[int] | None, number: int) -> list[Tokens | None]:
        """Return the token ids of so many sequences, or None for each."""
        sequences = TokenSearch(self._fields, self._keys, self._layout, rows).sequences()
        if sequences is None:
            return [None] * number
        if len(sequences) != number:
            raise Fault(f"there are token ids of {len(sequences)} sequences, and routing of {number}")
        return [*sequences]

    def _capture(self, rows: ExpertRows, tokens: Tokens | None) -> Capture:
        ids, end = rows.ids, rows.start + len(rows.ids)
        if tokens is not None and len(ids) and end == len(tokens.ids) and not ids[-1].any():
            # Filled up, as nothing routes the last token.
            ids = ids[:-1]
        counts = self._fields.get("usage") or self._fields.get("meta_info")
        numbers = stated(counts) if tokens is None else Stated.of(tokens)
        return Capture(ids, start=rows.start, stated=numbers, last=True, tokens=tokens)

    def _of_logits(self, key: str, shape: MoeShape) -> list[Capture]:
        """Return the K experts of the highest logits of each token, with gates.

        Raises:
            Fault: they do not fit the model, or nothing says how they become gates.
        """
        name = "it" if key == CONTENT else key
        if shape.choice_needs is not None:
            raise Fault(
                f"{name} holds router logits, and by {shape.choice_needs} of config.json the model does not choose the "
                "highest ones; save the chosen experts too"
            )
        if shape.scoring is None:
            raise Fault(
                f"{name} holds router logits, and config.json does not say how they become gates; add "
                f"{option('gates', 'softmax')} or {option('gates', 'sigmoid')}"
            )
        layers = _layers(self._fields[key], shape)
        if len(layers) != len(shape.sparse) or any(layer.shape[1] != shape.num_experts for layer in layers):
            raise Fault(
                f"{key} holds router logits of {len(layers)} layers and {layers[0].shape[1]} experts; the model has "
                f"{len(shape.sparse)} layers with {shape.num_experts} experts"
            )
        by_layer = [self._layout.parts(layer, key, axes=2) for layer in layers]
        if len({tuple(len(part) for part in parts) for parts in by_layer}) > 1:
            raise Fault(f"{key} holds different numbers of tokens in its layers")
        lengths = [len(part) for part in by_layer[0]]
        captures = []
        for tokens, logits in zip(
            self._tokens(lengths, len(lengths)), zip(*by_layer, strict=True), strict=True
        ):
            check_logits(logits, key)
            ids = np.stack([highest_experts(layer, shape.top_k) for layer in logits], axis=1)
            weights = weights_by_layer(logits, shape.scoring)
            captures.append(Capture(ids, stated=Stated.of(tokens), last=True, tokens=tokens, weights=weights))
        return captures


def _is_usual(key: str) -> bool:
    return key.startswith(CONTENT) or key.rpartition(".")[2] in (*ROUTING, *LOGITS)


def _layers(value: Any, shape: MoeShape | None = None) -> list[NDArray[np.float32]]:
    """Return logits ``(N, E)`` of each layer, in the order of the layers; a dense layer may be None.

    Raises:
        Fault: they are none, or keys are not the layers of the model.
    """
    if isinstance(value, dict):
        numbered = {_number(name): layer for name, layer in value.items() if layer is not None}
        numbers = sorted(numbered)
        if len(numbered) < len(value) or (
            shape is not None and tuple(numbers) not in (shape.sparse, tuple(range(len(shape.sparse))))
        ):
            raise Fault(f"its keys {', '.join(map(str, list(value)[:4]))}, … are not the layers with experts")
        value = [numbered[number] for number in numbers]
    elif hasattr(value, "ndim"):
        value = array_of(value, "logits", kinds="f", dims=3)
    arrays = [array_of(layer, "a layer's logits", kinds="f", dims=2) for layer in value if layer is not None]
    if not arrays:
        raise Fault("it holds no logits")
    return [array.astype(np.float32) for array in arrays]


def _number(name: Any) -> int:
    """Return the layer of a key, such as 3 of ``model.layers.3.mlp.gate``."""
    match = _LAYER.search(str(name)) or _NUMBER.search(str(name))
    if match is None:
        raise Fault(f"the key {str(name)[:40]} of logits names no layer")
    return int(match[match.lastindex or 0])


def _scores(fields: Mapping[str, Any]) -> list[Any]:
    """Return the log-probabilities of each sequence of an object; none where no usual key has numbers."""
    for path, value in fields.items():
        if path.rpartition(".")[2] in _SCORES and axes_of(value) in ((1, "f"), (2, "f")):
            return layout_of(fields).parts(value, path, axes=1, tail=True)
    return []
