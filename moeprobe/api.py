"""What a notebook or a command calls.

Nothing here touches the file system unless an output folder is named. Errors that the user can mend are
``UserError``s with one sentence.

    from moeprobe import api

    model = api.load_model("checkpoints/demo-prc")
    logits, routing = api.trace(model, images)          # images (B, 3, 32, 32) in [0, 1]
    result = api.match_ratio([model], data="digits", limit=100)
    result.table.query("metric == 'top1_match_kappa'")
"""

import dataclasses
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from moeprobe import config as configuration
from moeprobe import exhibits, summaries, sweeps
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.analyses.overlay import Overlay
from moeprobe.catalog import ANALYSES, DATA, VIEWS
from moeprobe.config import TrainConfig
from moeprobe.data._files import Files
from moeprobe.data.base import ImageDataset
from moeprobe.errors import UserError
from moeprobe.files import write_json
from moeprobe.routing import RoutingTrace
from moeprobe.runs import OutputFolder, Result, provenance
from moeprobe.sweeps import CLEAN, Checkpoint, Probe
from moeprobe.tables import concatenate, write_csv
from moeprobe.training import checkpoint as checkpoints
from moeprobe.training.loop import Report, Trainer
from moeprobe.views.base import Framing, PairView, SeverityView
from moeprobe.watching import Watcher

Model = Checkpoint | str | Path


@dataclass(frozen=True)
class Options:
    """What all probes have in common.

    Attributes:
        split: of the data set.
        layers: MoE layers to look at, e.g. ("blocks.3",); None = all.
        limit: number of images, a seeded random subset that is the same for all checkpoints; None = all.
        seed: of the subset, the views and the resamples.
        batch_size: images per forward pass; changes nothing but speed.
        workers: loader processes; changes nothing but speed.
        device: "auto", "cpu", "cuda", "mps".
        trained_capacity: keep the capacity that the model evaluates with, instead of no limit.
        skip_bad_images: go on without images that cannot be read, and count them.
        out: output folder; None = nothing is written.
        overwrite: replace what an earlier run left there.
        command: what was typed, for the sidecar.
    """

    split: str = "test"
    layers: tuple[str, ...] | None = None
    limit: int | None = None
    seed: int = 0
    batch_size: int = 64
    workers: int = 0
    device: str = "auto"
    trained_capacity: bool = False
    skip_bad_images: bool = False
    out: Path | None = None
    overwrite: bool = False
    command: str = ""


def load_model(source: str | Path, *, device: str = "auto", trained_capacity: bool = False) -> Checkpoint:
    """Load a checkpoint for probing.

    Args:
        source: a run folder (its last checkpoint) or a ``.safetensors`` file.
        device: "auto" takes CUDA, then MPS, then the CPU.
        trained_capacity: keep the capacity that the model evaluates with, instead of no limit.

    Raises:
        UserError: it is missing, truncated or foreign.
    """
    import moeprobe.nn  # noqa: F401  (registers the models)

    model, info = checkpoints.load(source)
    traceable = Vmoe(
        model,
        mean=info.model.mean,
        std=info.model.std,
        router_name=info.model.router or "softmax_token_choice",
        trained_capacity=trained_capacity,
    ).to(choose_device(device))
    return Checkpoint(
        name=info.name,
        model=traceable,
        framing=Framing(traceable.image_size[0], info.model.crop_fraction),
        class_names=info.class_names,
        train_seed=info.training.get("seed"),
        group=info.training.get("group", ""),
        provenance={"path": str(info.path), "sha256": info.hash, "training": info.training},
    )


def choose_device(name: str) -> torch.device:
    """Return the device called ``name``; "auto" takes CUDA, then MPS, then the CPU.

    Raises:
        UserError: there is no such device here.
    """
    available = ["cpu"]
    if torch.backends.mps.is_available():
        available.insert(0, "mps")
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    if name == "auto":
        return torch.device(available[0])
    if name.partition(":")[0] not in available:
        raise UserError(f"There is no device {name!r} here; choose auto or one of {', '.join(available)}.")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"{name!r} is no device; choose auto or one of {', '.join(available)}.") from None


