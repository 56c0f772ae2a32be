"""Log-probabilities of generated tokens in responses of inference servers, where they are asked for.

vLLM and OpenAI-like servers: ``logprobs.token_logprobs`` or ``logprobs.content[i].logprob`` of a choice; SGLang:
``meta_info.output_token_logprobs``, lists that begin with the number; slime and verl: ``rollout_log_probs`` of a sample
or a batch.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.recordings.log_rows import Fault, Tokens, faults_at, token_array
from moeprobe.recordings.readers.base import Reader, choices, find_reader, objects_under
from moeprobe.recordings.responses import GatheredResponse, identity, responses
from moeprobe.runtime.catalog import READERS
from moeprobe.runtime.characters import quote
from moeprobe.runtime.files import is_file
from moeprobe.runtime.similar_paths import did_you_mean_path


def read_log_probabilities(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return by request the log-probability of each generated token ``(T,)``, NaN where there is none.

    Names follow ``read_sequences``. A request without log-probabilities is passed over.

    Raises:
        UserError: the file cannot be read, holds other things than numbers, or none at all.
    """
    log_probs: dict[str, NDArray[np.float32]] = {}
    readers = _readers()
    for where, response in responses(path, progress=lambda count: None):
        with faults_at(path, where) as location:
            sequences = named_sequences(response, location, readers)
            for (name, tokens), values in zip(sequences, _of_response(response, readers), strict=False):
                if values is None or tokens is None or not len(tokens.ids):
                    continue
                generated = len(tokens.ids) - tokens.prompt
                if len(values) == len(tokens.ids) and np.isnan(values[0]):
                    values = values[tokens.prompt :]  # noqa: PLW2901 (echo: the prompt comes first)
                if len(values) != generated:
                    raise Fault(
                        f"{name} has {generated} generated tokens, and {len(values)} log-probabilities"
                    )
                log_probs[name] = values
    if not log_probs:
        raise UserError(
            f"{path} holds no log-probabilities of generated tokens; ask the server for them: logprobs of vLLM, "
            "return_logprob of SGLang, calculate_log_probs of verl."
        )
    return log_probs


def _of_response(response: Mapping[str, Any], readers: Sequence[Reader]) -> list[NDArray[np.float32] | None]:
    """Return the log-probabilities of each sequence, in their order."""
    if isinstance(response, GatheredResponse):
        return [_numbers(values) for values in reader_of(response, readers).log_probabilities(response)]
    reader = find_reader(response, readers)
    if reader is not None and reader.fallback and (values := reader.log_probabilities(response)):
        return [_numbers(part) for part in values]
    meta = response.get("meta_info")
    if isinstance(meta, dict) and isinstance(meta.get("output_token_logprobs"), list):
        return [
            _numbers(
                [
                    entry[0] if isinstance(entry, list) and entry else entry
                    for entry in meta["output_token_logprobs"]
                ]
            )
        ]
    return [
        _of_choice(choice) for choice in choices(response) or objects_under(response, "outputs") or [response]
    ]


def _of_choice(choice: Mapping[str, Any]) -> NDArray[np.float32] | None:
    value = choice.get("logprobs")
    if isinstance(value, dict):
        if isinstance(value.get("content"), list):
            return _numbers(
                [entry.get("logprob") if isinstance(entry, dict) else entry for entry in value["content"]]
            )
        value = value.get("token_logprobs")
    return _numbers(value)


def _numbers(values: Any) -> NDArray[np.float32] | None:
    """Return numbers up to 0, NaN for null; None where there is no list."""
    if values is None:
        return None
    if hasattr(values, "tolist"):
        values = values.tolist()
    try:
        is_valid = isinstance(values, list) and all(
            entry is None or (type(entry) in (int, float) and not math.isnan(entry) and entry < 1e-3)
            for entry in values
        )
    except OverflowError:  # JSON's whole numbers have any size
        is_valid = False
    if not is_valid:
        raise Fault("log-probabilities are a list of numbers up to 0, or null")
    numbers = np.array([math.nan if value is None else value for value in values], np.float32)
    return np.where(np.isinf(numbers), np.float32("nan"), numbers)


# Token ids in responses of inference servers: the sequences that were routed, their prompts and what was generated.
#
# They are where servers put them when they are asked to: ``prompt_token_ids`` of the response or of a choice and
# ``token_ids`` of a choice (vLLM), ``output_ids`` beside ``input_ids`` (SGLang), or both in the object itself.

PROMPT = ("prompt_token_ids", "input_ids", "prompt_ids")
GENERATED = (
    "token_ids", "output_ids", "output_token_ids", "completion_token_ids", "completion_ids", "response_ids",
    "response_token_ids",
)  # fmt: skip


