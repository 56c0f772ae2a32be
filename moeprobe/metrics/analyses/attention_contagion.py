"""How far does a token's routing depend on the rest of the picture? The pixels of some patches are exchanged."""

from moeprobe.metrics.contagion import ContagionAnalysis, metrics


class AttentionContagion(ContagionAnalysis):
    """Share of untouched patches that change experts when the pixels of other patches are exchanged.

    One of five untouched patches changes one of its two experts. Half of its weights moves, so that the divergence is
    0.5 bits, and its root 0.707, a fifth of which is the mean distance:

    >>> from moeprobe.metrics.analyses.attention_contagion import AttentionContagion
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> before = route([[[0, 1], [0, 1], [0, 1], [1, 2], [1, 2]]])
    >>> value = numbers(AttentionContagion(), pair(before, route([[[0, 1], [0, 1], [0, 2], [1, 2], [1, 2]]])))
    >>> value["attention_contagion"], value["attention_contagion_distance"]
    (0.2, 0.141)
    """

    metric = "attention_contagion"
    signature = "attention_contagion_watched"
    exchanged = "pixels of other patches"
    measures = metrics("attention", exchanged, short="pixels exchanged")
