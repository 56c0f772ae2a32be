"""What a probe asks: of which models, images, perturbation and analyses, checked before anything is run."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Dataset, ImageDataset
from moeprobe.inputs.data.readers.masks import Masked
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.inputs.medium import IMAGE, TEXT
from moeprobe.inputs.open import open_view
from moeprobe.inputs.texts import TextFraming
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.metrics.base import Analysis
from moeprobe.probes.engine.applicability import check_applies, check_choices, gives_scores
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.origins import origin_of
from moeprobe.probes.engine.question import CLEAN, Probe, choose_images
from moeprobe.routing.capabilities import Replayable
from moeprobe.runtime.catalog import ANALYSES, VIEWS

# How much the routing of two views agrees; each says of which routers.
_MATCHES = ("match", "set_match", "slot_match")
_AGREEMENT = (*_MATCHES, "weights", "churn")
# What each kind of probe measures.
KINDS: dict[str, tuple[str, ...]] = {
    "match-ratio": (*_AGREEMENT, "load", "unserved"),
    "s-matrix": ("s_matrix", "load"),
    "confidence": ("confidence", "load", "unserved"),
    "sweep": (*_AGREEMENT, "confidence", "load", "unserved", "output"),
    "eval": ("output",),
    "discontinuity": ("discontinuity",),
    "fewshot": ("fewshot",),
    "contagion": ("batch_contagion", "token_contagion", "attention_contagion"),
    "analyze-trace": (*_AGREEMENT, "confidence", "load", "unserved"),
    "trace": (),
}
# Clean images that a sweep runs again unchanged: arithmetic does not need more.
FLOOR_IMAGES = 256
# What can do without single inputs whose gates or scores are no numbers.
_LEAVES_OUT = ("match-ratio", "s-matrix", "confidence", "sweep", "eval", "contagion")
# What compares two random views of an image.
_OF_PAIRS = ("match-ratio", "s-matrix")


def make_probe(
    kind: str,
    models: Sequence[Checkpoint],
    *,
    data: str,
    view_name: str,
    severities: Sequence[float] | None,
    options: Options,
    attribute: str | None = None,
) -> Probe:
    """Put together what is asked of every checkpoint.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    dataset = _open_data(data, options)
    view = None if view_name == CLEAN else open_view(view_name, dataset=dataset)
    view_name = view_name.partition(":")[0]
    _check_medium(kind, models, dataset, data, view, view_name)
    steps = _steps(kind, view, view_name, severities)
    _check_layers(models, options.layers)
    analyses = KINDS[kind]
    if kind == "sweep" and not all(gives_scores(model) for model in models):
        analyses = tuple(name for name in analyses if name != "output")
    if analyses:
        check_applies(kind, make_analyses(analyses), models, layers=options.layers)
    if attribute is not None:
        _check_attribution(kind, view, models, attribute)
        analyses += ("attribution",)
    for given, option in ((options.class_null, "--class-null"), (options.masks is not None, "--masks")):
        if given and "match" not in analyses:
            raise UserError(f"{option} is about matches: use it with match-ratio, sweep or noise-sweep.")
    if options.allow_not_finite and kind not in _LEAVES_OUT:
        raise UserError(
            f"{kind} needs finite gates and scores of all inputs; leave --allow-not-finite out, or use it with "
            f"{', '.join(_LEAVES_OUT)}."
        )
    labelled = all(_same_classes(model, dataset) for model in models)
    unknown = [model.name for model in models if not model.class_names]
    if kind == "eval" and unknown:
        raise UserError(
            f"What classes the scores of {unknown[0]} are about is not known, so there is nothing to evaluate"
            + (
                f"; where it was imported, import it again with --classes {data}; where it is a module of your own, "
                f"say so by its key classes: {data}."
                if dataset.medium is IMAGE
                else ": they are those of the next token."
            )
        )
    if kind == "eval" and not labelled:
        raise UserError(_not_evaluated(models, dataset, data, options.split))
    if options.class_null and dataset.class_names is None:
        raise UserError(f"{data} {options.split} has no labels, so there is no class for --class-null.")
    return Probe(
        dataset=dataset,
        indices=choose_images(dataset, limit=options.limit, seed=options.seed),
        view_name=view_name,
        view=view,
        severities=steps,
        analyses=make_analyses(analyses, class_null=options.class_null),
        seed=options.seed,
        layers=options.layers,
        batch_size=options.batch_size,
        workers=options.workers,
        skip_bad_images=options.skip_bad_images,
        labelled=labelled,
        replayed_gates=attribute or "recomputed",
        floor_images=FLOOR_IMAGES if kind == "sweep" else 0,
        allow_not_finite=options.allow_not_finite,
    )


