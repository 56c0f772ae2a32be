"""The work of ``trace``: routing written to a folder of files."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import TEXT
from moeprobe.probes.engine import origins
from moeprobe.probes.engine.blank_passes import routing_of_blank_input
from moeprobe.probes.engine.checks import make_spec
from moeprobe.probes.engine.run import Plan, ProbeWork, time_sample
from moeprobe.probes.engine.run_spec import RunSpec, make_request
from moeprobe.probes.trace import Trace, recording
from moeprobe.recordings.format import FORMAT, VERSION
from moeprobe.results.folder import OutputFolder
from moeprobe.results.sidecars import Sidecar
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.progress import Progress
from moeprobe.runtime.run_files import TAKEN


@dataclass(frozen=True)
class Recorded:
    """Trace files.

    Attributes:
        files: one per checkpoint and view, the reference of each checkpoint first.
        images: inputs of each.
        inputs: what they are, in words.
        layers: MoE layers of each checkpoint.
        nbytes: size of all files.
        sidecar: request and provenance.
    """

    files: list[Path]
    images: int
    inputs: str
    layers: dict[str, list[str]]
    nbytes: int
    sidecar: Sidecar


class Recording(ProbeWork[Recorded]):
    """Passes whose routing is written: CHECKPOINT/VIEW.parquet (see ``recordings.format``)."""

    def __init__(
        self, probe: Trace, models: Sequence[Checkpoint], data: str | None, options: Options
    ) -> None:
        self.probe, self.models, self.options = probe, models, options
        self.data = origins.choose_data(data, models)
        self.spec = make_spec(probe, models, data=self.data, options=options)
        _check_in_place(self.spec)
        for model in models:
            _check_names(model)
            _check_gates(model, options.layers, all_gates=probe.all_gates)
        request = make_request(probe, self.spec, models, data=self.data, options=options)
        self.request = request | {"format": f"{FORMAT} {VERSION}"}

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Recorded:
        """Write the traces; those that an interrupted run has finished are kept."""
        assert folder is not None, "``needs_folder`` says so"
        spec, options = self.spec, self.options
        files, skipped = [], []
        for model in self.models:
            views = self._views(model)
            progress.start(f"{self.probe.kind}: {model.name}", len(spec.indices))
            model_folder = folder.path / model.name
            bad = recording.skipped_images(spec, model, model_folder, views=views)
            if bad is not None:
                progress.advance(len(spec.indices))
            else:
                bad = recording.write(
                    spec,
                    model,
                    model_folder,
                    views=views,
                    all_gates=self.probe.all_gates,
                    progress=progress.advance,
                )
            skipped.append(bad)
            files += [model_folder / f"{view.name}.parquet" for view in views]
        sidecar = self.make_sidecar(
            checkpoints=origins.describe_origins(self.models, spec.dataset, self.data, split=options.split),
            files=[str(path.relative_to(folder.path)) for path in files],
            skipped_images=skipped[0],
            wall_seconds=self.seconds,
            batch_size=options.batch_size,
            workers=self.spec.workers,
            device=str(choose_device(options.device)),
        )
        layers = {
            model.name: spec.layers_of(model.model) or list(model.model.layer_names) for model in self.models
        }
        size = sum(path.stat().st_size for path in files)
        inputs = f"{spec.dataset.modality.plural} of {self.data}"
        return Recorded(files, len(spec.indices) - len(skipped[0]), inputs, layers, size, sidecar)

    def plan(self) -> Plan:
        """Return what it would take, by running two batches of each checkpoint."""
        views = self._views(self.models[0])
        run = partial(recording.run, views=views, all_gates=self.probe.all_gates)
        images = 2 * self.options.batch_size
        return time_sample(self.spec, self.models, images=images, passes=len(views), run=run)

    def _views(self, model: Checkpoint) -> list[recording.RecordedView]:
        return recording.recorded_views(self.spec, model.framing, data=self.data, split=self.options.split)


def _check_in_place(spec: RunSpec) -> None:
    """Raise ``UserError`` if the view moves tokens of texts: a trace cannot say which of them correspond."""
    view = spec.view
    if view is not None and view.modality is TEXT and not view.aligned:
        raise UserError(
            f"{spec.view_name} moves the tokens of a text, and a trace does not say where to; match-ratio and "
            f"sweep follow them, and {option('view', 'embedding_noise')} leaves them in place."
        )


def _check_names(model: Checkpoint) -> None:
    """Raise ``UserError`` if the traces of a checkpoint would be mixed with the run's own files."""
    if model.name.partition("/")[0].casefold() in TAKEN:
        raise UserError(
            f"The traces of {model.name} would be mixed with the run's own files; give the checkpoint's folder "
            "another name."
        )


def _check_gates(model: Checkpoint, layers: tuple[str, ...] | None, *, all_gates: bool) -> None:
    """Raise ``UserError`` if a trace without all gates would be empty."""
    if not all_gates and any(layer.top_k == 0 for layer in routing_of_blank_input(model, layers)):
        raise UserError(
            f"In {model.name} every expert gets a share of every token, so a trace without all gates would be "
            f"empty; add {option('all_gates', True, flag='--full-gates')}."
        )
