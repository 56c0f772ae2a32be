"""Which experts are banned and forced one by one, where all of them would take too many passes.

The experts of a layer are ordered by their load on a few inputs and cut into as many equal parts as experts are drawn,
and one is drawn from each. So busy and rare experts are among them, whatever their numbers are.

Axes: E experts, m drawn ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from moeprobe.adapters.base import Checkpoint
from moeprobe.metrics.analyses.selection import can_flip, choices_by_expert
from moeprobe.metrics.stats.statistic import Integers
from moeprobe.probes.engine.batch_sums import load_batches, readable_batches
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.runtime.seeds import generator

# Passes per input that a run takes at most, unless the user wants more.
MOST_PASSES = 100
# Random draws for each input, where all experts are measured, and where they are drawn.
_DRAWS, _DRAWS_OF_FEW = 4, 1
# Inputs whose load orders the experts.
_PILOT = 64


@dataclass(frozen=True)
class Effort:
    """The passes of a run.

    Attributes:
        per_layer: experts of a layer that are banned and forced one by one; None = all.
        draws: random choices, and permutations, of an input; also experts that are drawn for it alone.
    """

    per_layer: int | None
    draws: int

    @classmethod
    def of(cls, models: Sequence[Sequence[int]], per_layer: int | None, draws: int | None) -> "Effort":
        """Return what is wanted, or what takes at most ``MOST_PASSES``, but an expert of each layer.

        Args:
            models: E of each layer of each model.
            per_layer: as the user wants it; None = not said.
            draws: the same.
        """
        largest = max(number for experts in models for number in experts)
        if per_layer is None:
            per_layer = next(
                (
                    size
                    for size in range(largest, 0, -1)
                    if max(map(cls(size, _DRAWS if size == largest else _DRAWS_OF_FEW).passes, models))
                    <= MOST_PASSES
                ),
                1,
            )
        is_of_all = per_layer >= largest
        return cls(None if is_of_all else per_layer, draws or (_DRAWS if is_of_all else _DRAWS_OF_FEW))

    def measured(self, num_experts: int) -> int:
        """Return how many experts of a layer are measured one by one."""
        return num_experts if self.per_layer is None else min(self.per_layer, num_experts)

    def passes(self, layers: Iterable[int]) -> int:
        """Return the passes per input of a model with E experts in each of its layers."""
        return 1 + sum(
            2 * self.measured(number) + (2 if self.measured(number) == number else 4) * self.draws
            for number in layers
        )


def draw_experts(spec: RunSpec, checkpoint: Checkpoint, effort: Effort) -> dict[str, list[int]]:
    """Return the experts of each layer that are measured one by one, in ascending order, where they are not all.

    The same inputs, of the whole run, order the experts in every shard.
    """
    if effort.per_layer is None or spec.shards:
        return {}
    model, loads = checkpoint.model, dict[str, Integers]()
    for batch in readable_batches(
        load_batches(spec, checkpoint, spec.indices[:_PILOT], masks=False), list[str](), None
    ):
        routing = model.trace(batch.views[0], layers=spec.layers_of(model), logits=False)[1]
        for name, layer in routing.layers.items():
            if can_flip(layer) and effort.measured(layer.num_experts) < layer.num_experts:
                load = choices_by_expert(layer).sum(0).cpu().numpy()
                loads[name] = loads[name] + load if name in loads else load
    return {
        name: stratified(load, effort.measured(len(load)), name=name, seed=spec.seed)
        for name, load in loads.items()
    }


def stratified(loads: Integers, number: int, *, name: str, seed: int) -> list[int]:
    """Return so many experts, one from each of as many parts of all experts ``(E,)`` in the order of their load.

    Each half of four experts, those with loads 0 and 1 and those with 8 and 9, has one:

    >>> import numpy as np
    >>> from moeprobe.probes.experts.sampled import stratified
    >>> drawn = stratified(np.array([9, 0, 8, 1]), 2, name="mlp", seed=0)
    >>> len({0, 2} & set(drawn)), len({1, 3} & set(drawn))
    (1, 1)
    """
    random = generator(seed, f"experts {name} measured")
    parts = np.array_split(np.argsort(loads, kind="stable"), number)
    return sorted(int(random.choice(part)) for part in parts)