def _open_data(data: str, options: Options) -> Dataset:
    """Return the data set, with the masks that are named."""
    dataset = open_data(data, split=options.split)
    if options.masks is None:
        return dataset
    if not isinstance(dataset, ImageDataset):
        raise UserError(f"--masks are of images, and {data} holds {dataset.medium.plural}.")
    return Masked(dataset, options.masks)


def _check_medium(
    kind: str,
    models: Sequence[Checkpoint],
    dataset: Dataset,
    data: str,
    view: PairView | SeverityView | None,
    view_name: str,
) -> None:
    """Raise ``UserError`` unless data, view and models are all about images, or all about texts."""
    medium = dataset.medium
    for model in models:
        if model.framing.medium is not medium:
            reads = model.framing.medium
            example = "text:PATH" if reads is TEXT else "folder:PATH"
            raise UserError(
                f"{model.name} reads {reads.plural}, and {data} holds {medium.plural}; name {reads.plural}, e.g. "
                f"--data {example}."
            )
    if view is not None and view.medium is not medium:
        suited = PairView if kind in _OF_PAIRS else SeverityView
        fitting = [
            name
            for name in VIEWS.names()
            if VIEWS.get(name).medium is medium and issubclass(VIEWS.get(name), suited)
        ]
        raise UserError(
            f"The view {view_name!r} perturbs {view.medium.plural}, and {data} holds {medium.plural}; use one of "
            f"{', '.join(fitting)}, e.g. --view {fitting[0]}."
        )


def make_analyses(names: Sequence[str], *, class_null: bool = False) -> tuple[Analysis, ...]:
    """Return the analyses called so; ``class_null`` concerns matches."""
    return tuple(
        ANALYSES.get(name)(class_null=class_null) if name in _MATCHES else ANALYSES.get(name)()
        for name in names
    )


def _check_attribution(
    kind: str, view: PairView | SeverityView | None, models: Sequence[Checkpoint], gates: str
) -> None:
    """Raise ``UserError`` unless pixels and routing can be exchanged in this sweep."""
    if gates not in ("recomputed", "replayed"):
        raise UserError(f"The gates of a replayed routing are recomputed or replayed; got {gates!r}.")
    if kind != "sweep" or view is None or not view.aligned:
        raise UserError(
            "Only a sweep whose view leaves the patches where they are (such as gaussian_noise) can be attributed."
        )
    for model in models:
        if not isinstance(model.model, Replayable):
            raise UserError(f"{model.name} cannot replay a routing, so its changes cannot be attributed.")
    check_choices(models, "there are no choices to replay")


def _steps(
    kind: str, view: PairView | SeverityView | None, view_name: str, severities: Sequence[float] | None
) -> tuple[float, ...]:
    """Return the severities of a probe, none where it has none; a trace has them if asked, or if nothing else fits.

    Raises:
        UserError: the view makes no pairs where those are compared, or has no severity where that grows.
    """
    if kind in _OF_PAIRS and not isinstance(view, PairView):
        raise UserError(
            f"The view {view_name!r} makes no pairs; probe it with: moeprobe sweep --view {view_name}."
        )
    traced = kind == "trace" and (
        severities is not None or (view is not None and not isinstance(view, PairView))
    )
    if kind not in ("sweep", "discontinuity") and not traced:
        return ()
    if not isinstance(view, SeverityView):
        instead = "leave --severities out" if traced else f"use: moeprobe match-ratio --view {view_name}"
        raise UserError(f"The view {view_name!r} has no severity; {instead}.")
    steps = view.severities if severities is None else tuple(severities)
    check_severities(steps)
    return steps


