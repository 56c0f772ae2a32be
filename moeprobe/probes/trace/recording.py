"""Run a checkpoint over the images and write the decisions of its routers, one trace file per view.

A text is recorded without the padding of its batch, with the ids of its tokens.

Axes: B images or texts of a batch, V views of each, T tokens.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moeprobe import __version__
from moeprobe.adapters.base import AnyFraming, Checkpoint
from moeprobe.declarations import CLEAN
from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.inputs.texts import TextFraming, TokenBatch
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.probes.engine.batch_sums import load_batches
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.recordings.format import metadata, writing
from moeprobe.recordings.reading import TraceFile
from moeprobe.recordings.rows import to_rows
from moeprobe.routing import finite
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.runtime.characters import exact
from moeprobe.runtime.files import is_file
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
    def moves_patches(self) -> bool:
        """Whether patches have other positions than in the reference."""
        return self.about["reference"] is not None


def recorded_views(spec: RunSpec, framing: AnyFraming, *, data: str, split: str) -> list[RecordedView]:
    """Return the views that a probe asks for, the reference first; what changes nothing is the reference itself."""
    facts = {"data": data, "split": split, "seed": spec.seed}
    framing_fields = (
        {"max_length": framing.max_length}
        if isinstance(framing, TextFraming)
        else dataclasses.asdict(framing)
    )
    source = {"data": data, "split": split} | framing_fields
    if spec.is_pair:
        assert isinstance(spec.view, PairView)
        first, second = (source | _parameters(spec) | {"side": side} for side in (1, 2))
        # In a table the pair as a whole goes by the name of the view.
        sides = (
            {"view": f"{spec.view_name}-1", "inputs": first, "reference": None},
            {"view": spec.view_name, "inputs": second, "reference": None if spec.view.aligned else first},
        )
        return [
            RecordedView(
                f"{spec.view_name}-{index + 1}", index, facts | {"aligned": spec.view.aligned} | side
            )
            for index, side in enumerate(sides)
        ]
    clean = source | {"view": CLEAN}
    views = [RecordedView(CLEAN, 0, facts | {"view": CLEAN, "inputs": clean, "reference": None})]
    if spec.view is None:
        return views
    assert isinstance(spec.view, SeverityView)
    for number, severity in enumerate(spec.severities, start=1):
        if severity != spec.view.severities[0]:
            view_facts = facts | {
                "view": spec.view_name,
                "severity": severity,
                "severity_unit": spec.view.unit,
                "inputs": source | _parameters(spec) | {"severity": severity},
                "reference": None if spec.view.aligned else clean,
                "aligned": spec.view.aligned,
            }
            views.append(RecordedView(f"{spec.view_name}-{exact(severity)}", number, view_facts))
    return views


def _parameters(spec: RunSpec) -> dict[str, Any]:
    assert spec.view is not None
    return {"view": spec.view_name, "seed": spec.seed} | {
        f"view.{name}": value
        for name, value in dataclasses.asdict(spec.view).items()  # type: ignore[call-overload]
    }


def write(
    spec: RunSpec,
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
    layers = spec.layers_of(model) or list(model.layer_names)
    skipped: list[str] = []
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(writing(folder / f"{view.name}.parquet")) for view in views]
        for batch, rows_of_views in _batches(spec, checkpoint, views, all_gates=all_gates):
            for file, rows in zip(files, rows_of_views, strict=False):
                file.write(rows)
            skipped += batch.skipped
            if progress is not None:
                progress(len(batch.image_ids) + len(batch.skipped))
        if len(skipped) == len(spec.indices):
            raise UserError(f"None of the {len(skipped)} images could be read.")
        for file, view in zip(files, views, strict=True):
            file.close(
                metadata(
                    checkpoint=about_checkpoint(checkpoint), layers=layers, skipped=skipped, **view.about
                )
            )
    return skipped


def skipped_images(
    spec: RunSpec, checkpoint: Checkpoint, folder: Path, *, views: list[RecordedView]
) -> list[str] | None:
    """Return the images skipped in the traces of a folder; None unless they are of the same images.

    A checkpoint without a hash is never taken for the one of before.
    """
    if checkpoint.provenance.get("sha256") is None:
        return None
    skipped: list[str] = []
    for view in views:
        path = folder / f"{view.name}.parquet"
        if not is_file(path):
            return None
        try:
            trace = TraceFile(path)
        except UserError:  # damaged: recorded again
            return None
        skipped = trace.about["skipped"]
        left_out = set(skipped)
        image_ids = (spec.dataset.image_ids[index] for index in spec.indices)
        same = [name for name in image_ids if name not in left_out] == trace.ids
        if (
            not same
            or trace.about["moeprobe"] != __version__
            or trace.about["checkpoint"] != about_checkpoint(checkpoint)
        ):
            return None
    return skipped


def run(spec: RunSpec, checkpoint: Checkpoint, *, views: list[RecordedView], all_gates: bool) -> None:
    """Do all that ``write`` does, but write."""
    for _ in _batches(spec, checkpoint, views, all_gates=all_gates):
        pass


def _batches(
    spec: RunSpec, checkpoint: Checkpoint, views: list[RecordedView], *, all_gates: bool
) -> Iterator[tuple[Batch | TextBatch, list[list[pa.RecordBatch]]]]:
    """Yield the batches, and for each view the rows of each layer; none of a batch without images."""
    for batch in load_batches(spec, checkpoint, spec.indices):
        rows_of_views = [
            _rows(spec, checkpoint, batch, view, all_gates=all_gates) for view in views if batch.image_ids
        ]
        yield batch, rows_of_views


def _rows(
    spec: RunSpec,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    view: RecordedView,
    *,
    all_gates: bool,
) -> list[pa.RecordBatch]:
    model = checkpoint.model
    routing = model.trace(batch.views[view.number], layers=spec.layers_of(model), logits=False)[1]
    finite.check(routing.layers, None, batch.image_ids, checkpoint=checkpoint.name)
    if isinstance(batch, TextBatch):
        return rows_of_texts(batch.image_ids, routing, batch.views[view.number], all_gates=all_gates)
    return [
        to_rows(
            batch.image_ids,
            name,
            layer,
            all_gates=all_gates,
            pairs=_pairs(batch, view, layer) if view.moves_patches else None,
        )
        for name, layer in routing.layers.items()
    ]


def _pairs(batch: Batch, view: RecordedView, layer: LayerRouting) -> geometry.Correspondence:
    assert layer.grid is not None
    return batch.correspond(view.number, layer.grid)


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


def rows_of_texts(
    names: Sequence[str],
    routing: RoutingTrace,
    texts: TokenBatch,
    *,
    all_gates: bool,
    generated: Sequence[NDArray[np.bool_]] | None = None,
    kinds: Sequence[NDArray[np.int8] | None] | None = None,
) -> list[pa.RecordBatch]:
    """Return the rows of a batch, one per layer and text.

    Args:
        names: of the B texts.
        routing: what their tokens chose.
        texts: what the model read.
        all_gates: keep every gate.
        generated: by text, ``(T,)`` which tokens were generated; None where nobody knows.
        kinds: by text, ``(T,)`` of which kind tokens are; None where no text has pictures.
    """
    ids, lengths = texts.ids.cpu().numpy().astype(np.int32), texts.present.sum(1).tolist()
    return [
        to_rows(
            [name],
            layer,
            _alone(layer_routing, row, lengths[row]),
            all_gates=all_gates,
            token_ids=ids[row, : lengths[row]],
            generated=None if generated is None else generated[row],
            kinds=None if kinds is None else kinds[row],
        )
        for layer, layer_routing in routing.layers.items()
        for row, name in enumerate(names)
    ]


def _alone(routing: LayerRouting, row: int, length: int) -> LayerRouting:
    """Return the routing of one text, without padding."""
    return routing.of_each_input(lambda value: value[row : row + 1, :length])
