"""What an import of routed experts counts on its way, and says at the end."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import MEDIA, TOKEN_KINDS
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.validate_capture import Routed, improbable


@dataclass
class Findings:
    """Counts over requests; ``nulls`` and ``without`` are names of those that are left out."""

    nulls: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    # Windows of counts without any choice.
    uncounted: list[str] = field(default_factory=list)
    zero_requests: int = 0
    unset_requests: int = 0
    prompts_zero: int = 0
    zeros: int = 0
    unset: int = 0
    before: int = 0
    short: int = 0
    lacking: int = 0
    longer: int = 0
    tokens: int = 0
    lower: int = 0
    unscored: int = 0
    ends_together: int = 0
    mtp_lines: int = 0
    nonzero: bool = False
    # Choices of which no token is known.
    counted_choices: int = 0
    # Tokens of each kind, by its number; unknown ones are not counted.
    kinds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(TOKEN_KINDS), np.int64))

    def add(self, name: str, request: Routed) -> None:
        """Count one request."""
        rows = len(request.experts) - request.before
        self.zeros += request.zeros
        self.unset += request.unset
        self.short += request.lacking > 0
        self.lacking += max(request.lacking, 0)
        self.longer += request.lacking < 0
        if request.anything:
            self.tokens += rows - request.zeros - request.unset
            self.before += request.before
            self.prompts_zero += request.prompt_zero
            self.nonzero |= bool((request.experts > 0).any())
        else:
            self.without.append(name)
            self.zero_requests += request.zeros > 0
            self.unset_requests += request.zeros == 0 < rows

    def add_kinds(self, kinds: NDArray[np.int8]) -> None:
        """Count the kinds of a request's tokens, -1 = not known."""
        self.kinds += np.bincount(kinds[kinds >= 0], minlength=len(TOKEN_KINDS))

    def tokens_by_kind(self) -> dict[str, int]:
        """Return how many tokens there are of each kind; empty where none is of a picture."""
        counts = {kind: int(count) for kind, count in zip(TOKEN_KINDS, self.kinds, strict=True) if count}
        return counts if counts.keys() & set(MEDIA) else {}

    def check(self, files: str, shape: MoeShape) -> None:
        """Raise ``UserError`` where nothing at all was captured."""
        if self.tokens and not self.nonzero and improbable(self.tokens, shape):
            self.zero_requests, self.tokens = max(self.zero_requests, 1), 0
        if self.tokens or self.counted_choices:
            return
        if self.zero_requests:
            raise UserError(
                f"{files}: every expert is 0, which is known as an all-zero capture. Kernels that choose experts "
                "themselves leave the buffer empty (monolithic, fused); serve with another kernel."
            )
        if self.unset_requests:
            raise UserError(
                f"{files}: every expert is -1 or the highest number of its type (255), known as an all -1 capture "
                "or 255 fill. No layer wrote the buffer; look at the server's setting for routed experts."
            )
        if self.nulls:
            raise UserError(
                f"{files}: the routed experts of all {len(self.nulls):,} sequences are null, which is known of aborted "
                "requests and of servers that do not return them; start the server so that it does."
            )
        if self.uncounted:
            raise UserError(f"{files}: all counts are 0, so nothing was captured.")
        raise UserError(f"{files}: there are no tokens with routed experts.")

    def sentences(self) -> list[str]:
        """Return findings that do not hinder the import; missing values enter no number."""
        notes = [
            (len(self.nulls), "sequences have null for routed experts (aborted, or not captured) and are left out"),
            (len(self.without), "sequences have no token with an expert (all zero, all -1, no rows) and are left out"),
            (len(self.uncounted), "steps or files have no choices at all and are left out"),
            (self.prompts_zero, "sequences are zero for every token of the prompt: known as prompt rows zero, of "
             "servers that capture generated tokens only"),
            (self.zeros, "tokens are zero in every layer, which no router chooses: not captured, and no valid tokens"),
            (self.unset, "tokens are -1 (or 255, the fill of uint8) in every layer: known as rows from the prefix "
             "cache, or padding, and no valid tokens"),
            (self.before, "tokens before the first requested row (start) are left out"),
            (self.ends_together, "sequences have fewer rows than tokens less one, and their last row is taken as the "
             "last but one token's, as this server only leaves out leading rows; --start says how many"),
            (self.short, f"sequences have fewer rows than stated tokens less one, {self.lacking:,} in all: known as "
             "rows missing, or leading rows cut without a word; --start says how many leading rows were cut"),
            (self.unscored, "inputs have logits whose score function is not known, so they get no gates; put "
             f"router_state_rank0.pt beside the trace, or say it with {option('gates')}"),
            (self.lower, "choices of a token do not have the highest scores (a bias or groups of experts that the "
            "file does not have, or dropped tokens)"),
            (self.longer, "sequences have more rows than stated tokens less one: known as one off, as nothing routes "
             "the last token"),
        ]  # fmt: skip
        return [f"{count:,} {note}." for count, note in notes if count]
