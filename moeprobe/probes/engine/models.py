"""The checkpoints that a run probes, loaded as its options say, and the floor of their precision.

The floor is which choices of experts the arithmetic of narrower passes changes by itself.
"""

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.adapters.base import Checkpoint, Model
from moeprobe.adapters.open import as_checkpoint, is_huggingface, outline_model
from moeprobe.adapters.residence import Residence, sharing
from moeprobe.declarations import CLEAN
from moeprobe.declarations.options import PROMPT, Options
from moeprobe.errors import RunWarning, UserError, option
from moeprobe.inputs.modality import IMAGE, Modality
from moeprobe.inputs.texts import TextFraming
from moeprobe.probes.engine.batch_sums import load_batches, readable_batches
from moeprobe.probes.engine.blank_passes import keep_answers
from moeprobe.probes.engine.checks import check_cut, distinct_names
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.results.caveats import changed_share
from moeprobe.routing import other_dtype
from moeprobe.routing.pass_precision import check_runs, in_float32, in_precision, precision_of
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.device import FLOAT32, choose_device
from moeprobe.runtime.spread import REPLICAS


def load_models(
    sources: Sequence[Model],
    options: Options,
    *,
    modality: Modality | None = None,
    one_at_a_time: bool = False,
    learn: Callable[[Checkpoint], None] | None = None,
    unopened: bool = False,
) -> list[Checkpoint]:
    """Load the checkpoints that are not loaded yet, and check that the tables can distinguish them.

    Args:
        sources: folders, files, names or models.
        options: of the run.
        modality: what the data hold: of pictures, vision-language models are to read them; None = not known.
        one_at_a_time: of several models of ``hf:`` that are loaded here, have no more than one in memory.
        learn: called with each of these while it is in memory, to make the passes that checks need of it.
        unopened: read no weights of ``hf:`` models; they stand for themselves where a run is only counted.

    Raises:
        UserError: something is no checkpoint, two have one name, or an option is for other models.
    """
    if options.parallel != REPLICAS:
        _refuse_shared(sources)
    sees = modality is IMAGE and any(map(is_huggingface, sources))
    if not sees:
        _refuse_picture_options(options)
    residence = Residence() if one_at_a_time and sum(map(is_huggingface, sources)) > 1 else None
    loaded = list[Checkpoint]()
    with sharing(residence):
        # Models that take turns are opened from the last to the first, which is in memory then: it is measured first.
        for source in sources if residence is None else reversed(sources):
            model = _load(source, options, sees=sees, unopened=unopened)
            if options.chunk_length is not None:
                model = _in_chunks(model, options.chunk_length, is_shared=isinstance(source, Checkpoint))
            model = _in_precision(model, options)
            if is_huggingface(source):
                _warn_if_slow(model)
                keep_answers(model)
                if residence is not None and learn is not None:
                    learn(model)
            loaded.append(model)
    loaded = _cut(loaded if residence is None else loaded[::-1], options.max_length)
    if is_emulated_run(options):
        warnings.warn(
            RunWarning(
                "This CPU has no instructions for bfloat16, so products are emulated: operands and results are "
                "rounded, sums are in float32."
            ),
            stacklevel=2,
        )
    names = distinct_names([(model.name, model.provenance) for model in loaded])
    return [
        model if model.name == name else dataclasses.replace(model, name=name)
        for model, name in zip(loaded, names, strict=True)
    ]


def _warn_if_slow(checkpoint: Checkpoint) -> None:
    """Warn before passes that take many times as long as they need to: in bfloat16, without instructions for it."""
    device = getattr(checkpoint.model, "device", None)
    is_narrow = checkpoint.provenance.get("dtype") == "bfloat16"
    if is_narrow and device is not None and other_dtype.is_emulated(device):
        warnings.warn(
            RunWarning(
                f"{checkpoint.name} has weights in bfloat16, for which this CPU has no instructions; passes take many "
                f"times as long as with {option('dtype', FLOAT32)}."
            ),
            stacklevel=3,
        )


def _load(source: Model, options: Options, *, sees: bool, unopened: bool) -> Checkpoint:
    """Return a checkpoint, loaded; with ``sees``, a model of ``hf:`` is to read pictures."""
    # Where image tokens stand is known only after passes.
    if unopened and isinstance(source, str | Path) and is_huggingface(source) and not sees:
        outline = outline_model(
            source,
            device=options.device,
            dtype=options.dtype,
            device_map=options.device_map,
            max_memory=options.max_memory,
            offload=options.offload,
        )
        if outline is not None:
            return outline
    of_pictures = {"prompt": options.prompt, "image_size": options.image_size}
    return as_checkpoint(
        source,
        device=options.device,
        trained_capacity=options.trained_capacity,
        group_images=options.group_images,
        dtype=options.dtype,
        device_map=options.device_map,
        max_memory=options.max_memory,
        offload=options.offload,
        **(of_pictures if sees and is_huggingface(source) else {}),
    )


def _refuse_shared(sources: Sequence[Model]) -> None:
    """Raise ``UserError`` where processes are to share a model that only one process can hold."""
    of_one_process = next((source for source in sources if not is_huggingface(source)), None)
    if of_one_process is not None:
        name = of_one_process.name if isinstance(of_one_process, Checkpoint) else of_one_process
        raise UserError(
            f"{option('parallel')} is for models of hf:, and {name} is none; leave it out, and torchrun spreads the "
            "inputs."
        )


