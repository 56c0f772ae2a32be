"""How far does a token's routing depend on the other images of its group? They are exchanged."""

from moeprobe.metrics.contagion import ContagionAnalysis, metrics


class BatchContagion(ContagionAnalysis):
    """Share of tokens that change experts when the other images of the group are exchanged."""

    metric = "batch_contagion"
    signature = "batch_contagion_watched"
    exchanged = "batch-mates"
    measures = metrics("batch", exchanged, short="batch-mates exchanged")
