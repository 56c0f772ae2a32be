"""What a model must be able to do to be probed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from moeprobe.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from moeprobe.routing.parts import Weight
    from moeprobe.routing.record import LayerRouting, RoutingTrace
    from moeprobe.routing.router_rows import RouterRows


@runtime_checkable
class Traceable(Protocol):
    """A model that can be probed.

    ``trace`` takes images ``(B, 3, H, W)`` in [0, 1] (the model's own normalization is inside), or a
    ``inputs.texts.TokenBatch`` of texts. Gates are free of noise, nothing is trained, and the result has no gradient.

    Attributes:
        layer_names: MoE layers, in forward order.
        group_images: images that compete for capacity, N consecutive ones from the first of the batch on; a batch holds
            whole groups, or less than one. 1 where an image's routing depends on that image alone.
    """

    layer_names: tuple[str, ...]
    group_images: int

    def trace(
        self, images: Any, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        """Run the model.

        Args:
            images: ``(B, 3, H, W)`` float in [0, 1], or texts.
            layers: MoE layers to trace; None = all.
            logits: whether the class scores are wanted (of a language model, scores of the next token; None where a
                model has none); without, the forward stops after the last layer asked for.

        Raises:
            UserError: there is no such layer, or the images do not fit the model.
        """


# What a model's output is: class scores (of a language model, of the next token), or features.
SCORES, FEATURES = "scores", "features"


def output_kind(model: Traceable) -> str | None:
    """Return what ``trace`` gives beside the routing: "scores", "features", or None where it gives nothing.

    A model that does not say so, by an attribute of this name, gives scores or nothing.
    """
    kind: str | None = getattr(model, "output_kind", SCORES)
    return kind


@runtime_checkable
class Replayable(Traceable, Protocol):
    """A model whose layers can be made to repeat a routing that was made on other pixels."""

    def replay(self, images: Tensor, routing: RoutingTrace, *, gates: str = "recomputed") -> Tensor:
        """Return the class scores ``(B, classes)`` of images when they are routed as ``routing`` says.

        The layers in ``routing`` repeat its choices, token by token, and what found room then finds room now; other
        layers choose as ever.

        Args:
            images: ``(B, 3, H, W)`` in [0, 1].
            routing: of as many images, in the same order.
            gates: "recomputed": the chosen experts are weighted as the router weights them for these images;
                "replayed": as in ``routing``.

        Raises:
            UserError: the routing is not one of this model for as many images, or its tokens choose no experts.
        """


@dataclass(frozen=True)
class Trunk:
    """How far a forward pass has come at an MoE layer.

    Attributes:
        hidden: ``(B, ...)`` what enters the block that the layer is in.
        output: ``(B, T, D)`` what the layer gives, with the choices that the pass made.
    """

    hidden: Tensor
    output: Tensor


@runtime_checkable
class Resumable(Replayable, Protocol):
    """A model whose forward pass can be taken up again at an MoE layer, so that the blocks before it run once."""

    def trunks(self, images: Tensor, *, layers: Sequence[str] | None = None) -> dict[str, Trunk]:
        """Return where a pass of images ``(B, 3, H, W)`` in [0, 1] has come at each layer.

        Raises:
            UserError: there is no such layer, or the images do not fit the model.
        """

    def resume(
        self, layer: str, hidden: Tensor, routing: RoutingTrace, *, gates: str = "recomputed"
    ) -> tuple[Tensor, Tensor]:
        """Return the class scores ``(B, classes)`` of passes taken up at a layer, and its output ``(B, T, D)``.

        Args:
            layer: where.
            hidden: of its ``Trunk``, with an entry for each pass.
            routing: choices to be repeated from there on.
            gates: as in ``replay``.
        """

    def reached_from(self, layer: str, hidden: Tensor) -> Tensor:
        """Return of which tokens ``(T,)`` the layer's output can reach the class scores at all."""


def refusal_to_replay(model: Traceable) -> str | None:
    """Return why a model cannot be made to repeat a routing of images, empty if it just cannot; None where it can.

    If this depends on how the model is built, it says so by a method ``check_replay`` like ``Rerouted``'s.
    """
    if not isinstance(model, Replayable):
        return ""
    try:
        getattr(model, "check_replay", lambda: None)()
    except UserError as error:
        return f"{error}"
    return None


def check_replayable(name: str, model: Traceable, so: str) -> None:
    """Raise ``UserError`` unless a model can be made to repeat a routing; ``so`` ends the sentence."""
    refusal = refusal_to_replay(model)
    if refusal is not None:
        raise UserError(f"{name} cannot replay a routing, so {so}{f': {refusal}' if refusal else '.'}")


@runtime_checkable
class Featured(Traceable, Protocol):
    """A model that says what its classification head reads."""

    def features(self, images: Tensor) -> Tensor:
        """Return the features ``(B, D)`` float32 of images ``(B, 3, H, W)`` in [0, 1], routed as in ``trace``.

        Raises:
            UserError: the images do not fit the model.
        """


@runtime_checkable
class Differentiable(Traceable, Protocol):
    """A model that says how its loss depends on the pixels."""

    def loss_gradient(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient ``(B, 3, H, W)`` of the cross-entropy of each image, by its own pixels.

        Args:
            images: ``(B, 3, H, W)`` in [0, 1].
            targets: ``(B,)`` classes.

        Raises:
            UserError: the images do not fit the model, or it has no class scores.
        """


@runtime_checkable
class Steerable(Differentiable, Protocol):
    """A model that says how its routing depends on the pixels, too."""

    def routing_gradient(
        self,
        images: Tensor,
        objective: Callable[[Tensor, RoutingTrace], Tensor],
        *,
        layers: Sequence[str] | None = None,
    ) -> Tensor:
        """Return the gradient ``(B, 3, H, W)`` of an objective of each image, by its own pixels.

        Args:
            images: ``(B, 3, H, W)`` in [0, 1].
            objective: gives the value of each image ``(B,)`` of what ``trace`` returns, here with a gradient.
            layers: MoE layers to trace; None = all.

        Raises:
            UserError: there is no such layer, the images do not fit the model, or nothing has a gradient.
        """


@runtime_checkable
class Described(Traceable, Protocol):
    """A model that says what it is."""

    def describe(self) -> dict[str, Any]:
        """Return its sizes and, under ``layers``, a row for each MoE layer."""


@runtime_checkable
class Routable(Traceable, Protocol):
    """A model whose routers can be asked one by one, each with tokens of the caller's making."""

    def router_inputs(self, images: Tensor, *, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Return the tokens ``(B, T, D)`` that the router of each layer sees for images ``(B, 3, H, W)`` in [0, 1].

        Raises:
            UserError: there is no such layer, or the images do not fit the model.
        """

    def route(self, layer: str, tokens: Tensor) -> LayerRouting:
        """Return what the router of one layer decides for tokens ``(B, T, D)``, in groups as in ``trace``.

        Raises:
            UserError: there is no such layer.
        """


@runtime_checkable
class Separable(Routable, Protocol):
    """A model whose experts can be run one by one, whatever the router says."""

    def expert_outputs(self, layer: str, tokens: Tensor) -> Tensor:
        """Return what each expert of a layer makes of tokens ``(B, T, D)``, ``(B, T, E, D)``, without gates.

        Raises:
            UserError: there is no such layer.
        """


@runtime_checkable
class AheadRoutable(Traceable, Protocol):
    """A model whose routers can be applied to what the router of the MoE layer before sees."""

    def trace_ahead(
        self, images: Any, *, layers: Sequence[str] | None = None
    ) -> tuple[RoutingTrace, dict[str, Tensor]]:
        """Return the routing of a pass, and for each of its layers but the model's first what its choice is read off.

        These are scores ``(B, T, E)``, higher = rather chosen, of the layer's router for the input of the router of the
        model's MoE layer before, whether that is one of ``layers`` or not.

        Args:
            images: ``(B, 3, H, W)`` in [0, 1], or a ``TokenBatch``.
            layers: MoE layers, in forward order; None = all.

        Raises:
            UserError: there is no such layer, or the inputs do not fit the model.
        """


@runtime_checkable
class HasRouterModules(Traceable, Protocol):
    """A model of another program that says which of its modules route."""

    def router_modules(self) -> list[nn.Module]:
        """Return the modules that compute the scores of experts; they stay in float32 in any precision."""


@runtime_checkable
class HasRouterRows(Traceable, Protocol):
    """A model that says which weights its routers score experts by."""

    def router_rows(self) -> dict[str, RouterRows | None]:
        """Return the rows of each layer's router; None where a router has not one for each expert."""


@runtime_checkable
class Weighed(Traceable, Protocol):
    """A model that says which part of it each of its parameters is of."""

    def weights(self) -> list[Weight]:
        """Return its parameters that hold numbers with a fraction, each once."""


@runtime_checkable
class Scored(Traceable, Protocol):
    """A language model that says how probable it finds a text."""

    def log_probabilities(self, texts: Any) -> Tensor:
        """Return the natural logarithm of each token's probability ``(B, T)``, given those before it.

        ``texts`` are a ``TokenBatch``. NaN where there is none: the first token, and padding.
        """


@runtime_checkable
class Rerouted(Scored, Protocol):
    """A language model whose layers can be made to repeat a routing while it scores texts."""

    def check_replay(self, layers: Sequence[str] | None = None) -> None:
        """Raise ``UserError`` unless these layers (None = all) can be made to repeat choices."""

    def replayed_log_probabilities(
        self, texts: Any, routing: RoutingTrace, *, gates: str = "recomputed"
    ) -> Tensor:
        """Return what ``log_probabilities`` does, ``(B, T)``, where layers choose as ``routing`` says.

        Tokens without a choice in it, and layers that are not in it, choose as ever.

        Args:
            texts: a ``TokenBatch``.
            routing: of as many texts and tokens.
            gates: "recomputed": the chosen experts are weighted as the router weights them for its present input;
                "replayed": as in ``routing``.

        Raises:
            UserError: the routing is of another model, or choices cannot be forced.
        """


@runtime_checkable
class ResumableText(Rerouted, Protocol):
    """A language model whose forward pass can be resumed at an MoE layer, so that earlier blocks run once."""

    def text_trunks(self, texts: Any, *, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Return what enters the block of each layer ``(B, T, D)`` in a pass of texts, a ``TokenBatch``.

        Layers at which no pass can be taken up are left out.
        """

    def resumed_log_probabilities(
        self, layer: str, hidden: Tensor, texts: Any, routing: RoutingTrace, *, gates: str = "recomputed"
    ) -> Tensor:
        """Return what ``replayed_log_probabilities`` does, of passes taken up at a layer.

        Args:
            layer: where.
            hidden: of ``text_trunks``, with an entry for each text.
            texts: a ``TokenBatch``.
            routing: choices to be repeated from there on.
            gates: as in ``replayed_log_probabilities``.
        """
