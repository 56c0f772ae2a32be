"""How a picture and a prompt become what a vision-language model of ``transformers`` reads.

The processor in the model's folder does it, without code of its own. Views are rendered at the size that the picture
tower sees, and the processor only normalizes them and cuts them into patches. That it does no more is tried out when a
model is opened.

Axes: B pictures, S pixels of a side, T tokens.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from moeprobe.errors import UserError, option
from moeprobe.inputs.texts import TokenBatch
from moeprobe.runtime.foreign_errors import running

# Side of the picture from which the size of a processor is learned: many take any size, and keep this one.
_TYPICAL_SIZE = 448
# Some processors round pixels to bfloat16.
_TOLERANCE = 2e-2


@dataclass(frozen=True)
class PicturedBatch(TokenBatch):
    """Prompts, each with its picture.

    Attributes:
        pictures: what the processor gives beside the tokens, by the names of the model's arguments.
    """

    pictures: Mapping[str, Tensor] = field(default_factory=dict)

    def _each(self, change: Any) -> "PicturedBatch":
        pictures = {name: change(value) for name, value in self.pictures.items()}
        tokens = {name: change(getattr(self, name)) for name in ("ids", "present", "ordinary")}
        return replace(self, **tokens, pictures=pictures)


class PictureReader:
    """Puts pictures of one size into one prompt.

    Args:
        processor: the model's own.
        prompt: what stands beside the picture, in the model's chat template if it has one.
        size: S; None = the processor's own for a square picture.
        dtype: of the model's weights.

    Attributes:
        size: S.

    Raises:
        UserError: the processor changes pictures of this size by more than a normalization, or cannot read them.
    """

    def __init__(self, processor: Any, *, prompt: str, size: int | None, dtype: torch.dtype) -> None:
        self._processor, self._dtype = processor, dtype
        with running("The processor of pictures", doing="on a prompt"):
            self._text, self._keywords = in_template(processor, prompt)
        fitting = size or self._size_of(_TYPICAL_SIZE)
        if fitting is None:
            raise UserError(
                "The processor does not say at which size the model sees pictures; say it, e.g. "
                f"{option('image_size', _TYPICAL_SIZE)}."
            )
        self.size: int = fitting
        self._check_pixels()

    @property
    def special_ids(self) -> set[int]:
        """The ids of the tokenizer's special tokens."""
        return special_ids_of(self._processor)

    def read(self, pixels: Tensor) -> PicturedBatch:
        """Return the prompt with each of the pictures ``(B, 3, S, S)`` in [0, 1].

        Raises:
            UserError: the processor cannot read them.
        """
        outputs = self._process(list(pixels), do_rescale=False)
        ids, present = outputs.pop("input_ids"), outputs.pop("attention_mask").bool()
        pictures = {
            name: value.to(self._dtype) if value.is_floating_point() else value
            for name, value in outputs.items()
            if isinstance(value, Tensor)
        }
        return PicturedBatch(ids, present, present, 0, pictures=pictures)

    def _process(self, images: list[Any], **changes: Any) -> dict[str, Any]:
        return process(self._processor, self._text, images, **self._keywords, **changes)

    def _size_of(self, side: int) -> int | None:
        """Return the side of the square that the processor makes of a square picture; None where it does not say."""
        outputs = self._process([torch.zeros(3, side, side)], do_rescale=False)
        return next(
            (size for rule in _SIDES if (size := rule(outputs, self._processor.image_processor))), None
        )

    def _check_pixels(self) -> None:
        """Raise ``UserError`` if the processor does more to pixels than scale and shift them."""
        generator = torch.Generator().manual_seed(0)
        in_bytes = torch.randint(256, (3, self.size, self.size), generator=generator, dtype=torch.uint8)
        fine = torch.rand(3, self.size, self.size, generator=generator)
        dark, read, half = (
            self._process([pixels], do_rescale=False)["pixel_values"].float()
            for pixels in (torch.zeros_like(fine), fine, fine / 2)
        )
        served = self._process([in_bytes])["pixel_values"].float()
        ours = self._process([in_bytes / 255], do_rescale=False)["pixel_values"].float()
        scale = float((read - dark).abs().max())
        # Halves are halfway, so nothing was clipped or mixed by a curve; and pixels arrive as from a picture file.
        pairs = ((half, (read + dark) / 2), (ours, served))
        if any(a.shape != b.shape or float((a - b).abs().max()) > _TOLERANCE * scale for a, b in pairs):
            instead = self._size_of(self.size)
            raise UserError(
                f"The processor changes pictures of {self.size} x {self.size} pixels by more than a normalization, so "
                "perturbed pixels would not arrive as they are; "
                + (
                    f"use {option('image_size', instead)}."
                    if instead not in (None, self.size)
                    else f"choose another {option('image_size')}."
                )
            )


def special_ids_of(processor: Any) -> set[int]:
    """Return the ids of the special tokens of a processor's tokenizer."""
    tokenizer = processor.tokenizer
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | set(tokenizer.all_special_ids)


def process(processor: Any, text: str, images: Sequence[Any], **settings: Any) -> dict[str, Any]:
    """Return what a processor gives for one text beside each image, with settings of its own."""
    with (
        running("The processor of pictures", doing=f"on {len(images)} of them"),
        warnings.catch_warnings(),
    ):
        # The library's words about its own code.
        warnings.simplefilter("ignore")
        outputs = processor(
            text=[text] * len(images), images=[[image] for image in images], return_tensors="pt", **settings
        )
    return dict(outputs)


def in_template(processor: Any, prompt: str) -> tuple[str, dict[str, Any]]:
    """Return the text around a picture, and keywords of the processor that go with it."""
    # Older folders have the template with the tokenizer.
    of_tokenizer = {} if processor.chat_template else {"chat_template": processor.tokenizer.chat_template}
    if None in of_tokenizer.values():
        return f"{processor.image_token}{prompt}", {}
    content = [{"type": "image"}, {"type": "text", "text": prompt}]
    text: str = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False, **of_tokenizer
    )
    # A template writes the special tokens itself.
    return text, {"add_special_tokens": False}


def _of_patch_grid(outputs: Mapping[str, Any], image_processor: Any) -> int | None:
    grid, patch_size = outputs.get("image_grid_thw"), getattr(image_processor, "patch_size", None)
    return int(grid[0, 1]) * patch_size if grid is not None and isinstance(patch_size, int) else None


def _of_patch_places(outputs: Mapping[str, Any], image_processor: Any) -> int | None:
    cells = outputs.get("image_position_ids")
    return None if cells is None else (int(cells.max()) + 1) * int(image_processor.patch_size)


def _of_pixels(outputs: Mapping[str, Any], image_processor: Any) -> int | None:
    shape = tuple(outputs["pixel_values"].shape[-3:])
    # Patches, too, may come as little pictures; their grid is given then.
    is_picture = (
        len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2] and "image_grid_thw" not in outputs
    )
    return shape[2] if is_picture else None


# How the size of a picture is read off what a processor gives.
_SIDES: tuple[Callable[[Mapping[str, Any], Any], int | None], ...] = (
    _of_patch_grid,
    _of_patch_places,
    _of_pixels,
)
