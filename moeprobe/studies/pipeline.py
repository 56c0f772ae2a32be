"""Train the stages of a pipeline, each in a folder of its own, from the checkpoint of the one before."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError, option
from moeprobe.models import pipeline
from moeprobe.models.pipeline import Pipeline
from moeprobe.models.training.reporting import Report
from moeprobe.runtime.arguments import checked
from moeprobe.runtime.files import is_file, is_folder, is_there, sha256
from moeprobe.runtime.folders import in_use_first
from moeprobe.studies.train import check_run_folder, clear, train
from moeprobe.studies.training_files import CHECKPOINT, recorded_hash, starting_weights


@checked
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
