"""A layer's routing as rows of a trace file, and back.

What comes back is what the analyses need: the same choices, and gates with the same highest, second and sum, in which
each chosen expert has its own. Where not all gates were kept, the rest is spread evenly over the experts that were not
chosen.

Axes: B inputs, T tokens, P patches, K choices, E experts.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.inputs.geometry import Correspondence, PatchGrid
from moeprobe.inputs.modality import MEDIA, TOKEN_KINDS
from moeprobe.recordings.format import COLUMNS, as_set, batch, lists
from moeprobe.recordings.log_rows import Row
from moeprobe.recordings.readers.base import Weights
from moeprobe.recordings.reading import Block, TraceFile
from moeprobe.routing.record import LayerRouting, RoutingTrace, highest_gates
from moeprobe.runtime.arguments import check_arguments, several
from moeprobe.runtime.catalog import describe_unknown

_SUMMARY = ("highest", "second", "rest")


def to_rows(
    ids: Sequence[str],
    layer: str,
    routing: LayerRouting,
    *,
    all_gates: bool = False,
    pairs: Correspondence | None = None,
    token_ids: NDArray[np.int32] | None = None,
    generated: NDArray[np.bool_] | None = None,
    kinds: NDArray[np.int8] | None = None,
) -> pa.RecordBatch:
    """Return one layer's routing of some inputs as rows of a trace.

    Args:
        ids: names of the B inputs.
        layer: its name.
        routing: the layer's routing.
        all_gates: keep every gate, not only the chosen experts' and a summary.
        pairs: which patches correspond to the reference's; None where they did not move.
        token_ids: the tokens ``(T,)`` of the one input, where they are known.
        generated: ``(T,)`` which of them were generated, where that is known.
        kinds: ``(T,)`` of which kind they are, as numbers of ``TOKEN_KINDS``, where that is known.
    """
    rows, tokens = routing.valid.shape
    top_k, gates, experts = routing.top_k, routing.gates.float(), routing.selected.long()
    processed = routing.processed
    if not routing.ordered:
        order = torch.from_numpy(as_set(experts.to(torch.int16).cpu().numpy())).to(experts.device)
        experts, processed = experts.gather(-1, order), processed.gather(-1, order)
    columns: dict[str, tuple[Tensor | NDArray[Any], int]] = {
        "experts": (experts.to(torch.int16), tokens * top_k),
        "processed": (processed, tokens * top_k),
        "valid": (routing.valid, tokens),
        "gates": (gates.gather(-1, experts.clamp_min(0)).masked_fill(experts < 0, 0), tokens * top_k),
    }
    gates_kept = "chosen"
    if all_gates:
        gates_kept, columns["all_gates"] = "all", (gates, tokens * routing.num_experts)
    elif routing.gates_sum_to_one and routing.num_experts > 1:
        gates_kept, summary = "summary", highest_gates(gates)
        columns |= {name: (value, tokens) for name, value in zip(_SUMMARY, summary, strict=True)}
    if routing.slot is not None:
        columns["slot"] = (routing.slot, tokens)
    if pairs is not None:
        # A slot is a patch of view 1: its partner is one of the other side.
        side = np.where(pairs.view_first[:, None], pairs.reference, pairs.view)
        columns["partner"] = (side, side.shape[1])
    if kinds is None and routing.leading:
        kinds = np.repeat(_kinds_in_prompt(routing)[None], rows, axis=0)
    for name, marks in (("generated", generated), ("token_ids", token_ids), ("kinds", kinds)):
        if marks is not None:
            columns[name] = (marks, tokens)
    cells: dict[str, Any] = {
        "id": list(ids),
        "layer": layer,
        "router": routing.router,
        "num_experts": routing.num_experts,
        "top_k": top_k,
        "num_tokens": tokens,
        "num_prefix_tokens": routing.num_prefix_tokens,
        "gates_sum_to_one": routing.gates_sum_to_one,
        "token_local": routing.token_local,
        "experts_choose": routing.experts_choose,
        "gates_kept": gates_kept,
        "ordered_by": _order(routing),
        "view_first": None if pairs is None else pairs.view_first,
    }
    if routing.grid is not None:
        grid = routing.grid
        cells |= {"grid_rows": grid.rows, "grid_columns": grid.columns, "patch_size": grid.patch_size}
    for name, (value, length) in columns.items():
        values = value.cpu().numpy() if isinstance(value, Tensor) else value
        cells[name] = lists(values, length, rows=rows, kind=COLUMNS[name][0])
    return batch(cells, rows=rows)


def _kinds_in_prompt(routing: LayerRouting) -> NDArray[np.int8]:
    """Return the kinds ``(T,)`` of the tokens of a prompt with a picture, whose image tokens come last."""
    leading = [np.full(count, TOKEN_KINDS.index(kind)) for kind, count in routing.leading]
    patches = routing.valid.shape[1] - routing.num_prefix_tokens
    return np.concatenate([*leading, np.full(patches, TOKEN_KINDS.index(MEDIA[0]))]).astype(np.int8)


def _leading(block: Block) -> tuple[tuple[str, int], ...]:
    """Return the kinds of the prefix tokens of prompts with a picture, and how many there are of each."""
    if block.kinds is None or block.layer.grid_rows is None:
        return ()
    prefix = block.kinds[:, : block.layer.num_prefix_tokens]
    # One prompt stands beside every picture.
    numbers = prefix[0].tolist() if (prefix == prefix[0]).all() else []
    runs = [(number, len(list(run))) for number, run in groupby(numbers)]
    if len({number for number, _ in runs}) < len(runs) or -1 in numbers:
        return ()
    return tuple((TOKEN_KINDS[number], count) for number, count in runs)


def _order(routing: LayerRouting) -> str | None:
    """Return what the choices are ordered by."""
    if not routing.ordered:
        return None
    return "gates" if routing.scores is None else "scores"


def to_routing(block: Block) -> LayerRouting:
    """Return the routing of some inputs; a token past the end of its input is padding.

    Where gates are not recorded they are zeros, and the choices are in no order; where only chosen experts' gates
    are recorded, they are marked as no distribution.
    """
    layer = block.layer
    grid = None
    if layer.grid_rows is not None:
        assert layer.grid_columns is not None
        assert layer.patch_size is not None
        grid = PatchGrid(layer.grid_rows, layer.grid_columns, layer.patch_size)
    return LayerRouting(
        gates=_gates(block),
        scores=None,
        selected=torch.from_numpy(block.experts),
        processed=torch.from_numpy(block.processed),
        valid=torch.from_numpy(block.valid),
        grid=grid,
        num_prefix_tokens=layer.num_prefix_tokens,
        leading=_leading(block),
        gates_sum_to_one=layer.gates_sum_to_one and layer.gates_kept in ("summary", "all"),
        token_local=layer.token_local,
        router=layer.router,
        slot=None if block.slot is None else torch.from_numpy(block.slot).long(),
        experts_choose=layer.experts_choose,
        ordered=layer.ordered,
        every_gate=layer.gates_kept == "all",
        has_scores=layer.ordered_by != "scores",
        group_images=None if layer.experts_choose else 1,
    )


def patches_of(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Return the corresponding patches ``(B, P)`` of the reference and of this view, and ``view_first`` ``(B,)``."""
    assert block.partner is not None
    assert block.view_first is not None
    partner = torch.from_numpy(block.partner).long()
    first = torch.from_numpy(block.view_first)
    positions = torch.arange(partner.shape[1]).expand_as(partner).where(partner >= 0, -1)
    swap = first[:, None]
    return partner.where(swap, positions), positions.where(swap, partner), first


