"""Run a checkpoint over the images and write the decisions of its routers, one trace file per view.

Axes: B images of a batch, V views of each.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from moeprobe import __version__
from moeprobe.adapters.base import AnyFraming, Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.batches import Batch
from moeprobe.inputs.text_batches import TextBatch
from moeprobe.inputs.texts import TextFraming
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.probes.base import CLEAN
from moeprobe.probes.engine.blocks import loaded
from moeprobe.probes.engine.question import Question
from moeprobe.probes.trace.texts import rows_of_texts
from moeprobe.routing import finite
from moeprobe.routing.record import LayerRouting
from moeprobe.routing.traces.format import metadata, writing
from moeprobe.routing.traces.reading import TraceFile
from moeprobe.routing.traces.rows import to_rows
from moeprobe.runtime.characters import exact
from moeprobe.runtime.progress import Advance


@dataclass(frozen=True)
class RecordedView:
    """One view of the images, which gets a file of its own.

    Attributes:
        name: of the file, without its ending.
        number: of the view in a batch; 0 is the reference.
        about: what the file's metadata say of it.
    """

    name: str
    number: int
    about: Mapping[str, Any]

    @property
    def moved(self) -> bool:
        """Whether patches have other positions than in the reference."""
        return self.about["reference"] is not None


def recorded_views(question: Question, framing: AnyFraming, *, data: str, split: str) -> list[RecordedView]:
    """Return the views that a probe asks for, the reference first; what changes nothing is the reference itself."""
    named = {"data": data, "split": split, "seed": question.seed}
    shown = (
        {"max_length": framing.max_length}
        if isinstance(framing, TextFraming)
        else dataclasses.asdict(framing)
    )
    source = {"data": data, "split": split} | shown
    if question.is_pair:
        assert isinstance(question.view, PairView)
        drawn = source | _parameters(question)
        first, second = drawn | {"side": 1}, drawn | {"side": 2}
        both: dict[str, Any] = named | {"aligned": question.view.aligned}
        # In a table the pair as a whole goes by the name of the view.
        one = RecordedView(
            f"{question.view_name}-1",
            0,
            both | {"view": f"{question.view_name}-1", "inputs": first, "reference": None},
        )
        reference = None if question.view.aligned else first
        two = RecordedView(
            f"{question.view_name}-2",
            1,
            both | {"view": question.view_name, "inputs": second, "reference": reference},
        )
        return [one, two]
    clean = source | {"view": CLEAN}
    views = [RecordedView(CLEAN, 0, named | {"view": CLEAN, "inputs": clean, "reference": None})]
    if question.view is None:
        return views
    assert isinstance(question.view, SeverityView)
    for number, severity in enumerate(question.severities, start=1):
        if severity != question.view.severities[0]:
            about = named | {
                "view": question.view_name,
                "severity": severity,
                "severity_unit": question.view.unit,
                "inputs": source | _parameters(question) | {"severity": severity},
                "reference": None if question.view.aligned else clean,
                "aligned": question.view.aligned,
            }
            views.append(RecordedView(f"{question.view_name}-{exact(severity)}", number, about))
    return views


def _parameters(question: Question) -> dict[str, Any]:
    assert question.view is not None
    return {"view": question.view_name, "seed": question.seed} | {
        f"view.{name}": value
        for name, value in dataclasses.asdict(question.view).items()  # type: ignore[call-overload]
    }


def write(
    question: Question,
    checkpoint: Checkpoint,
    folder: Path,
    *,
    views: list[RecordedView],
    all_gates: bool,
    progress: Advance | None = None,
) -> list[str]:
    """Write a trace per view into ``folder``; returns the names of the images that could not be read.

    Raises:
        UserError: a file cannot be written, or an image cannot be read and is not to be skipped, or none can.
    """
    model = checkpoint.model
    layers = question.layers_of(model) or list(model.layer_names)
    skipped: list[str] = []
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(writing(folder / f"{view.name}.parquet")) for view in views]
        for batch, rows_of_views in _batches(question, checkpoint, views, all_gates=all_gates):
            for file, rows in zip(files, rows_of_views, strict=False):
                file.write(rows)
            skipped += batch.skipped
            if progress is not None:
                progress(len(batch.image_ids) + len(batch.skipped))
        if len(skipped) == len(question.indices):
            raise UserError(f"None of the {len(skipped)} images could be read.")
        for file, view in zip(files, views, strict=True):
            file.close(
                metadata(
                    checkpoint=about_checkpoint(checkpoint), layers=layers, skipped=skipped, **view.about
                )
            )
    return skipped


def kept(
    question: Question, checkpoint: Checkpoint, folder: Path, *, views: list[RecordedView]
) -> list[str] | None:
    """Return the images skipped in the traces of a folder; None unless they are of the same images.

    A checkpoint without a hash is never taken for the one of before.
    """
    if checkpoint.provenance.get("sha256") is None:
        return None
    skipped: list[str] = []
    for view in views:
        path = folder / f"{view.name}.parquet"
        if not path.is_file():
            return None
        try:
            trace = TraceFile(path)
        except UserError:  # damaged: recorded again
            return None
        skipped = trace.about["skipped"]
        wanted = [question.dataset.image_ids[index] for index in question.indices]
        same = [name for name in wanted if name not in set(skipped)] == trace.ids
        if (
            not same
            or trace.about["moeprobe"] != __version__
            or trace.about["checkpoint"] != about_checkpoint(checkpoint)
        ):
            return None
    return skipped


def run(question: Question, checkpoint: Checkpoint, *, views: list[RecordedView], all_gates: bool) -> None:
    """Do all that ``write`` does, but write."""
    for _ in _batches(question, checkpoint, views, all_gates=all_gates):
        pass


def _batches(
    question: Question, checkpoint: Checkpoint, views: list[RecordedView], *, all_gates: bool
) -> Iterator[tuple[Batch | TextBatch, list[list[pa.RecordBatch]]]]:
    """Yield the batches, and for each view the rows of each layer; none of a batch without images."""
    for batch in loaded(question, checkpoint, question.indices):
        rows_of_views = [
            _rows(question, checkpoint, batch, view, all_gates=all_gates) for view in views if batch.image_ids
        ]
        yield batch, rows_of_views


def _rows(
    question: Question,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    view: RecordedView,
    *,
    all_gates: bool,
) -> list[pa.RecordBatch]:
    model = checkpoint.model
    routing = model.trace(batch.views[view.number], layers=question.layers_of(model), logits=False)[1]
    finite.check(routing.layers, None, batch.image_ids, checkpoint=checkpoint.name)
    if isinstance(batch, TextBatch):
        return rows_of_texts(batch.image_ids, routing, batch.views[view.number], all_gates=all_gates)
    return [
        to_rows(
            batch.image_ids,
            name,
            layer,
            all_gates=all_gates,
            pairs=_pairs(batch, view, layer) if view.moved else None,
        )
        for name, layer in routing.layers.items()
    ]


def _pairs(batch: Batch, view: RecordedView, layer: LayerRouting) -> geometry.Correspondence:
    assert layer.grid is not None
    maps = (batch.to_source[0], batch.to_source[view.number])
    return geometry.correspond(*maps, grid=layer.grid, source_size=batch.source_size)


def about_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a trace says of its checkpoint: nothing that differs from one machine to another."""
    origin = checkpoint.provenance
    return {
        "name": checkpoint.name,
        "sha256": origin.get("sha256"),
        "capacity": origin.get("capacity"),
        "group_images": checkpoint.model.group_images,
        "seed": checkpoint.train_seed,
        "group": checkpoint.group,
    }
