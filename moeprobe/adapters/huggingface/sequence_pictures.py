"""Sequences of tokens in which pictures stand, as a server read them: each picture is put to its placeholders.

A server returns the ids of a sequence after it has expanded the placeholder of each picture. So nothing is tokenized
here: the model's processor makes pixels of the pictures alone, and says how many tokens each takes.

Axes: B sequences, T tokens, N pictures of all sequences, S tokens of a prompt with one picture.
"""

from collections.abc import Mapping, Sequence

import torch
from PIL import Image
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.huggingface import HuggingfaceAdapter
from moeprobe.adapters.huggingface.files import load_processor
from moeprobe.adapters.huggingface.pictures import PicturedBatch, in_template, process, special_ids_of
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import MEDIA
from moeprobe.inputs.texts import TokenBatch
from moeprobe.recordings.media_tokens import MediaTokens, find_media_tokens
from moeprobe.runtime.foreign_errors import running

# What stands beside a picture while its tokens are counted.
_ANY_PROMPT = "."


def media_tokens_of(checkpoint: Checkpoint) -> MediaTokens | None:
    """Return the tokens of pictures, videos and sounds that a model of ``hf:`` reads; None where it reads none."""
    model = checkpoint.model
    return find_media_tokens(model.model.config.to_dict()) if isinstance(model, HuggingfaceAdapter) else None


class SequencePictures:
    """Puts pictures into sequences of one model.

    Args:
        checkpoint: a vision-language model of ``hf:``, opened for texts.

    Attributes:
        media: its tokens of pictures, and its special tokens.

    Raises:
        UserError: the model reads no pictures, or has no processor of them.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        if not isinstance(checkpoint.model, HuggingfaceAdapter):
            raise UserError(
                f"{checkpoint.name} is no vision-language model of hf:; leave {option('images')} out."
            )
        self._name = checkpoint.name
        self._dtype = getattr(torch, checkpoint.model.dtype)
        self._processor = load_processor(checkpoint.provenance["path"])
        config = checkpoint.model.model.config.to_dict()
        media = find_media_tokens(config, special=special_ids_of(self._processor))
        image_ids = None if media is None else media.media.get(MEDIA[0])
        if media is None or not image_ids:
            raise UserError(f"config.json of {checkpoint.name} names no token that stands for pictures.")
        self.media, self._image_ids = media, torch.tensor(sorted(image_ids))
        with running("The processor of pictures", doing="on a prompt"):
            self._text, self._keywords = in_template(self._processor, _ANY_PROMPT)

    def read(
        self, texts: TokenBatch, pictures: Mapping[str, Sequence[Image.Image]], *, names: Sequence[str]
    ) -> TokenBatch:
        """Return sequences with their pictures.

        Args:
            texts: the sequences.
            pictures: by sequence, in the order in which they stand in it; absent where it has none.
            names: of the B sequences.

        Raises:
            UserError: pictures have other numbers of tokens than a sequence has placeholders, or cannot be read.
        """
        every = [picture for name in names for picture in pictures.get(name, ())]
        is_image = torch.isin(texts.ids, self._image_ids) & texts.present
        if not every and not is_image.any():
            return texts
        outputs = process(self._processor, self._text, every, padding=True, **self._keywords)
        ids, present = outputs.pop("input_ids"), outputs.pop("attention_mask").bool()
        is_patch = torch.isin(ids, self._image_ids) & present
        self._check_counts(is_image.sum(1).tolist(), is_patch.sum(1).tolist(), pictures, names)
        tensors = {name: value for name, value in outputs.items() if isinstance(value, Tensor)}
        arguments = {
            name: self._by_token(name, value, is_patch, is_image)
            if value.shape[:2] == ids.shape
            else value.to(self._dtype)
            if value.is_floating_point()
            else value
            for name, value in tensors.items()
        }
        return PicturedBatch(
            texts.ids, texts.present, texts.ordinary, texts.num_prefix_tokens, pictures=arguments
        )

    def _check_counts(
        self,
        of_sequences: list[int],
        of_pictures: list[int],
        pictures: Mapping[str, Sequence[Image.Image]],
        names: Sequence[str],
    ) -> None:
        """Raise ``UserError`` unless each sequence has as many placeholders as its pictures have tokens."""
        start = 0
        for name, in_sequence in zip(names, of_sequences, strict=True):
            end = start + len(pictures.get(name, ()))
            if in_sequence != sum(of_pictures[start:end]):
                counts = " + ".join(map(str, of_pictures[start:end])) or "0"
                raise UserError(
                    f"{name} has {in_sequence} image tokens, and the processor of {self._name} makes {counts} of its "
                    "pictures; give the pictures that the server got, in their order, and the processor's settings of "
                    "the server."
                )
            start = end

    def _by_token(self, name: str, values: Tensor, is_patch: Tensor, is_image: Tensor) -> Tensor:
        """Return marks of tokens ``(B, T)``, as the processor has them for prompts ``(N, S)``.

        Raises:
            UserError: they depend on more than whether a token is of a picture.
        """
        inside, outside = values[is_patch].unique(), values[~is_patch].unique()
        if len(inside) != 1 or len(outside) != 1:
            raise UserError(
                f"The processor of {self._name} marks tokens by {name} in a way that is not known, so given tokens "
                "cannot get pictures."
            )
        return torch.where(is_image, inside, outside)
