"""Record routing traces: from what is asked to a folder of files."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.open import Models
from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing
from moeprobe.probes.engine import origins
from moeprobe.probes.engine.applicability import check_images, routing_of_blank_input
from moeprobe.probes.engine.checks import make_probe, make_request
from moeprobe.probes.engine.models import load_models
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.origins import choose_data
from moeprobe.probes.engine.question import CLEAN, Probe
from moeprobe.probes.engine.run import Plan, time_sample
from moeprobe.probes.trace import recording
from moeprobe.results.folder import OutputFolder, provenance
from moeprobe.routing.traces.format import FORMAT, VERSION
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.filenames import TAKEN
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Watcher, watching

_KIND = "trace"


@dataclass(frozen=True)
class Recorded:
    """Trace files.

    Attributes:
        files: one per checkpoint and view, the reference of each checkpoint first.
        images: inputs of each.
        layers: MoE layers of each checkpoint.
        nbytes: size of all files.
        sidecar: what was asked, and provenance.
    """

    files: list[Path]
    images: int
    layers: dict[str, list[str]]
    nbytes: int
    sidecar: dict[str, Any]


@with_options
def record(
    models: Models,
    *,
    data: str | None = None,
    view: str = CLEAN,
    severities: Sequence[float] | None = None,
    all_gates: bool = False,
    options: Options | None = None,
    watcher: Watcher | None = None,
    **changes: Unpack[Keywords],
) -> Recorded:
    """Write what the routers decide for each token to ``out``: CHECKPOINT/VIEW.parquet (see ``formats.trace``).

    Args:
        models: checkpoints, loaded or by path.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were
            trained on.
        view: perturbation; the reference that it is compared with (the clean image, or the first of two random
            views) is recorded too.
        severities: of the view; None = its own steps.
        all_gates: keep the gates of all experts.
        options: what all probes have in common; ``changes`` are applied to them by name.
        watcher: told how the run advances.

    Raises:
        UserError: something named does not exist or does not fit, or no output folder is named.
    """
    options = combine(options, changes)
    if options.out is None:
        raise UserError("Name a folder for the traces, e.g. --out traces.")
    watcher, started = watching(watcher), time.perf_counter()
    loaded, data, question = _ask(models, data, view, severities, options, all_gates=all_gates)
    request = make_request(_KIND, data, question, options, loaded)
    request |= {"all_gates": all_gates, "format": f"{FORMAT} {VERSION}"}
    with OutputFolder(options.out, request, overwrite=options.overwrite) as folder:
        files, skipped = [], []
        for model in loaded:
            views = recording.shown(question, _framing(model), data=data, split=options.split)
            watcher.start(f"{_KIND}: {model.name}", len(question.indices))
            place = folder.path / model.name
            bad = recording.kept(question, model, place, views=views)
            if bad is not None:
                watcher.advance(len(question.indices))
            else:
                bad = recording.write(
                    question, model, place, views=views, all_gates=all_gates, progress=watcher.advance
                )
            skipped.append(bad)
            files += [place / f"{one.name}.parquet" for one in views]
        sidecar = {
            "request": request,
            "command": options.command,
            "checkpoints": origins.described(loaded, question.dataset, data, split=options.split),
            "files": [str(path.relative_to(folder.path)) for path in files],
            "skipped_images": skipped[0],
            "wall_seconds": time.perf_counter() - started,
            "batch_size": options.batch_size,
            "workers": options.workers,
            "device": str(choose_device(options.device)),
        } | provenance()
        folder.finish(sidecar)
    layers = {
        model.name: question.layers_of(model.model) or list(model.model.layer_names) for model in loaded
    }
    size = sum(path.stat().st_size for path in files)
    return Recorded(files, len(question.indices) - len(skipped[0]), layers, size, sidecar)


@checked
def plan_record(
    models: Models,
    *,
    data: str | None = None,
    view: str = CLEAN,
    severities: Sequence[float] | None = None,
    all_gates: bool = False,
    options: Options | None = None,
) -> Plan:
    """Say what ``record`` would take, by running two batches of each checkpoint and writing nothing."""
    options = options or Options()
    loaded, data, question = _ask(models, data, view, severities, options, all_gates=all_gates)
    views = recording.shown(question, _framing(loaded[0]), data=data, split=options.split)
    run = partial(recording.run, views=views, all_gates=all_gates)
    return time_sample(question, loaded, images=2 * options.batch_size, passes=len(views), run=run)


def _framing(model: Checkpoint) -> Framing:
    assert isinstance(model.framing, Framing)
    return model.framing


def _ask(
    models: Models,
    data: str | None,
    view: str,
    severities: Sequence[float] | None,
    options: Options,
    *,
    all_gates: bool,
) -> tuple[list[Checkpoint], str, Probe]:
    """Return the loaded checkpoints, the data and the question, checked before anything is run."""
    loaded = load_models(models, options)
    check_images(loaded, "they are not recorded; moeprobe import trace reads a server's log of them")
    data = choose_data(data, loaded)
    question = make_probe(_KIND, loaded, data=data, view_name=view, severities=severities, options=options)
    for model in loaded:
        if model.name.partition("/")[0].casefold() in TAKEN:
            raise UserError(
                f"The traces of {model.name} would lie where the run keeps its own files; give the checkpoint's folder "
                "another name."
            )
        if not all_gates and any(layer.top_k == 0 for layer in routing_of_blank_input(model, options.layers)):
            raise UserError(
                f"In {model.name} every expert gets a share of every token, so a trace without all gates would say "
                "nothing; add --full-gates."
            )
    return loaded, data, question
