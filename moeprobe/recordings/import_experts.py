"""Make a routing trace of the responses of inference servers that return routed experts.

Choices that no router makes are refused where they are met (see ``validate_capture``). Missing ones are counted over
all responses, and named.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError, option
from moeprobe.recordings.capture_check import CaptureCheck
from moeprobe.recordings.count_rows import counts_of, rows_of_counts
from moeprobe.recordings.destination import check_destination, named_checkpoint, new_trace, num_bytes
from moeprobe.recordings.faults import Finding
from moeprobe.recordings.field_search import Keys
from moeprobe.recordings.format import BY_TOKEN_ID, ORDERS, is_ordered, metadata
from moeprobe.recordings.gathering import gather
from moeprobe.recordings.import_findings import Findings
from moeprobe.recordings.log_probs import tokens_of
from moeprobe.recordings.log_rows import Fault, Row, Tokens, faults_at
from moeprobe.recordings.media_tokens import MediaTokens, read_media_tokens
from moeprobe.recordings.model_config import MoeShape, read_moe_shape
from moeprobe.recordings.readers.base import Capture, Reader, Stated, find_reader
from moeprobe.recordings.readers.generic import Generic
from moeprobe.recordings.responses import GatheredResponse, group_rows, identity
from moeprobe.recordings.router_logits import FUNCTIONS
from moeprobe.recordings.rows import order_by_weight
from moeprobe.recordings.unknown_file import not_recognized
from moeprobe.recordings.validate_capture import Routed, decode_choices
from moeprobe.runtime.arguments import check_arguments, several
from moeprobe.runtime.catalog import READERS
from moeprobe.runtime.characters import quote
from moeprobe.runtime.files import absolute, check_regular, is_file
from moeprobe.runtime.progress import Progress, progress_of
from moeprobe.runtime.similar_paths import did_you_mean_path

# What a check of the trace says as well (``capture_check``), of rows that are counted here.
COUNTED = ("prompt rows unset", "leading rows unset", "rows unset")


# What counts of a whole file are called, where it is the only one.
_WHOLE_FILE = "all"
# What a sample may be: the unit of intervals.
CLUSTERS = ("request", "prompt")


@dataclass(frozen=True)
class ImportedExperts:
    """What came of responses: the file, and how many requests, layers and tokens (of a layer) are in it.

    ``readers``: the dialects in the files. ``missing``: a sentence per missing part. ``findings``: known faults of
    capture in the remaining data. ``left_out``: requests
    without any expert. ``unordered``: the layers of which it is not known which of a token's experts came first.
    ``counted``: choices of which no token is known: of such files there is the load alone.
    ``dependent``: requests that are no samples by themselves, as they belong to another one's.
    ``mtp_lines``: lines of layers of multi-token prediction, which are left out.
    ``kinds``: tokens (of a layer) by kind, where some are of pictures; else empty.
    """

    path: Path
    requests: int
    layers: list[str]
    tokens: int
    nbytes: int
    readers: list[str]
    missing: list[str]
    findings: list[Finding]
    left_out: list[str]
    unordered: list[str]
    counted: int
    dependent: int
    mtp_lines: int
    kinds: dict[str, int]


@check_arguments
def import_routed_experts(
    files: str | Path | Sequence[str | Path],
    path: str | Path,
    *,
    model_config: str | Path,
    reader: str | None = None,
    ordered_by: str | None = None,
    start: int | None = None,
    cluster: str = "request",
    ids_key: str | None = None,
    prompt_key: str | None = None,
    routing_key: str | None = None,
    gates: str | None = None,
    image_token_id: int | None = None,
    name: str | None = None,
    data: str = "requests",
    rows_per_file: int | None = None,
    overwrite: bool = False,
    watcher: Progress | None = None,
) -> ImportedExperts:
    """Make a trace from servers' responses that hold the experts of each token.

    Args:
        files: responses, as JSON lines or JSON.
        path: of the new trace, ``.parquet``; with ``rows_per_file`` of a folder.
        model_config: ``config.json`` of the model that was served: number of experts, and which layers have them.
        reader: the responses' dialect, one of ``moeprobe.recordings.readers``; None = by their keys.
        ordered_by: what the server orders a token's experts by, the best first, where that is known: one of
            ``format.ORDERS``; None = they are sets.
        start: token of the first row of each sequence, where the server was asked to leave out leading rows; None = as
            the responses say.
        cluster: the unit of intervals: "request" = choices of one request and one prompt are one sample, or "prompt" =
            so are all sequences of one prompt (groups of GRPO).
        ids_key: field of the generated tokens' ids, or of the whole sequence's; None = recognized.
        prompt_key: field of the prompt's token ids; None = recognized.
        routing_key: field of the routed experts or router logits, ``a.b`` of an object in another; None = recognized.
        gates: how router logits become gates, "softmax" or "sigmoid"; None = as ``model_config`` says.
        image_token_id: of the tokens that stand for parts of a picture; None = as ``model_config`` says.
        name: of the model in tables; None = the trace's.
        data: what the tables call the requests.
        rows_per_file: as in ``import_trace``.
        overwrite: replace an earlier trace.
        watcher: shows the bytes read.

    Raises:
        UserError: a response is not as its dialect has it, does not fit the model, or holds what no router can have
            chosen; or files cannot be read or written.
    """
    # Everything that can be refused without reading a response is refused first: files may have gigabytes.
    sources, path = [Path(file) for file in several(files)], Path(path)
    check_destination(path, overwrite=overwrite, rows_per_file=rows_per_file)
    if not sources:
        raise UserError("Name at least one file of responses.")
    checkpoint = named_checkpoint(name or path.stem, data=data)
    if len({absolute(source) for source in sources}) < len(sources):
        raise UserError("A file of responses is named twice; name each once.")
    for source in sources:
        if not is_file(source):
            raise UserError(f"There is no file of responses {source}.{did_you_mean_path(source)}")
        check_regular(source)
    if ordered_by not in (None, *ORDERS):
        raise UserError(f"{option('ordered_by')} is one of {', '.join(ORDERS)}; got {ordered_by!r}.")
    if start is not None and start < 0:
        raise UserError(f"{option('start')} takes a whole number from 0 up; got {start}.")
    if cluster not in CLUSTERS:
        raise UserError(f"{option('cluster')} is one of {', '.join(CLUSTERS)}; got {cluster!r}.")
    shape = _with_gates(read_moe_shape(Path(model_config)), gates, model_config)
    keys = Keys(routing_key, ids_key, prompt_key)
    if keys != Keys():
        if reader not in (None, "generic"):
            raise UserError(f"Fields are named for the reader generic; leave {option('reader', reader)} out.")
        reader, readers = "generic", {"generic": Generic(keys)}
    else:
        dialects = [reader] if reader is not None else READERS.names()
        readers = {dialect: READERS.get(dialect)() for dialect in dialects}
    reading = _Reading(
        sources,
        shape,
        readers,
        forced=reader is not None,
        ordered_by=ordered_by,
        start=start,
        cluster=cluster,
        media=read_media_tokens(Path(model_config), image_token_id=image_token_id),
        watcher=progress_of(watcher),
    )
    check = CaptureCheck()

    def describe_part(**facts: Any) -> dict[str, Any]:
        clusters = reading.clusters
        return metadata(checkpoint=checkpoint, layers=shape.names, clusters=clusters, data=data, **facts)

    with new_trace(
        path, overwrite=overwrite, rows_per_file=rows_per_file, describe_part=describe_part
    ) as file:
        for rows in group_rows(reading.rows(), progress=reading.watcher.advance):
            check.add(rows)
            file.write([rows])
        # At the end, when it is known how many of the responses have a fault.
        reading.findings.check(", ".join(map(str, sources)), shape)
        left_out = [
            *reading.findings.nulls,
            *reading.findings.uncounted,
            *reading.findings.without,
        ]
        missing = reading.findings.sentences()
        file.close(describe_part(skipped=left_out, missing=missing, misplaced=reading.findings.short))
    # Without a stated order the experts of a token are a set, and have no first choice.
    is_known = is_ordered(top_k=shape.top_k, ordered_by=reading.layer_fields["ordered_by"])
    return ImportedExperts(
        path=path,
        requests=len(reading.names) - len(left_out),
        layers=shape.names,
        tokens=reading.findings.tokens,
        nbytes=num_bytes(path),
        readers=sorted(reading.used),
        missing=missing,
        findings=[finding for finding in check.findings() if finding.name not in COUNTED],
        left_out=left_out,
        unordered=[] if is_known else shape.names,
        counted=reading.findings.counted_choices,
        dependent=len(reading.clusters),
        mtp_lines=reading.findings.mtp_lines,
        kinds=reading.findings.tokens_by_kind(),
    )


def _with_gates(shape: MoeShape, gates: str | None, path: str | Path) -> MoeShape:
    """Return the shape with the function of its gates.

    Raises:
        UserError: it is none, or not the one in ``config.json``.
    """
    if gates not in (None, *FUNCTIONS):
        raise UserError(f"{option('gates')} is one of {', '.join(FUNCTIONS)}; got {gates!r}.")
    # A contradiction of the model's own configuration is more likely a mistake.
    if gates is not None and shape.scoring not in (None, gates):
        raise UserError(f"{path} has scoring_func {shape.scoring}; leave {option('gates', gates)} out.")
    return replace(shape, scoring=gates or shape.scoring)


class _Reading:
    """Responses that are read once, request by request."""

    def __init__(
        self,
        sources: Sequence[Path],
        shape: MoeShape,
        readers: Mapping[str, Reader],
        *,
        forced: bool,
        ordered_by: str | None,
        start: int | None,
        cluster: str,
        media: MediaTokens | None,
        watcher: Progress,
    ) -> None:
        self.watcher, self._start, self._media = watcher, start, media
        self._by_prompt = cluster == "prompt"
        self._first_of_prompt: dict[bytes | None, str] = {}
        self.findings = Findings()
        self.names: set[str] = set()
        # Sequences of one prompt are one sample, named after the first of them.
        self.clusters: dict[str, str] = {}
        self.used: set[str] = set()
        self._ordered_by, self._rows = ordered_by, False
        self._sources, self._shape, self._readers, self._forced = sources, shape, readers, forced
        self._base: dict[str, Any] = {
            "num_experts": shape.num_experts,
            "top_k": shape.top_k,
            "num_prefix_tokens": 0,
            # Recorded routing has no catalog name, and nobody knows whether choices depend on other tokens.
            "router": "recorded",
            "token_local": False,
            "gates_kept": "none",
            "ordered_by": ordered_by,
        }
        self.layer_fields = self._base
        # Whether it is counts that are read, and no choices; None = nothing was read yet.
        self.load_only: bool | None = None

    def rows(self) -> Iterator[tuple[Row, int]]:
        """Yield the rows of all files; of the bytes read, ``watcher`` hears with the first row after them."""
        self.watcher.start("import routed experts", sum(source.stat().st_size for source in self._sources))
        responses = gather(
            self._sources,
            lambda response: self._readers[self._reader_of(response)],
            progress=self.watcher.advance,
        )
        for source, where, response, label in responses:
            with faults_at(source, where) as location:
                yield from self._of_response(response, location, label)

    def _of_response(self, response: Any, location: str, label: str) -> Iterator[tuple[Row, int]]:
        if not isinstance(response, dict):
            raise Fault("expected a response, a JSON object")
        dialect = self._reader_of(response)
        captures = self._readers[dialect].captures(response, self._shape)
        if not captures:
            raise Fault(f"the reader {dialect} finds no routed experts in it")
        name_of = identity(response, location)
        gathered = isinstance(response, GatheredResponse)
        # Gathered responses and a fallback reader bring their own sequences.
        sequences = [] if gathered or self._readers[dialect].fallback else tokens_of(response)
        # Otherwise only choices of one request can share a prompt, so earlier prompts are forgotten.
        if not self._by_prompt:
            self._first_of_prompt = {}
        for number, capture in enumerate(captures):
            self.findings.mtp_lines += capture.left_out
            name = _name_of(capture, label) or (name_of if len(captures) == 1 else f"{name_of}/{number}")
            # Names are keys of the trace: a file that was appended twice would count its requests twice.
            if name in self.names:
                raise Fault(f"request {quote(name)} was there before")
            self.names.add(name)
            tokens = capture.tokens or (sequences[number] if len(sequences) == len(captures) else None)
            # Sequences of a gathered response are separate requests unless prompts decide.
            if self._by_prompt or not gathered:
                self._cluster(name, tokens)
            if capture.counts is not None:
                yield from self._of_counts(name, capture.counts, dialect)
                continue
            if capture.ids is None:
                (self.findings.nulls if capture.window is None else self.findings.uncounted).append(name)
                continue
            self.used.add(dialect)
            self.findings.unscored += capture.unscored
            try:
                placed = self._place_capture(capture, tokens)
                routing = decode_choices(placed, self._shape, ordered=self._ordered_by is not None)
            except Fault as fault:
                # The reader does not know the request's name, which a user needs to find the fault.
                raise Fault(f"request {quote(name)}: {fault}") from None
            self.findings.add(name, routing)
            if routing.anything:
                # A trace of counts has no tokens, so one file cannot hold both.
                if self.load_only:
                    raise Fault(
                        "it holds choices, and what came before counts; import these files separately"
                    )
                self.load_only = False
                yield from self._rows_of(name, routing, placed, tokens)

    def _cluster(self, name: str, tokens: Tokens | None) -> None:
        """Note whether a sequence has the prompt of an earlier one."""
        if tokens is None and self._by_prompt:
            raise Fault(f"{name} has no token ids, so its prompt is not known; leave {option('cluster')} out")
        # Hashed, since prompts are long and all of them are kept.
        prompt = None if tokens is None else sha256(tokens.ids[: tokens.prompt].tobytes()).digest()
        if (first := self._first_of_prompt.setdefault(prompt, name)) != name:
            self.clusters[name] = first

    def _place_capture(self, capture: Capture, tokens: Tokens | None) -> Capture:
        """Return a capture with the place of its first row in the sequence.

        Raises:
            Fault: from the token that ``--start`` says, there are more or fewer rows than tokens.
        """
        assert capture.ids is not None
        stated, rows = capture.stated, len(capture.ids)
        if tokens is not None and capture.tokens is None and stated.generated is None:
            stated = Stated.of(tokens)
        capture = replace(capture, stated=stated)
        if stated.prompt is None or stated.generated is None:
            return capture if self._start is None else replace(capture, start=self._start)
        # Rows cover all tokens but the last, so a shorter capture must begin later.
        first = stated.prompt + stated.generated - 1 - rows
        if self._start is not None:
            # Some servers also send a row for the last token.
            if first != self._start and not (capture.last and first == self._start - 1):
                raise Fault(
                    f"it has {rows} rows for {stated.prompt + stated.generated} tokens, which is not all but the last "
                    f"from {option('start', self._start)} on"
                )
            return replace(capture, start=self._start)
        # No server leaves out rows of generated tokens alone.
        if capture.ends_together and not capture.start and rows and 0 < first <= stated.prompt:
            self.findings.ends_together += 1
            return replace(capture, start=first)
        return capture

    def _of_counts(self, name: str, counts: NDArray[np.int64], dialect: str) -> Iterator[tuple[Row, int]]:
        """Yield the rows of an input of which nothing is known but how often each expert was chosen."""
        self.used.add(dialect)
        try:
            layer_counts = counts_of(counts, self._shape)
        except Fault as fault:
            raise Fault(f"input {quote(name)}: {fault}") from None
        if self._ordered_by is not None:
            raise Fault(f"counts of choices have no order; leave {option('ordered_by')} out")
        if self.load_only is False:
            raise Fault("it holds counts, and what came before choices; import these files separately")
        self.load_only = True
        self.findings.counted_choices += int(layer_counts.sum())
        for row in rows_of_counts(name, layer_counts, self._shape, self._base):
            yield row, 0

    def _reader_of(self, response: Any) -> str:
        """Return the reader of a response by its keys, or the one that was asked for."""
        if self._forced:
            return next(iter(self._readers))
        if not isinstance(response, dict):
            raise Fault("expected a response, a JSON object")
        reader = find_reader(response, self._readers.values())
        if reader is not None:
            return next(name for name, instance in self._readers.items() if instance is reader)
        keys = ", ".join(map(quote, list(response)[:8])) or "none"
        raise not_recognized(
            f"no reader knows where this response keeps routed experts (its keys: {keys}); was the server asked to "
            f"return them? If so, name the field with {option('routing_key')}. Readers: {', '.join(self._readers)}"
        )

    def _rows_of(
        self, name: str, routing: Routed, capture: Capture, tokens: Tokens | None
    ) -> Iterator[tuple[Row, int]]:
        ids, generated = _of_tokens(routing, tokens)
        generated = capture.generated if generated is None else generated
        kinds = self._kinds_of(ids, tokens)
        # For all layers at once: a token is valid if any layer has an expert for it.
        all_present = routing.experts >= 0
        all_valid: NDArray[np.bool_] = np.logical_or.reduce(all_present, axis=-1)
        if kinds is not None:
            self.findings.add_kinds(kinds[all_valid.any(1)])
        for index, layer in enumerate(self._shape.names):
            experts, present, valid = routing.experts[:, index], all_present[:, index], all_valid[:, index]
            row = Row(name, layer, self._base, experts, present, valid, None, None, generated, ids, kinds)
            if capture.weights is not None:
                weights = capture.weights(index, experts)
                self.findings.lower += weights.lower
                row = order_by_weight(row, weights)
            self._check_layer_fields(row.layer_fields)
            if self._shape.sparse[index] in self._shape.hashed:
                row = replace(row, layer_fields=row.layer_fields | {"router": BY_TOKEN_ID})
            yield row, 0

    def _kinds_of(self, ids: NDArray[np.int32] | None, tokens: Tokens | None) -> NDArray[np.int8] | None:
        """Return the kinds of tokens; None where the ids, or the ids of pictures, are not known.

        Raises:
            Fault: a picture has one placeholder, and not as many as it has tokens.
        """
        if ids is None or tokens is None or self._media is None:
            return None
        if len(ids) > len(tokens.ids) and self._media.are_in(tokens.ids):
            raise Fault(
                f"it has {len(ids)} rows and {len(tokens.ids)} token ids with a picture among them, so the ids are "
                "those before the picture's placeholder was expanded; save the ids that the server returns"
            )
        return self._media.kinds_of(ids)

    def _check_layer_fields(self, shared: dict[str, Any]) -> None:
        """Note what rows have in common; raise ``Fault`` where others had something else."""
        if self._rows and shared != self.layer_fields:
            raise Fault(
                "it has other weights than the requests before (all gates, gates of chosen experts, or none); "
                "import these files separately"
            )
        self.layer_fields, self._rows = shared, True


def _name_of(capture: Capture, label: str) -> str | None:
    """Return what a capture calls itself, counts with the ``label`` of their file; None where it has no name."""
    if capture.window is None:
        return capture.name
    return "/".join(filter(None, [label, capture.window])) or _WHOLE_FILE


def _of_tokens(
    routing: Routed, tokens: Tokens | None
) -> tuple[NDArray[np.int32] | None, NDArray[np.bool_] | None]:
    """Return the token ids of the rows, -1 beyond the sequence, and which were generated; None where not known."""
    if tokens is None:
        return None, routing.generated
    generated = None if not tokens.is_split else np.arange(len(routing.experts)) >= tokens.prompt
    rows = len(routing.experts)
    ids = np.full(rows, -1, np.int32)
    ids[: len(tokens.ids)] = tokens.ids[:rows]
    return ids, generated
