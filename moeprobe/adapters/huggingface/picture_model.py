"""A vision-language model of ``transformers`` as a model of images: it gets pixels, and its image tokens are patches.

The prompt is the same beside every picture. Tokens around the picture stand where other models have their prefix, each
kind for itself; scores are about the next token after the prompt.

Axes: B pictures, S pixels of a side.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.huggingface.picture_layout import PictureLayout, find_layout, unmixed
from moeprobe.adapters.huggingface.pictures import PicturedBatch, PictureReader
from moeprobe.errors import UserError, option
from moeprobe.inputs.images import Framing
from moeprobe.routing.parts import Weight
from moeprobe.routing.record import RoutingTrace

if TYPE_CHECKING:
    from moeprobe.adapters.huggingface import HuggingfaceAdapter


class PictureModel:
    """A vision-language model, ready to be probed on pictures of one size.

    Args:
        texts: the model, as it reads texts.
        processor: its own.
        prompt: what stands beside each picture.
        size: S; None = the processor's own for a square picture.

    Attributes:
        layout: where the image tokens stand.

    Raises:
        UserError: the processor changes pixels, or its tokens are not the model's.
    """

    group_images = 1

    def __init__(self, texts: "HuggingfaceAdapter", processor: Any, *, prompt: str, size: int | None) -> None:
        self.texts, self.prompt = texts, prompt
        self.layer_names = texts.layer_names
        self._reader = PictureReader(processor, prompt=prompt, size=size, dtype=getattr(torch, texts.dtype))
        self.size = self._reader.size
        self.layout = self._find_layout(processor)
        # A family may route image tokens by routers of their own, which the pass over texts did not show.
        try:
            self.trace(self.framing.blank(), logits=False)
        except UserError as error:
            texts_instead = option("data", "text:PATH")
            raise UserError(
                f"{error} So it is on pictures; probe it on texts, e.g. {texts_instead}."
            ) from None

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are."""
        return self.texts.device

    @property
    def framing(self) -> Framing:
        """How an image is brought to the input: squashed into the square."""
        return Framing(self.size)

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        """Run the model on pictures with the prompt; its scores belong to the next token. See ``routing.Traceable``."""
        output, trace = self.texts.trace(self._read(images), layers=layers, logits=logits)
        return output, RoutingTrace(
            {name: self.layout.arrange(layer) for name, layer in trace.layers.items()}
        )

    def check_replay(self, layers: Sequence[str] | None = None) -> None:
        """Raise ``UserError`` unless layers can be made to repeat choices; see ``routing.refusal_to_replay``."""
        self.texts.check_replay(layers)

    def replay(self, images: Tensor, routing: RoutingTrace, *, gates: str = "recomputed") -> Tensor:
        """Return the scores of the next token where the layers repeat a routing; see ``routing.Replayable``."""
        layers = {name: self.layout.in_sequence(layer) for name, layer in routing.layers.items()}
        with self.texts.repeating(RoutingTrace(layers), gates=gates):
            scores, _ = self.texts.trace(self._read(images), layers=())
        if scores is None:
            raise UserError("The model writes no texts, so it has no scores of a next token.")
        return scores

    def router_modules(self) -> list[nn.Module]:
        """Return the modules that route; see ``routing.HasRouterModules``."""
        return self.texts.router_modules()

    def weights(self) -> list[Weight]:
        """Return the parameters by the part that they are of; see ``routing.Weighed``."""
        return self.texts.weights()

    def describe(self) -> dict[str, Any]:
        """Return the model's sizes, and how it gets pictures."""
        return self.texts.describe() | {"reads": "images with a prompt"} | self.picture_facts()

    def picture_facts(self) -> dict[str, Any]:
        """Return how pictures reach the model, for a sidecar."""
        grid = self.layout.grid
        return {
            "prompt": self.prompt,
            "image_size": self.size,
            "layout": self.layout.name,
            "image_tokens": f"{grid.rows} x {grid.columns}",
            "tokens_around": dict(self.layout.leading),
            **({"layout_doubt": self.layout.doubt} if self.layout.doubt else {}),
        }

    def _read(self, images: Tensor) -> PicturedBatch:
        expected = (3, self.size, self.size)
        if not isinstance(images, Tensor) or images.shape[1:] != expected:
            raise UserError(f"The model reads images (B, {', '.join(map(str, expected))}) in [0, 1].")
        return self._reader.read(images.cpu())

    def _find_layout(self, processor: Any) -> PictureLayout:
        batch = self._reader.read(torch.zeros(1, 3, self.size, self.size))
        config = self.texts.model.config
        image_id = next(
            (
                number
                for name in ("image_token_id", "image_token_index")
                for holder in (config, processor)
                if isinstance(number := getattr(holder, name, None), int)
            ),
            None,
        )
        if image_id is None or not bool((batch.ids[0] == image_id).any()):
            raise UserError(
                f"No token of the prompt with a picture has the number {image_id}, which stands for pictures in "
                "config.json; is the processor of this model?"
            )

        blocks = self.texts.blocks

        def embed(pixels: Tensor) -> Tensor:
            assert blocks is not None
            with unmixed(self.texts.body, blocks):
                return self.texts.embeddings(self._reader.read(pixels))

        return find_layout(
            batch.ids[0],
            batch.pictures,
            image_id=image_id,
            special_ids=self._reader.special_ids,
            size=self.size,
            embed=None if blocks is None else embed,
        )
