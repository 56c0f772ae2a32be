"""A batch of texts as a language model reads them.

Axes: B texts, T tokens (prefix tokens first, padding last), D width of the embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """Token ids with what belongs to them; its length is B, and a slice of it is a batch of some of its texts.

    Attributes:
        ids: ``(B, T)`` int64, 0 in padding.
        present: ``(B, T)`` bool, False in padding.
        ordinary: ``(B, T)`` bool, the tokens of the text itself: no padding, and no special token.
        num_prefix_tokens: special tokens in front of every text (BOS, CLS).
        noise: ``(B, T, D)`` float32 unit noise for the embeddings, None = none is added.
        sigma: ``(B,)`` float32, what the noise is multiplied with, in units of the embeddings' root mean square.
    """

    ids: Tensor
    present: Tensor
    ordinary: Tensor
    num_prefix_tokens: int
    noise: Tensor | None = None
    sigma: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, texts: slice) -> TokenBatch:
        return self._each(lambda tensor: tensor[texts])

    @property
    def last(self) -> Tensor:
        """``(B,)`` the last token of each text that is not padding."""
        return self.present.sum(1) - 1

    def to(self, device: torch.device) -> TokenBatch:
        """Return the batch on a device."""
        return self._each(lambda tensor: tensor.to(device))

    def pin_memory(self) -> TokenBatch:
        """Return the batch in pinned memory."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Any) -> TokenBatch:
        tensors = {name: value for name, value in vars(self).items() if not isinstance(value, int | None)}
        return replace(self, **{name: change(value) for name, value in tensors.items()})
