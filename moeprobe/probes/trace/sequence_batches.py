"""Sequences of a server as batches of a model, with their pictures where they hold any."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.huggingface.sequence_pictures import SequencePictures, media_tokens_of
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import MEDIA, TOKEN_KINDS
from moeprobe.inputs.texts import TokenBatch
from moeprobe.recordings.log_rows import Tokens
from moeprobe.recordings.request_pictures import RequestPictures


class SequenceBatches:
    """Makes batches of sequences for one model.

    Args:
        checkpoint: the model, opened for texts.
        sequences: by their names.
        images: folder of their pictures; None = they hold none.

    Raises:
        UserError: sequences hold pictures and there is no folder of them, it lacks one, or the model reads none.
    """

    def __init__(
        self, checkpoint: Checkpoint, sequences: Mapping[str, Tokens], *, images: Path | None
    ) -> None:
        self._sequences = sequences
        self._reader = None if images is None else SequencePictures(checkpoint)
        self._media = media_tokens_of(checkpoint) if self._reader is None else self._reader.media
        self._pictures = None if images is None else RequestPictures(images)
        self._pictured = [
            name for name, tokens in sequences.items() if self._media and self._media.are_in(tokens.ids)
        ]
        if self._pictured and self._pictures is None:
            raise UserError(
                f"{self._pictured[0]} holds tokens of a picture, which {checkpoint.name} reads with its pixels; name "
                f"the folder of the pictures with {option('images')}."
            )
        if self._pictures is not None:
            if not self._pictured:
                raise UserError(f"No sequence holds tokens of a picture; leave {option('images')} out.")
            for name in self._pictured:
                self._check_media(name)
                self._pictures.files_of(name)

    def _check_media(self, name: str) -> None:
        """Raise ``UserError`` where a sequence holds more than pictures."""
        assert self._media is not None
        kinds = set(self._media.kinds_of(self._sequences[name].ids).tolist())
        for kind in MEDIA[1:]:
            if TOKEN_KINDS.index(kind) in kinds:
                raise UserError(
                    f"{name} holds tokens of {kind}, and sequences are repeated with pictures alone; leave it out."
                )

    def batch(self, names: Sequence[str]) -> TokenBatch:
        """Return sequences as a batch, padded at the end.

        Raises:
            UserError: a picture cannot be read, or does not fit its sequence.
        """
        texts = batch_of([self._sequences[name] for name in names])
        if self._reader is None or self._pictures is None:
            return texts
        pictured = set(self._pictured)
        pictures = {name: self._pictures.open(name) for name in names if name in pictured}
        return self._reader.read(texts, pictures, names=names)

    def kinds(self, name: str) -> NDArray[np.int8] | None:
        """Return the kinds of a sequence's tokens ``(T,)``; None where no sequence has pictures."""
        if self._media is None or not self._pictured:
            return None
        return self._media.kinds_of(self._sequences[name].ids)

    def all_kinds(self) -> tuple[str, ...]:
        """Return the kinds that tokens of any sequence are of; empty where none has pictures."""
        numbers = {int(number) for name in self._sequences for number in np.unique(self._numbers(name))}
        return tuple(kind for number, kind in enumerate(TOKEN_KINDS) if number in numbers)

    def masks(
        self, names: Sequence[str], kinds: Sequence[str], *, num_tokens: int
    ) -> dict[str, torch.Tensor]:
        """Return by kind which tokens ``(B, T)`` of some sequences are of it."""
        numbers = np.full((len(names), num_tokens), -1, np.int8)
        for row, name in enumerate(names):
            of_sequence = self._numbers(name)
            numbers[row, : len(of_sequence)] = of_sequence
        return {kind: torch.from_numpy(numbers == TOKEN_KINDS.index(kind)) for kind in kinds}

    def _numbers(self, name: str) -> NDArray[np.int8]:
        kinds = self.kinds(name)
        return np.zeros(0, np.int8) if kinds is None else kinds

    def request(self) -> dict[str, str]:
        """Return the entry of a request on the pictures; none without them."""
        return {} if self._pictures is None else {"images": self._pictures.digest(self._pictured)}


def batch_of(sequences: Sequence[Tokens]) -> TokenBatch:
    """Return sequences as a batch, padded at the end."""
    longest = max(len(sequence.ids) for sequence in sequences)
    ids, present = np.zeros((len(sequences), longest), np.int64), np.zeros((len(sequences), longest), bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence.ids)], present[row, : len(sequence.ids)] = sequence.ids, True
    mask = torch.from_numpy(present)
    return TokenBatch(torch.from_numpy(ids), mask, mask, 0)
