"""Train a model as configured in a folder of its own, or a pipeline of stages, each from the one before."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from moeprobe.errors import UserError, option
from moeprobe.inputs.open import open_images, open_training_view
from moeprobe.models import pipeline
from moeprobe.models.checkpoints.header import is_written_by_moeprobe
from moeprobe.models.checkpoints.location import CHECKPOINTS, LAST, STATE
from moeprobe.models.config import TrainConfig, load
from moeprobe.models.pipeline import Pipeline
from moeprobe.models.training.loop import Trainer
from moeprobe.models.training.reporting import Report
from moeprobe.models.training.start import PartlyLabeled, choose_labeled
from moeprobe.models.training.state import discard
from moeprobe.runtime.arguments import check_arguments
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.distributed import Alone, Ranks
from moeprobe.runtime.files import is_file, is_folder, is_there, resolve, sha256
from moeprobe.runtime.folders import RunFolder, check_family, check_replaceable, in_use_first
from moeprobe.runtime.records import LOCK, NEW_RECORD, Contents, Family, scan
from moeprobe.studies import training_files
from moeprobe.studies.training_files import (
    CHECKPOINT,
    CURVE,
    SUMMARY,
    check_same_start,
    recorded_hash,
    starting_weights,
)

_WEIGHTS = (LAST, "best.safetensors", STATE)
_PICTURE, _PICTURE_SVG = "training.png", "training.svg"
_FILES = (*_WEIGHTS, "config.yaml", "last.json", "best.json", CURVE, SUMMARY, _PICTURE, _PICTURE_SVG)
FAMILY = Family(
    "training",
    patterns=lambda path: _FILES if any(is_written_by_moeprobe(path / name) for name in _WEIGHTS) else (),
    always=("tensorboard/events.out.tfevents.*", "state/*/*.safetensors"),
)


@check_arguments
def train(
    config: str | Path | TrainConfig,
    *,
    overrides: Sequence[str] = (),
    folder: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    report: Callable[[Report], None] = lambda _: None,
    svg: bool = False,
) -> dict[str, Any]:
    """Train a model as configured; returns a summary, with ``kept``: whether the run was finished before.

    Args:
        config: name of a configuration, path of a YAML file, or a validated configuration.
        overrides: ``key=value`` strings.
        folder: run folder; None = ``checkpoints/NAME``.
        device: as in ``load_model``.
        resume: changes nothing: a run of this configuration is always taken as it is where it is finished, and gone
            on with where it is not.
        overwrite: replace what an earlier run left there.
        report: called now and then with where the run is.
        svg: write the training curve as SVG too.

    Raises:
        UserError: the configuration is wrong, the folder holds another run, the loss is not finite.
    """
    if resume and overwrite:
        raise UserError(
            f"{option('resume')} continues an earlier run and {option('overwrite')} replaces it; leave one of them out."
        )
    return train_together(
        config if isinstance(config, TrainConfig) else load(str(config), overrides),
        folder=None if folder is None else Path(folder),
        device=device,
        overwrite=overwrite,
        report=report,
        svg=svg,
        ranks=Alone(),
    )


def train_together(
    config: TrainConfig,
    *,
    folder: Path | None,
    device: str,
    overwrite: bool,
    report: Callable[[Report], None],
    svg: bool,
    ranks: Ranks | Alone,
) -> dict[str, Any]:
    """Train a model as ``train`` does, as one of several processes; returns the summary, the same in each.

    Each has a part of every batch, the first one writes. A run may continue with another number of processes: its
    state is independent of it.

    Raises:
        UserError: what ``train`` raises, in any of the processes; or one of them is gone.
    """
    folder = CHECKPOINTS / config.name if folder is None else folder
    first = ranks.rank == 0
    state: str | None = None
    if first:
        with in_use_first(folder):
            state = _check_run(folder, config, overwrite=overwrite)
    state = ranks.exchange(state)[0]
    if state == "finished":
        summary = complete(folder, config, svg=svg) if first else None
        return ranks.exchange(summary)[0] | {"folder": str(folder), "kept": True}
    trainer = make_trainer(config, folder=folder, device=device, ranks=ranks)
    # Only now, when everything fits together, is the folder made, or an earlier run given up.
    with RunFolder(folder, FAMILY) if first else contextlib.nullcontext() as run_folder:
        if run_folder is not None:
            # Once more, when no other process can change it: another run may have been at it meanwhile.
            state = _check_run(folder, config, overwrite=overwrite)
            if overwrite:
                run_folder.clear()
        state = ranks.exchange(state)[0]

        def draw() -> None:
            if run_folder is not None:
                draw_curve(run_folder.path, config, svg=svg)
                run_folder.check()

        if state == "finished":
            summary = _complete(folder, config, svg=svg) if first else None
        else:
            summary = _run(trainer, resumed=state == "unfinished", report=report, draw=draw)
    return ranks.exchange(summary)[0] | {"folder": str(folder), "kept": state == "finished"}


def _run(
    trainer: Trainer, *, resumed: bool, report: Callable[[Report], None], draw: Callable[[], None]
) -> dict[str, Any]:
    if resumed:
        trainer.resume()
    try:
        return trainer.run(report, draw=draw)
    except KeyboardInterrupt:
        if trainer.stop_request.acknowledged and isinstance(trainer.ranks, Ranks):
            trainer.ranks.leave()
        raise


def clear(folder: Path) -> None:
    """Remove what a training wrote into a folder, if it is there.

    Raises:
        UserError: it holds something else, or is in use.
    """
    if is_there(folder):
        with RunFolder(folder, FAMILY) as run_folder:
            run_folder.clear()


def complete(folder: Path, config: TrainConfig, *, svg: bool = False) -> dict[str, Any]:
    """Do what a finished run lacks, killed in its last moment or without a wanted SVG, and return its summary.

    Raises:
        UserError: its files cannot be read or written.
    """
    if _at_its_end(folder, svg=svg):
        return read_summary(folder)
    with RunFolder(folder, FAMILY):
        return _complete(folder, config, svg=svg)


def _complete(folder: Path, config: TrainConfig, *, svg: bool) -> dict[str, Any]:
    summary = read_summary(folder)
    if not _is_curve_drawn(folder, svg=svg):
        draw_curve(folder, config, svg=svg)
    discard(folder)
    return summary


def _at_its_end(folder: Path, *, svg: bool) -> bool:
    """Whether a finished run was not killed before it had put everything in order."""
    has_state = any(is_there(folder / name) for name in (STATE, "state", LOCK, NEW_RECORD))
    return _is_curve_drawn(folder, svg=svg) and not has_state


def _is_curve_drawn(folder: Path, *, svg: bool) -> bool:
    return is_file(folder / _PICTURE) and (not svg or is_file(folder / _PICTURE_SVG))


def read_summary(folder: Path) -> dict[str, Any]:
    """Return what a finished run wrote at its end.

    Raises:
        UserError: it cannot be read, or the weights are gone.
    """
    path = folder / SUMMARY
    summary = training_files.read_summary(path)
    if not is_file(folder / LAST):
        raise UserError(
            f"{folder} holds a finished run without its {LAST}; add {option('overwrite', True)} to train again."
        )
    return summary


def draw_curve(folder: Path, config: TrainConfig, *, svg: bool = False) -> None:
    """Draw the values of ``metrics.csv``, not the computed ones, which have more digits."""
    from moeprobe.results.figures import save
    from moeprobe.results.figures.curves import draw_training

    path = folder / CURVE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read; add {option('overwrite', True)} to train again.") from error
    metrics = training_files.read_curve(text, folder)
    save(draw_training(metrics, name=config.name), folder / "training", svg=svg)


def make_trainer(
    config: TrainConfig, *, folder: Path, device: str, ranks: Ranks | Alone | None = None
) -> Trainer:
    """Return what trains a configuration, at its beginning; nothing is written. ``ranks``: processes that share it.

    Raises:
        UserError: something that is named does not exist, or the parts do not fit together.
    """
    train_data = open_images(config.data.source, split="train")
    if train_data.streamed:
        raise UserError(
            f"A training takes images at random, and {config.data.source} is a stream; name it huggingface:… to have "
            "it copied."
        )
    if config.data.labeled is not None:
        labeled = choose_labeled(train_data.labels(), config.data.labeled, seed=config.seed)
        train_data = PartlyLabeled(train_data, labeled, unlabeled=config.data.unlabeled)
    return Trainer(
        config,
        train_data=train_data,
        val_data=open_images(config.data.source, split="val"),
        view=open_training_view(config.view.name, dataset=train_data, **config.view.parameters),
        folder=folder,
        device=choose_device(device),
        ranks=ranks,
    )


def check_run_folder(
    folder: Path, config: TrainConfig, *, overwrite: bool
) -> Literal["new", "unfinished", "finished"]:
    """Return what the folder holds of this configuration that can be continued; nothing is changed.

    Raises:
        UserError: the folder holds something else, or a run of another configuration.
    """
    contents = scan(folder, FAMILY)
    if not contents.empty and not contents.own:
        raise UserError(f"{folder} is not empty and not a run folder of moeprobe; choose another name.")
    check_family(folder, contents, FAMILY)
    if overwrite:
        check_replaceable(folder, contents, FAMILY)
        _check_start(folder, contents, config)
        return "new"
    if not contents.own:
        return "new"
    finished = is_there(folder / SUMMARY)
    if not _is_of(folder / "config.yaml", config):
        state = "a finished run" if finished else "a run"
        raise UserError(
            f"{folder} holds {state} of another configuration; add {option('overwrite', True)} to replace it, or "
            "choose another name."
        )
    has_state = is_there(folder / STATE)
    if not finished and not has_state:
        _check_start(folder, contents, config)
        return "new"
    return "finished" if finished else "unfinished"


def _check_run(folder: Path, config: TrainConfig, *, overwrite: bool) -> str:
    """Return what ``check_run_folder`` does; raises ``UserError`` too where the run began from other weights."""
    state = check_run_folder(folder, config, overwrite=overwrite)
    if state != "new":
        check_same_start(folder, config, state)
    return state


def _check_start(folder: Path, contents: Contents, config: TrainConfig) -> None:
    """Raise ``UserError`` where a new run would replace the weights that it starts from: it could not be repeated."""
    replaced = {resolve(folder / name) for name in contents.own}
    for key, source in (
        ("initialise.checkpoint", config.initialise and config.initialise.checkpoint),
        ("model.upcycle.file", config.model.upcycle and config.model.upcycle.file),
    ):
        path = Path(str(source))
        if source and resolve(path / LAST if is_folder(path) else path) in replaced:
            raise UserError(
                f"{key} is {source}, which this run would replace; copy it out of {folder}, or choose another folder."
            )


def same_training(first_config: TrainConfig, second_config: TrainConfig) -> bool:
    """Whether two configurations are of one training; how it is loaded and shared changes nothing but rounding."""
    shared = {"accumulate": 1, "parallel": "replicas", "expert_ranks": None}
    first, second = (
        config.model_copy(update={"data": config.data.model_copy(update={"workers": 0})} | shared)
        for config in (first_config, second_config)
    )
    return first == second


def _is_of(path: Path, config: TrainConfig) -> bool:
    """Whether a written configuration is this one; keys that an earlier version did not know have their defaults."""
    try:
        return same_training(load(str(path)), config)
    except UserError:
        return False


# A pipeline: stages, each in a folder of its own, from the checkpoint of the one before.


@check_arguments
def train_pipeline(
    source: str | Path | Pipeline,
    *,
    overrides: Sequence[str] = (),
    folder: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    begin: Callable[[str], Callable[[Report], None]] = lambda _: lambda _: None,
    svg: bool = False,
) -> dict[str, Any]:
    """Train a pipeline, or continue it where it stopped; returns the summary of its last stage.

    Stages that are finished are kept. The summary has ``stages`` (the name of each -> its summary) in addition.

    Args:
        source: name of a pipeline, path of a YAML file, or what ``models.pipeline.load`` returns.
        overrides: ``key=value`` strings; ``pipeline.STAGE.key=value`` of one stage.
        folder: folder of the stages' folders; None = ``checkpoints/NAME``.
        device: as in ``load_model``.
        resume: changes nothing: finished stages are always reused.
        overwrite: replace all stages that are there.
        begin: called with the name of a stage; returns a function that is called now and then with its progress.
        svg: write the training curves as SVG too.

    Raises:
        UserError: as ``train``, or a stage was trained from other weights than those before it now.
    """
    if resume and overwrite:
        raise UserError(
            f"{option('resume')} continues an earlier run and {option('overwrite')} replaces it; leave one of them out."
        )
    loaded = (
        source
        if isinstance(source, Pipeline)
        else pipeline.load(str(source), overrides, folder=None if folder is None else Path(folder))
    )
    _check_folder(loaded)
    for stage in loaded.stages:
        _check_stage(loaded, stage, overwrite=overwrite)
    if overwrite:
        # What starts from weights that are replaced goes first: a kill leaves nothing that does not fit.
        for stage in reversed(loaded.stages):
            clear(loaded.folder / stage)
    summaries: dict[str, Any] = {}
    for stage, config in loaded.stages.items():
        summaries[stage] = train(
            config,
            folder=loaded.folder / stage,
            device=device,
            report=begin(config.name),
            svg=svg,
        )
    last = summaries[list(summaries)[-1]]
    all_kept = all(summary["kept"] for summary in summaries.values())
    return last | {"kept": all_kept, "stages": summaries}


def _check_folder(pipe: Pipeline) -> None:
    """Raise ``UserError`` where the folder holds something that is no stage."""
    if not is_there(pipe.folder):
        return
    if not is_folder(pipe.folder):
        raise UserError(f"{pipe.folder} is a file; choose another name.")
    strangers = sorted({path.name for path in pipe.folder.iterdir()} - pipe.stages.keys())
    if strangers:
        raise UserError(
            f"{pipe.folder} holds {', '.join(strangers[:3])}, which is no stage of {pipe.name} "
            f"({', '.join(pipe.stages)}); choose another name, or move it away."
        )


def _check_stage(pipe: Pipeline, stage: str, *, overwrite: bool) -> None:
    """Raise ``UserError`` where a stage's folder holds another run, or one that began from other weights than now."""
    folder = pipe.folder / stage
    with in_use_first(folder):
        state = check_run_folder(folder, pipe.stages[stage], overwrite=overwrite)
    before = starting_weights(pipe.stages[stage]).get(CHECKPOINT)
    if state != "new" and before is not None:
        now = sha256(before) if is_file(before) else None
        if recorded_hash(folder, state, CHECKPOINT) != now:
            raise UserError(
                f"{folder} was trained from other weights than {before} holds now; add {option('overwrite', True)} "
                f"to train all stages again, or remove {folder}."
            )
