"""What determines the numbers of a run: a folder with another request is not resumed."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.data.base import Dataset
from moeprobe.inputs.texts import TextFraming
from moeprobe.probes.base import Probe
from moeprobe.probes.engine.options import FLOOR_IMAGES, Options
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.registry import measured_by
from moeprobe.runtime.device import FLOAT32


def make_request(
    probe: Probe[Any], spec: RunSpec, models: Sequence[Checkpoint], *, data: str, options: Options
) -> dict[str, Any]:
    """Return the request of a run; speed (batch size, workers, device) is no part of it."""
    view = {"name": spec.view_name}
    view |= dataclasses.asdict(spec.view) if spec.view is not None else {}  # type: ignore[call-overload]
    request = {
        "kind": probe.kind,
        "data": data,
        "split": options.split,
        "view": view,
        "severities": list(spec.severities),
        "analyses": [
            *(name for name in measured_by(probe) if name != "output" or spec.of_output),
            *(("attribution",) if spec.corners else ()),
        ],
        "replayed_gates": spec.replayed_gates if spec.corners else None,
        **_of_options(options),
        "labels_used": spec.labeled and spec.dataset.class_names is not None,
        "checkpoints": {
            model.name: _settings_of(model)
            # Of a router from outside the package, and of settings other than the trained ones.
            | {key: model.provenance[key] for key in ("router", "served") if key in model.provenance}
            for model in models
        },
        # Named only where it is on, so that earlier runs without it still ask the same.
        **({"allow_not_finite": True} if options.allow_not_finite else {}),
        **({"floor_images": spec.floor_images} if spec.floor_images not in (0, FLOOR_IMAGES) else {}),
        **_of_texts(models, spec.dataset),
    }
    # A field such as ``view`` is said already, with all that it stands for.
    return request | {key: value for key, value in probe.request().items() if key not in request}


def study_request(
    kind: str, models: Sequence[Checkpoint], options: Options, *, data: str, **more: Any
) -> dict[str, Any]:
    """Return the request of several runs put together; ``more`` is what the study asks besides."""
    return {
        "kind": kind,
        "data": data,
        "split": options.split,
        **_of_options(options),
        "allow_not_finite": options.allow_not_finite,
        **more,
        "checkpoints": {model.name: _settings_of(model) for model in models},
    }


def _of_options(options: Options) -> dict[str, Any]:
    """Return the options that numbers depend on in any request."""
    return {
        "layers": None if options.layers is None else list(options.layers),
        "limit": options.limit,
        "seed": options.seed,
        "masks": None if options.masks is None else str(options.masks),
        "skip_bad_images": options.skip_bad_images,
        "trained_capacity": options.trained_capacity,
        "class_null": options.class_null,
        **precision_request(options),
    }


def precision_request(options: Options) -> dict[str, Any]:
    """Return the precision of the passes, named only where it is not float32."""
    if options.precision == FLOAT32:
        return {}
    return {"precision": options.precision, "floor_images": options.floor_images}


def _settings_of(model: Checkpoint) -> dict[str, Any]:
    """Return what a model's numbers depend on: its weights, and how its images are routed together."""
    return {key: model.provenance.get(key) for key in ("sha256", "capacity", "group_images")}


def _of_texts(models: Sequence[Checkpoint], dataset: Dataset) -> dict[str, Any]:
    """Return the text part of a request: truncation length and a hash of the texts."""
    lengths = {model.framing.max_length for model in models if isinstance(model.framing, TextFraming)}
    return {"max_length": min(lengths), "texts": dataset.content_hash()} if lengths else {}