def trace(
    model: Checkpoint, images: Tensor, *, layers: Sequence[str] | None = None
) -> tuple[Tensor, RoutingTrace]:
    """Return class scores ``(B, classes)`` and the routing of images ``(B, 3, H, W)`` in [0, 1].

    Raises:
        UserError: the images do not fit the model, or there is no such layer.
    """
    logits, routing = model.model.trace(images, layers=layers)
    assert logits is not None
    return logits, routing


def open_data(name: str, *, split: str = "test") -> ImageDataset:
    """Open a data set by ``name`` or ``name:location``, e.g. ``digits`` or ``folder:photos``.

    Raises:
        UserError: there is no such data set, split or location.
    """
    kind, _, location = name.partition(":")
    return DATA.get(kind)(split=split, location=location or None)


def open_view(
    name: str, *, dataset: ImageDataset | None = None, **parameters: Any
) -> PairView | SeverityView:
    """Make a view by name; on data that must not be mirrored (digits) a view that flips is made not to.

    Raises:
        UserError: there is no such view, or it does not take these parameters.
    """
    kind = VIEWS.get(name)
    fields = {field.name for field in dataclasses.fields(kind)}
    if dataset is not None and not dataset.flippable and "flip" in fields:
        parameters["flip"] = False
    try:
        return kind(**parameters)
    except TypeError as error:
        raise UserError(f"The view {name!r} does not take these parameters: {error}.") from None


