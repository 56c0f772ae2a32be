"""What a notebook or a command calls.

Nothing here touches the file system unless an output folder is named. Errors that the user can mend are
``UserError``s with one sentence.

    from moeprobe import api

    model = api.load_model("checkpoints/demo-prc")
    logits, routing = api.trace(model, images)          # images (B, 3, 32, 32) in [0, 1]
    result = api.match_ratio([model], data="digits", limit=100)
    result.table.query("metric == 'top1_match_kappa'")
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from moeprobe import config as configuration
from moeprobe.comparing import Comparison, compare, plan_comparison
from moeprobe.config import TrainConfig
from moeprobe.corresponding import CorrespondResult, correspond
from moeprobe.errors import UserError
from moeprobe.fewshot import fewshot, plan_fewshot
from moeprobe.following import DiscontinuityResult, discontinuity, plan_discontinuity
from moeprobe.loading import Model, Options, choose_device, load_model, open_data, open_view
from moeprobe.overlaying import OverlayResult, overlay, plan_overlay
from moeprobe.probes import Checkpoint
from moeprobe.probing import Plan, plan, probe
from moeprobe.report import Document, report
from moeprobe.routing import RoutingTrace
from moeprobe.runs import Result
from moeprobe.spreading import contagion, plan_contagion
from moeprobe.training.loop import Report, Trainer
from moeprobe.views.base import PairView

__all__ = [
    "Checkpoint",
    "Comparison",
    "CorrespondResult",
    "DiscontinuityResult",
    "Document",
    "Model",
    "Options",
    "OverlayResult",
    "Plan",
    "Report",
    "Result",
    "choose_device",
    "compare",
    "confidence",
    "contagion",
    "correspond",
    "discontinuity",
    "evaluate",
    "fewshot",
    "load_model",
    "match_ratio",
    "noise_sweep",
    "open_data",
    "open_view",
    "overlay",
    "plan",
    "plan_comparison",
    "plan_contagion",
    "plan_discontinuity",
    "plan_fewshot",
    "plan_overlay",
    "probe",
    "report",
    "s_matrix",
    "sweep",
    "trace",
    "train",
]


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


def s_matrix(
    models: Sequence[Model], *, data: str = "digits", view: str = "random_crop", **more: Any
) -> Result:
    """Measure the correlation matrix S of the gates of corresponding patches, and the terms of the PRC loss.

    Arguments and errors as in ``match_ratio``.
    """
    return probe("s-matrix", models, data=data, view=view, **more)


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
    unfinished = check_run_folder(folder, resolved, resume=resume, overwrite=overwrite)
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
    elif folder.exists():
        # Only now, when everything fits together, is an earlier run given up.
        shutil.rmtree(folder)
    summary = trainer.run(report)
    save(draw(pd.read_csv(folder / "metrics.csv"), name=resolved.name), folder / "training")
    return summary | {"folder": str(folder)}


def check_run_folder(folder: Path, config: TrainConfig, *, resume: bool, overwrite: bool) -> bool:
    """Return whether the folder holds an unfinished run of this configuration to go on with; nothing is changed.

    Raises:
        UserError: the folder holds something else, a finished or another run, or nothing to resume.
    """
    earlier, found = folder / "config.yaml", (folder / "state.safetensors").exists()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another name.")
    # What a kill in the very first moment leaves behind is nobody's.
    held = [path for path in folder.iterdir() if path.suffix != ".tmp"] if folder.is_dir() else []
    if held and not earlier.exists():
        raise UserError(f"{folder} is not empty and not a run folder of moeprobe; choose another name.")
    if held and not (overwrite and not resume):
        state = "a finished run" if (folder / "finished.json").exists() else ""
        if earlier.read_text(encoding="utf-8") != configuration.dump(config):
            state = f"{state or 'a run'} of another configuration"
        if state:
            raise UserError(f"{folder} holds {state}; add --overwrite to replace it, or choose another name.")
    if resume and not found:
        raise UserError(f"There is nothing to resume in {folder}.")
    return found and not (overwrite and not resume)
