"""Few-shot accuracy of frozen features: what is asked, the tables, and what a run would take."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Unpack

import pyarrow as pa

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.open import Models
from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Dataset
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.checks import make_probe, make_request
from moeprobe.probes.engine.models import load_models
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.origins import choose_data
from moeprobe.probes.engine.question import CLEAN, Probe
from moeprobe.probes.engine.run import Plan, measure, save_figures, time_sample
from moeprobe.probes.fewshot.ridge import STRENGTHS
from moeprobe.probes.fewshot.shots import Cases, Shots, choose_shots, features_block, judge
from moeprobe.results.folder import Result, output_folder
from moeprobe.routing.capabilities import Featured
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Watcher

KIND = "fewshot"
SHOTS, DRAWS = (10,), 5
_L2 = f"powers of 2 from {STRENGTHS[0]:g} to {STRENGTHS[-1]:g}"
# How the strength is chosen, and what the released program does otherwise; for the record of every run.
_RULE = (
    "highest accuracy on {on}, then least squared error; the released program takes the strength that is best on the "
    "test images"
)


@with_options
def fewshot(
    models: Models,
    *,
    data: str | None = None,
    shots: Sequence[int] = SHOTS,
    draws: int = DRAWS,
    options: Options | None = None,
    watcher: Watcher | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure the accuracy of ridge regressions on frozen features of a few training images per class.

    Args:
        models: checkpoints, loaded or by path.
        data: data set with labels and a train split; ``options.split`` is judged; None = as in ``engine.run.probe``.
        shots: training images per class; several are nested.
        draws: independent draws of the training images, the same for every checkpoint.
        options: common options; ``changes`` are applied to them by name.
        watcher: told how the run advances.

    Raises:
        UserError: something named does not exist or does not fit, or a class has too few training images.
    """
    options = combine(options, changes)
    loaded, data, question, chosen = _ask(models, data=data, counts=shots, draws=draws, options=options)
    held_out = chosen.held_out.shape[1]
    request = make_request(KIND, data, question, options, loaded)
    request |= {"draws": draws, "held_out_per_class": held_out, "l2_strengths": _L2}
    with output_folder(options.out, request, overwrite=options.overwrite) as folder:
        strengths: dict[str, dict[Cases, float]] = {}
        result = measure(
            KIND,
            question,
            loaded,
            data=data,
            request=request,
            options=options,
            folder=folder,
            watcher=watcher,
            run=_runner(chosen, strengths),
            images_besides=len(chosen.indices),
        )
        on = (
            f"{held_out} training images of each class that are in no draw"
            if held_out
            else "each shot left out in turn"
        )
        result.sidecar.update(
            severity_unit="training images per class",
            training_images=len(chosen.indices),
            l2_chosen_by=_RULE.format(on=on),
            l2_chosen={
                name: {count: [found[count, draw] for draw in range(1, draws + 1)] for count in chosen.counts}
                for name, found in strengths.items()
            },
        )
        if folder is not None:
            folder.write(result)
            if options.figures:
                save_figures(result, folder.path / "figures")
            folder.finish(result.sidecar)
    return result


@checked
def plan_fewshot(
    models: Models,
    *,
    data: str | None = None,
    shots: Sequence[int] = SHOTS,
    draws: int = DRAWS,
    options: Options | None = None,
) -> Plan:
    """Say what ``fewshot`` would take, by running two batches of each checkpoint; the regressions are not in it."""
    options = options or Options()
    loaded, data, question, chosen = _ask(models, data=data, counts=shots, draws=draws, options=options)
    plan = time_sample(question, loaded, images=2 * options.batch_size, passes=1, run=_features)
    images = plan.images + len(chosen.indices)
    return dataclasses.replace(plan, images=images, seconds=plan.seconds * images / plan.images)


def _features(question: Probe, model: Checkpoint) -> tuple[pa.Table, list[str]]:
    return loop.run(question, model, run_block=features_block)


def _runner(chosen: Shots, strengths: dict[str, dict[Cases, float]]) -> Any:
    """Return what judges one checkpoint; the strengths it chose are left in ``strengths``."""

    def run(question: Probe, model: Checkpoint, **more: Any) -> tuple[pa.Table, list[str]]:
        table, skipped, strengths[model.name] = judge(question, model, shots=chosen, **more)
        return table, skipped

    return run


def _ask(
    models: Models, *, data: str | None, counts: Sequence[int], draws: int, options: Options
) -> tuple[list[Checkpoint], str, Probe, Shots]:
    """Return the checkpoints, what is asked of them, and the training images they are shown."""
    if not counts or min(counts) < 1 or len(set(counts)) < len(counts) or any(count % 1 for count in counts):
        asked = ",".join(f"{count:g}" for count in counts)
        raise UserError(f"--shots takes different whole numbers from 1 up, e.g. 1,5,10; got {asked!r}.")
    if draws < 1:
        raise UserError(f"--draws takes a positive number; got {draws}.")
    if options.split == "train":
        raise UserError(
            "The shots are drawn from the split train, so it cannot be judged too; take val or test."
        )
    if options.layers is not None:
        raise UserError("Features are those of the whole model, of no single layer; leave --layers out.")
    loaded = load_models(models, options)
    for model in loaded:
        if not isinstance(model.model, Featured):
            raise UserError(f"{model.name} does not say what its head reads, so nothing can be fitted to it.")
    data = choose_data(data, loaded)
    question = make_probe(KIND, loaded, data=data, view_name=CLEAN, severities=None, options=options)
    train = _training_images(data, question, split=options.split)
    chosen = choose_shots(
        train, counts=[int(count) for count in counts], draws=draws, seed=options.seed, data=data
    )
    # The classes are learnt here: those of the model do not matter.
    severities = tuple(float(count) for count in counts)
    return loaded, data, dataclasses.replace(question, severities=severities, labelled=True), chosen


def _training_images(data: str, question: Probe, *, split: str) -> Dataset:
    """Return the training images.

    Raises:
        UserError: there are none, or they or the images that are judged have no labels or not the same classes.
    """
    judged = question.dataset
    try:
        train = open_data(data, split="train")
    except UserError as error:
        raise UserError(f"The shots are drawn from the split train of {data}: {error}") from error
    for name, dataset in ((split, judged), ("train", train)):
        if dataset.class_names is None:
            raise UserError(f"{data} {name} has no labels, so there are no classes to tell apart.")
    if not (judged.labels()[list(question.indices)] >= 0).any():
        raise UserError(f"None of the images of {data} {split} has a label, so there is nothing to judge.")
    if judged.class_names != train.class_names:
        raise UserError(
            f"{data} {split} has other classes than {data} train, where the shots are drawn from."
        )
    return train