def _gates(block: Block) -> Tensor:
    """Return gates ``(B, T, E)``: the recorded ones, and the rest of a token's sum evenly over the other experts."""
    experts = torch.from_numpy(block.experts).long()
    shape = (*block.valid.shape, block.layer.num_experts)
    if block.all_gates is not None:
        return torch.from_numpy(block.all_gates)
    if block.gates is None:
        # One zero that stands for all: of a long trace they would be most of the memory.
        return torch.zeros(1).expand(shape)
    gates = torch.zeros(shape)
    of_chosen = torch.from_numpy(block.gates).masked_fill(experts < 0, 0)
    # Added, not written: an absent choice is stored as expert 0, and must not undo it.
    gates.scatter_add_(-1, experts.clamp_min(0), of_chosen)
    if block.highest is None:
        return gates
    assert block.second is not None
    assert block.rest is not None
    free = torch.ones(shape).scatter_add(-1, experts.clamp_min(0), -(experts >= 0).float()) > 0
    # The two highest gates of all are among those of the chosen experts or else of others, which are not known.
    top = torch.nn.functional.pad(of_chosen, (0, 2), value=-1).topk(2).values
    highest, second = torch.from_numpy(block.highest), torch.from_numpy(block.second)
    total = highest + second + torch.from_numpy(block.rest)
    first_known = top[..., 0] == highest
    second_known = top.gather(-1, first_known.long()[..., None])[..., 0] == second
    for value, is_known in ((highest, first_known), (second, second_known)):
        expert = free.int().argmax(-1, keepdim=True)
        lacks = ~is_known[..., None] & free.gather(-1, expert)
        gates.scatter_add_(-1, expert, value[..., None] * lacks)
        free.scatter_(-1, expert, free.gather(-1, expert) & ~lacks)
    share = ((total - gates.sum(-1)) / free.sum(-1).clamp_min(1)).clamp_min(0)
    return gates.where(~free, torch.minimum(share, second)[..., None])