def _refuse_picture_options(options: Options) -> None:
    """Raise ``UserError`` where an option about pictures has no effect."""
    for name, is_set in (
        ("prompt", options.prompt != PROMPT),
        ("image_size", options.image_size is not None),
    ):
        if is_set:
            raise UserError(
                f"{option(name)} is for vision-language models of hf: on images, e.g. {option('data', 'folder:PATH')}; "
                "leave it out."
            )


def _in_chunks(checkpoint: Checkpoint, length: int, *, is_shared: bool) -> Checkpoint:
    """Return a checkpoint that reads longer texts in chunks; one that its caller still uses stays as it is.

    Raises:
        UserError: it cannot read in chunks.
    """
    model: Any = copy.copy(checkpoint.model) if is_shared else checkpoint.model
    if not hasattr(model, "read_in_chunks"):
        raise UserError(
            f"{option('chunk_length')} is for texts in language models of hf:; leave it out for {checkpoint.name}."
        )
    model.read_in_chunks(length)
    return dataclasses.replace(checkpoint, model=model)


def _in_precision(checkpoint: Checkpoint, options: Options) -> Checkpoint:
    """Return a checkpoint whose forward passes are of the precision of the run."""
    if precision_of(checkpoint.model) == options.precision:
        return checkpoint
    device = getattr(checkpoint.model, "device", None) or choose_device(options.device)
    model = in_precision(checkpoint.model, options.precision, name=checkpoint.name, device=device)
    check_runs(model, checkpoint.framing.blank(), name=checkpoint.name, device=device)
    return dataclasses.replace(checkpoint, model=model)


def is_emulated_run(options: Options) -> bool:
    """Whether the passes of a run are in bfloat16 on a device without instructions for it."""
    return options.precision == "bfloat16" and other_dtype.is_emulated(choose_device(options.device))


def are_hashed(models: Sequence[Checkpoint]) -> bool:
    """Whether every model has a hash; without, an earlier run cannot be recognized."""
    return all(model.provenance.get("sha256") is not None for model in models)


def _cut(models: Sequence[Checkpoint], max_length: int | None) -> list[Checkpoint]:
    """Return checkpoints that cut texts off at one length, None = the least of their own; images are no matter.

    Raises:
        UserError: one reads no texts, or not so many tokens, or there would be nothing left of them.
    """
    if max_length is None:
        lengths = [model.framing.max_length for model in models if isinstance(model.framing, TextFraming)]
        return [_cut_one(model, min(lengths)) if lengths else model for model in models]
    return [_cut_one(model, max_length, explicit=True) for model in models]


def _cut_one(model: Checkpoint, max_length: int, *, explicit: bool = False) -> Checkpoint:
    framing = model.framing
    if explicit:
        check_cut(model.name, framing.modality)
    if not isinstance(framing, TextFraming) or (not explicit and framing.max_length == max_length):
        return model
    shortest = framing.blank().ids.shape[1]
    if max_length < shortest:
        raise UserError(f"{option('max_length')} for {model.name} is at least {shortest}; got {max_length}.")
    if framing.longest is not None and max_length > framing.longest:
        raise UserError(
            f"{option('max_length')} for {model.name} is at most {framing.longest}; got {max_length}."
        )
    return dataclasses.replace(model, framing=dataclasses.replace(framing, max_length=max_length))


def clean_inputs(spec: RunSpec, checkpoint: Checkpoint, count: int) -> Iterator[Any]:
    """Yield the first ``count`` unperturbed inputs of a run, batch by batch."""
    clean = dataclasses.replace(spec, view=None, view_name=CLEAN, severities=(), shard=None)
    for batch in readable_batches(load_batches(clean, checkpoint, spec.indices[:count]), [], None):
        yield batch.views[0]


def measure_floor(checkpoint: Checkpoint, inputs: Iterable[Any], layers: Sequence[str]) -> dict[str, Any]:
    """Return the share of choices that differ from passes in float32, of all layers and of each.

    Layers in which nothing is chosen are left out.
    """
    narrow, wide = checkpoint.model, in_float32(checkpoint.model)
    counts: dict[str, list[NDArray[np.int64]]] = {}
    for batch in inputs:
        routings = [model.trace(batch, layers=layers, logits=False)[1].layers for model in (wide, narrow)]
        for name in layers:
            first, second = (routing[name] for routing in routings)
            if first.top_k > 0:
                counts.setdefault(name, []).append(_count_changes(first, second))
    by_layer = {name: np.concatenate(parts) for name, parts in counts.items()}
    num_inputs = max(map(len, by_layer.values()), default=0)
    total = sum(by_layer.values(), np.zeros((num_inputs, 2), np.int64))
    return changed_share(*total.T) | {
        "inputs": checkpoint.framing.modality.plural,
        "layers": {name: changed_share(*table.T) for name, table in by_layer.items()},
    }


def _count_changes(first: LayerRouting, second: LayerRouting) -> NDArray[np.int64]:
    """Return how many tokens of each input have other experts, and of how many: ``(B, 2)``."""
    tokens = first.valid.clone()
    tokens[:, : first.num_prefix_tokens] = False
    changed = ~first.selects_the_same(second) & tokens
    return np.stack([changed.sum(1).cpu().numpy(), tokens.sum(1).cpu().numpy()], axis=1)
