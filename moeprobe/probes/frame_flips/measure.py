"""The work of ``frames``: each clip is traced once, and its frames are compared with partners.

Sums are of whole clips, which are the sample: the frames of a clip are no independent images. Axes: F frames.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.inputs.data.readers.clips import Clips
from moeprobe.metrics.base import LayerAnalysis, OutputPair, trial_lists
from moeprobe.probes.engine.batch_sums import load_batches, sums_of_layer, sums_of_output, to_host
from moeprobe.probes.engine.loop import RunBlock
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.models import clean_inputs
from moeprobe.probes.engine.run_spec import RunSpec, choose_images
from moeprobe.probes.engine.shard import BlockSizes
from moeprobe.probes.frame_flips import BEFORE, FIRST, OTHER, FrameFlips
from moeprobe.results.folder import Result
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.routing.correspondence import settle
from moeprobe.routing.record import LayerPair, RoutingTrace, join_batches
from moeprobe.runtime.progress import Advance

# Clips of a part file.
_BLOCK_CLIPS = 64


class ClipSet(ImageDataset):
    """The clips of a data set as its members, so that samples and intervals are of clips."""

    def __init__(self, frames: Clips) -> None:
        self.frames = frames
        self.image_ids = list(frames.clip_names)
        self.class_names = frames.class_names

    def example(self, index: int) -> Example:
        """Return the first frame of a clip."""
        return self.frames.example(self.frames.clips[index].start)


@dataclasses.dataclass(frozen=True)
class TracedClip:
    """A clip that was run: names and labels of its frames, their class scores ``(F, classes)``, and their routing."""

    frame_ids: list[str]
    labels: Tensor
    scores: Tensor | None
    routing: RoutingTrace


class FramesMeasurement(Measurement[Result]):
    """Passes over clips, each frame compared with partners."""

    probe: FrameFlips
    in_place = True

    def make_spec(self) -> RunSpec:
        """Return the run specification, whose images are clips.

        Raises:
            UserError: the data hold no clips, or one of a single frame.
        """
        spec = super().make_spec()
        frames = spec.dataset
        self.probe.check_data(type(frames), self.data)
        assert isinstance(frames, Clips)
        short = [name for name, clip in zip(frames.clip_names, frames.clips, strict=True) if len(clip) < 2]
        if short:
            raise UserError(f"The clip {short[0]!r} has a single frame, so nothing follows it; remove it.")
        clips = ClipSet(frames)
        indices = choose_images(clips, limit=self.options.limit, seed=self.options.seed)
        return dataclasses.replace(spec, dataset=clips, indices=indices)

    def floor_inputs(self, model: Checkpoint) -> Iterable[Any]:
        """Return the first frame of each of the first clips: the sampling unit is a clip."""
        assert isinstance(self.spec.dataset, ClipSet)
        frames, count = self.spec.dataset.frames, self.options.floor_images
        first_frames = [frames.clips[index][0] for index in self.spec.indices[:count]]
        spec = dataclasses.replace(self.spec, dataset=frames, indices=first_frames)
        return clean_inputs(spec, model, count)

    def block_sizes(self, model: Checkpoint) -> BlockSizes:
        """Return how clips are cut into part files and shards."""
        return BlockSizes(block=_BLOCK_CLIPS, batch=1)

    @property
    def sample_images(self) -> int:
        """Two clips: one, and another one."""
        return 2

    @property
    def passes(self) -> int:
        """Forward passes per clip: its frames."""
        assert isinstance(self.spec.dataset, ClipSet)
        clips = self.spec.dataset.frames.clips
        return round(sum(len(clips[index]) for index in self.spec.indices) / len(self.spec.indices))

    def run_block(self, spec: RunSpec, model: Checkpoint) -> RunBlock:
        """Return what runs the clips of a block."""
        return partial(_run_block, partners=_other_clips(spec.indices))


def _other_clips(indices: Sequence[int]) -> Mapping[int, int]:
    """Return another clip for each: the next one of the run, whatever part of it is run; none of a single clip."""
    following = [*indices[1:], *indices[:1]]
    return dict(zip(indices, following, strict=True)) if len(indices) > 1 else {}


def _run_block(
    spec: RunSpec,
    checkpoint: Checkpoint,
    block: Sequence[int],
    progress: Advance | None,
    *,
    partners: Mapping[int, int],
) -> tuple[Accumulator, list[str]]:
    """Return the sums per clip of some clips."""
    assert isinstance(spec.dataset, ClipSet)
    accumulator = Accumulator()
    most_frames = max(len(spec.dataset.frames.clips[index]) for index in spec.indices)
    traced: dict[int, TracedClip] = {}
    for index in block:
        # A clip is another one's other clip, and then its own turn comes.
        needed = dict.fromkeys([index, *([partners[index]] if partners else [])])
        traced = {each: traced.get(each) or _trace(spec, checkpoint, each) for each in needed}
        clip, count = traced[index], len(traced[index].frame_ids)
        comparisons = {
            BEFORE: (clip, np.arange(count - 1), np.arange(1, count)),
            FIRST: (clip, np.zeros(count - 1, int), np.arange(1, count)),
        }
        if partners:
            num_shared = min(count, len(traced[partners[index]].frame_ids))
            comparisons[OTHER] = (traced[partners[index]], np.arange(num_shared), np.arange(num_shared))
        name = spec.dataset.image_ids[index]
        for view, (reference, reference_frames, frames) in comparisons.items():
            of_frames = Accumulator()
            frame_ids = [clip.frame_ids[frame] for frame in frames]
            sums = _sums(spec, checkpoint, reference, clip, reference_frames, frames)
            for cell, columns in sums.items():
                labels = {"label": clip.labels.numpy()[frames]}
                arrays = {column: to_host(values) for column, values in columns.items()}
                of_frames.add(dataclasses.replace(cell, view=view), frame_ids, labels | arrays)
            lists = trial_lists(spec.analyses)
            of_clip = of_frames.by_cluster(dict.fromkeys(frame_ids, name), lists=lists, size=most_frames)
            accumulator = accumulator.merge(of_clip)
        if progress is not None:
            progress(1)
    return accumulator, []


def _trace(spec: RunSpec, checkpoint: Checkpoint, index: int) -> TracedClip:
    """Run the frames of a clip.

    Raises:
        UserError: a frame cannot be read; clips with holes are not compared.
    """
    assert isinstance(spec.dataset, ClipSet)
    frames = spec.dataset.frames
    of_frames = dataclasses.replace(spec, dataset=frames, skip_bad_images=False)
    frame_ids, labels, scores, parts = list[str](), [], [], []
    for batch in load_batches(of_frames, checkpoint, frames.clips[index]):
        logits, routing = checkpoint.model.trace(
            batch.views[0], layers=spec.layers_of(checkpoint.model), logits=spec.of_output
        )
        frame_ids += batch.image_ids
        labels.append(batch.labels)
        parts.append(routing)
        if logits is not None:
            scores.append(logits)
    return TracedClip(
        frame_ids, torch.cat(labels), torch.cat(scores) if scores else None, join_batches(parts)
    )


def _sums(
    spec: RunSpec,
    checkpoint: Checkpoint,
    reference: TracedClip,
    view: TracedClip,
    reference_frames: np.ndarray,
    frames: np.ndarray,
) -> dict[Cell, dict[str, Tensor]]:
    """Return the sums of frames of one clip against frames of the same or another one, pair by pair."""
    before, after = torch.from_numpy(reference_frames), torch.from_numpy(frames)
    analyses = [analysis for analysis in spec.analyses if isinstance(analysis, LayerAnalysis)]
    names = [view.frame_ids[frame] for frame in frames]
    sums: dict[Cell, dict[str, Tensor]] = {}
    for layer, routing in view.routing.layers.items():
        assert routing.grid is not None
        patches = torch.arange(routing.grid.num_patches, device=routing.gates.device).expand(len(frames), -1)
        pair = LayerPair(
            reference.routing.layers[layer].of_each_input(_taking(before)),
            routing.of_each_input(_taking(after)),
            patches,
            patches,
            aligned=True,
        )
        pair, left_out = settle(
            pair, names, checkpoint=checkpoint.name, layer=layer, allow=spec.allow_not_finite
        )
        label = spec.label_of(checkpoint.model, layer)
        for cell, columns in sums_of_layer(analyses, label, pair).items():
            sums[cell] = columns | left_out
    if view.scores is not None and reference.scores is not None:
        labels = view.labels if spec.labeled else torch.full_like(view.labels, -1)
        outputs = OutputPair(
            reference.scores[before.to(view.scores.device)],
            view.scores[after.to(view.scores.device)],
            labels[after].to(view.scores.device),
        )
        sums[Cell()] = sums_of_output(spec, outputs, names, checkpoint=checkpoint.name)
    return sums


def _taking(rows: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda values: values[rows.to(values.device)]
