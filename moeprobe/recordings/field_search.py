"""Which fields of an object hold token ids and routing: by the keys that people use, else by their form.

A reading is taken where it is the only one that fits; where several fit they are named, and a user says which.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import option
from moeprobe.recordings.batch_layout import BatchLayout, id_lists
from moeprobe.recordings.log_probs import GENERATED, PROMPT
from moeprobe.recordings.log_rows import Fault, Tokens
from moeprobe.recordings.readers.base import count
from moeprobe.recordings.responses import CONTENT, array_of
from moeprobe.recordings.routing_values import axes_of, is_rows, is_shaped

# Keys of routed experts, of logits of routers, and of whole sequences; of prompts and what was generated see
# ``log_probs``. The last part of a path counts.
ROUTING = (
    "routed_experts", "rollout_routed_experts", "rollout_expert_indices", "expert_indices", "expert_ids", "topk_ids",
    "topk_indices", "top_indices", "selected_experts", "router_indices", "routing",
)  # fmt: skip
LOGITS = ("router_logits", "gate_logits", "all_router_logits", "routing_logits")
_PROMPTS, _OTHERS = (*PROMPT, "prompts", "prompt_tokens"), (*GENERATED, "responses", "completion_tokens")
_WHOLE = ("input_ids", "token_ids", "tokens", "sequence_ids", "sequences", "ids")
_SPLITS = ("prompt_lens", "prompt_lengths", "prompt_len", "prompt_length")
_GENERATED_LENGTHS = ("response_lens", "response_lengths", "response_length", "completion_length")
_MASKS = ("loss_mask", "loss_masks", "response_mask", "completion_mask")
# What keys of prompts and of what was generated have in them, where they are no usual ones.
_WORDS_OF_PROMPTS = ("prompt", "input", "question", "query", "context", "request")
_WORDS_OF_ANSWERS = ("response", "completion", "output", "answer", "reply", "generated", "action")
# How deep objects may stand within each other, and fields of ids of which pairs are tried.
_DEPTH, _MOST_FIELDS = 4, 12


@dataclass(frozen=True)
class Keys:
    """Keys as a user gives them, e.g. ``extra.routing`` of an object within an object; None = recognized.

    Attributes:
        routing: of the routed experts, or logits of routers.
        ids: of the generated tokens, or of the whole sequence.
        prompt: of the prompt's tokens.
    """

    routing: str | None = None
    ids: str | None = None
    prompt: str | None = None


def flat(fields: Mapping[str, Any], prefix: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield the fields of an object, and of objects within it, by their paths."""
    for name, value in fields.items():
        path = f"{prefix}{name}"
        yield path, value
        if (
            depth > 1
            and isinstance(value, dict)
            and not is_shaped(value)
            and all(isinstance(key, str) for key in value)
        ):
            yield from flat(value, f"{path}.", depth - 1)


def is_logits(path: str, value: Any) -> bool:
    """Whether a field holds logits: by its key, or a file that holds an array for each layer and nothing else."""
    layers = list(value.values()) if isinstance(value, dict) else value
    if axes_of(layers) != (3, "f"):
        return False
    return path.startswith(CONTENT) or path.rpartition(".")[2] in LOGITS


def is_routing(path: str, value: Any) -> bool:
    """Whether a field may hold the experts of one sequence or of several."""
    is_usual = path.rpartition(".")[2] in ROUTING
    if is_rows(value, has_usual_key=is_usual) or axes_of(value) == (4, "i"):
        return True
    if not isinstance(value, list | tuple) or axes_of(value)[1] in "if":
        return False
    entries = [entry for entry in value if entry is not None]
    return bool(entries) and all(is_rows(entry, has_usual_key=is_usual) for entry in entries)


def routing_fields(fields: Mapping[str, Any], keys: Keys) -> list[str]:
    """Return the paths of the fields that may hold routing; those with a usual key alone where there are any."""
    if keys.routing is not None:
        return [keys.routing] if fields.get(keys.routing) is not None else []
    paths = [path for path, value in fields.items() if is_routing(path, value) or is_logits(path, value)]
    return [path for path in paths if path.rpartition(".")[2] in (*ROUTING, *LOGITS)] or paths


@dataclass(frozen=True)
class _Keyed:
    """The fields of token ids: the prompts' (None = not apart), and the others'."""

    prompt: str | None
    ids: str


@dataclass(frozen=True)
class _Reading:
    """One way to read the token ids of all sequences."""

    keyed: _Keyed
    sequences: list[Tokens]

    @property
    def label(self) -> str:
        return self.keyed.ids if self.keyed.prompt is None else f"{self.keyed.prompt} + {self.keyed.ids}"

    @property
    def ids_of_all(self) -> bytes:
        """What two readings of the same ids share."""
        return b"".join(tokens.ids.tobytes() for tokens in self.sequences)


