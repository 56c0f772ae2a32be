"""The specification of a run, the views of each input, and the request that a folder records.

Models of different depth have a first and a last layer in common, and by these names they are compared. The
request determines the numbers: a folder with another one is not resumed.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moeprobe.adapters.base import AnyFraming, Checkpoint
from moeprobe.declarations import Probe
from moeprobe.declarations.options import FLOOR_IMAGES, Options
from moeprobe.declarations.registry import measured_by
from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Dataset
from moeprobe.inputs.texts import TextFraming
from moeprobe.inputs.views.base import PairView, Recipe, SeverityView
from moeprobe.metrics.base import Analysis, CornerAnalysis, OutputAnalysis
from moeprobe.probes.engine.shard import Shard
from moeprobe.probes.engine.units import refuse_units
from moeprobe.routing.capabilities import Traceable
from moeprobe.runtime.catalog import ANALYSES
from moeprobe.runtime.device import FLOAT32
from moeprobe.runtime.distributed import ranks_here
from moeprobe.runtime.processes import loader_processes
from moeprobe.runtime.seeds import generator


@dataclass(frozen=True)
class RunSpec:
    """What a run measures of every checkpoint: which images, which views, which analyses.

    ``view`` None asks about the clean images alone. ``indices`` are the images in the order in which they are run.
    ``labeled`` False ignores the data's labels (the model has other classes). ``replayed_gates`` says how an
    analysis of corners weights the experts of a replayed routing (see ``capabilities.Replayable``). ``draws``: purpose
    of the view's random numbers; empty = its name. ``floor_images``: how many of the images, from the first one on, are
    run again unchanged for the noise floor (see ``loop.repeats``). ``allow_not_finite``: inputs whose gates or scores
    are no numbers are left out, not refused (``routing.finite``). ``no_other_dtype``: names of checkpoints that run in
    float32 alone, so that their floor has no other format.
    ``shard``: the part of the images that is run; None = all. ``shards``: folders of the part files of all shards, in
    their order, which are put together in place of running anything; empty = there are none.
    """

    dataset: Dataset
    indices: Sequence[int]
    view_name: str
    view: PairView | SeverityView | None
    severities: tuple[float, ...]
    analyses: tuple[Analysis, ...]
    seed: int
    layers: tuple[str, ...] | None = None
    batch_size: int = 64
    workers: int = 0
    skip_bad_images: bool = False
    labeled: bool = True
    replayed_gates: str = "recomputed"
    draws: str = ""
    floor_images: int = 0
    allow_not_finite: bool = False
    no_other_dtype: frozenset[str] = frozenset()
    shard: Shard | None = None
    shards: tuple[Path, ...] = ()

    @property
    def num_passes(self) -> int:
        """Forward passes per image."""
        if self.view is None:
            return 1
        if self.is_pair:
            return 2
        assert isinstance(self.view, SeverityView)
        return 1 + (3 if self.corners else 1) * sum(
            severity != self.view.severities[0] for severity in self.severities
        )

    def layers_of(self, model: Traceable) -> list[str] | None:
        """Return the requested layers that the model has, in its order; None = all it has."""
        return None if self.layers is None else chosen_layers(model.layer_names, self.layers)

    def label_of(self, model: Traceable, layer: str) -> str:
        """Return what tables call one of the model's layers."""
        return layer_label(layer, model.layer_names, self.layers)

    @property
    def corners(self) -> bool:
        """Whether pixels and routing are exchanged, which takes two passes more."""
        return any(isinstance(analysis, CornerAnalysis) for analysis in self.analyses)

    @property
    def of_output(self) -> bool:
        """Whether the model's output is measured."""
        return any(isinstance(analysis, OutputAnalysis) for analysis in self.analyses)

    @property
    def aligned(self) -> bool:
        """Whether the patches of its views never move."""
        return self.view is not None and self.view.aligned

    @property
    def is_pair(self) -> bool:
        """Whether two random views are compared, and not a view with the clean image."""
        return isinstance(self.view, PairView) and not self.severities

    def with_workers(
        self, models: Sequence[Checkpoint], options: Options, *, more_views: int = 0
    ) -> "RunSpec":
        """Return the same with the loader processes that were asked for, or that fit it.

        ``more_views``: views of each input that are loaded beside the run's own.
        """
        # All that is loaded at once: pairs and the view of another, and steps.
        views = 2 + len(self.severities) + more_views
        pixels = max((getattr(model.framing, "size", 0) ** 2 for model in models), default=0)
        workers = loader_processes(
            options.workers,
            len(self.indices) if self.dataset.is_encoded else 0,
            batch_bytes=self.batch_size * views * pixels * 3 * 4,  # channels in float32
            ranks=ranks_here(),
        )
        return dataclasses.replace(self, workers=workers)


def choose_images(dataset: Dataset, *, limit: int | None, seed: int) -> list[int]:
    """Return the images of a run: a seeded random subset of ``limit``, or all, in an order that the seed fixes.

    The subset belongs to the images' names, so it is the same for every checkpoint and any order on disk. The images
    of a stream are taken as they lie in its shards.
    """
    names = np.asarray(dataset.image_ids)
    by_name = np.argsort(names, kind="stable")
    order = generator(seed, "choose images").permutation(by_name)
    return dataset.in_order([int(index) for index in (order if limit is None else order[:limit])])


