"""Dumps of SGLang's expert-distribution recorder."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault, Tokens, token_array
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture, Reader, count, objects_under
from moeprobe.recordings.responses import array_of

_IDS, _MAP = "topk_ids_of_layer", "last_physical_to_logical_map"


class SglangRecorder(Reader):
    """SGLang's recorder, ``per_token``: ``records[i].topk_ids_of_layer`` of each forward pass (torch).

    No request is named. A pass that reads prompts has an input for each of them; a pass of decoding, one token of each
    of several requests, is one input.
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether records have the key."""
        return any(_IDS in record for record in objects_under(response, "records"))

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each pass, its physical experts by the logical ones that they are copies of."""
        if _MAP not in response:
            raise Fault(f"{_MAP} is missing, without which nobody knows which experts the physical ones are")
        logical = array_of(response[_MAP], _MAP, dims=2)
        captures: list[Capture] = []
        for index, record in enumerate(objects_under(response, "records")):
            ids = _logical(record, logical, shape)
            number, rank = (count(record.get(name)) for name in ("forward_pass_id", "rank"))
            name = f"rank{rank or 0}/pass{index if number is None else number}"
            captures += _of_pass(record, ids, name)
        return captures


def _logical(record: Mapping[str, Any], logical: NDArray[Any], shape: MoeShape) -> NDArray[Any]:
    """Return the experts of a pass ``(T, L, K)``."""
    ids = array_of(record.get(_IDS), _IDS, dims=3)
    if ids.shape[0] != logical.shape[0]:
        raise Fault(f"{_IDS} has {ids.shape[0]} layers, and {_MAP} {logical.shape[0]}")
    if ids.shape[2] < shape.top_k or (ids[..., shape.top_k :] != -1).any():
        raise Fault(f"{_IDS} has not {shape.top_k} experts per token, num_experts_per_tok of the model")
    ids = ids[..., : shape.top_k].astype(np.int64)
    if ((ids < -1) | (ids >= logical.shape[1])).any():
        raise Fault(f"{_IDS} holds expert {ids.max()}, and {_MAP} has {logical.shape[1]} experts")
    mapped = logical[np.arange(len(ids))[:, None, None], ids.clip(0)]
    return np.where(ids < 0, -1, mapped).transpose(1, 0, 2)


def _of_pass(record: Mapping[str, Any], ids: NDArray[Any], name: str) -> list[Capture]:
    """Return a capture for each prompt of a pass, or one of all its tokens where it decodes."""
    lengths, positions = record.get("extend_seq_lens"), record.get("positions")
    if not lengths:
        return [Capture(ids, name=name, generated=np.ones(len(ids), bool))]
    sizes = token_array(lengths, "extend_seq_lens")
    starts = token_array(positions, "positions")
    tokens = token_array(record.get("input_ids"), "input_ids")
    if not sizes.sum() == len(starts) == len(tokens) == len(ids):
        raise Fault(
            f"{_IDS} has {len(ids)} tokens, and positions, input_ids and extend_seq_lens other numbers of them"
        )
    ends = np.cumsum(sizes)
    return [
        Capture(
            ids[end - size : end],
            start=int(starts[end - size]),
            name=f"{name}/{number}",
            tokens=_prompt(tokens[end - size : end], int(starts[end - size])),
        )
        for number, (size, end) in enumerate(zip(sizes, ends, strict=True))
        if size
    ]


def _prompt(ids: NDArray[np.int32], start: int) -> Tokens:
    """Return the rows of a prompt, none of them generated; tokens before the first are not known."""
    if start > 2**24:
        raise Fault(f"positions begin at {start:,}, which is more than any prompt has")
    return Tokens(np.concatenate([np.full(start, -1, np.int32), ids]), start + len(ids))
