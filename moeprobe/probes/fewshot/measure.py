"""The work of ``fewshot``: which training images are shown, their features, and the regressions that are judged.

Every checkpoint is shown the same images: they belong to (seed, class, draw) and the images' names. The shots of a
draw are nested, five of them among the ten.

Axes: B images, C classes, S most shots, H held-out images of a class, D features.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch
from moeprobe.inputs.data.base import Dataset
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.metrics.base import OutputAnalysis, OutputPair
from moeprobe.metrics.stats.statistic import Array
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.batch_sums import load_batches, readable_batches
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run import Plan, time_sample
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.fewshot import Fewshot
from moeprobe.probes.fewshot.ridge import STRENGTHS, Classifier, Ridge, choose_strength
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.stored import SumsStore
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.routing.capabilities import Featured
from moeprobe.runtime.progress import Advance
from moeprobe.runtime.seeds import generator

_L2 = f"powers of 2 from {STRENGTHS[0]:g} to {STRENGTHS[-1]:g}"
# How the strength is chosen, and what the released program does otherwise; for the record of every run.
_RULE = (
    "highest accuracy on {on}, then least squared error; the released program takes the strength that is best on the "
    "test images"
)
# Images of each class that choose the strength, where there are as many.
HELD_OUT = 10

# (shots, draw) -> classifier or strength of its penalty; draws count from 1.
Cases = tuple[int, int]


@dataclass(frozen=True)
class Shots:
    """Which training images are shown.

    Attributes:
        train: the training images.
        counts: shots that are asked for, e.g. (1, 5, 10).
        drawn: ``(draws, C, S)`` images of each draw; its first N of each class are the N shots.
        held_out: ``(C, H)`` images that are in no draw; H = 0 where the smallest class leaves none.
        indices: all of them, each once, in an order that the seed fixes (neighbors may compete for a capacity).
    """

    train: Dataset
    counts: tuple[int, ...]
    drawn: NDArray[np.int64]
    held_out: NDArray[np.int64]
    indices: list[int]

    @property
    def cases(self) -> list[Cases]:
        """Every (shots, draw)."""
        return [(count, draw) for count in self.counts for draw in range(1, len(self.drawn) + 1)]

    def images_of(self, count: int, draw: int) -> NDArray[np.int64]:
        """Return the images ``(C · count,)`` of a draw."""
        return self.drawn[draw - 1, :, :count].ravel()


class FewshotMeasurement(Measurement[Result]):
    """Ridge regressions on the frozen features of a few training images per class."""

    probe: Fewshot

    def check_models(self) -> None:
        """Raise ``UserError`` unless the models have features."""
        for model in self.models:
            if not isinstance(model.model, Featured):
                raise UserError(
                    f"{model.name} does not say what its head reads, so nothing can be fitted to it."
                )

    def make_spec(self) -> RunSpec:
        """Return the run specification for the test images; it also selects the training images.

        Raises:
            UserError: there are no labels, or a class has too few training images.
        """
        spec, split = super().make_spec(), self.options.split
        self._strengths: dict[str, dict[Cases, float]] = {}
        self._shots = choose_shots(
            _training_images(self.data, spec, split=split),
            counts=[int(count) for count in self.probe.shots],
            draws=self.probe.draws,
            seed=self.options.seed,
            data=self.data,
        )
        # The classes are learned here: those of the model do not matter.
        # Shots stand in the column of severities: more images make the task easier, step by step.
        severities = tuple(float(count) for count in self.probe.shots)
        return dataclasses.replace(spec, severities=severities, labeled=True)

    def make_request(self) -> dict[str, Any]:
        """Return everything that the numbers depend on, including the choice of strengths."""
        # The rule that chooses a strength changes the numbers, so it belongs to the request.
        return super().make_request() | {"held_out_per_class": self._held_out, "l2_strengths": _L2}

    def run(
        self,
        spec: RunSpec,
        model: Checkpoint,
        *,
        parts: Path | None = None,
        progress: Advance | None = None,
    ) -> tuple[SumsStore, list[str]]:
        """Return the sums of the judged images; the chosen strengths are kept."""
        table, skipped, self._strengths[model.name] = judge(
            spec, model, shots=self._shots, parts=parts, progress=progress
        )
        return table, skipped

    @property
    def more_images(self) -> int:
        """The training images."""
        return len(self._shots.indices)

    def plan(self) -> Plan:
        """Return what the features would take; the regressions are not in it."""
        plan = time_sample(self.spec, self.models, images=self.sample_images, passes=1, run=_features)
        # Features of the training images cost as much as those of the judged ones.
        return plan.scale_to(plan.images + self.more_images)

    def finish(self, result: Result, folder: OutputFolder | None) -> Result:
        """Record which strengths were chosen, and by what."""
        held_out = self._held_out
        on = (
            f"{held_out} training images of each class that are in no draw"
            if held_out
            else "each shot left out in turn"
        )
        result.sidecar.update(
            severity_unit="training images per class",
            training_images=self.more_images,
            l2_chosen_by=_RULE.format(on=on),
            l2_chosen={
                name: {
                    count: [strengths[count, draw] for draw in range(1, self.probe.draws + 1)]
                    for count in self._shots.counts
                }
                for name, strengths in self._strengths.items()
            },
        )
        return result

    def data_warnings(self) -> dict[str, str]:
        """Return nothing: few-shot classifiers are for data that the model has not seen."""
        return {}

    @property
    def _held_out(self) -> int:
        return int(self._shots.held_out.shape[1])


def _features(spec: RunSpec, model: Checkpoint) -> tuple[SumsStore, list[str]]:
    return loop.run(spec, model, run_block=features_block)


def _training_images(data: str, spec: RunSpec, *, split: str) -> Dataset:
    """Return the training images.

    Raises:
        UserError: there are none, or they or the images that are judged have no labels or not the same classes.
    """
    judged = spec.dataset
    try:
        train = open_data(data, split="train")
    except UserError as error:
        raise UserError(f"The shots are drawn from the split train of {data}: {error}") from error
    for name, dataset in ((split, judged), ("train", train)):
        if dataset.class_names is None:
            raise UserError(f"{data} {name} has no labels, so there are no classes to tell apart.")
    if not (judged.labels()[list(spec.indices)] >= 0).any():
        raise UserError(f"None of the images of {data} {split} has a label, so there is nothing to judge.")
    if judged.class_names != train.class_names:
        raise UserError(
            f"{data} {split} has other classes than {data} train, where the shots are drawn from."
        )
    return train


def choose_shots(train: Dataset, *, counts: Sequence[int], draws: int, seed: int, data: str) -> Shots:
    """Choose the training images of every draw, and those that are held out of all of them.

    Up to ``HELD_OUT`` images of each class are held out: as many as remain of the smallest class after its shots.

    Raises:
        UserError: a class has fewer images than shots, or none is left where a single shot needs one.
    """
    assert train.class_names is not None
    most_shots, labels = max(counts), train.labels()
    names = np.asarray(train.image_ids)
    # In the order of the names, so that adding an image elsewhere changes no draw.
    by_name = np.argsort(names, kind="stable")
    members = [by_name[labels[by_name] == label] for label in range(len(train.class_names))]
    smallest = min(range(len(members)), key=lambda label: len(members[label]))
    num_spare = len(members[smallest]) - most_shots
    if num_spare < 0 or (num_spare == 0 and min(counts) == 1):
        raise UserError(_too_few(train.class_names[smallest], len(members[smallest]), counts, data))
    shot_images, held_out = [], []
    for name, class_images in zip(train.class_names, members, strict=True):
        held_out_images = generator(seed, "held-out images", name).permutation(class_images)[
            : min(num_spare, HELD_OUT)
        ]
        candidates = class_images[~np.isin(class_images, held_out_images)]
        held_out.append(held_out_images)
        shot_images.append(
            [
                generator(seed, "few shots", name, draw).permutation(candidates)[:most_shots]
                for draw in range(draws)
            ]
        )
    needed = np.concatenate([np.ravel(shot_images), np.ravel(held_out)])
    order = generator(seed, "order of the shots").permutation(by_name[np.isin(by_name, needed)])
    return Shots(
        train=train,
        counts=tuple(counts),
        drawn=np.swapaxes(np.array(shot_images), 0, 1),
        held_out=np.array(held_out),
        indices=order.tolist(),
    )


def _too_few(name: str, images: int, counts: Sequence[int], data: str) -> str:
    """Return the problem with the smallest class, and the remedy."""
    most_shots = max(counts)
    has = f"The class {name!r} has {images} image{'' if images == 1 else 's'} in {data} train"
    if images < most_shots:
        remedy = f"ask for at most {option('shots', images)}" if images else "give it some"
        return f"{has}, fewer than the {most_shots} shot{'' if most_shots == 1 else 's'} requested; {remedy}."
    remedy = (
        f"ask for at most {option('shots', most_shots - 1)}" if most_shots > 1 else "give it a second one"
    )
    return f"{has}, all of them shots, so none remains to choose the penalty of 1 shot; {remedy}."


def judge(
    spec: RunSpec,
    checkpoint: Checkpoint,
    *,
    shots: Shots,
    parts: Path | None = None,
    progress: Advance | None = None,
) -> tuple[SumsStore, list[str], dict[Cases, float]]:
    """Fit the classifiers of one checkpoint and judge them on the images of the run.

    Training images that were drawn must be readable, whatever the probe says of the others.

    Returns:
        The sums per image, the names of the images that could not be read, and the strength of each case.
    """
    # Each shard has them all.
    training = dataclasses.replace(
        spec,
        dataset=shots.train,
        indices=shots.indices,
        # A missing training image would change the classifier of every image.
        skip_bad_images=False,
        shard=None,
        shards=tuple(folder / "training" for folder in spec.shards[:1]),
    )
    table, _ = loop.run(
        training,
        checkpoint,
        parts=None if parts is None else parts / "training",
        progress=progress,
        run_block=features_block,
    )
    strengths, classifiers = _fit(shots, table)
    block = partial(_judge_block, classifiers=classifiers)
    judged, skipped = loop.run(spec, checkpoint, parts=parts, progress=progress, run_block=block)
    return judged, skipped, strengths


def features_block(
    spec: RunSpec, checkpoint: Checkpoint, block: Sequence[int], progress: Advance | None
) -> tuple[Accumulator, list[str]]:
    """Return labels and features ``(B, D)`` of some images, and the names of those that could not be read."""
    accumulator, skipped = Accumulator(), list[str]()
    for batch, features in batch_features(spec, checkpoint, block, skipped, progress):
        accumulator.add(Cell(), batch.image_ids, {"label": batch.labels.numpy(), "features": features})
    return accumulator, skipped


def batch_features(
    spec: RunSpec,
    checkpoint: Checkpoint,
    block: Sequence[int],
    skipped: list[str],
    progress: Advance | None,
) -> Iterator[tuple[Batch, Array]]:
    """Yield batches with their features ``(B, D)``; names of images that could not be read go to ``skipped``.

    Raises:
        UserError: a feature is no number.
    """
    assert isinstance(checkpoint.model, Featured)
    for batch in readable_batches(load_batches(spec, checkpoint, block), skipped, progress):
        # In double precision: normal equations square the condition of the features.
        features = checkpoint.model.features(batch.views[0]).cpu().double().numpy()
        if not np.isfinite(features).all():
            raise UserError(
                f"{checkpoint.name} gives features that are no numbers, so nothing can be fitted to them; "
                "was its training sound?"
            )
        yield batch, features


def _fit(shots: Shots, table: SumsStore) -> tuple[dict[Cases, float], dict[Cases, Classifier]]:
    """Return the strength and the classifier of every case, from the features of the training images."""
    (stored,) = table
    names, columns = stored.load_all()
    row_of = {name: row for row, name in enumerate(names)}

    def rows(images: NDArray[np.int64]) -> list[int]:
        return [row_of[shots.train.image_ids[index]] for index in images.ravel().tolist()]

    labels, features = columns["label"].astype(np.int64), columns["features"].astype(np.float64)
    num_classes, held_out = shots.drawn.shape[1], rows(shots.held_out)
    strengths: dict[Cases, float] = {}
    classifiers: dict[Cases, Classifier] = {}
    for case in shots.cases:
        row_numbers = rows(shots.images_of(*case))
        ridge = Ridge(features[row_numbers], labels[row_numbers], num_classes=num_classes)
        if held_out:
            strengths[case] = choose_strength(ridge.along(features[held_out]), labels[held_out])
        else:
            strengths[case] = choose_strength(ridge.left_out(), labels[row_numbers])
        classifiers[case] = ridge.classifier(strengths[case])
    return strengths, classifiers


def _judge_block(
    spec: RunSpec,
    checkpoint: Checkpoint,
    block: Sequence[int],
    progress: Advance | None,
    *,
    classifiers: Mapping[Cases, Classifier],
) -> tuple[Accumulator, list[str]]:
    """Return the sums per image of some images, a cell per case; see ``engine.loop.run``."""
    accumulator, skipped = Accumulator(), list[str]()
    for batch, features in batch_features(spec, checkpoint, block, skipped, progress):
        for (count, draw), classifier in classifiers.items():
            pair = OutputPair(None, torch.from_numpy(classifier.scores(features)), batch.labels)
            columns = {"label": batch.labels.numpy()}
            for analysis in spec.analyses:
                assert isinstance(analysis, OutputAnalysis)
                columns |= {name: column.numpy() for name, column in analysis.sums(pair).items()}
            cell = Cell(view=spec.view_name, severity=float(count), draw=draw)
            accumulator.add(cell, batch.image_ids, columns)
    return accumulator, skipped