def recipe(spec: RunSpec, framing: AnyFraming) -> Recipe:
    """Return the recipe for the views of one image, or text: the reference first."""
    if spec.view is None:
        return partial(_clean, framing=framing)
    if spec.is_pair:
        assert isinstance(spec.view, PairView)
        return partial(_pair, view=spec.view, name=spec.view_name, framing=framing, seed=spec.seed)
    assert isinstance(spec.view, SeverityView)
    return partial(
        _severities,
        view=spec.view,
        name=spec.draws or spec.view_name,
        severities=spec.severities,
        framing=framing,
        seed=spec.seed,
    )


def _clean(source: Any, image_id: str, *, framing: AnyFraming) -> list[Any]:
    return [framing.clean(source)]


def _pair(
    source: Any, image_id: str, *, view: PairView, name: str, framing: AnyFraming, seed: int
) -> list[Any]:
    return list(view.pair(source, framing=framing, rng=generator(seed, name, image_id)))


def _severities(
    source: Any,
    image_id: str,
    *,
    view: SeverityView,
    name: str,
    severities: tuple[float, ...],
    framing: AnyFraming,
    seed: int,
) -> list[Any]:
    rng = generator(seed, name, image_id)
    # The first severity of a view changes nothing: that is the reference, and is not run twice.
    return view.perturb(source, framing=framing, severities=(view.severities[0], *severities), rng=rng)


_PLACES = {"first": 0, "last": -1}


def chosen_layers(layer_names: Sequence[str], selection: Sequence[str] | None) -> list[str]:
    """Return the selected layers of a model, in its order; None = all.

    Args:
        layer_names: the model's layers, in forward order.
        selection: names, ``first`` or ``last``.
    """
    if selection is None:
        return list(layer_names)
    by_position = {
        layer_names[index]
        for word, index in _PLACES.items()
        if word in selection and word not in layer_names and layer_names
    }
    return [name for name in layer_names if name in selection or name in by_position]


def layer_label(name: str, layer_names: Sequence[str], selection: Sequence[str] | None) -> str:
    """Return a layer's name in tables: ``first`` or ``last`` if selected that way, else its own."""
    if selection is None or name in selection:
        return name
    return next(word for word, index in _PLACES.items() if word in selection and layer_names[index] == name)


def check_layers(models: dict[str, Sequence[str]], selection: Sequence[str] | None) -> None:
    """Raise ``UserError`` unless each wanted layer is in some model and each model has some of them.

    Args:
        models: name -> MoE layers.
        selection: names, ``first`` or ``last``; None = all.
    """
    if selection is None:
        return
    layer_names = list(dict.fromkeys(layer for layers in models.values() for layer in layers))
    for layer in selection:
        if layer not in layer_names and layer not in _PLACES:
            raise UserError(
                f"There is no MoE layer {layer!r} in {', '.join(models)}; there are: {', '.join(layer_names)}; "
                "first and last mean each model's own."
            )
    for name, layers in models.items():
        if not chosen_layers(layers, selection):
            raise UserError(
                f"{name} has none of the layers {', '.join(selection)}; it has: {', '.join(layers)}."
            )


def check_places(models: Sequence[Checkpoint], consequence: str) -> None:
    """Raise ``UserError`` where the places of image tokens are not known; ``consequence`` ends the sentence."""
    for model in models:
        doubt = model.provenance.get("pictures", {}).get("layout_doubt")
        if doubt:
            raise UserError(
                f"Where the image tokens of {model.name} are in the picture is not known ({doubt}), and {consequence}."
            )


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
            *(name for name in measured_by(probe) if _is_asked(name, spec)),
            *(("attribution",) if spec.corners else ()),
        ],
        "replayed_gates": spec.replayed_gates if spec.corners else None,
        **_of_options(options),
        "labels_used": spec.labeled and spec.dataset.class_names is not None,
        "checkpoints": {
            model.name: _settings_of(model)
            # Only for routers from outside the package, and for settings that differ from the trained ones.
            | {
                key: model.provenance[key]
                for key in ("router", "served", "pictures")
                if key in model.provenance
            }
            for model in models
        },
        # Named only where it is on, so that earlier runs without it still ask the same.
        **({"allow_not_finite": True} if options.allow_not_finite else {}),
        **(
            {"floor_images": spec.floor_images}
            if probe.noise_floor and spec.floor_images != FLOOR_IMAGES
            else {}
        ),
        **_of_texts(models, spec.dataset),
    }
    # A field such as ``view`` is said already, with all that it stands for.
    return request | {key: value for key, value in probe.request().items() if key not in request}


# The analysis of a model whose output is features.
OF_FEATURES = "output_features"


def _is_asked(name: str, spec: RunSpec) -> bool:
    """Whether the run has an analysis; analyses of the output are left out if the models give no output."""
    return name not in ("output", OF_FEATURES) or any(
        isinstance(analysis, ANALYSES.get(name)) for analysis in spec.analyses
    )


def study_request(
    kind: str, models: Sequence[Checkpoint], options: Options, *, data: str, **more: Any
) -> dict[str, Any]:
    """Return the request of several runs put together; ``more`` is what the study asks besides.

    Raises:
        UserError: it is asked to count units.
    """
    refuse_units(options, kind)
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
