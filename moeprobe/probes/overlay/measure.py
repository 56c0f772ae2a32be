"""The overlay: a few images with the expert of each patch drawn in, at one severity or as it grows."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import pandas as pd
from matplotlib.figure import Figure

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.open import Models
from moeprobe.errors import UserError
from moeprobe.inputs.open import pick_images
from moeprobe.inputs.views.base import SeverityView
from moeprobe.probes.engine import origins
from moeprobe.probes.engine.applicability import check_images
from moeprobe.probes.engine.checks import make_probe, make_request
from moeprobe.probes.engine.models import load_models
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.origins import choose_data
from moeprobe.probes.engine.question import Probe
from moeprobe.probes.engine.run import Plan, time_sample
from moeprobe.probes.overlay import exhibits
from moeprobe.probes.overlay.record import Overlay
from moeprobe.results.folder import OutputFolder, output_folder, provenance
from moeprobe.results.palette import colours
from moeprobe.results.showing import Figures, one_line
from moeprobe.runtime.csv import write_csv
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Watcher, watching

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


@with_options
def overlay(
    models: Models,
    *,
    data: str | None = None,
    images: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    count: int = 4,
    view: str = "gaussian_noise",
    severity: float | None = None,
    severities: Sequence[float] | None = None,
    animate: bool = False,
    options: Options | None = None,
    watcher: Watcher | None = None,
    **changes: Unpack[Keywords],
) -> OverlayResult:
    """Show which expert each patch chooses on the clean and on the perturbed image.

    Args:
        models: checkpoints, side by side.
        data: data set, used unless ``files`` are given; None = as in ``engine.run.probe``.
        images: names of images of the data set; none = ``count`` seeded random ones.
        files: image files of the user's own.
        count: how many random images.
        view: a view with a severity.
        severity: its severity; None = 0.2.
        severities: with ``animate``, its severities, all from one draw; None = the view's own steps.
        animate: show the routing as the severity grows: frames, a GIF, and a strip of the first image.
        options: common options; ``changes`` are applied to them by name.
        watcher: told how it advances.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    options = combine(options, changes)
    watcher = watching(watcher)
    loaded, question, data = _ask(
        models,
        data=data,
        images=images,
        files=files,
        count=count,
        view=view,
        severity=severity,
        severities=severities,
        animate=animate,
        options=options,
    )
    request = make_request("overlay", data, question, options, loaded)
    shown_ids = [question.dataset.image_ids[index] for index in question.indices]
    request |= {"images": shown_ids, "animate": animate}
    with output_folder(options.out, request, overwrite=options.overwrite) as folder:
        watcher.start("overlay", len(loaded) * len(shown_ids))
        shown = exhibits.overlays(question, loaded, progress=watcher.advance)
        sidecar: dict[str, Any] = {
            "request": request,
            "command": options.command,
            "checkpoints": origins.described(loaded, question.dataset, data, split=options.split),
        }
        result = OverlayResult(shown, exhibits.overlay_table(shown), [], sidecar)
        if folder is not None:
            if animate:
                sidecar["colours"] = colours([model.name for model in loaded])
                drawn, sidecar["frames"] = _animations(
                    question, shown, folder.path, watcher, colours=sidecar["colours"]
                )
            else:
                drawn = _save(result.plot(), folder.path)
            result.files.extend(drawn)
            _finish(folder, result)
    return result


@checked
def plan_overlay(
    models: Models,
    *,
    data: str | None = None,
    images: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    count: int = 4,
    view: str = "gaussian_noise",
    severity: float | None = None,
    severities: Sequence[float] | None = None,
    animate: bool = False,
    options: Options | None = None,
) -> Plan:
    """Say what ``overlay`` would take before it draws, by running two images; arguments as there."""
    options = options or Options()
    loaded, question, _ = _ask(
        models,
        data=data,
        images=images,
        files=files,
        count=count,
        view=view,
        severity=severity,
        severities=severities,
        animate=animate,
        options=options,
    )

    def run(asked: Probe, model: Checkpoint) -> list[Overlay]:
        return exhibits.overlays(asked, [model])

    return time_sample(question, loaded, images=2, passes=question.num_passes, run=run)


