"""How far does a token's routing depend on the rest of the picture? The pixels of some patches are exchanged."""

from moeprobe.metrics.contagion import ContagionAnalysis, metrics


class AttentionContagion(ContagionAnalysis):
    """Share of untouched patches that change experts when the pixels of other patches are exchanged."""

    metric = "attention_contagion"
    signature = "attention_contagion_watched"
    exchanged = "pixels of other patches"
    measures = metrics("attention", exchanged, short="pixels exchanged")
