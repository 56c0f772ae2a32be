"""Which expert does each patch choose, and which choices does a perturbation change? Figure 5 of the PRC paper.

An illustration, not an aggregate: a few images or texts, kept as pixels or words, and choices.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from moeprobe.inputs.geometry import Correspondence
from moeprobe.inputs.modality import IMAGE, TEXT, Modality

if TYPE_CHECKING:  # figures import this file, and must not import torch
    from moeprobe.routing.record import LayerRouting


@dataclass(frozen=True)
class TokenChoices:
    """The router's choice for each patch of an image, row by row, or each token of a text.

    Attributes:
        experts: ``(N, K)`` best first, before capacity; -1 = none.
        gates: ``(N, K)`` weights of these experts.
        margins: ``(N,)`` how far the set is from changing, in the scores that it is read off; NaN = unknown.
    """

    experts: NDArray[np.int64]
    gates: NDArray[np.float64]
    margins: NDArray[np.float64]

    def describe(self, token: int) -> tuple[str, str, float]:
        """Return experts and their gates as texts, and the margin of a token; empty where there are none."""
        present = self.experts[token] >= 0
        experts = " ".join(str(expert) for expert in self.experts[token][present])
        gates = " ".join(f"{gate:.3f}" for gate in self.gates[token][present])
        return experts, gates, float(self.margins[token])


@dataclass(frozen=True, kw_only=True)
class InputOverlay:
    """The expert of each patch or token in one layer, of a clean and a perturbed image or text.

    Where tokens choose it is the first choice; where experts choose, the one that scores the token best of those that
    take it, -1 = none does; where every expert has a share of every token, the one of the largest weight. Arrays are
    ``(rows, columns)`` for an image; for a text ``(T,)``, the tokens after the prefix.

    Attributes:
        image_id: name of the image or text.
        checkpoint: whose routing it is.
        layer: MoE layer.
        severity: how strong the perturbation is, in the view's unit.
        clean_expert: of each clean patch or token.
        perturbed_expert: of each perturbed one.
        clean_patch: of each perturbed one the corresponding clean patch (row by row) or token, from 0; -1 = none. Of
            several that meet in a perturbed one, the first.
        meeting: corresponding clean ones that are not shown, since another one is in the same perturbed one.
        shows: which expert it is, in words.
        clean_choices: sets, gates and margins of the clean input; None = unknown.
        perturbed_choices: the same of the perturbed one.
    """

    modality: ClassVar[Modality] = IMAGE

    image_id: str
    checkpoint: str
    layer: str
    severity: float
    clean_expert: NDArray[np.int64]
    perturbed_expert: NDArray[np.int64]
    clean_patch: NDArray[np.int64]
    meeting: int
    shows: str = "expert of the patch"
    clean_choices: TokenChoices | None = None
    perturbed_choices: TokenChoices | None = None

    @cached_property
    def compared(self) -> NDArray[np.bool_]:
        """Which perturbed patches or tokens have a corresponding clean one, and an expert on at least one side."""
        return (self.clean_patch >= 0) & ((self.clean_patch_expert >= 0) | (self.perturbed_expert >= 0))

    @cached_property
    def clean_patch_expert(self) -> NDArray[np.int64]:
        """Expert of the corresponding clean patch or token; -1 where there is none, or no expert took it."""
        return np.where(self.clean_patch >= 0, self.clean_expert.ravel()[self.clean_patch], -1)

    @cached_property
    def changed(self) -> NDArray[np.bool_]:
        """Which perturbed patches or tokens have another drawn expert than the corresponding clean one."""
        return self.compared & (self.clean_patch_expert != self.perturbed_expert)

    @property
    def short_count(self) -> str:
        """How many changed: 12 of 49, or 12 (+3) of 49 where of three sets more the first expert alone changed."""
        order = self.changed_order.sum()
        return f"{self.changed_set.sum()}{f' (+{order})' if order else ''} of {self.compared.sum()}"

    @property
    def has_sets(self) -> bool:
        """Whether a patch or token has a set of experts, of which one is drawn."""
        return self.perturbed_choices is not None and self.perturbed_choices.experts.shape[1] > 1

    @cached_property
    def changed_set(self) -> NDArray[np.bool_]:
        """Which ones have another set of experts than the corresponding clean one; the drawn expert without sets."""
        if self.clean_choices is None or self.perturbed_choices is None or not self.has_sets:
            return self.changed
        before = np.sort(self.clean_choices.experts[self.clean_patch.ravel()], axis=1)
        after = np.sort(self.perturbed_choices.experts, axis=1)
        return self.compared & (before != after).any(1).reshape(self.compared.shape)

    @cached_property
    def changed_order(self) -> NDArray[np.bool_]:
        """Which ones have the set of the corresponding clean one, but another drawn expert of it."""
        return self.changed & ~self.changed_set


@dataclass(frozen=True, kw_only=True)
class ImageOverlay(InputOverlay):
    """An overlay of an image, with its ``(S, S, 3)`` pixels in [0, 1], ``clean`` and ``perturbed``."""

    clean: NDArray[np.float32]
    perturbed: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class TextOverlay(InputOverlay):
    """An overlay of a text, with what its tokens read, ``clean_words`` and ``perturbed_words``."""

    modality: ClassVar[Modality] = TEXT

    clean_words: list[str]
    perturbed_words: list[str]


def count_changed(item: InputOverlay) -> str:
    """Return how many of the compared patches or tokens changed: sets, and the first of a set alone."""
    if not item.has_sets:
        return f"{item.changed.sum()} of {item.compared.sum()} changed"
    return f"{item.changed_set.sum()} of {item.compared.sum()} sets changed, {item.changed_order.sum()} only the first"


def overlay(
    *,
    image_id: str,
    checkpoint: str,
    layer: str,
    severity: float,
    pixels: tuple[NDArray[np.float32], NDArray[np.float32]],
    routing: "tuple[LayerRouting, LayerRouting]",
    pairs: Correspondence,
    position: int,
) -> ImageOverlay:
    """Return the overlay of image ``position`` of a batch from its clean and perturbed ``pixels`` and ``routing``."""
    grid = routing[0].grid
    assert grid is not None
    shape = (grid.rows, grid.columns)
    return ImageOverlay(
        image_id=image_id,
        checkpoint=checkpoint,
        layer=layer,
        severity=severity,
        clean=pixels[0].transpose(1, 2, 0),
        perturbed=pixels[1].transpose(1, 2, 0),
        **_routing(routing, pairs.reference[position], pairs.view[position], position, shapes=(shape, shape)),
    )


def overlay_text(
    *,
    text_id: str,
    checkpoint: str,
    layer: str,
    severity: float,
    words: tuple[list[str], list[str]],
    routing: "tuple[LayerRouting, LayerRouting]",
    partners: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> TextOverlay:
    """Return the overlay of a batch of one text from the ``words`` and ``routing`` of its clean and perturbed version.

    ``partners`` are the corresponding tokens ``(J,)`` of both, numbered after the prefix, -1 = none.
    """
    shapes = (len(words[0]),), (len(words[1]),)
    fields = _routing(routing, *partners, 0, shapes=shapes)
    fields["shows"] = TEXT.translate(fields["shows"])
    return TextOverlay(
        image_id=text_id,
        checkpoint=checkpoint,
        layer=layer,
        severity=severity,
        clean_words=words[0],
        perturbed_words=words[1],
        **fields,
    )


def _routing(
    routing: "tuple[LayerRouting, LayerRouting]",
    reference: NDArray[np.int64],
    view: NDArray[np.int64],
    position: int,
    *,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> dict[str, Any]:
    """Return what an overlay takes from the routing of an input, whose clean and perturbed arrays have ``shapes``."""
    sizes = [math.prod(shape) for shape in shapes]
    prefix = routing[0].num_prefix_tokens
    clean, perturbed = (
        shown_experts(side, position)[prefix : prefix + size].reshape(shape)
        for side, size, shape in zip(routing, sizes, shapes, strict=True)
    )
    paired = np.flatnonzero(reference >= 0)
    clean_patch = np.full(sizes[1], -1)
    # Several clean patches may share one perturbed patch (a zoom): written last, the first of them stays.
    last_first = paired[np.argsort(-reference[paired])]
    clean_patch[view[last_first]] = reference[last_first]
    return {
        "clean_expert": clean,
        "perturbed_expert": perturbed,
        "clean_patch": clean_patch.reshape(shapes[1]),
        "meeting": int(len(paired) - (clean_patch >= 0).sum()),
        "shows": _shows(routing[1]),
        "clean_choices": _choices(routing[0], position, sizes[0]),
        "perturbed_choices": _choices(routing[1], position, sizes[1]),
    }


def _choices(layer: "LayerRouting", position: int, size: int) -> TokenChoices:
    """Return what the router chose for the first ``size`` tokens of an input after its prefix."""
    from moeprobe.metrics.analyses.selection import selection_margins

    tokens = slice(layer.num_prefix_tokens, layer.num_prefix_tokens + size)
    selected = layer.selected[position, tokens].long()
    gates = layer.gates[position, tokens].gather(-1, selected.clamp_min(0))
    margins = selection_margins(layer)
    no_margins = np.full(len(selected), np.nan)
    return TokenChoices(
        experts=selected.cpu().numpy(),
        gates=gates.double().cpu().numpy(),
        margins=no_margins if margins is None else margins[position, tokens].cpu().numpy(),
    )


def shown_experts(layer: "LayerRouting", position: int) -> NDArray[np.int64]:
    """Return the expert ``(T,)`` that is drawn for each token of an input."""
    experts = layer.gates.argmax(-1) if layer.top_k == 0 else layer.selected[..., 0]
    return experts[position].cpu().numpy().astype(np.int64)


def _shows(layer: "LayerRouting") -> str:
    """Return which expert is drawn, in words."""
    if layer.top_k == 0:
        return "expert of the largest weight (all have a share of every patch)"
    if layer.experts_choose:
        return "of the experts that take the patch, the one that scores it best (gray, –: none takes it)"
    return InputOverlay.shows if layer.top_k == 1 else f"first of the {layer.top_k} experts of the patch"
