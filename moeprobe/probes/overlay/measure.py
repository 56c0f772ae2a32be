"""The work of ``overlay``: a few images with the expert of each patch drawn in, at one severity or as it grows."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.open import pick_images
from moeprobe.inputs.views.base import SeverityView
from moeprobe.probes.engine import origins
from moeprobe.probes.engine.applicability import check_images
from moeprobe.probes.engine.checks import make_question
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.origins import choose_data
from moeprobe.probes.engine.question import Question
from moeprobe.probes.engine.request import make_request
from moeprobe.probes.engine.work import Plan, Work, time_sample
from moeprobe.probes.overlay import Overlay as OverlayProbe
from moeprobe.probes.overlay import exhibits
from moeprobe.probes.overlay.record import Overlay
from moeprobe.probes.sweep import Sweep
from moeprobe.results.folder import OutputFolder
from moeprobe.results.palette import colors
from moeprobe.results.provenance import provenance
from moeprobe.results.showing import Figures, one_line
from moeprobe.runtime.csv import write_csv
from moeprobe.runtime.progress import Progress

SEVERITY = 0.2
# What a figure can hold and an eye can take in.
MAX_IMAGES = 24


@dataclass(frozen=True)
class OverlayResult:
    """What an overlay shows: the overlays, a row per patch, the files written, and what was asked of which models."""

    overlays: list[Overlay]
    table: pd.DataFrame
    files: list[Path]
    sidecar: dict[str, Any]

    def plot(self) -> Figures:
        """Return a figure per layer, of the clean and the perturbed images; nothing is written.

        Of an animation that is its strongest severity.
        """
        return Figures(_figures(self.overlays, view=self.sidecar["request"]["view"]["name"]))

    def __repr__(self) -> str:
        return one_line("OverlayResult", {"overlays": len(self.overlays), "files": len(self.files)})

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()


class Drawing(Work[OverlayResult]):
    """Passes over a few images, and figures of them."""

    def __init__(
        self, probe: OverlayProbe, models: Sequence[Checkpoint], data: str | None, options: Options
    ) -> None:
        self.probe, self.models, self.options = probe, models, options
        check_images(models, "there is nothing to draw")
        data = choose_data(data, models, files=probe.files)
        severities = probe.severities
        if not probe.animate:
            severities = (SEVERITY if probe.severity is None else probe.severity,)
        sweep = Sweep(view=probe.view, severities=severities)
        question = make_question(sweep, models, data=data, options=options)
        dataset, named, data = pick_images(
            question.dataset, images=probe.images, files=probe.files, data=data
        )
        chosen = question.indices[: probe.count] if named is None else named
        if len(chosen) > MAX_IMAGES:
            raise UserError(
                f"An overlay shows at most {MAX_IMAGES} images; got {len(chosen)}. For numbers: moeprobe sweep."
            )
        growing = tuple(sorted(question.severities))
        self.data = data
        self.question = dataclasses.replace(question, dataset=dataset, indices=chosen, severities=growing)
        self.request = make_request(probe, self.question, models, data=data, options=options) | {
            "analyses": [probe.kind],
            "images": [dataset.image_ids[index] for index in chosen],
            "animate": probe.animate,
        }

    def execute(self, folder: OutputFolder | None, watcher: Progress) -> OverlayResult:
        """Run the images, draw them, and write the figures and the table."""
        watcher.start("overlay", len(self.models) * len(self.question.indices))
        overlays = exhibits.overlays(self.question, self.models, progress=watcher.advance)
        sidecar: dict[str, Any] = {
            "request": self.request,
            "command": self.options.command,
            "checkpoints": origins.described(
                self.models, self.question.dataset, self.data, split=self.options.split
            ),
        }
        result = OverlayResult(overlays, exhibits.overlay_table(overlays), [], sidecar)
        if folder is not None:
            if self.probe.animate:
                sidecar["colours"] = colors([model.name for model in self.models])
                drawn, sidecar["frames"] = _animations(
                    self.question,
                    overlays,
                    folder.path,
                    watcher,
                    colors=sidecar["colours"],
                    svg=self.options.svg,
                )
            else:
                from moeprobe.results.figures import save_all

                drawn = save_all(result.plot(), folder.path / "figures", svg=self.options.svg)
            result.files.extend(drawn)
            _finish(folder, result)
        return result

    def plan(self) -> Plan:
        """Return what it would take before it draws, by running two images."""
        return time_sample(self.question, self.models, images=2, passes=self.question.num_passes, run=_run)


def _run(question: Question, model: Checkpoint) -> list[Overlay]:
    return exhibits.overlays(question, [model])


def _finish(folder: OutputFolder, result: OverlayResult) -> None:
    """Write the table and, last of all, the sidecar."""
    write_csv(folder.path / "patches.csv", result.table)
    result.files.append(folder.path / "patches.csv")
    folder.finish(result.sidecar | provenance())


def _by_layer(overlays: Sequence[Overlay]) -> dict[str, list[Overlay]]:
    by_layer: dict[str, list[Overlay]] = {}
    for item in overlays:
        by_layer.setdefault(item.layer, []).append(item)
    return by_layer


def _figures(overlays: Sequence[Overlay], *, view: str) -> dict[str, Figure]:
    """Return a figure per layer by name: clean and perturbed images, these at the strongest severity."""
    from moeprobe.probes.overlay.figure import draw

    strongest = max(item.severity for item in overlays)
    return {
        f"overlay-{layer}": draw(
            [item for item in items if item.severity == strongest],
            title=f"{layer}: {view} at severity {strongest:g}",
        )
        for layer, items in _by_layer(overlays).items()
    }


def _animations(
    question: Question,
    overlays: Sequence[Overlay],
    folder: Path,
    watcher: Progress,
    *,
    colors: Mapping[str, str],
    svg: bool,
) -> tuple[list[Path], dict[str, list[dict[str, Any]]]]:
    """Draw each layer's frames, GIF and strip; returns the files, and by layer what frame is of which severity."""
    from moeprobe.probes.overlay.animation import frame, strip, write_gif
    from moeprobe.probes.overlay.figure import experts_of, moved
    from moeprobe.results.figures import save

    assert isinstance(question.view, SeverityView)
    layers = _by_layer(overlays)
    watcher.start("overlay: drawing", len(layers) * len(question.severities))
    written: list[Path] = []
    listed: dict[str, list[dict[str, Any]]] = {}
    for layer, items in layers.items():
        title = f"{layer}: {question.view_name}"
        stem = folder / "figures" / f"overlay-{layer}"
        frames = []
        for number, severity in enumerate(question.severities):
            at_severity = [item for item in items if item.severity == severity]
            figure = frame(at_severity, title=title, note=moved(items), experts=experts_of(items))
            frames += save(figure, stem.with_name(f"{stem.name}-{number:03d}"))
            watcher.advance(1)
        first = [item for item in items if item.image_id == items[0].image_id]
        figure = strip(first, title=title, unit=question.view.unit, colors=colors)
        written += [
            write_gif(frames, stem.with_name(f"{stem.name}.gif")),
            *save(figure, stem.with_name(f"{stem.name}-strip"), svg=svg),
            *frames,
        ]
        listed[layer] = [
            {"severity": severity, "file": path.relative_to(folder).as_posix()}
            for severity, path in zip(question.severities, frames, strict=True)
        ]
    return written, listed
