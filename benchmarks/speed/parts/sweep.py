"""Whole runs of ``noise-sweep`` and ``match-ratio`` against the forward passes in them, and against a notebook.

Ours goes from JPEG files to tables and figures. The passes alone are of one batch of images in memory, as many times as
the run has batches, and no longer than they must be: up to the last router where no class scores are wanted. With
images from their files and the views of these they leave what moeprobe adds: sums, statistics, tables, figures. The
notebook is measured on some of the severities; its time is the same for each.

How quickly views are made is measured against the model, too, up to its last router, both per image and view.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch

from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.race import Contestant, Race, Target
from benchmarks.speed.sweeps import FromFiles, Matches, Notebook, Sizes, Subject, load_views
from moeprobe.inputs.modality import IMAGE
from moeprobe.inputs.open import open_view
from moeprobe.inputs.views.base import PairView
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.match_ratio import MatchRatio
from moeprobe.probes.noise_sweep import NoiseSweep
from moeprobe.runtime.catalog import VIEWS

OURS, BARE, NOTEBOOK = "moeprobe", "forward passes alone", "notebook"
FROM_FILES = "files, views and forward passes"
WITHOUT_FLOOR = "forward passes without the noise floor"
SMALL = Sizes("V-MoE-S/32", {"name": "vmoe_small_patch32_224"}, images=256, batch=32)
MANY = Sizes(
    "144 patches, 4 MoE layers",
    {
        "name": "vmoe", "image_size": 96, "patch_size": 8, "width": 192, "depth": 8, "num_heads": 3,
        "hidden_width": 768, "layers": [1, 3, 5, 7], "num_experts": 8, "top_k": 1,
    },
    images=256,
    batch=32,
)  # fmt: skip
TINY = Sizes("V-MoE-Ti/8", {"name": "vmoe_tiny_patch8_32"}, images=24, batch=8)
SIGMAS = tuple(round(0.04 * step, 2) for step in range(1, 11))
PAIR = "random_crop"
_TOLERANCE = 1e-9
_WORKERS = 2
_VIEWED = 128


class Sweep(Part):
    """Noise sweeps and match ratios from files to figures, against their forward passes; views against the model."""

    rounds: ClassVar[int] = 3

    def races(self, settings: Settings) -> Iterator[Race]:
        """Yield the races of the models, then that of the views."""
        for sizes in (TINY,) if settings.quick else (SMALL, MANY):
            with tempfile.TemporaryDirectory() as folder:
                subject = Subject(sizes, Path(folder), settings.device)
                yield _noise_sweep(subject, measured=SIGMAS[4:5])
                yield _match_ratio(subject)
        with tempfile.TemporaryDirectory() as folder:
            sizes = replace(TINY, images=TINY.batch) if settings.quick else replace(SMALL, images=_VIEWED)
            yield _views(Subject(sizes, Path(folder), settings.device), settings)


def _noise_sweep(subject: Subject, *, measured: tuple[float, ...]) -> Race:
    """Return the race of a sweep; ``measured`` are the severities that the notebook does."""
    passes, times = 1 + len(SIGMAS), subject.num_batches

    def ours() -> dict[float, Matches]:
        table = subject.ask(NoiseSweep(severities=SIGMAS)).table
        return {sigma: _matches(table[table["severity"] == sigma]) for sigma in measured}

    def bare(*, floor: bool) -> None:
        for _ in range(passes):
            subject.whole()
        if floor:
            subject.floor()

    notebook = partial(Notebook(subject).sweep, measured)
    return Race(
        f"noise-sweep, {len(SIGMAS)} levels, {_said(subject)}",
        [
            Contestant(OURS, ours, "ours"),
            Contestant(NOTEBOOK, notebook, scale=len(SIGMAS) / len(measured)),
            Contestant(BARE, partial(bare, floor=True), "limit", scale=times),
            Contestant(FROM_FILES, partial(FromFiles(subject).sweep, SIGMAS), "limit"),
            Contestant(WITHOUT_FLOOR, partial(bare, floor=False), "limit", scale=times),
        ],
        tolerance=_TOLERANCE,
        targets=_targets(),
        items=subject.sizes.images,
    )


def _match_ratio(subject: Subject) -> Race:
    def ours() -> Matches:
        return _matches(subject.ask(MatchRatio(view=PAIR)).table)

    def bare() -> None:
        for _ in range(2):
            subject.routed()

    return Race(
        f"match-ratio, {_said(subject)}",
        [
            Contestant(OURS, ours, "ours"),
            Contestant(NOTEBOOK, partial(Notebook(subject).match_ratio, PAIR)),
            Contestant(BARE, bare, "limit", scale=subject.num_batches),
            Contestant(FROM_FILES, partial(FromFiles(subject).match_ratio, PAIR), "limit"),
        ],
        tolerance=_TOLERANCE,
        targets=_targets(),
        items=subject.sizes.images,
    )


def _views(subject: Subject, settings: Settings) -> Race:
    """Return how long views take in two processes, per image and view, against the model's way to its last router."""
    # The CPU's seconds are those of all processes and threads, one after the other.
    cpu = settings.clock == "cpu"
    contestants = []
    for name in VIEWS.names():
        # The files of the subject carry neither masks nor a second picture.
        if VIEWS.get(name).modality is IMAGE and not VIEWS.get(name).needs:
            spec = _spec(name, subject)
            made = subject.sizes.images * _num_views(spec)
            share = 1 / (made * (_WORKERS if cpu else 1))
            work = partial(load_views, spec, subject, workers=_WORKERS)
            contestants.append(Contestant(name, work, "ours", scale=share))
    limit = 1 / (subject.sizes.batch * (torch.get_num_threads() if cpu else 1))
    return Race(
        f"views in {_WORKERS} processes and their correspondence, per view of {subject.framing.size} pixels",
        [*contestants, Contestant(subject.sizes.name, subject.routed, "limit", scale=limit)],
        tolerance=None,
        targets=[Target(one.name, subject.sizes.name, at_most=1.0) for one in contestants],
        against=subject.sizes.name,
        items=1,
    )


def _spec(name: str, subject: Subject) -> RunSpec:
    view = open_view(name, dataset=subject.data)
    severities = () if isinstance(view, PairView) else view.severities[1:]
    return RunSpec(subject.data, range(len(subject.data)), name, view, severities, analyses=(), seed=0)


def _num_views(spec: RunSpec) -> int:
    return 2 if spec.is_pair else 1 + len(spec.severities)


def _matches(table: pd.DataFrame) -> Matches:
    """Return layer -> match of the patches."""
    rows = table[(table["metric"] == "top1_match") & (table["null"] == "") & (table["tokens"] == "patch")]
    return dict(zip(rows["layer"], rows["value"].astype(float), strict=True))


def _targets() -> list[Target]:
    return [
        Target(OURS, BARE, at_least=0.93),
        Target(OURS, FROM_FILES, at_least=0.93),
        Target(OURS, NOTEBOOK, at_least=1.5),
    ]


def _said(subject: Subject) -> str:
    return f"{subject.sizes.images} images, {subject.sizes.name}"