def match_ratio(
    models: Sequence[Model], *, data: str = "digits", view: str = "random_crop", **more: Any
) -> Result:
    """Measure how often corresponding patches of two random views choose the same experts.

    Args:
        models: checkpoints, loaded or by path; with two or more, differences from the first are paired.
        data: data set, ``name`` or ``name:location``.
        view: a view that makes pairs.
        more: ``options`` (an ``Options``), its fields by name (``limit=100``), ``watcher``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    return probe("match-ratio", models, data=data, view=view, **more)


def confidence(models: Sequence[Model], *, data: str = "digits", **more: Any) -> Result:
    """Measure how sure the routers are on clean images: highest gate, second, rest, and the margin.

    Arguments and errors as in ``match_ratio``.
    """
    return probe("confidence", models, data=data, **more)


def sweep(
    models: Sequence[Model],
    *,
    view: str,
    data: str = "digits",
    severities: Sequence[float] | None = None,
    **more: Any,
) -> Result:
    """Measure match with the clean image, confidence, load, agreement and accuracy along a severity.

    ``severities`` None takes the view's own steps. Other arguments and errors as in ``match_ratio``.
    """
    return probe("sweep", models, data=data, view=view, severities=severities, **more)


def noise_sweep(
    models: Sequence[Model], *, data: str = "digits", sigmas: Sequence[float] | None = None, **more: Any
) -> Result:
    """Sweep over Gaussian noise; ``sigmas`` in units of the [0, 1] pixel range. Otherwise as ``sweep``."""
    return sweep(models, view="gaussian_noise", data=data, severities=sigmas, **more)


def evaluate(models: Sequence[Model], *, data: str = "digits", **more: Any) -> Result:
    """Measure accuracy, top-5 accuracy and cross-entropy on clean images. Arguments as in ``match_ratio``."""
    return probe("eval", models, data=data, **more)


# What each kind of probe measures.
KINDS: dict[str, tuple[str, ...]] = {
    "match-ratio": ("match", "load"),
    "confidence": ("confidence", "load"),
    "sweep": ("match", "confidence", "load", "output"),
    "eval": ("output",),
}


def probe(
    kind: str,
    models: Sequence[Model],
    *,
    data: str = "digits",
    view: str = CLEAN,
    severities: Sequence[float] | None = None,
    options: Options | None = None,
    watcher: Watcher | None = None,
    **changes: Any,
) -> Result:
    """Run one of ``KINDS``; what the functions above call."""
    options = dataclasses.replace(options or Options(), **changes)
    watcher = watcher or Watcher()
    started = time.perf_counter()
    loaded = load_models(models, options)
    question = make_probe(kind, loaded, data=data, view_name=view, severities=severities, options=options)
    request = _request(kind, data, question, options, loaded)
    folder = None if options.out is None else OutputFolder(options.out, request, overwrite=options.overwrite)

    tables, skipped, rates = [], [], {}
    for model in loaded:
        watcher.start(f"{kind}: {model.name}", len(question.indices))
        begun = time.perf_counter()
        parts = None if folder is None else folder.parts
        table, bad = sweeps.run(question, model, parts=parts, progress=watcher.advance)
        rates[model.name] = len(question.indices) / (time.perf_counter() - begun)
        tables.append(table)
        skipped.append(bad)
    images = concatenate(tables)
    if images.num_rows == 0:
        raise UserError(f"None of the {len(question.indices)} images of {data} could be read.")
    about = summaries.About(
        run=kind if options.out is None else options.out.name,
        dataset=data,
        split=options.split,
        seed=options.seed,
        aligned=question.view is not None and question.view.aligned,
        train_seeds={model.name: model.train_seed for model in loaded},
        groups={model.name: model.group for model in loaded},
    )
    table, comparison = summaries.summarise(images, analyses=question.analyses, about=about)
    sidecar = {
        "request": request,
        "command": options.command,
        "checkpoints": {model.name: dict(model.provenance) for model in loaded},
        "skipped_images": skipped[0],
        "images_per_second": rates,
        "wall_seconds": time.perf_counter() - started,
        "batch_size": options.batch_size,
        "workers": options.workers,
        "device": str(choose_device(options.device)),
    } | provenance()
    result = Result(table, comparison, images, sidecar)
    if folder is not None:
        draw_figures(kind, result, folder.path / "figures")
        folder.finish(result)
    return result


@dataclass(frozen=True)
class Plan:
    """What a probe would take, judging by a few images."""

    checkpoints: int
    images: int
    passes: int
    timed_images: int
    seconds: float


def plan(
    kind: str,
    models: Sequence[Model],
    *,
    data: str = "digits",
    view: str = CLEAN,
    severities: Sequence[float] | None = None,
    options: Options | None = None,
) -> Plan:
    """Say what ``probe`` would take, by running two batches of each checkpoint and writing nothing."""
    options = options or Options()
    loaded = load_models(models, options)
    question = make_probe(kind, loaded, data=data, view_name=view, severities=severities, options=options)
    sample = dataclasses.replace(
        question, indices=question.indices[: 2 * options.batch_size], skip_bad_images=True
    )
    seconds = 0.0
    for model in loaded:
        sweeps.run(dataclasses.replace(sample, indices=sample.indices[:1]), model)
        begun = time.perf_counter()
        sweeps.run(sample, model)
        seconds += time.perf_counter() - begun
    return Plan(
        checkpoints=len(loaded),
        images=len(question.indices),
        passes=question.num_passes,
        timed_images=len(sample.indices),
        seconds=seconds * len(question.indices) / len(sample.indices),
    )


def load_models(models: Sequence[Model], options: Options) -> list[Checkpoint]:
    """Load the checkpoints that are not loaded yet, and check that the tables can tell them apart.

    Raises:
        UserError: there is none, or two have one name.
    """
    if not models:
        raise UserError("Name at least one checkpoint.")
    loaded = [
        model
        if isinstance(model, Checkpoint)
        else load_model(model, device=options.device, trained_capacity=options.trained_capacity)
        for model in models
    ]
    names = [model.name for model in loaded]
    if len(set(names)) < len(names):
        # The files of one folder (best and last) are told apart by their own names.
        paths = [Path(model.provenance.get("path", model.name)) for model in loaded]
        names = [f"{path.parent.name}/{path.stem}" for path in paths]
        if len(set(names)) < len(names):
            raise UserError("The same checkpoint was named twice.")
        loaded = [dataclasses.replace(model, name=name) for model, name in zip(loaded, names, strict=True)]
    return loaded


def make_probe(
    kind: str,
    models: Sequence[Checkpoint],
    *,
    data: str,
    view_name: str,
    severities: Sequence[float] | None,
    options: Options,
) -> Probe:
    """Put together what is asked of every checkpoint.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    dataset = open_data(data, split=options.split)
    view = None if view_name == CLEAN else open_view(view_name, dataset=dataset)
    steps: tuple[float, ...] = ()
    if kind == "match-ratio" and not isinstance(view, PairView):
        raise UserError(
            f"The view {view_name!r} makes no pairs; probe it with: moeprobe sweep --view {view_name}."
        )
    if kind == "sweep":
        if not isinstance(view, SeverityView):
            raise UserError(
                f"The view {view_name!r} has no severity; use: moeprobe match-ratio --view {view_name}."
            )
        steps = view.severities if severities is None else tuple(severities)
        check_severities(steps)
    if options.limit is not None and options.limit < 1:
        raise UserError(f"--limit takes a positive number of images; got {options.limit}.")
    if options.batch_size < 1:
        raise UserError(f"--batch-size takes a positive number of images; got {options.batch_size}.")
    for model in models:
        _check_layers(model, options.layers)
    return Probe(
        dataset=dataset,
        indices=sweeps.choose_images(dataset, limit=options.limit, seed=options.seed),
        view_name=view_name,
        view=view,
        severities=steps,
        analyses=tuple(ANALYSES.get(name)() for name in KINDS[kind]),
        seed=options.seed,
        layers=options.layers,
        batch_size=options.batch_size,
        workers=options.workers,
        skip_bad_images=options.skip_bad_images,
        labelled=all(_same_classes(model, dataset) for model in models),
    )


