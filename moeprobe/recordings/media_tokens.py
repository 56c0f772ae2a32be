"""Which tokens of a sequence stand for parts of a picture, a video or a sound, and which are special.

The input of a vision-language model has as many placeholders as a picture has tokens, all with one id. The model's
``config.json`` says which id that is, and names others, such as the one that begins a picture. ``tokenizer.json``
beside it, where there is one, marks all special tokens.

Axes: T tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import BEFORE, MEDIA, SPECIAL, TOKEN_KINDS, WORDS
from moeprobe.recordings.log_rows import MOST_TOKEN
from moeprobe.runtime.files import is_file, read_json

# Fields of a configuration that hold ids of tokens end in these.
_ENDINGS = ("_token_id", "_token_ids", "_token_index")
# Parts of a configuration that hold such fields, after the configuration itself.
_PARTS = ("text_config", "vision_config")
# Bytes of a tokenizer: the largest vocabularies take a few dozen MiB.
_TOKENIZER_LIMIT = 2**28
_CODES = {kind: number for number, kind in enumerate(TOKEN_KINDS)}


@dataclass(frozen=True)
class MediaTokens:
    """The ids of tokens that are no words.

    Attributes:
        media: ids by kind, of ``modality.MEDIA``.
        special: ids of special tokens.
    """

    media: Mapping[str, frozenset[int]]
    special: frozenset[int] = frozenset()

    def are_in(self, ids: NDArray[np.integer[Any]]) -> bool:
        """Whether any of the tokens is a part of a picture, a video or a sound."""
        return any(np.isin(ids, list(kind_ids)).any() for kind_ids in self.media.values())

    def kinds_of(self, ids: NDArray[np.integer[Any]]) -> NDArray[np.int8]:
        """Return the kinds ``(T,)`` of tokens as numbers of ``TOKEN_KINDS``; an unknown token (-1) has none (-1).

        Words and special tokens before the first picture are a kind of their own, since they do not see it.

        Two words before a picture of three tokens, and its end and a word behind it:

        >>> import numpy as np
        >>> from moeprobe.inputs.modality import TOKEN_KINDS
        >>> from moeprobe.recordings.media_tokens import MediaTokens
        >>> tokens = MediaTokens({"image": frozenset({4})}, special=frozenset({7}))
        >>> [TOKEN_KINDS[kind] for kind in tokens.kinds_of(np.array([20, 21, 4, 4, 4, 7, 22]))]
        ['before', 'before', 'image', 'image', 'image', 'special', 'text']
        """
        kinds = np.full(ids.shape, _CODES[WORDS], np.int8)
        kinds[np.isin(ids, list(self.special))] = _CODES[SPECIAL]
        is_media = np.zeros(ids.shape, bool)
        for kind, kind_ids in self.media.items():
            is_of_kind = np.isin(ids, list(kind_ids))
            kinds[is_of_kind] = _CODES[kind]
            is_media |= is_of_kind
        if is_media.any():
            kinds[: int(is_media.argmax())] = _CODES[BEFORE]
        kinds[ids < 0] = -1
        return kinds


def find_media_tokens(config: Mapping[str, Any], *, special: Iterable[int] = ()) -> MediaTokens | None:
    """Return the ids that a configuration names; None where it names no pictures, videos or sounds.

    Args:
        config: the content of ``config.json``.
        special: further ids of special tokens, from the tokenizer.
    """
    media: dict[str, set[int]] = {}
    other_ids = set(special)
    for part in (config, *(config[name] for name in _PARTS if isinstance(config.get(name), dict))):
        for name, value in part.items():
            ending = next((ending for ending in _ENDINGS if name.endswith(ending)), None)
            if ending is None:
                continue
            kind = name.removesuffix(ending)
            values = value if isinstance(value, list) else [value]
            ids = {number for number in values if type(number) is int and 0 <= number <= MOST_TOKEN}
            (media.setdefault(kind, set()) if kind in MEDIA else other_ids).update(ids)
    by_kind = {kind: frozenset(ids) for kind, ids in media.items() if ids}
    return MediaTokens(by_kind, frozenset(other_ids)) if by_kind else None


def read_media_tokens(path: Path, *, image_token_id: int | None = None) -> MediaTokens | None:
    """Return the ids that a ``config.json`` and the tokenizer beside it name; None where there are none.

    Args:
        path: of the configuration.
        image_token_id: of the tokens of pictures; None = as the configuration says.

    Raises:
        UserError: a file cannot be read, or ``image_token_id`` is no id.
    """
    config = read_json(path)
    tokenizer = path.parent / "tokenizer.json"
    content = read_json(tokenizer, limit=_TOKENIZER_LIMIT) if is_file(tokenizer) else None
    added = content.get("added_tokens") if isinstance(content, dict) else None
    special = frozenset(
        entry["id"]
        for entry in (added if isinstance(added, list) else [])
        if isinstance(entry, dict) and entry.get("special") and type(entry.get("id")) is int
    )
    tokens = find_media_tokens(config if isinstance(config, dict) else {}, special=special)
    if image_token_id is None:
        return tokens
    pictures = tokens_of_pictures(image_token_id)
    if tokens is None:
        return replace(pictures, special=special)
    return replace(tokens, media={**tokens.media, **pictures.media})


def tokens_of_pictures(image_token_id: int) -> MediaTokens:
    """Return that tokens of this id are parts of pictures, where no more is known.

    Raises:
        UserError: it is no id.
    """
    if not 0 <= image_token_id <= MOST_TOKEN:
        raise UserError(
            f"{option('image_token_id')} takes the id of a token, a whole number from 0 to {MOST_TOKEN:,}; got "
            f"{image_token_id}."
        )
    return MediaTokens({MEDIA[0]: frozenset({image_token_id})})