def check_severities(severities: tuple[float, ...]) -> None:
    """Raise ``UserError`` unless there is at least one severity and none is named twice."""
    if not severities:
        raise UserError("Name at least one severity.")
    if len(set(severities)) < len(severities):
        raise UserError(f"A severity is named twice in {', '.join(map(str, severities))}.")


def _check_layers(models: Sequence[Checkpoint], layers: tuple[str, ...] | None) -> None:
    """Raise ``UserError`` unless each layer is in some checkpoint and each checkpoint has some of the layers."""
    if layers is None:
        return
    there = list(dict.fromkeys(layer for model in models for layer in model.model.layer_names))
    for layer in layers:
        if layer not in there:
            names = ", ".join(model.name for model in models)
            raise UserError(f"There is no MoE layer {layer!r} in {names}; there are: {', '.join(there)}.")
    for model in models:
        if not set(layers) & set(model.model.layer_names):
            own = ", ".join(model.model.layer_names)
            raise UserError(f"{model.name} has none of the layers {', '.join(layers)}; it has: {own}.")


def _same_classes(model: Checkpoint, dataset: Dataset) -> bool:
    """Whether the data's labels are known to be about what the model's scores are about."""
    return bool(model.class_names) and model.class_names == dataset.class_names


def _not_evaluated(models: Sequence[Checkpoint], dataset: Dataset, data: str, split: str) -> str:
    """Return why there is no accuracy on these data."""
    if dataset.class_names is None:
        return f"{data} {split} has no labels, so there is nothing to evaluate."
    other = next(model for model in models if not _same_classes(model, dataset))
    trained = origin_of(other).data
    told = f"; it was trained on {trained}, which is taken where --data is left out" if trained else ""
    return f"{data} {split} has other classes than the model {other.name}, so there is nothing to evaluate{told}."


def make_request(
    kind: str, data: str, probe: Probe, options: Options, models: Sequence[Checkpoint]
) -> dict[str, Any]:
    """Return what determines the numbers of a run; speed (batch size, workers, device) is no part of it."""
    view = {"name": probe.view_name} | (dataclasses.asdict(probe.view) if probe.view is not None else {})  # type: ignore[call-overload]
    return {
        "kind": kind,
        "data": data,
        "split": options.split,
        "view": view,
        "severities": list(probe.severities),
        "analyses": [
            *(name for name in KINDS.get(kind, (kind,)) if name != "output" or probe.of_output),
            *(("attribution",) if probe.corners else ()),
        ],
        "replayed_gates": probe.replayed_gates if probe.corners else None,
        "layers": None if options.layers is None else list(options.layers),
        "limit": options.limit,
        "seed": options.seed,
        "masks": None if options.masks is None else str(options.masks),
        "skip_bad_images": options.skip_bad_images,
        "trained_capacity": options.trained_capacity,
        "class_null": options.class_null,
        "labels_used": probe.labelled and probe.dataset.class_names is not None,
        "checkpoints": {
            model.name: {key: model.provenance.get(key) for key in ("sha256", "capacity", "group_images")}
            for model in models
        },
        # Named only where it is on, so that runs from before it there was are still of the same question.
        **({"allow_not_finite": True} if options.allow_not_finite else {}),
    } | _of_texts(models, probe.dataset)


def _of_texts(models: Sequence[Checkpoint], dataset: Dataset) -> dict[str, Any]:
    """Return what determines the numbers of texts besides: where they are cut off, and what they are."""
    lengths = {model.framing.max_length for model in models if isinstance(model.framing, TextFraming)}
    return {"max_length": min(lengths), "texts": dataset.content_hash()} if lengths else {}