# Choices put into the order of what routers weighed.


def order_by_weight(row: Row, weights: Weights) -> Row:
    """Return a row with gates, its experts ordered by their scores; ties go to the lower expert."""
    order = np.lexsort((row.experts, -weights.scores, row.experts < 0), axis=-1)
    shared = row.layer_fields | {
        "ordered_by": weights.ordered_by,
        "gates_kept": "chosen" if weights.all_gates is None else "all",
    }
    return replace(
        row,
        layer_fields=shared,
        experts=np.take_along_axis(row.experts, order, axis=-1),
        processed=np.take_along_axis(row.processed, order, axis=-1),
        gates=np.take_along_axis(weights.gates, order, axis=-1),
        all_gates=weights.all_gates,
        sum_to_one=weights.sum_to_one,
    )


@check_arguments
def recorded_routing(
    path: str | Path, *, inputs: str | Sequence[str] | None = None, layers: str | Sequence[str] | None = None
) -> RoutingTrace:
    """Return what a trace says of some inputs: what a model that can replay takes (``model.replay``).

    Shorter inputs are filled up to the longest; there they have no valid tokens.

    A request with three tokens, which choose one of two experts:

    >>> from pathlib import Path
    >>> from moeprobe import api
    >>> _ = Path("log.jsonl").write_text('{"id": "r17", "layer": "mlp", "experts": [[0], [1], [1]]}')
    >>> _ = api.import_trace("log.jsonl", "log.parquet", num_experts=2)
    >>> api.recorded_routing("log.parquet").layers["mlp"].selected.flatten().tolist()
    [0, 1, 1]

    Args:
        path: the trace.
        inputs: their names, in the order that is wanted; None = all, in the order of the file.
        layers: MoE layers; None = all.

    Raises:
        UserError: the file is damaged or no trace, has no such input or layer, or tokens choose no experts there.
    """
    trace = TraceFile(Path(path))
    ids = trace.ids if inputs is None else several(inputs)
    names = list(trace.layers) if layers is None else several(layers)
    for what, requested, available in (("input", ids, trace.ids), ("layer", names, list(trace.layers))):
        for name in requested:
            if name not in available:
                raise UserError(f"{trace.path}: {describe_unknown(what, name, available)}")
    for name in names:
        if trace.layers[name].load_only or not trace.layers[name].top_k or trace.layers[name].experts_choose:
            raise UserError(f"{trace.path}: tokens of {name} choose no experts that could be repeated.")
    return RoutingTrace({name: to_routing(trace.read(name, ids)) for name in names})
