"""Views of texts as batches; what ``batches`` does with them where they are no images.

Axes: B texts, V views of each, T tokens, J pairs of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.inputs.texts import Spans, TextSample, TokenBatch, align, stack


@dataclass(frozen=True)
class TextBatch:
    """V views of B texts.

    Attributes:
        image_ids: names of the texts.
        labels: ``(B,)`` int64, -1 = none.
        views: V batches of tokens.
        spans: V lists of B arrays ``(T, 2)``, positions of the tokens after the prefix in the source; empty for special
            ones.
        num_pairs: J, as many as a text can have ordinary tokens.
        skipped: names of texts that could not be read; none ever.
    """

    image_ids: list[str]
    labels: Tensor
    views: list[TokenBatch]
    spans: list[list[Spans]]
    num_pairs: int
    skipped: list[str]

    def pin_memory(self) -> "TextBatch":
        """Return the batch in pinned memory; what the loader calls."""
        views = [view.pin_memory() for view in self.views]
        return replace(self, labels=self.labels.pin_memory(), views=views)

    def partners(self, view_index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the pairs of tokens ``(B, J)`` of view 0 and a view, numbered after the prefix, -1 = none.

        Pair j is about token j of view 0; see ``alignment`` for its partner.
        """
        reference, view = (np.full((len(self.image_ids), self.num_pairs), -1) for _ in range(2))
        for row, (reference_spans, view_spans) in enumerate(
            zip(self.spans[0], self.spans[view_index], strict=True)
        ):
            partner = align(reference_spans, view_spans)
            view[row, : len(reference_spans)] = partner
            reference[row, : len(reference_spans)] = np.where(
                partner >= 0, np.arange(len(reference_spans)), -1
            )
        return reference, view

    def aligned_tokens(self) -> NDArray[np.int64]:
        """Return token j of view 0 for each pair ``(B, J)`` of views whose tokens stay where they are, -1 = none."""
        lengths = np.array([len(spans) for spans in self.spans[0]])
        position = np.arange(self.num_pairs)
        return np.where(position < lengths[:, None], position, -1)


def stack_texts(image_ids: list[str], labels: Tensor, samples: Sequence[Sequence[TextSample]]) -> TextBatch:
    """Return the batch of texts of V ``samples`` each."""
    first = samples[0][0]
    prefix = first.num_prefix_tokens
    views = []
    padded: dict[tuple[int, ...], Tensor] = {}
    for view_samples in zip(*samples, strict=True):
        batch = stack(view_samples)
        units = [sample.noise for sample in view_samples if sample.noise is not None]
        if units:
            # The severities of a sweep share one draw: it is padded, and sent, once.
            key = tuple(map(id, units))
            if key not in padded:
                padded[key] = torch.nn.utils.rnn.pad_sequence(units, batch_first=True)
            sigma = torch.tensor([sample.sigma for sample in view_samples])
            batch = replace(batch, noise=padded[key], sigma=sigma)
        views.append(batch)
    return TextBatch(
        image_ids=image_ids,
        labels=labels,
        views=views,
        spans=[
            [sample.spans[prefix:] for sample in view_samples] for view_samples in zip(*samples, strict=True)
        ],
        num_pairs=first.max_length - prefix,
        skipped=[],
    )
