"""Whether classes share a key route where they share a superclass, as CIFAR-100's do.

Adjusted mutual information (Vinh, Epps and Bailey 2010) of two partitions of the classes: 1 where they are the same, 0
on average by chance. Its distribution by chance is that under permutations of the superclasses over the classes:
those of the images' labels would ask instead whether routes depend on the class at all.

Axes: C classes, D permutations.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.statistic import Array
from moeprobe.probes.routes.key_routes import PERMUTATIONS
from moeprobe.runtime.seeds import generator


def shared(
    routes: NDArray[np.int64], superclasses: Sequence[int] | None, *, seed: int
) -> tuple[float, Array] | None:
    """Return the information, and that under permutations ``(D,)``; None where no two classes could share a group.

    Args:
        routes: the number of each class' route ``(C,)``.
        superclasses: the number of each class' superclass ``(C,)``; None = there are none.
        seed: of the permutations.
    """
    if superclasses is None or not 1 < len(set(superclasses)) < len(superclasses):
        return None
    from sklearn.metrics import adjusted_mutual_info_score

    groups = np.asarray(superclasses)
    draws = [generator(seed, "permutation of superclasses", draw=draw) for draw in range(PERMUTATIONS)]
    permuted = [adjusted_mutual_info_score(draw.permutation(groups), routes) for draw in draws]
    return float(adjusted_mutual_info_score(groups, routes)), np.array(permuted)
