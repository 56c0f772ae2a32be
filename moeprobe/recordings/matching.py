"""Pairs of inputs of two recordings: with one name, or with the same tokens.

A server does not route the last token of a sequence, so one side may be a token shorter. Inputs with the same tokens
are ambiguous: they are paired in the order of the files, and count as one sample.

Axes: T tokens of an input.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from moeprobe.declarations.recording_probe import NAMES, TOKENS
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import MEDIA, TOKEN_KINDS
from moeprobe.recordings.reading import TraceFile

# Inputs whose tokens are in memory at a time, filled up to the longest.
_BLOCK = 256

Ids = Mapping[str, NDArray[np.int32]]


def check_match(match: str) -> None:
    """Raise ``UserError`` unless there is such a way to match inputs."""
    if match not in (NAMES, TOKENS):
        raise UserError(f"{option('match')} is {NAMES} or {TOKENS}; got {match!r}.")


def token_ids(trace: TraceFile) -> dict[str, NDArray[np.int32]]:
    """Return the tokens ``(T,)`` of each input of a trace whose token ids are all known.

    Raises:
        UserError: no input has any.
    """
    layer, ids = next(iter(trace.layers)), {}
    for start in range(0, len(trace.ids), _BLOCK):
        names = trace.ids[start : start + _BLOCK]
        block = trace.read(layer, names)
        if block.token_ids is None:
            continue
        for name, row, length in zip(names, block.token_ids, block.num_tokens, strict=True):
            if length and (row[:length] >= 0).all():
                ids[name] = row[:length]
    if not ids:
        raise UserError(
            f"{trace.path} holds no token ids, by which inputs could be matched; ask the server to return them "
            f"(return_token_ids of vLLM) and import again, or use {option('match', NAMES)}."
        )
    return ids


def with_names_of(
    first: Ids, trace: TraceFile, *, clusters: Mapping[str, str]
) -> tuple[TraceFile, list[str]]:
    """Return a trace of the inputs whose tokens the first recording has, under its names.

    Args:
        first: tokens by name; of the trace's inputs they may have the last token more, or less.
        trace: the other recording.
        clusters: of the first, as in a trace's metadata: no input in them is a sample by itself.

    Returns:
        The trace, and sentences on inputs left out and on inputs with the same tokens.

    Raises:
        UserError: no input of the trace has the tokens of one of the first, or inputs with pictures have the same.
    """
    second = token_ids(trace)
    pairs = _pairs(first, second)
    if not pairs:
        raise UserError(
            f"No input of {trace.path} has the same tokens as one of the {len(first):,} that it is compared with; are "
            "they of the same prompts and answers?"
        )
    samples = defaultdict(list)
    for name, first_name in pairs.items():
        samples[second[name].tobytes()].append(first_name)
    notes = [
        f"{len(trace.ids) - len(pairs):,} of the {len(trace.ids):,} inputs of {trace.path.name}, whose tokens no other "
        "side has"
    ] * (len(pairs) < len(trace.ids))
    joined = {
        copy: clusters.get(copies[0], copies[0])
        for copies in samples.values()
        for copy in copies[1:]
        if copy not in clusters
    }
    copies = sum(len(names) for names in samples.values() if len(names) > 1)
    if copies and trace.token_kinds() & {TOKEN_KINDS.index(kind) for kind in MEDIA}:
        # All pictures of one size have the same tokens.
        raise UserError(
            f"In {trace.path}, {copies:,} inputs have the tokens of another one, and tokens do not say which pictures "
            f"they stand for; record both sides with the same names, and use {option('match', NAMES)}."
        )
    if copies:
        notes.append(
            f"which is which of {copies:,} inputs of {trace.path.name} with the tokens of another one: they are paired "
            f"in the order of the files, and count as {copies - len(joined):,} samples"
        )
    renamed_clusters = {
        pairs[name]: pairs.get(cluster, f"{trace.path.name}: {cluster}")
        for name, cluster in (trace.about.get("clusters") or {}).items()
        if name in pairs
    }
    return trace.rename_inputs(pairs, clusters=joined | renamed_clusters), notes


def match_traces(traces: Sequence[TraceFile], match: str) -> tuple[list[TraceFile], list[str]]:
    """Return traces in which inputs that belong together have the names of the first, and sentences about it.

    Raises:
        UserError: with "tokens", one holds no token ids, or none that the first has.
    """
    if match == NAMES or len(traces) < 2:
        return list(traces), []
    first, clusters = token_ids(traces[0]), traces[0].about.get("clusters") or {}
    pairs = [with_names_of(first, trace, clusters=clusters) for trace in traces[1:]]
    return [traces[0], *(trace for trace, _ in pairs)], [note for _, notes in pairs for note in notes]


def _pairs(first: Ids, second: Ids) -> dict[str, str]:
    """Return the names of the second -> of the first, of inputs with the same tokens but perhaps the last."""
    pairs: dict[str, str] = {}
    taken_names: set[str] = set()
    # The exact ones first: of two that differ in the last token alone, each gets its own.
    for cut_first, cut_second in ((0, 0), (1, 0), (0, 1)):
        names = defaultdict(list)
        for name, ids in first.items():
            if name not in taken_names:
                names[ids[: len(ids) - cut_first].tobytes()].append(name)
        for name, ids in second.items():
            candidates = names.get(ids[: len(ids) - cut_second].tobytes())
            if name not in pairs and candidates:
                pairs[name] = candidates.pop(0)
                taken_names.add(pairs[name])
    return pairs
