"""Which tokens of two versions of a text represent the same piece of it.

Coordinates are continuous, as in images: character i of the source covers [i, i + 1), and a span
``(start, end)`` is half-open. Tokens of a perturbed version are placed in the source too, by the characters that they
were made of; an empty span has no place there.

Axes: T tokens of one version, U of the other, C characters.
"""

import numpy as np
from numpy.typing import NDArray

Spans = NDArray[np.float64]


def in_source(tokens: NDArray[np.int64], characters: Spans) -> Spans:
    """Return the positions of tokens in the source.

    Args:
        tokens: ``(T, 2)`` the characters of the version that each token covers.
        characters: ``(C, 2)`` where each character of the version comes from; empty for one that was put in.

    Returns:
        ``(T, 2)`` from the first to the last of what a token's characters come from. Neighbors that cover the same
        characters (pieces of one character's bytes) divide them evenly, in their order.
    """
    spans = np.zeros((len(tokens), 2))
    for token, (first, last) in enumerate(tokens):
        token_characters = characters[first:last]
        token_characters = token_characters[token_characters[:, 1] > token_characters[:, 0]]
        if len(token_characters):
            spans[token] = token_characters[:, 0].min(), token_characters[:, 1].max()
    return _divide_spans(spans)


def _divide_spans(spans: Spans) -> Spans:
    """Return spans in which neighbors no longer cover the same."""
    divided = spans.copy()
    new = np.ones(len(spans), dtype=bool)
    new[1:] = (spans[1:] != spans[:-1]).any(1)
    for group in np.split(np.arange(len(spans)), np.flatnonzero(new)[1:]):
        if len(group) > 1:
            start, end = spans[group[0]]
            edges = np.linspace(start, end, len(group) + 1)
            divided[group] = np.stack([edges[:-1], edges[1:]], axis=1)
    return divided


def align(reference: Spans, view: Spans) -> NDArray[np.int64]:
    """Return the partner in ``view`` ``(U, 2)`` of each token of ``reference`` ``(T, 2)``, -1 = none.

    The partner is the token that covers the center; of several the one whose own center is nearest, then the first.
    Several tokens may have one partner: a word in two pieces that comes back in one.
    """
    if len(reference) == 0 or len(view) == 0:
        return np.full(len(reference), -1, dtype=np.int64)
    center = reference.mean(1)[:, None]
    covers = (view[:, 0] <= center) & (center < view[:, 1]) & (reference[:, 1] > reference[:, 0])[:, None]
    distance = np.where(covers, np.abs(view.mean(1) - center), np.inf)
    return np.where(covers.any(1), distance.argmin(1), -1)
