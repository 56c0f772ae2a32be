"""How far does a token's routing depend on the other images of its group? They are exchanged."""

from moeprobe.metrics.contagion import ContagionAnalysis, metrics


class BatchContagion(ContagionAnalysis):
    """Share of tokens that change experts when the other images of the group are exchanged.

    One of five tokens changes its expert, and one finds its expert full: two that change, one of them by dropping:

    >>> from moeprobe.metrics.analyses.batch_contagion import BatchContagion
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> after = route([[0, 0, 0, 1, 0]], processed=[[[True], [True], [False], [True], [True]]])
    >>> numbers(BatchContagion(), pair(route([[0, 0, 0, 1, 1]]), after))
    {'batch_contagion': 0.4, 'batch_contagion_dropped': 0.2, 'batch_contagion_distance': 0.4}
    """

    metric = "batch_contagion"
    signature = "batch_contagion_watched"
    exchanged = "batch-mates"
    measures = metrics("batch", exchanged, short="batch-mates exchanged")