def _without_overlap(fitting: list[_Reading]) -> list[_Reading]:
    """Return readings, leaving out a field that another reading explains better.

    A pair's prompt is no whole sequence of its own. If it already ends with the generated tokens, it is the whole
    sequence, and the pair is wrong.
    """
    pairs = [reading for reading in fitting if reading.keyed.prompt is not None]
    wholes = {reading.keyed.ids: reading for reading in fitting if reading.keyed.prompt is None}
    kept_pairs, dropped = [], set()
    for pair in pairs:
        sequence = wholes.get(pair.keyed.prompt or "")
        if sequence is None or not all(
            len(tokens.ids) > tokens.prompt
            and np.array_equal(
                tokens.ids[2 * tokens.prompt - len(tokens.ids) : tokens.prompt], tokens.ids[tokens.prompt :]
            )
            for tokens in pair.sequences
        ):
            kept_pairs.append(pair)
            dropped |= {pair.keyed.prompt, pair.keyed.ids}
    return kept_pairs + [reading for key, reading in wholes.items() if key not in dropped]


class TokenSearch:
    """The token ids of the sequences of an object.

    Args:
        fields: of the object, by their paths.
        keys: as a user gives them.
        layout: how sequences lie in them.
        rows: how many rows each sequence has, from its first token on; None where that is not known.
    """

    def __init__(
        self, fields: Mapping[str, Any], keys: Keys, layout: BatchLayout, rows: list[int] | None
    ) -> None:
        self._fields, self._keys, self._layout, self._rows = fields, keys, layout, rows
        self._faults: list[Fault] = []
        self._ids = [path for path, value in fields.items() if axes_of(value) in ((1, "i"), (2, "i"))]

    def sequences(self) -> list[Tokens] | None:
        """Return the sequences; None where no field holds their ids.

        Raises:
            Fault: a key that was asked for does not hold them, or several readings fit.
        """
        for key, keyword in ((self._keys.ids, "ids_key"), (self._keys.prompt, "prompt_key")):
            if key is not None and key not in self._ids:
                raise Fault(
                    f"{option(keyword, key)} is no field of token ids; there are: {self._names(self._ids)}"
                )
        usual = list(filter(self._are_asked, self._usual()))
        fitting = _without_overlap(self._fitting(usual))
        # Faults are reported for usual keys only: other fields need not be token ids at all.
        damage = self._faults[:]
        if not fitting and self._rows is not None:
            fitting = _without_overlap(self._fitting(filter(self._are_asked, self._unusual())))
        if not fitting and len(usual) == 1:
            # As a server states them: missing rows are counted later.
            fitting = [reading for reading in self._read(usual) if self._are_enough(reading)]
        if len({reading.ids_of_all for reading in fitting}) > 1:
            raise Fault(
                f"its token ids may be {' or '.join(reading.label for reading in fitting[:4])}; say which with "
                f"{option('prompt_key')} and {option('ids_key')}"
            )
        if not fitting and damage:
            raise damage[0]
        if not fitting and (self._keys.ids or self._keys.prompt):
            raise Fault(
                f"{self._keys.ids or self._keys.prompt} does not hold as many tokens as there are rows, or one more"
            )
        return fitting[0].sequences if fitting else None

    def _usual(self) -> list[_Keyed]:
        """Return the readings of usual keys, prompts that stand apart first."""
        last = {path: path.rpartition(".")[2] for path in self._ids}
        prompts = [path for path, name in last.items() if name in _PROMPTS or path == self._keys.prompt]
        answers = [path for path, name in last.items() if name in _OTHERS or path == self._keys.ids]
        wholes = [path for path, name in last.items() if name in _WHOLE or path == self._keys.ids]
        pairs = [_Keyed(first, second) for first, second in product(prompts, answers) if first != second]
        return pairs + [_Keyed(None, path) for path in wholes]

    def _are_asked(self, reading: _Keyed) -> bool:
        """Whether a reading has the keys that a user gave."""
        return (self._keys.ids is None or reading.ids == self._keys.ids) and (
            self._keys.prompt is None or reading.prompt == self._keys.prompt
        )

    def _unusual(self) -> Iterator[_Keyed]:
        """Yield the readings of all fields of ids; a pair whose keys say that it is the wrong way round is none."""
        every = self._ids[:_MOST_FIELDS]
        yield from (_Keyed(None, path) for path in every)
        for first, second in product(every, every):
            swapped = any(word in second for word in _WORDS_OF_PROMPTS) or any(
                word in first for word in _WORDS_OF_ANSWERS
            )
            if first != second and not swapped:
                yield _Keyed(first, second)

    def _fitting(self, readings: Iterable[_Keyed]) -> list[_Reading]:
        """Return the readings with as many tokens as rows, or one more."""
        if self._rows is None:
            return self._read(readings)[:1]
        return [reading for reading in self._read(readings) if self._fit(reading)]

    def _fit(self, reading: _Reading) -> bool:
        return self._rows is not None and [
            len(tokens.ids) - rows in (0, 1)
            for tokens, rows in zip(reading.sequences, self._rows, strict=False)
        ] == [True] * max(len(self._rows), len(reading.sequences))

    def _are_enough(self, reading: _Reading) -> bool:
        """Whether there are no more rows than tokens."""
        return self._rows is None or all(
            len(tokens.ids) >= rows for tokens, rows in zip(reading.sequences, self._rows, strict=False)
        )

    def _read(self, readings: Iterable[_Keyed]) -> list[_Reading]:
        """Return the sequences of readings; one whose lists do not go together is none."""
        sequences = []
        for reading in readings:
            try:
                sequences.append(_Reading(reading, self._tokens(reading)))
            except Fault as fault:
                # Collected, and shown only if no reading fits.
                self._faults.append(fault)
        return sequences

    def _tokens(self, reading: _Keyed) -> list[Tokens]:
        ids = id_lists(self._fields[reading.ids], reading.ids, self._layout, tail=reading.prompt is not None)
        if reading.prompt is None:
            lengths = self._prompt_lengths(ids)
            return [
                Tokens(sequence, len(sequence) if length is None else length, is_split=length is not None)
                for sequence, length in zip(ids, lengths, strict=True)
            ]
        prompts = id_lists(self._fields[reading.prompt], reading.prompt, self._layout)
        if len(prompts) != len(ids):
            raise Fault(f"{reading.prompt} and {reading.ids} differ in sequences")
        return [
            Tokens(np.concatenate(parts), len(parts[0])) for parts in zip(prompts, ids, strict=True)
        ]  # fmt: skip

    def _prompt_lengths(self, ids: list[NDArray[np.int32]]) -> list[int | None]:
        """Return how many tokens of whole sequences are the prompt's; None where nothing says it."""
        sizes = [len(sequence) for sequence in ids]
        # From the surest to the weakest sign of where a prompt ends.
        sources: list[tuple[tuple[str, ...], Callable[[str], list[int]]]] = [
            (_SPLITS, self._numbers),
            (
                _GENERATED_LENGTHS,
                lambda name: [size - number for size, number in zip(sizes, self._numbers(name), strict=True)],
            ),
            # The first token that a mask marks is the first that was generated.
            (_MASKS, self._first_marked),
            (
                _OTHERS,
                lambda name: [
                    len(sequence) - len(end)
                    for sequence, end in zip(
                        ids, id_lists(self._fields[name], name, self._layout, tail=True), strict=True
                    )
                    # Only if the whole sequence really ends with what was generated.
                    if np.array_equal(sequence[len(sequence) - len(end) :], end)
                ],
            ),
        ]
        for names, lengths_of in sources:
            for name in (name for name in names if self._fields.get(name) is not None):
                try:
                    lengths = lengths_of(name)
                # A field of that name may mean something else: the next one is tried.
                except (Fault, ValueError, TypeError):
                    continue
                if len(lengths) == len(sizes) and all(
                    0 <= length <= size for length, size in zip(lengths, sizes, strict=True)
                ):
                    return [*lengths]
        return [None] * len(sizes)

    def _numbers(self, name: str) -> list[int]:
        """Return a whole number for each sequence."""
        value = self._fields[name]
        if hasattr(value, "tolist"):
            value = array_of(value, name, dims=value.ndim).tolist()
        numbers = value if isinstance(value, list) else [value]
        if any(count(number) is None for number in numbers):
            raise Fault(f"{name} takes a whole number for each sequence")
        return numbers

    def _first_marked(self, name: str) -> list[int]:
        """Return the place of the first token that a mask marks, the end where it marks none."""
        masks = self._layout.parts(self._fields[name], name, axes=1)
        flags = [array_of(mask, name, kinds="iub", dims=1) != 0 for mask in masks]
        return [int(np.argmax(marks)) if marks.any() else len(marks) for marks in flags]

    @staticmethod
    def _names(paths: list[str]) -> str:
        return ", ".join(paths[:8]) or "none"