def read_sequences(path: Path) -> dict[str, Tokens]:
    """Return the sequences in a file of responses, by the names that an import of its routing gives them.

    A response, or a choice, without token ids is passed over.

    Raises:
        UserError: the file cannot be read, two have one name, or there is none.
    """
    if not is_file(path):
        raise UserError(f"There is no file of responses {path}.{did_you_mean_path(path)}")
    sequences: dict[str, Tokens] = {}
    readers = _readers()
    for where, response in responses(path, progress=lambda count: None):
        with faults_at(path, where) as location:
            several = named_sequences(response, location, readers)
        for name, tokens in several:
            if name in sequences:
                raise UserError(f"{path}, {where}: request {quote(name)} was there before.")
            if tokens is not None and len(tokens.ids):
                sequences[name] = tokens
    if not sequences:
        raise UserError(
            f"{path} holds no token ids; ask the server to return them: prompt_token_ids and token_ids of vLLM "
            "(return_token_ids), input_ids and output_ids of SGLang."
        )
    return sequences


def named_sequences(
    response: Any, location: str, readers: Sequence[Reader]
) -> list[tuple[str, Tokens | None]]:
    """Return each sequence of a response by the name that an import gives it.

    Args:
        response: what stands in the file.
        location: its file and line.
        readers: all there are.

    Raises:
        Fault: it is no object, or ids are no list of whole numbers.
    """
    if not isinstance(response, dict):
        raise Fault("expected a response, a JSON object")
    several = _own_sequences(response, readers)
    if several is None:
        several = [("", tokens) for tokens in tokens_of(response)]
    default = identity(response, location)
    return [
        (name or (default if len(several) == 1 else f"{default}/{number}"), tokens)
        for number, (name, tokens) in enumerate(several)
    ]


def _own_sequences(
    response: Mapping[str, Any], readers: Sequence[Reader]
) -> Sequence[tuple[str, Tokens | None]] | None:
    """Return the sequences where the reader of a response knows them; None where they are as servers put them."""
    if isinstance(response, GatheredResponse):
        return reader_of(response, readers).sequences(response)
    reader = find_reader(response, readers)
    return reader.sequences(response) if reader is not None and reader.fallback else None


def reader_of(response: GatheredResponse, readers: Sequence[Reader]) -> Reader:
    """Return what reads a gathered response.

    Raises:
        Fault: nothing does.
    """
    reader = find_reader(response, readers)
    if reader is None:
        raise Fault("no reader knows token ids in it")
    return reader


def _readers() -> list[Reader]:
    return [READERS.get(name)() for name in READERS.names()]


def tokens_of(response: Mapping[str, Any]) -> list[Tokens | None]:
    """Return the sequence of each choice of a response, in their order; None where its ids are not given.

    Raises:
        Fault: ids are no list of whole numbers.
    """
    shared = [response, *(value for value in [response.get("meta_info")] if isinstance(value, dict))]
    parts = choices(response) or objects_under(response, "outputs") or [response]
    extensions = _extensions(response, len(parts))
    return [_sequence([part, *shared, *extension]) for part, extension in zip(parts, extensions, strict=True)]


def _extensions(response: Mapping[str, Any], number: int) -> list[list[Mapping[str, Any]]]:
    """Return what SGLang's ``sglext`` says of each choice: one prompt for all, and a list of ids for each.

    Class ``SglExt`` of SGLang 0.5.23: ``input_ids: list[int]``, ``output_ids: list[list[int]]``.

    Raises:
        Fault: its lists are not as many as the choices.
    """
    extension = response.get("sglext")
    if not isinstance(extension, dict):
        return [[]] * number
    ids = extension.get("output_ids")
    if ids is None:
        return [[extension]] * number
    if not isinstance(ids, list) or len(ids) != number:
        raise Fault(f"output_ids of sglext takes a list of ids for each of the {number} choices")
    return [[extension | {"output_ids": values}] for values in ids]


def _sequence(objects: list[Mapping[str, Any]]) -> Tokens | None:
    prompt, generated = _ids(objects, PROMPT), _ids(objects, GENERATED)
    if prompt is None or generated is None:
        return None
    return Tokens(np.concatenate([prompt, generated]), len(prompt))


def _ids(objects: list[Mapping[str, Any]], names: tuple[str, ...]) -> NDArray[np.int32] | None:
    """Return the ids in the first place that has them."""
    for fields in objects:
        for name in names:
            if fields.get(name) is not None:
                return token_array(fields[name], name)
    return None
