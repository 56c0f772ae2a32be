"""A line of a server's log of its routing: a JSON object about one MoE layer of one request.

    {"id": "r17", "layer": "blocks.3", "num_experts": 8, "experts": [[3, 5], [0, 1]], "gates": [[0.6, 0.3], [0.5, 0.4]]}

* ``id``: the request; what traces are matched by.
* ``layer``: the MoE layer; every request has the same ones.
* ``num_experts``: E, never guessed; may be left out where the caller tells it for all layers.
* ``experts``: per token, in the order of the sequence, the K experts that it chose (from 0; -1 fills up).
* ``gates``, optional: per token the K weights of these experts. Unless ``ordered_by`` says otherwise, they say which is
  best: the choices are sorted by them, ties to the lower expert.
* ``all_gates``, optional, instead of ``gates``: per token the E gates, a distribution. Without them there is no
  confidence.
* ``processed``, optional: per token K times whether the expert had capacity; default yes.
* ``valid``, optional: per token whether it is one, and no padding; default yes.
* ``num_prefix_tokens``, optional: tokens at the beginning that are reported apart; default 0.
* ``ordered_by``, optional: what the experts are ordered by, the best first: ``gates``, ``logits``, or ``scores`` (what
  the choice is read off, where that is neither; with a bias, say). Default: ``gates`` where they are given; else the
  experts are a set, whatever their order.
* ``generated``, optional: per token whether it was generated, and is none of the prompt.
* ``token_ids``, optional: per token its number in the model's vocabulary.
* ``kinds``, optional: per token its kind, where the input has pictures: ``text``, ``image``, ``video``, ``audio``,
  ``special``, or ``before`` (words and special tokens before the first picture).
* ``router``, optional: its name; default "recorded".
* ``token_local``, optional: whether a token's choice depends on that token alone; default false.

Experts that choose their tokens, and weights without choices, cannot be recorded in it.

Axes: T tokens, K choices, E experts.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import TOKEN_KINDS
from moeprobe.recordings.checks import expert_problems
from moeprobe.recordings.format import ORDERS, as_set
from moeprobe.runtime.catalog import describe_unknown
from moeprobe.runtime.characters import is_unicode

_KNOWN = (
    "id", "layer", "num_experts", "experts", "gates", "all_gates", "processed", "valid", "num_prefix_tokens", "router",
    "token_local", "ordered_by", "generated", "token_ids", "kinds",
)  # fmt: skip
# What a column of 16 bits holds.
_MOST = 2**15 - 1
# What a column of 32 bits holds.
MOST_TOKEN = 2**31 - 1


@dataclass(frozen=True)
class Row:
    """One line. Arrays as in ``reading.Block``, of one input."""

    id: str
    layer: str
    # Fields of the layer, which must be the same in all of its lines.
    layer_fields: dict[str, Any]
    experts: NDArray[np.int16]
    processed: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    gates: NDArray[np.float32] | None
    all_gates: NDArray[np.float32] | None
    generated: NDArray[np.bool_] | None = None
    token_ids: NDArray[np.int32] | None = None
    # Numbers of ``TOKEN_KINDS``.
    kinds: NDArray[np.int8] | None = None
    # Whether all gates of a token, where they are there, are a distribution.
    sum_to_one: bool = True
    # ``(E,)`` how often each expert was chosen, where no token is known.
    counts: NDArray[np.int64] | None = None


class Fault(Exception):  # noqa: N818
    """What is wrong with a line, without a full stop."""


# Where a response stands that is all of a file.
WHOLE_FILE = "the file"


@contextmanager
def faults_at(path: Path, where: str) -> Iterator[str]:
    """Yield how a request without a name is called: by the file and ``where`` in it, e.g. "line 3".

    Raises:
        UserError: the block ends in a ``Fault``.
    """
    try:
        yield path.name if where == WHOLE_FILE else f"{path.name}:{where.removeprefix('line ')}"
    except Fault as fault:
        error = UserError(f"{path}, {where}: {fault}.")
        for note in getattr(fault, "__notes__", ()):
            error.add_note(note)
        raise error from None


def parse(line: bytes | bytearray, *, num_experts: int | None) -> Row:
    """Return what a line says; ``num_experts`` is E where it does not say so itself.

    Raises:
        Fault: it is not what it should be.
    """
    fields = _fields(line)
    identity, layer = fields["id"], _text(fields, "layer")
    if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
        raise Fault(f"id takes a name or a whole number; got {identity!r}")
    if not is_unicode(str(identity)):
        raise Fault(f"id holds half a character (a lone surrogate); got {identity!r}")
    if "num_experts" not in fields and num_experts is None:
        raise Fault(
            f"num_experts is missing; add it to each line, or set it for all lines with {option('num_experts')}"
        )
    size = _whole_number(fields, "num_experts", num_experts or 0, low=1)
    prefix = _whole_number(fields, "num_prefix_tokens", 0, low=0)
    for name, value in (("num_experts", size), ("num_prefix_tokens", prefix)):
        if value > _MOST:
            raise Fault(f"{name} is at most {_MOST:,}; got {value:,}")
    experts = _array(
        fields, "experts", kinds="iu", dims=2, what="a list of experts for each token, all of the same length"
    )
    tokens, top_k = experts.shape
    if tokens <= prefix or not 1 <= top_k <= size:
        raise Fault(
            f"experts holds {tokens} tokens with {top_k} of {size} experts each; expected more than the {prefix} "
            f"prefix tokens, with 1 to {size} experts"
        )
    for problem, odd in expert_problems(experts, num_experts=size).items():
        if odd.any():
            raise Fault(f"token {int(np.argmax(odd.any(-1)))} has {problem}")
    experts = experts.astype(np.int16)
    processed = _array(fields, "processed", kinds="b", shape=experts.shape, default=experts >= 0)
    valid = _array(fields, "valid", kinds="b", shape=(tokens,), default=np.ones(tokens, bool))
    gates, all_gates = _gates(fields, experts, num_experts=size)
    ordered_by = _order(fields, default=None if gates is None else "gates")
    order = None
    if gates is not None and ordered_by == "gates":
        order = np.lexsort((experts, -gates, experts < 0), axis=-1)
    elif ordered_by is None:
        order = as_set(experts)
    if order is not None:
        experts, processed = (np.take_along_axis(side, order, axis=-1) for side in (experts, processed))
        gates = None if gates is None else np.take_along_axis(gates, order, axis=-1)
    shared = {
        "num_experts": size,
        "top_k": top_k,
        "num_prefix_tokens": prefix,
        "router": _text(fields, "router", "recorded"),
        "token_local": bool(_flag(fields, "token_local")),
        "gates_kept": "none" if gates is None else "chosen" if all_gates is None else "all",
        "ordered_by": ordered_by,
    }
    generated = _array(fields, "generated", kinds="b", shape=(tokens,)) if "generated" in fields else None
    return Row(
        id=str(identity),
        layer=layer,
        layer_fields=shared,
        experts=experts,
        processed=processed,
        valid=valid,
        gates=gates,
        all_gates=all_gates,
        generated=generated,
        token_ids=_token_ids(fields, tokens),
        kinds=_kinds(fields, tokens),
    )


def _order(fields: dict[str, Any], *, default: str | None) -> str | None:
    """Return what the experts are ordered by."""
    value = fields.get("ordered_by", default)
    if value not in (None, *ORDERS):
        raise Fault(f"ordered_by is one of {', '.join(ORDERS)}; got {value!r}")
    return value


def _token_ids(fields: dict[str, Any], tokens: int) -> NDArray[np.int32] | None:
    if "token_ids" not in fields:
        return None
    values = _array(fields, "token_ids", kinds="iu", shape=(tokens,))
    if (values < 0).any() or (values > MOST_TOKEN).any():
        raise Fault(f"token_ids takes whole numbers from 0 to {MOST_TOKEN:,}")
    return values.astype(np.int32)


def _kinds(fields: dict[str, Any], tokens: int) -> NDArray[np.int8] | None:
    values = fields.get("kinds")
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != tokens:
        raise Fault(f"kinds takes {tokens} kinds of tokens")
    for value in values:
        if value not in TOKEN_KINDS:
            raise Fault(f"kinds takes {', '.join(TOKEN_KINDS)}; got {value!r}")
    return np.array([TOKEN_KINDS.index(value) for value in values], np.int8)


def _fields(line: bytes | bytearray) -> dict[str, Any]:
    """Return the fields of a line, all of which are known, and none of those that must be there missing."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise Fault(f"this is not JSON ({error})") from None
    except RecursionError:
        raise Fault("its lists or objects are nested too deeply") from None
    if not isinstance(fields, dict):
        raise Fault('expected one object per line, such as {"id": …, "layer": …, "experts": …}')
    if "layer" not in fields and "experts" not in fields:
        raise Fault(
            f"it has neither layer nor experts; a server's responses need {option('model_config', 'config.json')}"
        )
    for name in fields:
        if name not in _KNOWN:
            raise Fault(describe_unknown("field", name, _KNOWN).rstrip("."))
    for name in ("id", "layer", "experts"):
        if name not in fields:
            raise Fault(f"{name} is missing")
    return fields


