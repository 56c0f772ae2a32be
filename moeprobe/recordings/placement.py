"""Which rank of expert parallelism holds which experts: files of placements, consecutive experts, greedy balance.

A file is one of

* JSON: for all layers a list of ranks, each a list of its experts; or an object of such lists by layer:
  ``{"layers.0": [[0, 1], [2, 3]], "layers.1": [[0, 3], [1, 2]]}``;
* the expert map of vllm-ascend (``layer_list``, ``device_list``, ``device_expert``), whose layers are the MoE layers in
  forward order;
* CSV with the columns ``expert,rank``, or ``layer,expert,rank``.

An expert on several ranks has copies, which share its choices equally.

Axes: E experts, N ranks.
"""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError, option
from moeprobe.runtime.files import JSON_LIMIT, read_bytes, read_json

Array = NDArray[np.float64]
_FORMS = "a JSON list of ranks with their experts, the same by layer, an expert map of vllm-ascend, or CSV expert,rank"

# More ranks than any deployment has; each takes a number for every expert of every layer.
MOST_RANKS = 4096


@dataclass(frozen=True)
class Placement:
    """By layer the share of each expert's choices that each rank computes ``(E, N)``; rows add up to 1."""

    name: str
    shares: Mapping[str, Array]

    @property
    def num_ranks(self) -> int:
        """N."""
        return next(iter(self.shares.values())).shape[1]


def consecutive(num_experts: Mapping[str, int], ranks: int) -> Placement:
    """Return the usual placement: the first experts on the first rank, and so on.

    Args:
        num_experts: E of each layer.
        ranks: N.

    Raises:
        UserError: the ranks do not divide the experts of a layer.
    """
    shares = {}
    for layer, experts in num_experts.items():
        if ranks < 1 or experts % ranks:
            raise UserError(
                f"{option('ranks', ranks)} does not divide the {experts} experts of {layer}; choose a number that "
                f"does, or give the experts of each rank with {option('placement')}."
            )
        shares[layer] = np.repeat(np.eye(ranks), experts // ranks, axis=0)
    return Placement("consecutive", shares)


def greedy(loads: Mapping[str, Array], ranks: int) -> Placement:
    """Return a placement that balances given loads: each expert, the busiest first, to the least loaded rank with room.

    Ranks hold E / N experts each, rounded up, none of them twice (longest processing time first).

    Args:
        loads: of the experts of each layer ``(E,)``.
        ranks: N.
    """
    shares = {}
    for layer, load in loads.items():
        share, of_ranks = np.zeros((len(load), ranks)), np.zeros(ranks)
        room = -(-len(load) // ranks)
        for expert in np.argsort(-load, kind="stable"):
            rank = int(np.where(share.sum(0) < room, of_ranks, np.inf).argmin())
            share[expert, rank] = 1.0
            of_ranks[rank] += load[expert]
        shares[layer] = share
    return Placement("greedy", shares)


def read_placement(path: Path, num_experts: Mapping[str, int], *, every_layer: Sequence[str]) -> Placement:
    """Return what a file says of layers.

    Args:
        path: the file.
        num_experts: E of each layer that is looked at.
        every_layer: all MoE layers, in forward order.

    Raises:
        UserError: it cannot be read, lacks a layer or an expert, or names one that there is not.
    """
    content = _of_csv(path, num_experts) if path.suffix.lower() == ".csv" else read_json(path)
    if isinstance(content, dict) and "layer_list" in content:
        content = _of_expert_map(path, content, every_layer)
    shares: dict[str, Array] = {}
    # A list for all layers is read once for each number of experts, not for each layer.
    read: dict[int, Array] = {}
    for layer, experts in num_experts.items():
        if isinstance(content, dict) and layer not in content:
            raise UserError(
                f"{path} lacks layer {layer}; choose the layers that it has with {option('layers')}."
            )
        if isinstance(content, dict):
            shares[layer] = _shares(path, layer, content[layer], experts)
        else:
            if experts not in read:
                read[experts] = _shares(path, layer, content, experts)
            shares[layer] = read[experts]
    widths = {layer: share.shape[1] for layer, share in shares.items()}
    unlike = next((layer for layer, width in widths.items() if width != next(iter(widths.values()))), None)
    if unlike is not None:
        first = next(iter(widths))
        raise UserError(
            f"{path} has {widths[first]} ranks in {first} and {widths[unlike]} in {unlike}; give every layer the same "
            "ranks."
        )
    return Placement(path.stem, shares)


def _shares(path: Path, layer: str, ranks: Any, num_experts: int) -> Array:
    """Return the share of each expert's choices on each rank."""
    if isinstance(ranks, list) and len(ranks) > MOST_RANKS:
        raise UserError(
            f"{path} has {len(ranks):,} ranks in {layer}, and at most {MOST_RANKS:,} are read; give {_FORMS}."
        )
    if (
        not isinstance(ranks, list)
        or not ranks
        or not all(isinstance(rank, list) and all(type(expert) is int for expert in rank) for rank in ranks)
    ):
        raise UserError(f"{path} holds no placement of experts for {layer}; give {_FORMS}.")
    share = np.zeros((num_experts, len(ranks)))
    for rank, experts in enumerate(ranks):
        for expert in experts:
            if not 0 <= expert < num_experts:
                raise UserError(
                    f"{path}, {layer}: rank {rank} has expert {expert}, and the layer has experts 0 to "
                    f"{num_experts - 1}; name these alone."
                )
            share[expert, rank] += 1
    copies = share.sum(1)
    missing = np.flatnonzero(copies == 0)
    if len(missing):
        raise UserError(
            f"{path}, {layer}: no rank has expert {missing[0]} ({len(missing)} of {num_experts} are missing); give "
            "each expert a rank."
        )
    return share / copies[:, None]


def _of_expert_map(path: Path, content: Mapping[str, Any], every_layer: Sequence[str]) -> dict[str, Any]:
    """Return the ranks of each layer of vllm-ascend's expert map."""
    try:
        ranks = [
            [device["device_expert"] for device in layer["device_list"]] for layer in content["layer_list"]
        ]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} has a layer_list, and not the device_list of each layer with device_expert; give {_FORMS}."
        ) from error
    if len(ranks) != len(every_layer):
        raise UserError(
            f"{path} places the experts of {len(ranks)} layers, and the trace has {len(every_layer)} MoE layers; give "
            "the map of the same model."
        )
    return dict(zip(every_layer, ranks, strict=True))


def _of_csv(path: Path, layers: Collection[str]) -> Any:
    """Return the ranks of all layers, or of each of some, of a CSV."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_bytes(path, limit=JSON_LIMIT).decode())))
        by_layer: dict[str, dict[int, list[int]]] = {}
        for row in rows:
            by_layer.setdefault(row.get("layer") or "", {}).setdefault(int(row["rank"]), []).append(
                int(row["expert"])
            )
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise UserError(
            f"{path} is no CSV with the columns expert,rank of whole numbers; mend it."
        ) from error
    content = {}
    for layer, ranks in by_layer.items():
        if min(ranks) < 0 or max(ranks) >= min(len(rows), MOST_RANKS):
            raise UserError(
                f"{path} numbers ranks from {min(ranks)} to {max(ranks)}; number them from 0 on, "
                f"at most {MOST_RANKS:,}."
            )
        # A file may name many more layers than there are, each with its last rank alone.
        if layer == "" or layer in layers:
            content[layer] = [ranks.get(rank, []) for rank in range(max(ranks) + 1)]
    return content[""] if content.keys() == {""} else content
