"""What the paper's tables and figures are made of: which checkpoints, which probes, and where they are kept."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from moeprobe.adapters.base import Checkpoint, Model
from moeprobe.errors import UserError
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.probes.base import Probe
from moeprobe.probes.confidence import Confidence
from moeprobe.probes.engine.applicability import check_images, routing_of_blank_input
from moeprobe.probes.engine.models import load_models
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.origins import choose_data
from moeprobe.probes.evaluate import Evaluate
from moeprobe.probes.match_ratio import MatchRatio
from moeprobe.probes.noise_sweep import NoiseSweep
from moeprobe.results.folder import FinishedError, Result
from moeprobe.routing.capabilities import refusal_to_replay
from moeprobe.studies.paper import numbers

T = TypeVar("T")
# Folder of a probe -> the probe, and what ``numbers.NUMBERS`` calls it.
PROBES: dict[str, tuple[Probe[Result], str]] = {
    "match-ratio": (MatchRatio(), "random_crop"),
    "match-ratio-prc-crops": (MatchRatio(view="prc_crops"), "prc_crops"),
    "confidence": (Confidence(), "confidence"),
    "noise-sweep": (NoiseSweep(), "noise"),
    "eval": (Evaluate(), numbers.EVALUATION),
}


@dataclass(frozen=True)
class Job:
    """What is to be made: pairs of checkpoints, what the tables call the two of a pair, and the data."""

    pairs: list[tuple[Checkpoint, Checkpoint]]
    names: tuple[str, str]
    data: str
    options: Options
    labeled: bool
    replayable: bool

    @property
    def probes(self) -> dict[str, tuple[Probe[Result], str]]:
        """The probes that there are for these models and data."""
        return {
            name: (self._attributed(probe), number)
            for name, (probe, number) in PROBES.items()
            if self.labeled or not probe.labels_required
        }

    def _attributed(self, probe: Probe[Result]) -> Probe[Result]:
        """Return a sweep that says what of the change is switching, where the models can tell."""
        attributes = isinstance(probe, NoiseSweep) and self.replayable
        return dataclasses.replace(probe, attribute=True) if attributes else probe  # type: ignore[call-arg]

    @property
    def hashed(self) -> bool:
        """Whether the first pair can be recognized; a checkpoint without a hash is never taken for that of before."""
        return all(model.provenance.get("sha256") is not None for model in self.pairs[0])

    @property
    def notes(self) -> list[str]:
        """What is left out, in sentences."""
        notes = []
        if not self.labeled:
            notes.append(f"No accuracy: {self.data} has no labels of the models' classes.")
        if not self.replayable:
            notes.append("No jumps and no attribution: a model cannot replay a routing.")
        return notes


def make_job(
    models: Sequence[Model], *, data: str | None, names: Sequence[str] | None, options: Options
) -> Job:
    """Return what is to be made, checked before anything is run."""
    if len(models) < 2 or len(models) % 2:
        raise UserError(
            "The paper compares pairs: name a reference and a checkpoint to compare with it (and more such pairs); "
            f"got {len(models)} checkpoint{'s' if len(models) != 1 else ''}."
        )
    if names is not None and (len(names) != 2 or len(set(names)) < 2):
        raise UserError(f"--names takes two different names, for the two of a pair; got {', '.join(names)}.")
    loaded = load_models(models, options)
    check_images(loaded, "the paper's tables and figures cannot be made")
    for model in loaded:
        for layer in routing_of_blank_input(model, options.layers):
            if not layer.tokens_choose:
                raise UserError(
                    f"The paper's tables are of routers whose tokens choose experts, and {model.name} has "
                    f"{layer.router}; use match-ratio or sweep, which measure any."
                )
    data = choose_data(data, loaded)
    classes = open_data(data, split=options.split).class_names
    pairs = list(zip(loaded[::2], loaded[1::2], strict=True))
    return Job(
        pairs=pairs,
        names=(names[0], names[1]) if names is not None else (pairs[0][0].name, pairs[0][1].name),
        data=data,
        options=options,
        labeled=all(bool(model.class_names) and model.class_names == classes for model in loaded),
        replayable=all(
            refusal_to_replay(model.model) is None and model.model.group_images == 1 for model in pairs[0]
        ),
    )


def made(job: Job, run: Callable[[Options], T], out: Path | None) -> T | None:
    """Run a probe in a folder of its own; None where an earlier call has finished it there.

    Raises:
        UserError: something else was run in that folder meanwhile.
    """
    options = dataclasses.replace(job.options, out=out, overwrite=False)
    try:
        return run(options)
    except FinishedError:
        return None if job.hashed else run(dataclasses.replace(options, overwrite=True))


def limited(options: Options, most: int) -> Options:
    """Return the options with at most so many images."""
    limit = most if options.limit is None else min(most, options.limit)
    return dataclasses.replace(options, limit=limit)
