"""Router traces of Megatron-LM."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.megatron_logits import Logits
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture, Reader, Weights, count
from moeprobe.recordings.responses import Gathered

_KEYS = {"step", "stage", "layer", "top_indices"}


class Megatron(Reader):
    """Megatron-LM: ``router_trace_rank0.jsonl``, a line for each step and layer, with ``logits_rank0.bin`` beside it.

    No sequence is named: a step (or micro-batch, where layers come again) is one input. Where logits are there, all
    gates are; what else the routers weighed is in ``router_state_rank0.pt``.
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether it is a line, or several that were gathered."""
        return response.keys() >= _KEYS or isinstance(response.get("passes"), list)

    def gathered(self, lines: Iterator[tuple[str, Any]], path: Path) -> Iterator[tuple[str, Any]]:
        """Yield the lines of each pass through the model, without multi-token prediction."""
        names: dict[str, int] = {}
        began, records = "", dict[str, dict[int, Any]]()
        for where, line in lines:
            try:
                if not isinstance(line, dict) or not line.keys() >= _KEYS:
                    raise Fault(f"this is no line of a router trace, with {', '.join(sorted(_KEYS))}")
                step, rank, layer = (_number(line, name) for name in ("step", "rank", "layer"))
            except Fault as fault:
                raise UserError(f"{path}, {where}: {fault}.") from None
            if line.get("block", "decoder") != "decoder":
                continue
            of_pass = f"rank{rank}/step{step}"
            if records and (of_pass not in records or layer in records[of_pass]):
                yield began, _pass(records, names, path)
                records = {}
            if not records:
                began, records = where, {of_pass: {}}
            records[of_pass][layer] = line
        if records:
            yield began, _pass(records, names, path)

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of a pass."""
        if not isinstance(response, Gathered):
            raise Fault("a line of a router trace stands among others")
        layers = _sparse(response["passes"], shape)
        ids = [_indices(line, shape) for line in layers]
        if len({len(indices) for indices in ids}) > 1:
            raise Fault("layers of a step have different numbers of tokens")
        logits = (
            None
            if "logit_offset" not in layers[0]
            else Logits(response["folder"], _number(layers[0], "rank"))
        )

        def weights(index: int, experts: NDArray[np.int16]) -> Weights:
            assert logits is not None
            return logits.weights(layers[index], experts, shape)

        return [
            Capture(
                np.stack(ids, axis=1),
                name=response["name"],
                weights=None if logits is None else weights,
            )
        ]


def _pass(records: dict[str, dict[int, Any]], names: dict[str, int], path: Path) -> Gathered:
    """Return the lines of a pass as one response; passes of one step are numbered."""
    [(name, layers)] = records.items()
    number = names.get(name, 0)
    names[name] = number + 1
    pass_name = f"{name}/{number}" if number else name
    return Gathered(name=pass_name, folder=path.parent, passes=[layers[layer] for layer in sorted(layers)])


def _sparse(lines: list[Mapping[str, Any]], shape: MoeShape) -> list[Mapping[str, Any]]:
    """Return the lines of the layers with experts; these are numbered among all layers, or among themselves."""
    numbers = tuple(_number(line, "layer") for line in lines)
    if numbers not in (shape.sparse, tuple(range(len(shape.sparse)))):
        raise Fault(
            f"it has layers {', '.join(map(str, numbers[:8]))}, and the model has experts in "
            f"{', '.join(map(str, shape.sparse[:8]))}; a rank of a pipeline has a part of the layers only, which "
            "is not read"
        )
    return lines


def _indices(line: Mapping[str, Any], shape: MoeShape) -> NDArray[Any]:
    """Return the experts of a line ``(T, K)``."""
    try:
        ids = np.asarray(line["top_indices"])
    except (ValueError, OverflowError):
        ids = np.asarray(None)
    if (
        ids.size == 0
        or ids.ndim != 2
        or ids.dtype.kind != "i"
        or len(ids) != line.get("num_tokens", len(ids))
    ):
        raise Fault(
            "top_indices takes for each of num_tokens tokens a list of experts, all of the same length"
        )
    return ids


def _number(line: Mapping[str, Any], name: str) -> int:
    value = count(line.get(name))
    if value is None:
        raise Fault(f"{name} takes a whole number from 0 up; got {str(line.get(name))[:40]}")
    return value
