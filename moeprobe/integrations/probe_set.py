"""The fixed inputs of a monitor: the same images or texts, and the same views of them, each time."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import CLEAN
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.inputs.data.base import Dataset, Example, ImageDataset, TextDataset, TextExample
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.inputs.modality import IMAGE
from moeprobe.inputs.open import open_view
from moeprobe.inputs.view_names import parse_view
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.probes.engine.batch_sums import load_batches
from moeprobe.probes.engine.run_spec import RunSpec, choose_images

# What is measured where nothing is named: the severity of each view, None where it makes random pairs.
VIEWS_OF_IMAGES: Mapping[str, float | None] = {"gaussian_noise": 0.1, "random_crop": None}
VIEWS_OF_TEXTS: Mapping[str, float | None] = {"typos": 0.1}

# The name or the examples of a data set.
Data = str | Dataset | Sequence[str] | Sequence[Image.Image]


@dataclass(frozen=True)
class ProbeSet:
    """Inputs with their views, made once and kept in memory.

    Attributes:
        clean: specification of the inputs alone.
        views: specification of each view, by its name.
        batches: by view (``CLEAN`` among them) the batches, in one order.
    """

    clean: RunSpec
    views: Mapping[str, RunSpec]
    batches: Mapping[str, Sequence[Batch | TextBatch]]


def make_probe_set(
    checkpoint: Checkpoint,
    data: Data,
    *,
    views: Mapping[str, float | None] | None,
    split: str,
    limit: int,
    seed: int,
    batch_size: int,
) -> ProbeSet:
    """Choose ``limit`` inputs and make their views.

    Raises:
        UserError: there are no such data or views, they do not fit the model, or an input cannot be read.
    """
    dataset = _open(data, split=split)
    modality = checkpoint.framing.modality
    if dataset.modality is not modality:
        raise UserError(
            f"The model reads {modality.plural}, and the data hold {dataset.modality.plural}; give others as data."
        )
    if views is None:
        views = VIEWS_OF_IMAGES if modality is IMAGE else VIEWS_OF_TEXTS
    if not isinstance(views, Mapping) or not all(
        isinstance(severity, int | float | None) for severity in views.values()
    ):
        raise UserError(
            f"{option('views')} takes a severity by the name of each view, or None for random pairs, e.g. "
            f"{dict(VIEWS_OF_IMAGES)}; got {views!r}."
        )
    clean = RunSpec(
        dataset=dataset,
        indices=choose_images(dataset, limit=limit, seed=seed),
        view_name=CLEAN,
        view=None,
        severities=(),
        analyses=(),
        seed=seed,
        batch_size=batch_size,
        # A training that diverges is recorded as well; inputs without finite gates are left out.
        allow_not_finite=True,
    )
    specs: dict[str, RunSpec] = {}
    for text, severity in views.items():
        spec = _with_view(clean, text, severity)
        if spec.view_name in specs:
            raise UserError(f"The view {spec.view_name!r} is named twice; its key can hold one number.")
        specs[spec.view_name] = spec
    batches = {CLEAN: list(load_batches(clean, checkpoint, clean.indices))}
    for name, spec in specs.items():
        batches[name] = list(_sharing(load_batches(spec, checkpoint, spec.indices), batches[CLEAN], spec))
    return ProbeSet(clean, specs, batches)


def _with_view(clean: RunSpec, text: str, severity: float | None) -> RunSpec:
    """Return the specification of a view; raises ``UserError`` unless it is of the data, with a severity or without."""
    name = parse_view(text).name
    view = open_view(text, dataset=clean.dataset)
    if view.modality is not clean.dataset.modality:
        raise UserError(
            f"The view {name!r} is of {view.modality.plural}; the data hold {clean.dataset.modality.plural}."
        )
    if not isinstance(view, PairView if severity is None else SeverityView):
        instead = "give a severity, e.g. 0.1" if severity is None else "give None in its place"
        makes = "no random pairs" if severity is None else "no severity"
        raise UserError(f"The view {name!r} of the monitor has {makes}; {instead}.")
    severities = () if severity is None else (float(severity),)
    return dataclasses.replace(clean, view_name=name, view=view, severities=severities)


def _sharing(
    batches: Iterator[Batch | TextBatch], clean: Sequence[Batch | TextBatch], spec: RunSpec
) -> Iterator[Batch | TextBatch]:
    """Yield batches whose reference, where that is the clean input, is the one that is in memory already."""
    for batch, clean_batch in zip(batches, clean, strict=True):
        yield (
            batch
            if spec.is_pair
            else dataclasses.replace(
                batch,
                views=[clean_batch.views[0], *batch.views[1:]],  # type: ignore[arg-type]
            )
        )


def _open(data: Data, *, split: str) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str):
        return open_data(data, split=split)
    examples = list(data)
    if examples and all(isinstance(example, str) for example in examples):
        return _Texts(examples)
    if examples and all(isinstance(example, Image.Image) for example in examples):
        return _Images(examples)
    raise UserError("The data are the name of a data set, or a list of texts or of PIL images.")


class _Texts(TextDataset):
    """Texts in memory."""

    def __init__(self, texts: Sequence[Any]) -> None:
        self._texts = texts
        self.image_ids = [f"{number:06d}" for number in range(len(texts))]
        self.class_names = None

    def example(self, index: int) -> TextExample:
        """Return text ``index``."""
        return TextExample(self._texts[index], self.image_ids[index])


class _Images(ImageDataset):
    """Images in memory."""

    def __init__(self, images: Sequence[Any]) -> None:
        self._images = images
        self.image_ids = [f"{number:06d}" for number in range(len(images))]
        self.class_names = None

    def example(self, index: int) -> Example:
        """Return image ``index``."""
        return Example(self._images[index].convert("RGB"), self.image_ids[index])
