"""The checkpoints that a run probes, loaded as its options say."""

import dataclasses
from collections.abc import Sequence

from moeprobe.adapters.base import Checkpoint, Model
from moeprobe.adapters.open import as_checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.texts import TextFraming
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.preflight import check_cut, distinct_names
from moeprobe.routing.pass_precision import check_runs, in_precision, precision_of
from moeprobe.runtime.device import choose_device


def load_models(sources: Sequence[Model], options: Options) -> list[Checkpoint]:
    """Load the checkpoints that are not loaded yet, and check that the tables can distinguish them.

    Raises:
        UserError: something is no checkpoint, or two have one name.
    """
    loaded = [
        as_checkpoint(
            model,
            device=options.device,
            trained_capacity=options.trained_capacity,
            group_images=options.group_images,
            dtype=options.dtype,
        )
        for model in sources
    ]
    loaded = [_in_precision(model, options) for model in _cut(loaded, options.max_length)]
    names = distinct_names([(model.name, model.provenance) for model in loaded])
    return [
        model if model.name == name else dataclasses.replace(model, name=name)
        for model, name in zip(loaded, names, strict=True)
    ]


def _in_precision(checkpoint: Checkpoint, options: Options) -> Checkpoint:
    """Return a checkpoint whose forward passes are of the precision of the run."""
    if precision_of(checkpoint.model) == options.precision:
        return checkpoint
    device = getattr(checkpoint.model, "device", None) or choose_device(options.device)
    model = in_precision(checkpoint.model, options.precision, name=checkpoint.name, device=device)
    check_runs(model, checkpoint.framing.blank(), name=checkpoint.name, device=device)
    return dataclasses.replace(checkpoint, model=model)


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