def _ask(
    models: Models,
    *,
    data: str | None,
    images: Sequence[str],
    files: Sequence[str | Path],
    count: int,
    view: str,
    severity: float | None,
    severities: Sequence[float] | None,
    animate: bool,
    options: Options,
) -> tuple[list[Checkpoint], Probe, str]:
    """Return the checkpoints, what is asked of them, and what the data are called."""
    if count < 1:
        raise UserError(f"The number of images must be positive; got {count}.")
    if animate and severity is not None:
        raise UserError(
            "An animation goes through several severities: give --severities instead of --severity."
        )
    if severities is not None and not animate:
        raise UserError("--severities are the steps of an animation: add --animate, or give one --severity.")
    if not animate:
        severities = (SEVERITY if severity is None else severity,)
    loaded = load_models(models, options)
    check_images(loaded, "there is nothing to draw")
    data = choose_data(data, loaded, files=files)
    question = make_probe("sweep", loaded, data=data, view_name=view, severities=severities, options=options)
    dataset, named, data = pick_images(question.dataset, images=images, files=files, data=data)
    chosen = question.indices[:count] if named is None else named
    if len(chosen) > MAX_IMAGES:
        raise UserError(
            f"An overlay shows at most {MAX_IMAGES} images; got {len(chosen)}. For numbers: moeprobe sweep."
        )
    growing = tuple(sorted(question.severities))
    return loaded, dataclasses.replace(question, dataset=dataset, indices=chosen, severities=growing), data


def _finish(folder: OutputFolder, result: OverlayResult) -> None:
    """Write the table and, last of all, the sidecar."""
    write_csv(folder.path / "patches.csv", result.table)
    result.files.append(folder.path / "patches.csv")
    folder.finish(result.sidecar | provenance())


def _by_layer(shown: Sequence[Overlay]) -> dict[str, list[Overlay]]:
    found: dict[str, list[Overlay]] = {}
    for item in shown:
        found.setdefault(item.layer, []).append(item)
    return found


def _figures(shown: Sequence[Overlay], *, view: str) -> dict[str, Figure]:
    """Return a figure per layer by name: clean and perturbed images, these at the strongest severity."""
    from moeprobe.probes.overlay.figure import draw

    strongest = max(item.severity for item in shown)
    return {
        f"overlay-{layer}": draw(
            [item for item in items if item.severity == strongest],
            title=f"{layer}: {view} at severity {strongest:g}",
        )
        for layer, items in _by_layer(shown).items()
    }


def _save(figures: Figures, folder: Path) -> list[Path]:
    """Write figures; returns the files."""
    from moeprobe.results.figures import save

    return [path for name, figure in figures.items() for path in save(figure, folder / "figures" / name)]


def _animations(
    question: Probe, shown: Sequence[Overlay], folder: Path, watcher: Watcher, *, colours: Mapping[str, str]
) -> tuple[list[Path], dict[str, list[dict[str, Any]]]]:
    """Draw each layer's frames, GIF and strip; returns the files, and by layer what frame is of which severity."""
    from moeprobe.probes.overlay.animation import frame, strip, write_gif
    from moeprobe.probes.overlay.figure import experts_of, moved
    from moeprobe.results.figures import save

    assert isinstance(question.view, SeverityView)
    layers = _by_layer(shown)
    watcher.start("overlay: drawing", len(layers) * len(question.severities))
    written: list[Path] = []
    listed: dict[str, list[dict[str, Any]]] = {}
    for layer, items in layers.items():
        title = f"{layer}: {question.view_name}"
        stem = folder / "figures" / f"overlay-{layer}"
        frames = []
        for number, severity in enumerate(question.severities):
            shown_now = [item for item in items if item.severity == severity]
            figure = frame(shown_now, title=title, note=moved(items), experts=experts_of(items))
            frames += save(figure, stem.with_name(f"{stem.name}-{number:03d}"), formats=("png",))
            watcher.advance(1)
        first = [item for item in items if item.image_id == items[0].image_id]
        figure = strip(first, title=title, unit=question.view.unit, colours=colours)
        written += [
            write_gif(frames, stem.with_name(f"{stem.name}.gif")),
            *save(figure, stem.with_name(f"{stem.name}-strip")),
            *frames,
        ]
        listed[layer] = [
            {"severity": severity, "file": path.relative_to(folder).as_posix()}
            for severity, path in zip(question.severities, frames, strict=True)
        ]
    return written, listed
