"""Rows of a trace for texts: each without the padding of its batch, with the ids of its tokens.

Axes: B texts, T tokens.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moeprobe.inputs.tokens import TokenBatch
from moeprobe.routing.record import PER_INPUT, LayerRouting, RoutingTrace
from moeprobe.routing.traces.rows import to_rows


def rows_of_texts(
    names: Sequence[str],
    routing: RoutingTrace,
    texts: TokenBatch,
    *,
    all_gates: bool,
    generated: Sequence[NDArray[np.bool_]] | None = None,
) -> list[pa.RecordBatch]:
    """Return the rows of a batch, one per layer and text.

    Args:
        names: of the B texts.
        routing: what their tokens chose.
        texts: what the model read.
        all_gates: keep every gate.
        generated: by text, ``(T,)`` which tokens were generated; None where nobody knows.
    """
    ids, lengths = texts.ids.cpu().numpy().astype(np.int32), texts.present.sum(1).tolist()
    return [
        to_rows(
            [name],
            layer,
            _alone(routed, row, lengths[row]),
            all_gates=all_gates,
            token_ids=ids[row, : lengths[row]],
            generated=None if generated is None else generated[row],
        )
        for layer, routed in routing.layers.items()
        for row, name in enumerate(names)
    ]


def _alone(routing: LayerRouting, row: int, length: int) -> LayerRouting:
    """Return the routing of one text, without padding."""
    cut = {name: getattr(routing, name) for name in PER_INPUT}
    return dataclasses.replace(
        routing,
        **{name: value[row : row + 1, :length] for name, value in cut.items() if value is not None},
    )
