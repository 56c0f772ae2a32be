"""Router traces of Megatron-LM, whose raw bfloat16 logits beside a trace are made gates."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.recordings.log_rows import Fault, as_array, faults_at
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture, Reader, Weights, check_all_sparse, whole_number
from moeprobe.recordings.responses import GatheredResponse, array_of, is_packed, load_by_router
from moeprobe.recordings.router_logits import FUNCTIONS, check_logits, weights_of
from moeprobe.runtime.files import is_file, open_regular


class RankLogits:
    """Logits of one rank.

    Args:
        folder: of the trace.
        rank: which one.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"logits_rank{rank}.bin"
        self._state = folder / f"router_state_rank{rank}.pt"

    def weights(self, line: Mapping[str, Any], experts: NDArray[np.int16], shape: MoeShape) -> Weights:
        """Return gates of a line's ``(T, K)`` experts and of all, by the layer's score function.

        Raises:
            Fault: the logits are missing, or do not fit the line.
        """
        logits = self._read(line, (len(experts), shape.num_experts))
        function, bias = self.router(line["layer"], shape)
        return weights_of(logits, experts, function or "softmax", bias)

    def _read(self, line: Mapping[str, Any], shape: tuple[int, int]) -> NDArray[np.float32]:
        """Return the logits of a line ``(T, E)``."""
        offset, size = line.get("logit_offset"), line.get("logit_bytes")
        # Bounded before seeking: a damaged number would otherwise fail deep inside the file system.
        is_located = type(offset) is int and 0 <= offset < 2**63 and line.get("logit_shape") == list(shape)
        if not is_located or size != 2 * shape[0] * shape[1]:
            raise Fault(
                f"logit_offset, logit_bytes and logit_shape do not fit {shape[0]} tokens and {shape[1]} experts "
                "in bfloat16"
            )
        if not is_file(self._path):
            raise Fault(f"its logits are in {self._path.name}, which is not beside it; copy it there")
        with open_regular(self._path) as file:
            file.seek(offset)
            content = file.read(size)
        if len(content) != size:
            raise Fault(f"{self._path.name} ends before the logits at {offset:,}: it is truncated")
        # bfloat16 is the upper half of a float32.
        values = (np.frombuffer(content, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
        check_logits([values], self._path.name)
        return values

    def router(self, layer: Any, shape: MoeShape) -> tuple[str | None, NDArray[np.float32] | None]:
        """Return the function from logits to gates, None if unknown, and the bias added to them before the choice."""
        state = self._states.get(layer)
        if not isinstance(state, dict):
            return shape.scoring, None
        # A state that names no function has Megatron's default.
        function, bias = state.get("score_function") or "softmax", state.get("expert_bias")
        if function not in FUNCTIONS:
            raise Fault(
                f"{self._state.name}: score_function is {str(function)[:40]}, and neither softmax nor sigmoid"
            )
        if bias is None:
            return function, None
        values = array_of(bias, "expert_bias", kinds="f", dims=1).astype(np.float32)
        if len(values) != shape.num_experts or not np.isfinite(values).all():
            raise Fault(f"{self._state.name}: expert_bias takes {shape.num_experts} finite numbers")
        # A bias of zeros changes no choice.
        return function, values if values.any() else None

    @cached_property
    def _states(self) -> Mapping[Any, Any]:
        """What the decoder's routers are, by layer; nothing where it was not saved."""
        if not is_file(self._state):
            return {}
        with open_regular(self._state) as file:
            packed = is_packed(file.peek(4))
        if not packed:
            raise UserError(f"{self._state} is no file that torch.save wrote.")
        # Keys are block, number of the multi-token prediction (None in the decoder), and layer.
        return {
            key[-1]: state for key, state in load_by_router(self._state).items() if key[:1] == ("decoder",)
        }


_KEYS = {"step", "stage", "layer", "top_indices"}


class Megatron(Reader):
    """Megatron-LM: ``router_trace_rank0.jsonl``, a line for each step and layer, with ``logits_rank0.bin`` beside it.

    No sequence is named: a step (or micro-batch, where layers come again) is one input. Logits are made gates by the
    score function in ``router_state_rank0.pt``, or in ``config.json``; where neither says it, there are none.
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether it is a line, or several that were gathered."""
        return response.keys() >= _KEYS or isinstance(response.get("passes"), list)

    def gathered(self, lines: Iterator[tuple[str, Any]], path: Path) -> Iterator[tuple[str, Any]]:
        """Yield the lines of each pass through the model, without multi-token prediction."""
        names: dict[str, int] = {}
        began, records, mtp = "", dict[str, dict[int, Any]](), 0
        for where, line in lines:
            with faults_at(path, where):
                if not isinstance(line, dict) or not line.keys() >= _KEYS:
                    raise Fault(f"this is no line of a router trace, with {', '.join(sorted(_KEYS))}")
                step, rank, layer = (whole_number(line, name) for name in ("step", "rank", "layer"))
            # Multi-token prediction has routers of its own, which are no layers of the model.
            if line.get("block", "decoder") != "decoder":
                mtp += 1
                continue
            of_pass = f"rank{rank}/step{step}"
            # A layer that comes again begins another micro-batch of the step.
            if records and (of_pass not in records or layer in records[of_pass]):
                yield began, _pass(records, names, path, mtp)
                records, mtp = {}, 0
            if not records:
                began, records = where, {of_pass: {}}
            records[of_pass][layer] = line
        if records:
            yield began, _pass(records, names, path, mtp)

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of a pass."""
        if not isinstance(response, GatheredResponse):
            raise Fault("a line of a router trace stands among others")
        layers = response["passes"]
        check_all_sparse([whole_number(line, "layer") for line in layers], shape)
        ids = [_indices(line, shape) for line in layers]
        if len({len(indices) for indices in ids}) > 1:
            raise Fault("layers of a step have different numbers of tokens")
        # The first line stands for all: a run saves logits for every layer or for none.
        logits = (
            None
            if "logit_offset" not in layers[0]
            else RankLogits(response["folder"], whole_number(layers[0], "rank"))
        )

        def weights(index: int, experts: NDArray[np.int16]) -> Weights:
            assert logits is not None
            return logits.weights(layers[index], experts, shape)

        unscored = logits is not None and any(
            logits.router(line["layer"], shape)[0] is None for line in layers
        )
        return [
            Capture(
                np.stack(ids, axis=1),
                name=response["name"],
                weights=None if logits is None or unscored else weights,
                unscored=unscored,
                left_out=response["mtp_lines"],
            )
        ]


def _pass(
    records: dict[str, dict[int, Any]], names: dict[str, int], path: Path, mtp: int
) -> GatheredResponse:
    """Return the lines of a pass as one response; passes of one step are numbered, ``mtp`` lines were left out."""
    [(name, layers)] = records.items()
    number = names.get(name, 0)
    names[name] = number + 1
    pass_name = f"{name}/{number}" if number else name
    # Lines of a pass come in any order.
    passes = [layers[layer] for layer in sorted(layers)]
    return GatheredResponse(name=pass_name, folder=path.parent, passes=passes, mtp_lines=mtp)


def _indices(line: Mapping[str, Any], shape: MoeShape) -> NDArray[Any]:
    """Return the experts of a line ``(T, K)``."""
    ids = as_array(line["top_indices"])
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
