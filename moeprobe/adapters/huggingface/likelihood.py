"""How probable a language model finds the tokens of texts."""

from typing import Any

import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.inputs.tokens import TokenBatch


def log_probabilities(body: Any, texts: TokenBatch) -> Tensor:
    """Return the natural logarithm of each token's probability ``(B, T)``; see ``routing.Scored``.

    Raises:
        UserError: the model gives no scores of tokens, as the encoder of a model with two halves.
    """
    logits = getattr(body(input_ids=texts.ids, attention_mask=texts.present.long()), "logits", None)
    if logits is None:
        raise UserError(
            f"{type(body).__name__} gives no scores of the next token, so how probable a text is cannot be said; take "
            "a model that writes texts."
        )
    scores = logits[:, :-1].float().log_softmax(-1).gather(-1, texts.ids[:, 1:, None])[..., 0]
    found = torch.full(texts.ids.shape, float("nan"), device=scores.device)
    found[:, 1:] = scores.masked_fill(~(texts.present[:, 1:] & texts.present[:, :-1]), float("nan"))
    return found
