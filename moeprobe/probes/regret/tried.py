"""Which tokens of a layer are sampled, and which other choices of experts are tried for them.

Another choice is a set with one expert exchanged: one of the K chosen experts goes, and one of the E − K others comes.
With k = 1 these are all experts.

Axes: B inputs, T tokens, N sampled tokens, K choices, E experts, M tried choices, O = 1 + M options.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moeprobe.probes.flips.price import ForcedSets, sampling_weights
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.seeds import generator


@dataclass(frozen=True)
class OtherChoices:
    """Tried choices of the sampled tokens of a layer.

    Attributes:
        layer: as the router chose.
        weight: ``(B, T)`` float64, tokens of the input that a sampled token stands for; 0 = not sampled.
        source: ``(N,)`` the input of each sampled token.
        token: ``(N,)`` its place.
        position: ``(N, M)`` which of the token's experts goes.
        newcomer: ``(N, M)`` which expert comes.
        has_equal_weights: the newcomer gets the weight of the expert that goes; otherwise its own.
    """

    layer: LayerRouting
    weight: Tensor
    source: Tensor
    token: Tensor
    position: Tensor
    newcomer: Tensor
    has_equal_weights: bool

    @property
    def sets(self) -> Tensor:
        """The experts of each option ``(N, O, K)``, the router's choice first."""
        router_choice = self.layer.selected[self.source, self.token].long()
        options = router_choice[:, None].repeat(1, 1 + self.position.shape[1], 1)
        options[:, 1:].scatter_(2, self.position[..., None], self.newcomer[..., None])
        return options

    @property
    def gates(self) -> Tensor:
        """The sum of the gates of each option ``(N, O)``."""
        of_token = self.layer.gates[self.source, self.token]
        sets = self.sets
        return of_token.gather(1, sets.flatten(1)).view_as(sets).sum(-1)

    def forced_sets(self) -> Iterator[ForcedSets]:
        """Yield the sets to force on all sampled tokens, one option after the other, the router's choice first."""
        index, sets = (self.source, self.token), self.sets
        yield ForcedSets(
            self.layer.selected, self.weight, self.layer.gates if self.has_equal_weights else None
        )
        for number in range(self.position.shape[1]):
            selected = self.layer.selected.clone()
            selected[index] = sets[:, 1 + number].to(selected.dtype)
            gates = None
            if self.has_equal_weights:
                leaving = sets[:, 0].gather(1, self.position[:, number, None])
                of_token = self.layer.gates[index]
                gates = self.layer.gates.clone()
                gates[index] = of_token.scatter(
                    1, self.newcomer[:, number, None], of_token.gather(1, leaving)
                )
            yield ForcedSets(selected, self.weight, gates)


def draw_choices(
    layer: LayerRouting,
    image_ids: Sequence[str],
    *,
    name: str,
    patches: int,
    tried: int,
    has_equal_weights: bool,
    seed: int,
) -> OtherChoices:
    """Return other choices of sampled tokens; random draws belong to (seed, layer, input).

    Args:
        layer: the routing, valid where a token may be sampled.
        image_ids: names of the inputs.
        name: of the layer.
        patches: sampled tokens of an input; all prefix tokens are taken, too.
        tried: choices of a token; all where there are no more.
        has_equal_weights: as of ``OtherChoices``.
        seed: of the run.
    """
    num_tokens, num_experts = layer.gates.shape[1:]
    top_k, device = layer.top_k, layer.gates.device
    keys = np.stack(
        [generator(seed, f"regret {name}", image_id).random(num_tokens) for image_id in image_ids]
    )
    is_full = layer.valid & (layer.selected >= 0).all(-1)
    weight = sampling_weights(is_full, torch.from_numpy(keys).to(device), layer.num_prefix_tokens, patches)
    source, token = weight.nonzero(as_tuple=True)
    num_others = num_experts - top_k
    counts = torch.bincount(source, minlength=len(image_ids)).tolist()
    draws = [
        generator(seed, f"regret {name} choices", image_id).random((count, top_k * num_others))
        for image_id, count in zip(image_ids, counts, strict=True)
    ]
    exchange = torch.from_numpy(np.concatenate(draws).argsort(1)[:, :tried]).to(device)
    # The experts that a token did not choose, in their order.
    remaining = layer.selected_mask[source, token].long().sort(dim=1, stable=True).indices[:, :num_others]
    return OtherChoices(
        layer=layer,
        weight=weight,
        source=source,
        token=token,
        position=exchange // num_others,
        newcomer=remaining.gather(1, exchange % num_others),
        has_equal_weights=has_equal_weights,
    )
