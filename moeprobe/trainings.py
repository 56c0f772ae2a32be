"""Train a model as configured, in a folder of its own."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe import config as configuration
from moeprobe.config import TrainConfig
from moeprobe.errors import UserError
from moeprobe.loading import choose_device, open_images, open_view
from moeprobe.medium import IMAGE
from moeprobe.training.loop import Report, Trainer
from moeprobe.views.base import PairView


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
    trainer = make_trainer(resolved, folder=folder, device=device)
    if unfinished:
        trainer.resume()
    elif folder.exists():
        # Only now, when everything fits together, is an earlier run given up.
        shutil.rmtree(folder)
    summary = trainer.run(report)
    save(draw(pd.read_csv(folder / "metrics.csv"), name=resolved.name), folder / "training")
    return summary | {"folder": str(folder)}


def make_trainer(config: TrainConfig, *, folder: Path, device: str) -> Trainer:
    """Return what trains a configuration, at its beginning; nothing is written.

    Raises:
        UserError: something that is named does not exist, or the parts do not fit together.
    """
    train_data = open_images(config.data.name, split="train")
    view = open_view(config.view.name, dataset=train_data, **config.view.parameters)
    if not isinstance(view, PairView) or view.medium is not IMAGE:
        raise UserError(f"The view {config.view.name!r} makes no random views of images to train on.")
    return Trainer(
        config,
        train_data=train_data,
        val_data=open_images(config.data.name, split="val"),
        view=view,
        folder=folder,
        device=choose_device(device),
    )


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
        if not _is_of(earlier, config):
            state = f"{state or 'a run'} of another configuration"
        if state:
            raise UserError(f"{folder} holds {state}; add --overwrite to replace it, or choose another name.")
    if resume and not found:
        raise UserError(f"There is nothing to resume in {folder}.")
    return found and not (overwrite and not resume)


def _is_of(path: Path, config: TrainConfig) -> bool:
    """Whether a written configuration is this one; keys that an earlier version did not know have their defaults."""
    try:
        return configuration.load(str(path)) == config
    except UserError:
        return False
