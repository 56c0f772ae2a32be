"""Single images, and which of their patches each expert has: kept as pixels and marks.

An illustration, not an aggregate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.batches import Loading, batches
from moeprobe.metrics.token_experts import entries, experts, known
from moeprobe.metrics.token_kinds import patches
from moeprobe.probes.engine.question import Question, recipe
from moeprobe.routing import finite
from moeprobe.routing.correspondence import pair_up

# What somebody looks at.
MOST_SHEETS = 24


@dataclass(frozen=True)
class Sheet:
    """An image and the experts of its patches.

    Attributes:
        checkpoint: whose routing it is.
        image_id: name of the image.
        pixels: ``(S, S, 3)`` in [0, 1].
        marks: by layer, how much of each patch an expert has ``(E, rows, columns)``, in [0, 1].
    """

    checkpoint: str
    image_id: str
    pixels: NDArray[np.float32]
    marks: dict[str, NDArray[np.float64]]


def make_sheets(question: Question, models: Sequence[Checkpoint], indices: Sequence[int]) -> list[Sheet]:
    """Return the sheets of some images, checkpoint by checkpoint."""
    sheets = []
    for model in models if indices else ():
        loader = batches(
            question.dataset,
            indices,
            recipe(question, model.framing),
            loading=Loading(question.batch_size),
            skip_bad_images=question.skip_bad_images,
            group_images=model.model.group_images,
        )
        for batch in loader:
            if not batch.image_ids:
                continue
            routing = model.model.trace(batch.views[0], layers=question.layers_of(model.model), logits=False)[
                1
            ]
            finite.check(routing.layers, None, batch.image_ids, checkpoint=model.name)
            marks = {}
            for name, layer in routing.layers.items():
                if known(layer) and layer.grid is not None:
                    pair = pair_up(batch, layer, layer, 0, aligned=True, symmetric=False)
                    columns = {
                        key: column.cpu().numpy()
                        for key, column in experts(layer, patches(pair), name="sheet").items()
                    }
                    tokens, number = entries(columns, name="sheet")
                    shares = np.zeros((len(batch.image_ids), layer.grid.num_patches, number))
                    shares[tokens.image, tokens.token, tokens.expert] = tokens.weight
                    # A patch that several experts take is a patch of each of them.
                    shown = shares if layer.top_k == 0 else (shares > 0).astype(np.float64)
                    grid = layer.grid.rows, layer.grid.columns
                    label = question.label_of(model.model, name)
                    marks[label] = shown.transpose(0, 2, 1).reshape(len(shown), number, *grid)
            sheets += [
                Sheet(
                    model.name,
                    image_id,
                    batch.views[0][row].numpy().transpose(1, 2, 0),
                    {name: values[row] for name, values in marks.items()},
                )
                for row, image_id in enumerate(batch.image_ids)
            ]
    return [sheet for sheet in sheets if sheet.marks]