def check_severities(severities: tuple[float, ...]) -> None:
    """Raise ``UserError`` unless there is at least one severity and none is named twice."""
    if not severities:
        raise UserError("Name at least one severity.")
    if len(set(severities)) < len(severities):
        raise UserError(f"A severity is named twice in {', '.join(map(str, severities))}.")


def _check_layers(model: Checkpoint, layers: tuple[str, ...] | None) -> None:
    for layer in layers or ():
        if layer not in model.model.layer_names:
            raise UserError(
                f"There is no MoE layer {layer!r} in {model.name}; there are: {', '.join(model.model.layer_names)}."
            )


def _same_classes(model: Checkpoint, dataset: ImageDataset) -> bool:
    """Whether the data's labels are about what the model's scores are about."""
    return not model.class_names or model.class_names == dataset.class_names


def _request(
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
        "analyses": list(KINDS.get(kind, (kind,))),
        "layers": None if options.layers is None else list(options.layers),
        "limit": options.limit,
        "seed": options.seed,
        "capacity": "trained" if options.trained_capacity else "unlimited",
        "labels_used": probe.labelled and probe.dataset.class_names is not None,
        "checkpoints": {model.name: model.provenance.get("sha256") for model in models},
    }


def draw_figures(kind: str, result: Result, folder: Path) -> list[Path]:
    """Draw the figures of a run as PNG and SVG; returns the files."""
    from moeprobe.figures import confidence as confidence_figure
    from moeprobe.figures import match_ratio as match_figure
    from moeprobe.figures import save
    from moeprobe.figures import sweep as sweep_figure

    drawing: dict[str, Callable[[Any], dict[str, Any]]] = {
        "match-ratio": match_figure.draw,
        "confidence": confidence_figure.draw,
        "sweep": sweep_figure.draw,
    }
    if kind not in drawing:
        return []
    return [
        path for name, figure in drawing[kind](result.table).items() for path in save(figure, folder / name)
    ]


def train(
    config: str | Path | TrainConfig,
    *,
    overrides: Sequence[str] = (),
    folder: Path | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    report: Callable[[Report], None] = lambda _: None,
) -> dict[str, Any]:
    """Train a model as configured; returns a summary.

    Args:
        config: name of a configuration, path of a YAML file, or a validated configuration.
        overrides: ``key=value`` strings.
        folder: run folder; None = ``checkpoints/NAME``.
        device: as in ``load_model``.
        resume: insist on going on with an unfinished run; without, one is gone on with where there is one.
        overwrite: replace what an earlier run left there.
        report: called now and then with where the run is.

    Raises:
        UserError: the configuration is wrong, the folder holds another or a finished run, the loss is not finite.
    """
    from moeprobe.figures import save
    from moeprobe.figures.training import draw

    resolved = config if isinstance(config, TrainConfig) else configuration.load(str(config), overrides)
    folder = folder or Path("checkpoints") / resolved.name
    unfinished = prepare_run_folder(folder, resolved, resume=resume, overwrite=overwrite)
    train_data = open_data(resolved.data.name, split="train")
    view = open_view(resolved.view.name, dataset=train_data, **resolved.view.parameters)
    if not isinstance(view, PairView):
        raise UserError(f"The view {resolved.view.name!r} makes no random views to train on.")
    trainer = Trainer(
        resolved,
        train_data=train_data,
        val_data=open_data(resolved.data.name, split="val"),
        view=view,
        folder=folder,
        device=choose_device(device),
    )
    if unfinished:
        trainer.resume()
    summary = trainer.run(report)
    save(draw(pd.read_csv(folder / "metrics.csv"), name=resolved.name), folder / "training")
    return summary | {"folder": str(folder)}


