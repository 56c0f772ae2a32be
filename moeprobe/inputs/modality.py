"""What a model reads: images or texts. Data, views, framings and models name theirs, and must agree.

Wherever the docs say *image*, a text model has a *text*: it is the sampling unit, and is in the columns ``images``
and ``image_id``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Modality:
    """A kind of input, and what people call it.

    Attributes:
        name: one source, e.g. "image".
        plural: several.
        token: what the tables call its ordinary tokens (column ``tokens``).
        tokens: several of them.
        prefix: what its prefix tokens are called.
        data: what tables call the data where it comes from no data set; empty = it always does.
        sampled: the sampling unit, e.g. "patient"; empty = the inputs.
    """

    name: str
    plural: str
    token: str
    tokens: str
    prefix: str
    data: str = ""
    sampled: str = ""

    @property
    def unit(self) -> str:
        """What one of the sampled units is called."""
        return self.sampled or self.name

    @property
    def units(self) -> str:
        """What several of the sampled units are called, which intervals are over."""
        return plural_of(self.sampled) if self.sampled else self.plural

    def translate(self, text: str) -> str:
        """Return a text that speaks of images and patches with this modality's words.

        What is said to be few images are the sampled units.

        >>> from dataclasses import replace
        >>> from moeprobe.inputs.modality import IMAGE
        >>> replace(IMAGE, sampled="patient").translate("few images, of images")
        'few patients, of images'
        """
        text = text.replace("few images", f"few {self.units}")
        words = {"images": self.plural, "image": self.name, "patches": self.tokens, "patch": self.token}
        return re.sub(r"\b(images?|patch(es)?)\b", lambda word: words[word[0]], text)

    def format_count(self, count: int | str) -> str:
        """Return so many sampled units, e.g. "1 image"; a count that is written may be several, e.g. "20 / 24"."""
        written = count if isinstance(count, str) else f"{count:,}"
        return f"{written} {self.unit if written == '1' else self.units}"


def plural_of(name: str) -> str:
    """Return what several units are called.

    >>> from moeprobe.inputs.modality import plural_of
    >>> plural_of("patient"), plural_of("case study")
    ('patients', 'case studies')
    >>> plural_of("batch")
    'batches'
    """
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith(("ch", "sh", "s", "x")) else f"{name}s"


IMAGE = Modality("image", "images", "patch", "patches", "CLS")
TEXT = Modality("text", "texts", "token", "tokens", "BOS")
# Frames are images; where clips are compared frame by frame, the sampling unit is a clip.
CLIP = Modality("clip", "clips", "patch", "patches", "CLS")
REQUEST = Modality("request", "requests", "token", "tokens", "BOS", data="requests")
# The ordinary tokens of any modality: what tables and figures show first.
ORDINARY = (IMAGE.token, TEXT.token)
# Tokens around the input's own, as the column ``tokens`` calls them: a prefix (CLS, BOS); and in a prompt with a
# picture, what stands before the picture, and words and special tokens behind it.
AROUND = PREFIX, BEFORE, WORDS, SPECIAL = "prefix", "before", "text", "special"
# Tokens of a sequence that stand for parts of something else than text.
MEDIA = "image", "video", "audio"
# The kinds of tokens in sequences with pictures, by their numbers in traces.
TOKEN_KINDS = (WORDS, *MEDIA, SPECIAL, BEFORE)


def tokens_of_kind(kind: str) -> str:
    """Return what sentences call the tokens of a kind.

    >>> from moeprobe.inputs.modality import tokens_of_kind
    >>> tokens_of_kind("image"), tokens_of_kind("before")
    ('image tokens', 'tokens before the picture')
    """
    return "tokens before the picture" if kind == BEFORE else f"{kind} tokens"


def modality_of(tokens: Iterable[str], *, data: str = "") -> Modality:
    """Return the modality that a column ``tokens`` speaks of; images where it speaks of none.

    Args:
        tokens: the column.
        data: what the tables call the data, which tells requests to a server from texts, and texts from images where
            rows are about no tokens.
    """
    if data == REQUEST.data:
        return REQUEST
    is_text = TEXT.token in set(tokens) or data.partition(":")[0] == TEXT.name
    return TEXT if is_text else IMAGE


def modality_of_row(row: Mapping[Any, Any]) -> Modality:
    """Return the modality that a row of a table speaks of; it may lack the columns that say so."""
    modality = modality_of([row.get("tokens", "")], data=row.get("dataset") or "")
    return replace(modality, sampled=row.get("unit") or "")


def sources(count: int, modality: Modality, *, data: str, split: str) -> str:
    """Return how many inputs of which data, e.g. ``360 images of digits test``; of requests there is no data set."""
    if modality.data:
        return modality.format_count(count)
    return f"{modality.format_count(count)} of {data} {split}".rstrip()
