"""One router of a foreign module: from what it returns to logits, choices and a ``LayerRouting``.

Axes: B images, T tokens of an image (prefix tokens first), N = B·T tokens, E experts, K choices.
"""

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moeprobe.adapters.hooks.factory import HookSettings
from moeprobe.adapters.hooks.output import by_image
from moeprobe.adapters.hooks.watch import ChoiceAt, SeenChoice
from moeprobe.errors import UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.routing.record import LayerRouting, order_choices

# Gates that differ from a distribution by no more are one: what is left of a softmax in half precision.
_ROUNDING = 5e-3
# Tokens before the patches that are guessed at: a class token and registers.
_MOST_PREFIX = 8


@dataclass(frozen=True)
class HookedLayer:
    """Properties of a router.

    Attributes:
        module: its name in the model.
        router: its class.
        activation: turns its logits into gates: softmax, sigmoid, or none.
        num_experts: E.
        top_k: K; None where its indices say what it chose.
        grid: layout of the tokens after the prefix in the image.
        num_prefix_tokens: tokens before the patches.
        gates_sum_to_one: whether a token's gates are a distribution.
        sequence_first: tokens come before images.
        choice: the calls that choose; empty where none was seen.
        by_gates: the experts with the highest gates are chosen, as seen on the trial images.
        reads: the parts of its output: some of logits, indices and weights.
        use: how the experts' work follows the choice, in words, as seen on the trial images.
        obeys: experts process the tokens that they are forced on; None where that could not be tried.
        drops: some choices are not carried out, so what the experts process is read on every pass.
    """

    module: str
    router: str
    activation: str
    num_experts: int
    top_k: int | None
    grid: PatchGrid
    num_prefix_tokens: int
    gates_sum_to_one: bool
    sequence_first: bool
    choice: tuple[ChoiceAt, ...] = ()
    by_gates: bool = True
    reads: frozenset[str] = frozenset({"logits"})
    use: str = ""
    obeys: bool | None = None
    drops: bool = False

    @property
    def identity(self) -> tuple[str, str, int | None]:
        """What of it tells a model from another with the same parameters and settings."""
        return self.module, self.activation, self.top_k

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.num_prefix_tokens + self.grid.num_patches

    @property
    def follows(self) -> bool:
        """Whether the choice is read from the calls that make it, and not from the router's output."""
        return bool(self.choice) and "indices" not in self.reads

    @property
    def is_watched(self) -> bool:
        """Whether the calls that choose are looked at: for the choice, or for the scores of a router without logits."""
        return bool(self.choice) and not {"indices", "logits"} <= self.reads

    @property
    def is_local(self) -> bool:
        """Whether a token's choice is known to depend on no other: it is read off the token's own gates."""
        return self.top_k is not None and self.by_gates

    def describe(self) -> str:
        """Return where it is and how it is read, in words."""
        if "indices" in self.reads:
            choice = "its own choice"
        elif self.by_gates:
            choice = f"the {self.top_k} highest gates"
        else:
            choice = f"the {self.top_k} that its top-k takes, by more than its logits"
        if "logits" not in self.reads:
            gates = "the weights of the chosen experts" if "weights" in self.reads else "not known"
        else:
            gates = "as given" if self.activation == "none" else f"the {self.activation} of its logits"
        return f"{self.module} ({self.router}): gates {gates}, experts {choice}"

    def routing(
        self,
        read: Mapping[str, Tensor],
        *,
        num_images: int,
        token_local: bool,
        choice: SeenChoice | None = None,
        work: Tensor | None = None,
    ) -> LayerRouting:
        """Return what the router decided, of the tensors that were read off it.

        Args:
            read: the tensors.
            num_images: B.
            token_local: whether a token's choice depends on no other.
            choice: of the calls that choose, where they were seen.
            work: ``(B, T, E)`` bool, which experts process a token; None = all that it chose.

        Raises:
            UserError: they have other shapes than is known.
        """
        values = {key: self.by_image(tensor, num_images) for key, tensor in read.items()}
        tokens = next(iter(values.values())).shape[1]
        # A router may see another number of tokens for images than it did on trial, e.g. at another resolution.
        if tokens != self.num_tokens:
            raise UserError(f"it gives {tokens} tokens of an image; there were {self.num_tokens} before.")
        gates = self._gates(values)
        scores = None
        # The call's own scores, e.g. with a bias, decide the choice; plain logits would not reproduce it.
        if choice is not None and not (self.by_gates and "logits" in self.reads):
            scores = self.by_image(choice.ranked, num_images).float()
        selected = self._chosen_experts(
            values, gates, None if choice is None else self.by_image(choice.experts, num_images)
        )
        selected, processed = order_choices(selected, selected >= 0, gates if scores is None else scores)
        if work is not None:
            processed = processed & work.gather(-1, selected.long().clamp_min(0))
            self._check_work(work, selected)
        is_known = "logits" in self.reads
        return LayerRouting(
            gates=gates,
            scores=scores,
            selected=selected,
            processed=processed,
            valid=torch.ones(gates.shape[:2], dtype=torch.bool, device=gates.device),
            grid=self.grid,
            num_prefix_tokens=self.num_prefix_tokens,
            gates_sum_to_one=self.gates_sum_to_one,
            token_local=token_local,
            router=self.router,
            ordered=is_known or scores is not None or "weights" in self.reads,
            every_gate=is_known,
            has_scores=is_known or scores is not None,
        )

    def _check_work(self, work: Tensor, selected: Tensor) -> None:
        """Raise ``UserError`` where a token has more experts at work than are read: on the trial images it had not."""
        at_work = work.sum(-1) - work.gather(-1, selected.long().clamp_min(0)).masked_fill(
            selected < 0, 0
        ).sum(-1)
        # Experts without parameters count as at work for every token.
        surplus = int((at_work > work.flatten(0, 1).all(0).sum()).sum())
        if surplus:
            raise UserError(
                f"more than {self.top_k} experts process {surplus} of its tokens here, as they did for no image tried; "
                "say top_k, as many as the model chooses."
            )

    def by_image(self, values: Tensor, num_images: int) -> Tensor:
        """Return values of tokens as ``(B, T, X)``; see ``by_image``."""
        return by_image(values, num_images, self.sequence_first)

    def _gates(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the gates ``(B, T, E)``: of all experts, or of those chosen, or zeros."""
        if "logits" in values:
            return _gates(values["logits"], self.activation)
        index = values["indices"].long()
        gates = torch.zeros(*index.shape[:2], self.num_experts, device=index.device)
        if "weights" not in values:
            return gates
        weights = _finite(values["weights"].float()).masked_fill(index < 0, 0)
        return gates.scatter_add(-1, index.clamp_min(0), weights)

    def _chosen_experts(self, values: Mapping[str, Tensor], gates: Tensor, experts: Tensor | None) -> Tensor:
        """Return the chosen experts ``(B, T, K)``: by its indices, by the call that chose, or by the highest gates."""
        if self.top_k is None:
            return values["indices"]
        if experts is not None:
            return experts[..., : self.top_k]
        # As everywhere: ties go to the lower expert.
        return gates.sort(dim=-1, descending=True, stable=True).indices[..., : self.top_k]

    def count_mismatches(self, read: Mapping[str, Tensor], choice: SeenChoice) -> int:
        """Return for how many tokens the model itself chose experts that do not have the highest gates.

        Args:
            read: the router's output, parsed.
            choice: of the same pass, its tokens in the order of the logits.
        """
        logits = read["logits"].flatten(0, -2)
        gates, experts = _gates(logits, self.activation), choice.experts[..., : self.top_k].flatten(0, -2)
        # A call over other tokens, such as a capacity over experts, is no choice of this router.
        if len(experts) != len(gates):
            return len(gates)
        # Which of equal ones is chosen means nothing, nor does what the model's own precision makes equal.
        rounding = 4 * max(choice.precision, torch.finfo(logits.dtype).eps)
        agrees = torch.zeros(len(gates), dtype=torch.bool, device=gates.device)
        # Experts are chosen by gates or by logits: a tie in either is enough.
        for scores, least in ((gates, 0.0), (logits.float(), 1.0)):
            lowest = scores.topk(experts.shape[1]).values[:, -1]
            selected_score = scores.gather(1, experts).amin(1)
            agrees |= (selected_score == lowest) | (
                selected_score >= lowest - rounding * lowest.abs().clamp_min(least)
            )
        return int((~agrees).sum())


def read_layer(
    module: str,
    router: str,
    read: Mapping[str, Tensor],
    *,
    num_images: int,
    num_experts: int | None,
    activation: str,
    top_k: int | None,
    settings: HookSettings,
) -> HookedLayer:
    """Return the properties of a router, judging by its outputs for a few images.

    Args:
        module: its name in the model.
        router: its class.
        read: its output, parsed.
        num_images: how many the images were.
        num_experts: E where its output does not say, None if unknown.
        activation: turns its logits into gates, by the settings or as detected; ``top_k`` likewise.
        top_k: experts of a token, None where its indices say.
        settings: how the model is read.

    Raises:
        UserError: the settings do not fit its outputs.
    """
    values = {key: by_image(tensor, num_images, settings.sequence_first) for key, tensor in read.items()}
    if "logits" in values:
        _check_logits(values["logits"], activation)
        # The logits decide, even if the settings say another number.
        num_experts = values["logits"].shape[-1]
    if num_experts is None:
        raise UserError("it gives no logits, so how many experts there are is not known; say num_experts.")
    if "indices" in values:
        _check_indices(read, values, num_experts=num_experts, top_k=top_k)
        # The indices say K for every token; a setting could only contradict them.
        top_k = None
    elif top_k is None:
        raise UserError("how many experts a token has is not known; say top_k.")
    elif top_k > num_experts:
        raise UserError(f"it has {num_experts} experts, and top_k is {top_k}.")
    tokens = next(iter(values.values())).shape[1]
    # One token per image: a router of whole images, which has no grid of patches.
    of_images = tokens == 1 and num_images > 1
    layer = HookedLayer(
        module=module,
        router=router,
        activation=activation,
        num_experts=num_experts,
        top_k=top_k,
        grid=PatchGrid(1, 1, settings.image_size)
        if of_images
        else _grid(
            module,
            tokens=tokens,
            prefix=settings.num_prefix_tokens,
            image_size=settings.image_size,
            patch_size=settings.patch_size,
        ),
        num_prefix_tokens=0 if of_images else settings.num_prefix_tokens,
        gates_sum_to_one=False,
        sequence_first=settings.sequence_first,
        reads=frozenset(read),
    )
    # If only the chosen experts' weights are known, that they sum to one says nothing about the router's confidence.
    is_distribution = "logits" in read and _sum_to_one(layer._gates(values))
    return replace(layer, gates_sum_to_one=is_distribution)


def _check_indices(
    read: Mapping[str, Tensor], values: Mapping[str, Tensor], *, num_experts: int, top_k: int | None
) -> None:
    """Raise ``UserError`` where numbers of experts, or their weights, do not fit the router."""
    indices = values["indices"]
    logits = values.get("logits", indices)
    if indices.is_floating_point() or indices.shape[:2] != logits.shape[:2]:
        beside = f" for logits {tuple(read['logits'].shape)}" if "logits" in read else ""
        raise UserError(
            f"its indices should be whole numbers for the same tokens as its logits; they are {indices.dtype} "
            f"{tuple(read['indices'].shape)}{beside}."
        )
    if indices.min() < -1 or indices.max() >= num_experts or indices.shape[-1] > num_experts:
        raise UserError(
            f"its indices run from {indices.min()} to {indices.max()}, {indices.shape[-1]} per token, and it has "
            f"{num_experts} experts."
        )
    if top_k not in (None, indices.shape[-1]):
        raise UserError(f"its indices are {indices.shape[-1]} per token, and top_k is {top_k}.")
    if "weights" in read and (
        read["weights"].shape != read["indices"].shape or not read["weights"].is_floating_point()
    ):
        raise UserError(
            f"its weights should be as many as its indices {tuple(read['indices'].shape)}; they are "
            f"{read['weights'].dtype} {tuple(read['weights'].shape)}."
        )


def _gates(logits: Tensor, activation: str) -> Tensor:
    """Return the gates ``(..., E)`` float32.

    Raises:
        UserError: some are not finite.
    """
    gates = logits.float()
    if activation != "none":
        gates = gates.softmax(-1) if activation == "softmax" else gates.sigmoid()
    return _finite(gates)


def _finite(gates: Tensor) -> Tensor:
    """Return gates, or raise ``UserError`` where some are not finite."""
    if not gates.isfinite().all():
        raise UserError(
            "its gates are not finite (NaN or infinity), so no expert is the highest; are the model's parameters, and "
            "mean and std of its images, sound?"
        )
    return gates


def _check_logits(logits: Tensor, activation: str) -> None:
    """Raise ``UserError`` if logits were read as gates, or gates as logits."""
    if activation == "none" and bool((logits < 0).any()):
        raise UserError(
            "its output has negative values, so these are no gates; say activation: softmax or sigmoid."
        )
    if activation != "none" and logits.shape[-1] > 1 and _sum_to_one(logits.float()):
        raise UserError("its output sums to one over the experts already; say activation: none.")


def _sum_to_one(gates: Tensor) -> bool:
    target = torch.ones((), device=gates.device)
    return bool((gates >= 0).all()) and torch.allclose(gates.sum(-1), target, atol=_ROUNDING)


def _grid(
    module: str, *, tokens: int, prefix: int, image_size: int, patch_size: int | Mapping[str, int] | None
) -> PatchGrid:
    """Return the grid of a router's tokens: as set, or the square that they form."""
    if isinstance(patch_size, Mapping):
        of = [size for pattern, size in patch_size.items() if fnmatch.fnmatchcase(module, pattern)]
        if not of:
            raise UserError(f"no entry of patch_size is for it; there are: {', '.join(patch_size)}.")
        patch_size = of[0]
    patches = tokens - prefix
    if patch_size is None:
        # Without a patch size the patches are assumed to form a square, as in most vision transformers.
        side = math.isqrt(max(patches, 0))
        if side == 0 or side * side != patches or image_size % side:
            fitting_counts = [
                count
                for count in range(min(tokens, _MOST_PREFIX + 1))
                if math.isqrt(tokens - count) ** 2 == tokens - count
                and image_size % math.isqrt(tokens - count) == 0
            ]
            hint = f"; num_prefix_tokens: {fitting_counts[0]} would fit" if fitting_counts else ""
            raise UserError(
                f"its {tokens} tokens of an image, {prefix} of them before the patches (num_prefix_tokens), are no "
                f"square of patches of an image of {image_size} pixels{hint}."
            )
        return PatchGrid(side, side, image_size // side)
    if image_size % patch_size:
        raise UserError(f"patches of {patch_size} pixels do not fill an image of {image_size}.")
    side = image_size // patch_size
    if side * side != patches:
        surplus = tokens - side * side
        hint = f"; num_prefix_tokens: {surplus} would fit" if 0 <= surplus <= _MOST_PREFIX else ""
        raise UserError(
            f"it sees {tokens} tokens of an image; {side} x {side} patches of {patch_size} pixels and "
            f"{prefix} before them (num_prefix_tokens) are {side * side + prefix}{hint}."
        )
    return PatchGrid(side, side, patch_size)


def layer_names(modules: Sequence[str]) -> dict[str, str]:
    """Return what tables call the layers -> module: the block a router sits in, its name up to the last number.

    Where that is not one router alone, all keep their modules' names.
    """
    short = {}
    for module in modules:
        parts = module.split(".")
        # "blocks.3.mlp.router" becomes "blocks.3", as people call the layer.
        ends = [index for index, name in enumerate(parts, start=1) if name.isdigit()]
        short[".".join(parts[: ends[-1]]) if ends else module] = module
    return short if len(short) == len(modules) else {module: module for module in modules}