def prepare_run_folder(folder: Path, config: TrainConfig, *, resume: bool, overwrite: bool) -> bool:
    """Return whether the folder holds an unfinished run of this configuration; make room for a new one.

    Raises:
        UserError: the folder holds a finished or another run, or nothing to resume.
    """
    earlier = folder / "config.yaml"
    if folder.exists() and any(folder.iterdir()):
        if not earlier.exists():
            raise UserError(f"{folder} is not empty and not a run folder of moeprobe; choose another name.")
        same = earlier.read_text(encoding="utf-8") == configuration.dump(config)
        if overwrite and not resume:
            shutil.rmtree(folder)
        elif (folder / "finished.json").exists():
            raise UserError(
                f"{folder} holds a finished run; add --overwrite to replace it, or choose another name."
            )
        elif not same:
            raise UserError(
                f"{folder} holds a run with another configuration; add --overwrite, or choose another name."
            )
    found = (folder / "state.safetensors").exists()
    if resume and not found:
        raise UserError(f"There is nothing to resume in {folder}.")
    return found


@dataclass(frozen=True)
class OverlayResult:
    """What an overlay shows: the overlays themselves, a row per patch, and the files written."""

    overlays: list[Overlay]
    table: pd.DataFrame
    files: list[Path]


def overlay(
    models: Sequence[Model],
    *,
    data: str = "digits",
    images: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    count: int = 4,
    view: str = "gaussian_noise",
    severity: float = 0.2,
    options: Options | None = None,
    **changes: Any,
) -> OverlayResult:
    """Show which expert each patch chooses on the clean and on the perturbed image.

    Args:
        models: checkpoints, side by side.
        data: data set, used unless ``files`` are given.
        images: names of images of the data set; none = ``count`` seeded random ones.
        files: image files of the user's own.
        count: how many random images.
        view: a view with a severity.
        severity: its severity.
        options: common options; ``changes`` are applied to them by name.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    from moeprobe.figures import save
    from moeprobe.figures.overlay import draw

    options = dataclasses.replace(options or Options(), **changes)
    if count < 1:
        raise UserError(f"The number of images must be positive; got {count}.")
    loaded = load_models(models, options)
    question = make_probe("sweep", loaded, data=data, view_name=view, severities=(severity,), options=options)
    dataset: ImageDataset = Files(files) if files else question.dataset
    if files:
        chosen = list(range(len(files)))
    elif images:
        chosen = [_position(dataset, name, data) for name in images]
    else:
        chosen = question.indices[:count]  # type: ignore[assignment]
    question = dataclasses.replace(question, dataset=dataset, indices=chosen)
    request = _request("overlay", data, question, options, loaded)
    request |= {"images": [dataset.image_ids[index] for index in chosen]}
    folder = None if options.out is None else OutputFolder(options.out, request, overwrite=options.overwrite)
    shown = exhibits.overlays(question, loaded)
    table = exhibits.overlay_table(shown)
    written: list[Path] = []
    if folder is not None:
        for layer in dict.fromkeys(item.layer for item in shown):
            figure = draw(
                [item for item in shown if item.layer == layer],
                title=f"{layer}: {view} at severity {severity:g}",
            )
            written += save(figure, folder.path / "figures" / f"overlay-{layer}")
        write_csv(folder.path / "patches.csv", table)
        written.append(folder.path / "patches.csv")
        sidecar = {
            "request": request,
            "command": options.command,
            "checkpoints": {model.name: dict(model.provenance) for model in loaded},
        }
        write_json(folder.path / "table.json", sidecar | provenance())
    return OverlayResult(shown, table, written)


def _position(dataset: ImageDataset, name: str, data: str) -> int:
    names = list(dataset.image_ids)
    if name not in names:
        example = f" {names[0]}" if names else " nothing: it is empty"
        raise UserError(f"There is no image {name!r} in {data}; names look like{example}.")
    return names.index(name)