def _gates(
    fields: dict[str, Any], experts: NDArray[np.int16], *, num_experts: int
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Return the gates of the chosen experts and of all, None where they were not logged."""
    if "gates" in fields and "all_gates" in fields:
        raise Fault("gates are among all_gates; give one of the two")
    for name, width in (("gates", experts.shape[1]), ("all_gates", num_experts)):
        if name not in fields:
            continue
        values = _array(fields, name, kinds="fiu", shape=(len(experts), width)).astype(np.float32)
        if not (np.isfinite(values) & (values >= 0)).all():
            raise Fault(f"{name} takes numbers from 0 up")
        if name == "gates":
            return np.where(experts < 0, np.float32(0), values), None
        sums = values.sum(-1)
        if (abs(sums - 1) > 1e-2).any():
            raise Fault(
                f"all_gates of a token add up to {sums[np.argmax(abs(sums - 1))]:.3g}, and not to 1; log the gates of "
                "the chosen experts as gates"
            )
        of_chosen = np.take_along_axis(values, experts.astype(np.int64).clip(0), axis=-1)
        return np.where(experts < 0, np.float32(0), of_chosen), values
    return None, None


def _array(
    fields: dict[str, Any],
    name: str,
    *,
    kinds: str,
    dims: int | None = None,
    shape: tuple[int, ...] | None = None,
    what: str = "",
    default: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return a nested list as an array of some kinds of numbers and of a shape."""
    if name not in fields:
        assert default is not None
        return default
    array = as_array(fields[name])
    is_shaped = array.shape == shape if shape is not None else array.ndim == dims
    if not is_shaped or array.dtype.kind not in kinds or array.size == 0:
        expected = (
            what
            if shape is None
            else f"{' × '.join(map(str, shape))} {'truth values' if kinds == 'b' else 'numbers'}"
        )
        raise Fault(f"{name} takes {expected}")
    return array


def as_array(value: Any) -> NDArray[Any]:
    """Return nested lists as an array; of lists of unequal lengths it holds no number."""
    try:
        return np.asarray(value)
    except (ValueError, OverflowError, TypeError):
        return np.asarray(None)


def _text(fields: dict[str, Any], name: str, default: str = "") -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or not value:
        raise Fault(f"{name} takes a name; got {value!r}")
    if not is_unicode(value):
        raise Fault(f"{name} holds half a character (a lone surrogate); got {value!r}")
    return value


def _whole_number(fields: dict[str, Any], name: str, default: int, *, low: int) -> int:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise Fault(f"{name} takes a whole number from {low} up; got {value!r}")
    return value


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise Fault(f"{name} takes true or false; got {value!r}")
    return value


# A sequence of tokens: its prompt, and what was generated.


@dataclass(frozen=True)
class Tokens:
    """A sequence: its token ids ``(T,)``, the first ``prompt`` of which are the prompt's.

    ``is_split``: whether it is known which were generated; where it is not, ``prompt`` is all of them.
    """

    ids: NDArray[np.int32]
    prompt: int
    is_split: bool = True

    @property
    def generated(self) -> NDArray[np.bool_]:
        """``(T,)`` which tokens were generated."""
        return np.arange(len(self.ids)) >= self.prompt


def token_array(value: Any, name: str) -> NDArray[np.int32]:
    """Return token ids ``(T,)`` of a list or an array; ``name``: what it is called where it is from.

    Raises:
        Fault: these are no token ids.
    """
    if isinstance(value, np.ndarray):
        valid = (
            value.ndim == 1
            and value.dtype.kind in "iu"
            and bool(((value >= 0) & (value <= MOST_TOKEN)).all())
        )
    else:
        valid = isinstance(value, list) and all(
            type(entry) is int and 0 <= entry <= MOST_TOKEN for entry in value
        )
    if not valid:
        raise Fault(f"{name} takes a list of token ids, whole numbers from 0 to {MOST_TOKEN:,}")
    return np.array(value, np.int32)
