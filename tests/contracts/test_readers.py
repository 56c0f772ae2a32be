"""What holds for every reader of the catalog; a new one is tested the moment its file exists, and needs an example."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeprobe.recordings.count_rows import counts_of
from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Reader, find_reader
from moeprobe.recordings.responses import responses
from moeprobe.recordings.validate_capture import decode_choices
from moeprobe.runtime.catalog import READERS
from tests.recordings import counting, dumps, serving
from tests.recordings.serving import ENCODINGS, Ids, Response, routing

KINDS: dict[str, type[Reader]] = {name: READERS.get(name) for name in READERS.built_in()}
MODEL = MoeShape(num_layers=5, sparse=(1, 2, 3, 4), num_experts=8, top_k=2, scoring="softmax")


def _pairs_of_layers(path: Path, ids: Ids) -> Path:
    choices = [f"{layer + 1},{expert}\n" for layer in range(4) for expert in ids[:, layer].ravel()]
    path.write_text("".join(["layer,expert\n", *choices]))
    return path


def _counts(path: Path, ids: Ids) -> Path:
    import torch

    counts = np.stack([np.bincount(ids[:, layer].ravel(), minlength=8) for layer in range(4)])
    counts = np.concatenate([np.zeros((1, 8), np.int64), counts])
    torch.save({"rank": 0, "logical_count": torch.from_numpy(counts[None])}, path)
    return path


def _megatron(path: Path, ids: Ids) -> Path:
    logits = np.random.default_rng(0).normal(size=(len(ids), 4, 8)).astype(np.float32)
    return dumps.megatron(path.with_suffix(""), [logits])


def _router_logits(path: Path, ids: Ids) -> Path:
    import torch

    logits = [torch.zeros(len(ids), 8).scatter(1, torch.from_numpy(ids[:, layer]), 1.0) for layer in range(4)]
    torch.save({f"model.layers.{layer + 1}.mlp.gate": values for layer, values in enumerate(logits)}, path)
    return path


def _sent(encode: Callable[[Ids], Response], path: Path, ids: Ids) -> Response:
    return encode(ids)


def _of_layers(ids: Ids) -> dict[str, list[int]]:
    return {
        f"layers.{layer}": row
        for layer, row in zip(counting.SPARSE, counting.counts(ids).tolist(), strict=True)
    }


# By reader: responses, or files of one, that it reads and no other does.
EXAMPLES: dict[str, list[Callable[[Path, Ids], Response | Path]]] = {
    "atlas": [lambda path, ids: dumps.atlas(ids, np.random.default_rng(1).random(ids.shape))],
    "expert_counts": [
        lambda path, ids: counting.by_count(path, counting.counts(ids)),
        lambda path, ids: counting.lmdeploy(path, counting.counts(ids)),
        lambda path, ids: counting.nested(path, counting.counts(ids).tolist(), indent=2),
        lambda path, ids: counting.nested(path, _of_layers(ids)),
        lambda path, ids: counting.nested(path, {"step": 3, "layers": _of_layers(ids)}),
        lambda path, ids: counting.lines(
            path, [{"layer": layer, "counts": row} for layer, row in _of_layers(ids).items()]
        ),
    ],
    "imatrix": [lambda path, ids: counting.imatrix(path, counting.counts(ids))],
    "generic": [
        lambda path, ids: {"id": "r", "prompt_ids": [5] * 6, "completion_ids": [7] * 8, "routed_experts": ids.tolist()},
        lambda path, ids: {"id": "r", "turn": {"expert_ids": [json.dumps({"shape": ids.shape, "dtype": "uint8"}),
                                                              serving.b64(ids.astype("uint8").tobytes())]}},
        _router_logits,
    ],
    "llama_cpp": [_pairs_of_layers],
    "megatron": [_megatron],
    "megatron_counts": [lambda path, ids: counting.tokens_per_expert(path, {100: counting.counts(ids)})],
    "sglang_counts": [_counts],
    "sglang_recorder": [dumps.recorder],
    "slime": [dumps.slime],
    "tensorrt_llm": [lambda path, ids: dumps.tensorrt_llm(ids)],
    "verl": [dumps.verl, lambda path, ids: dumps.verl(path, ids, nested=True)],
    "vllm": [lambda path, ids: {"id": "r", "choices": [{"index": 0, "routed_experts": None}]}],
    "dynamo": [lambda path, ids: {"id": "r", "choices": [{"engine_data": {"routed_experts": None}}]}],
}  # fmt: skip
for variant, encode in ENCODINGS.items():
    EXAMPLES.setdefault(variant.split()[0], []).append(partial(_sent, encode))
EVERY = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
EVERY_EXAMPLE = pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, several in EXAMPLES.items() for number in range(len(several))],
)


def examples(name: str, number: int, folder: Path) -> Iterator[Mapping[str, Any]]:
    """The responses of an example, as the import hands them to a reader."""
    example = EXAMPLES[name][number](folder / "responses.pt", routing())
    if not isinstance(example, Path):
        yield example
        return
    lines, reader = responses(example, progress=lambda size: None), KINDS[name]()
    if reader.joins_files:
        yield from (response for _, _, response in reader.joined([(example, lines)]))
        return
    yield from (response for _, response in reader.gathered(lines, example))


def test_every_reader_has_an_example() -> None:
    assert EXAMPLES.keys() == KINDS.keys()


@EVERY
def test_a_reader_is_described_and_takes_no_arguments(kind: type[Reader]) -> None:
    assert issubclass(kind, Reader) and isinstance(kind(), Reader)
    assert (kind.__doc__ or "").strip().endswith(".")


@EVERY_EXAMPLE
def test_one_reader_alone_reads_a_response(name: str, number: int, tmp_path: Path) -> None:
    """The import takes the first in alphabetical order, so that a second one would be ignored without a word."""
    for response in examples(name, number, tmp_path):
        claims = [other for other, kind in KINDS.items() if not kind.fallback and kind().reads(response)]
        assert claims == ([] if KINDS[name].fallback else [name])
        reader = find_reader(response, [kind() for kind in KINDS.values()])
        assert type(reader) is KINDS[name]


@EVERY_EXAMPLE
def test_captures_are_choices_or_counts_of_the_model(name: str, number: int, tmp_path: Path) -> None:
    for response in examples(name, number, tmp_path):
        captures = KINDS[name]().captures(response, MODEL)
        assert captures
        for capture in captures:
            if capture.counts is not None:
                assert capture.ids is None and len(capture.counts) in (MODEL.num_layers, len(MODEL.sparse))
                assert capture.counts.sum() == routing().size
            elif capture.ids is not None:
                assert decode_choices(capture, MODEL).experts.max() < MODEL.num_experts


@EVERY_EXAMPLE
def test_a_layer_more_than_the_model_has_is_a_fault(name: str, number: int, tmp_path: Path) -> None:
    """No reader cuts, fills or guesses to make a response fit another model."""
    smaller = MoeShape(num_layers=4, sparse=(0, 1, 2), num_experts=8, top_k=2, scoring="softmax")
    for response in examples(name, number, tmp_path):
        try:
            captures = KINDS[name]().captures(response, smaller)
        except Fault:
            continue
        for capture in captures:
            if capture.ids is not None:
                with pytest.raises(Fault):
                    decode_choices(capture, smaller)
            if capture.counts is not None:
                with pytest.raises(Fault):
                    counts_of(capture.counts, smaller)


@EVERY
@pytest.mark.parametrize(
    "response",
    [{}, {"choices": []}, {"choices": 3, "outputs": None, "samples": "x", "records": [1]}, {"choices": [None, 3]},
     {"id": "r", "choices": [{"text": "no routing was asked for"}], "usage": serving.usage()}],
    ids=["empty", "no choices", "other types", "odd choices", "without routing"],
)  # fmt: skip
def test_what_holds_no_routing_is_read_by_none(kind: type[Reader], response: Response) -> None:
    assert not kind().reads(response)
