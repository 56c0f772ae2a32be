"""The work of ``overlay``: a few images or texts and the expert of each patch or token, at one severity or more.

Wherever it says *patch*, a text has a *token*.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch, Loading, TextBatch, batches, stack_texts
from moeprobe.inputs.data.base import TextExample
from moeprobe.inputs.modality import TEXT
from moeprobe.inputs.open import content_of, pick_images
from moeprobe.inputs.views.base import SeverityView
from moeprobe.probes.engine import origins
from moeprobe.probes.engine.checks import make_spec
from moeprobe.probes.engine.run import Plan, ProbeWork, time_sample
from moeprobe.probes.engine.run_spec import RunSpec, check_places, make_request, recipe
from moeprobe.probes.overlay import Overlay
from moeprobe.probes.overlay.record import ImageOverlay, InputOverlay, TextOverlay, overlay, overlay_text
from moeprobe.probes.sweep import Sweep
from moeprobe.results.files_for_reports import PATCHES, PIXELS, TOKENS
from moeprobe.results.folder import OutputFolder
from moeprobe.results.palette import colors
from moeprobe.results.showing import Figures, one_line
from moeprobe.results.sidecars import Sidecar, choose_names, names_in, rename_items
from moeprobe.routing import finite
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.files import atomic_file, write_csv
from moeprobe.runtime.progress import Advance, Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# An overlay of images or of texts.
Shown = TypeVar("Shown", bound=InputOverlay)
SEVERITY = 0.2
# Pixels of a side: patches are seen, and a page stays small.
_LARGEST_TILE = 96
# What a figure can hold and an eye can take in.
MAX_IMAGES = 24
# Names of columns in a table of texts.
_OF_TOKENS = {"clean_patch": "clean_token", "clean_patch_expert": "clean_token_expert"}


def record_overlays(
    spec: RunSpec, checkpoints: Sequence[Checkpoint], *, progress: Advance | None = None
) -> list[InputOverlay]:
    """Return the overlays of every checkpoint, severity, layer and image; ``spec`` holds the severities and images.

    ``progress`` is called with the number of images done since the last call.
    """
    overlays: list[InputOverlay] = []
    for checkpoint in checkpoints:
        if checkpoint.framing.modality is TEXT:
            for index in spec.indices:
                overlays += _of_text(spec, checkpoint, index)
                if progress is not None:
                    progress(1)
            continue
        loader = batches(
            spec.dataset,
            spec.indices,
            recipe(spec, checkpoint.framing),
            loading=Loading(spec.batch_size),
            skip_bad_images=spec.skip_bad_images,
            group_images=checkpoint.model.group_images,
        )
        for batch in loader:
            if batch.image_ids:
                overlays += _of_batch(spec, checkpoint, batch)
            if progress is not None:
                progress(len(batch.image_ids) + len(batch.skipped))
    return overlays


def _of_batch(spec: RunSpec, checkpoint: Checkpoint, batch: Batch) -> Iterator[ImageOverlay]:
    """Yield the overlays of a batch of images."""
    for number, severity, layer, routing in _routings(spec, checkpoint, batch):
        grid = routing[0].grid
        assert grid is not None
        pairs = batch.correspond(number, grid)
        for position, image_id in enumerate(batch.image_ids):
            pixels = batch.views[0][position].numpy(), batch.views[number][position].numpy()
            yield overlay(
                image_id=image_id,
                checkpoint=checkpoint.name,
                layer=layer,
                severity=severity,
                pixels=pixels,
                routing=routing,
                pairs=pairs,
                position=position,
            )


def _of_text(spec: RunSpec, checkpoint: Checkpoint, index: int) -> Iterator[TextOverlay]:
    """Yield the overlays of a text, a batch of its own: a batch of several holds no words."""
    example = spec.dataset.example(index)
    assert isinstance(example, TextExample)
    samples = recipe(spec, checkpoint.framing)(example.text, example.image_id)
    batch = stack_texts([example.image_id], torch.tensor([-1]), [samples])
    words = [sample.words[sample.num_prefix_tokens :] for sample in samples]
    for number, severity, layer, routing in _routings(spec, checkpoint, batch):
        reference, view = batch.partners(number)
        yield overlay_text(
            text_id=example.image_id,
            checkpoint=checkpoint.name,
            layer=layer,
            severity=severity,
            words=(words[0], words[number]),
            routing=routing,
            partners=(reference[0], view[0]),
        )


def _routings(
    spec: RunSpec, checkpoint: Checkpoint, batch: Batch | TextBatch
) -> Iterator[tuple[int, float, str, tuple[LayerRouting, LayerRouting]]]:
    """Yield the number of a view, its severity, a layer, and its clean and perturbed routing.

    There is one clean pass, and one for each severity that changes something.
    """
    assert isinstance(spec.view, SeverityView)
    layers = spec.layers_of(checkpoint.model)
    _, clean = checkpoint.model.trace(batch.views[0], layers=layers, logits=False)
    finite.check(clean.layers, None, batch.image_ids, checkpoint=checkpoint.name)
    for number, severity in enumerate(spec.severities, start=1):
        perturbed = clean
        # The first severity is the clean view itself, which has been run.
        if severity != spec.view.severities[0]:
            _, perturbed = checkpoint.model.trace(batch.views[number], layers=layers, logits=False)
            finite.check(perturbed.layers, None, batch.image_ids, checkpoint=checkpoint.name)
        for layer in clean.layers:
            yield number, severity, layer, (clean.layers[layer], perturbed.layers[layer])


def overlay_table(overlays: Sequence[InputOverlay]) -> pd.DataFrame:
    """Return one row per patch or token of the perturbed input: its choice, and the choice of its partner.

    ``clean_expert`` is the expert at the same place in the clean image, whatever it shows; texts have no such places,
    but what each token reads. Sets and gates are texts; each side has its own. ``changed`` is of the drawn expert,
    ``changed_set`` of the set.
    """
    rows = []
    for item in overlays:
        for number in range(item.perturbed_expert.size):
            rows.append(
                {
                    "checkpoint": item.checkpoint,
                    "layer": item.layer,
                    "severity": item.severity,
                    "image_id": item.image_id,
                    **_identity(item, number),
                    "perturbed_expert": item.perturbed_expert.flat[number],
                    "clean_patch": item.clean_patch.flat[number],
                    "clean_patch_expert": item.clean_patch_expert.flat[number],
                    "compared": bool(item.compared.flat[number]),
                    "changed": bool(item.changed.flat[number]),
                    "changed_set": bool(item.changed_set.flat[number]),
                    **_choices(item, number),
                }
            )
    table = pd.DataFrame(rows)
    # Nullable integers: a patch without a partner has an empty cell in the table.
    table["clean_patch"] = table["clean_patch"].astype("Int64").where(table["clean_patch"] >= 0)
    # -1 is no expert.
    experts = table.columns.intersection(["clean_expert", "perturbed_expert", "clean_patch_expert"])
    table = table.assign(**{name: table[name].astype("Int64").where(table[name] >= 0) for name in experts})
    return table.rename(columns=_OF_TOKENS) if "word" in table else table


def _identity(item: InputOverlay, number: int) -> dict[str, Any]:
    """Return the position of a patch and the expert there in the clean image, or the words of a token."""
    if isinstance(item, TextOverlay):
        clean = int(item.clean_patch[number])
        clean_word = "" if clean < 0 else item.clean_words[clean]
        return {"token": number, "word": item.perturbed_words[number], "clean_word": clean_word}
    row, column = divmod(number, item.clean_expert.shape[1])
    return {"row": row, "column": column, "clean_expert": item.clean_expert[row, column]}


def _choices(item: InputOverlay, patch: int) -> dict[str, str | float]:
    """Return set, gates and margin of a perturbed patch and of its clean one."""
    clean_patch = int(item.clean_patch.flat[patch])
    sides = {
        "perturbed": (item.perturbed_choices, patch),
        # A patch without a partner has no clean side.
        "clean": (None if clean_patch < 0 else item.clean_choices, clean_patch),
    }
    columns: dict[str, str | float] = {}
    for side, (choices, number) in sides.items():
        experts, gates, margin = ("", "", np.nan) if choices is None else choices.describe(number)
        columns |= {f"{side}_set": experts, f"{side}_gates": gates, f"{side}_margin": margin}
    return columns


def pixel_sheet(overlays: Sequence[ImageOverlay]) -> Image.Image:
    """Return the images in gray, a row per image: the clean one, then every severity from the weakest on.

    Of checkpoints that read images of different sizes the first one counts.
    """
    images = list(dict.fromkeys(item.image_id for item in overlays))
    severities = sorted({item.severity for item in overlays})
    tiles: dict[tuple[str, float | None], NDArray[np.float32]] = {}
    for item in reversed(overlays):
        tiles[item.image_id, None] = item.clean
        tiles[item.image_id, item.severity] = item.perturbed
    side = min(_LARGEST_TILE, len(overlays[0].clean))
    sheet = Image.new("L", (side * (1 + len(severities)), side * len(images)))
    for row, image in enumerate(images):
        for column, severity in enumerate([None, *severities]):
            # The luma weights of ITU-R BT.601, as in a grayscale conversion by Pillow.
            pixels = tiles[image, severity] @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
            tile = Image.fromarray((255 * pixels.clip(0, 1)).round().astype(np.uint8))
            sheet.paste(tile.resize((side, side), Image.Resampling.BOX), (side * column, side * row))
    return sheet


@dataclass(frozen=True)
class OverlayResult:
    """The result of ``overlay``: overlays, a row per patch or token, files written, the request and its models."""

    overlays: list[InputOverlay]
    table: pd.DataFrame
    files: list[Path]
    sidecar: Sidecar

    def plot(self) -> Figures:
        """Return a figure per layer, of the clean and the perturbed images; nothing is written.

        Of an animation that is its strongest severity.
        """
        overlays = rename_items(self.overlays, self.sidecar)
        return Figures(_figures(overlays, view=self.sidecar.request.view_name))

    def __repr__(self) -> str:
        return one_line("OverlayResult", {"overlays": len(self.overlays), "files": len(self.files)})

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()


class Drawing(ProbeWork[OverlayResult]):
    """Passes over a few images, and figures of them."""

    def __init__(
        self, probe: Overlay, models: Sequence[Checkpoint], data: str | None, options: Options
    ) -> None:
        self.probe, self.models, self.options = probe, models, options
        data = origins.choose_data(data, models, files=probe.files)
        severities = probe.severities
        # A still picture shows one severity; an animation shows them all.
        if not probe.animate and severities is None:
            severities = (SEVERITY if probe.severity is None else probe.severity,)
        sweep = Sweep(view=probe.view, severities=severities)
        spec = make_spec(sweep, models, data=data, options=options)
        check_places(models, "an overlay draws them; for numbers: moeprobe sweep")
        modality = spec.dataset.modality
        if modality is TEXT and probe.animate:
            raise UserError(
                f"Texts are not animated: give {option('severities')}, and a report shows them with a slider."
            )
        dataset, named_indices, data = pick_images(
            spec.dataset, images=probe.images, files=probe.files, data=data
        )
        indices = spec.indices[: probe.count] if named_indices is None else named_indices
        if len(indices) > MAX_IMAGES:
            raise UserError(
                f"An overlay shows at most {MAX_IMAGES} {modality.plural}; got {len(indices)}. For numbers: moeprobe "
                "sweep."
            )
        # Sorted, since a slider goes from weak to strong.
        growing = tuple(sorted(spec.severities))
        self._names = choose_names(options.names, [model.name for model in models])
        self.data = data
        self.spec = dataclasses.replace(spec, dataset=dataset, indices=indices, severities=growing)
        self.request = make_request(probe, self.spec, models, data=data, options=options) | {
            "analyses": [probe.kind],
            # The names of the images, and not only their number: the pictures depend on which they are.
            "images": [dataset.image_ids[index] for index in indices],
            "animate": probe.animate,
            **content_of(probe.files),
        }

    def compute(self, folder: OutputFolder | None, progress: Progress) -> OverlayResult:
        """Run the images and note the expert of each patch."""
        progress.start("overlay", len(self.models) * len(self.spec.indices))
        overlays = record_overlays(self.spec, self.models, progress=progress.advance)
        # Only an animation has frames to list.
        facts: dict[str, Any] = {}
        if self.probe.animate and folder is not None:
            facts = {"colours": colors([model.name for model in self.models]), "frames": {}}
        assert isinstance(self.spec.view, SeverityView)
        sidecar = self.make_sidecar(
            severity_unit=self.spec.view.unit,
            checkpoints=origins.describe_origins(
                self.models, self.spec.dataset, self.data, split=self.options.split
            ),
            **facts,
            **self._names,
        )
        return OverlayResult(overlays, overlay_table(overlays), [], sidecar)

    def write(self, result: OverlayResult, folder: OutputFolder) -> OverlayResult:
        """Write a row per patch or token, and of images the pixels that a report shows below them."""
        images = [item for item in result.overlays if isinstance(item, ImageOverlay)]
        table = folder.path / (PATCHES if images else TOKENS)
        write_csv(table, result.table)
        result.files.append(table)
        if images:
            with atomic_file(folder.path / PIXELS) as temporary:
                pixel_sheet(images).save(temporary, format="PNG", optimize=True)
            result.files.append(folder.path / PIXELS)
        return result

    def draw(self, result: OverlayResult, folder: OutputFolder, progress: Progress) -> None:
        """Write a figure per layer, or its animation; they come first among the files."""
        svg = self.options.svg
        if self.probe.animate:
            files = write_animations(self.spec, result, folder.path, progress, svg=svg)
        else:
            from moeprobe.results.figures import save_all

            files = save_all(result.plot(), folder.path / "figures", svg=svg)
        result.files[:0] = files

    def plan(self) -> Plan:
        """Return what it would take before it draws, by running two images."""
        return time_sample(self.spec, self.models, images=2, passes=self.spec.num_passes, run=_run)


def _run(spec: RunSpec, model: Checkpoint) -> list[InputOverlay]:
    return record_overlays(spec, [model])


def _by_layer(overlays: Sequence[Shown]) -> dict[str, list[Shown]]:
    by_layer: dict[str, list[Shown]] = {}
    for item in overlays:
        by_layer.setdefault(item.layer, []).append(item)
    return by_layer


def _figures(overlays: Sequence[InputOverlay], *, view: str) -> "dict[str, Figure]":
    """Return a figure per layer by name: clean and perturbed inputs, these at the strongest severity."""
    from moeprobe.probes.overlay.figure import draw, draw_texts

    strongest = max(item.severity for item in overlays)
    at_strongest = [item for item in overlays if item.severity == strongest]
    images = _by_layer([item for item in at_strongest if isinstance(item, ImageOverlay)])
    texts = _by_layer([item for item in at_strongest if isinstance(item, TextOverlay)])
    titles = {
        layer: f"{layer}: {view.replace('_', ' ')} at severity {strongest:g}" for layer in [*images, *texts]
    }
    figures = {layer: draw(items, title=titles[layer]) for layer, items in images.items()}
    figures |= {layer: draw_texts(items, title=titles[layer]) for layer, items in texts.items()}
    return {f"overlay-{layer}": figure for layer, figure in figures.items()}


def write_animations(
    spec: RunSpec, result: OverlayResult, folder: Path, progress: Progress, *, svg: bool
) -> list[Path]:
    """Draw each layer's frames, GIF and strip; returns the files. The sidecar lists by layer the severity of each."""
    from moeprobe.probes.overlay.figure import experts_of, frame, moved_grid_legend, strip, write_gif
    from moeprobe.results.figures import save

    assert isinstance(spec.view, SeverityView)
    names = names_in(result.sidecar)
    colors = {names.get(name, name): color for name, color in result.sidecar.colors.items()}
    images = [item for item in result.overlays if isinstance(item, ImageOverlay)]
    layers = _by_layer(rename_items(images, result.sidecar))
    progress.start("overlay: drawing", len(layers) * len(spec.severities))
    written: list[Path] = []
    for layer, items in layers.items():
        title = f"{layer}: {spec.view_name}"
        stem = folder / "figures" / f"overlay-{layer}"
        frames = []
        for number, severity in enumerate(spec.severities):
            at_severity = [item for item in items if item.severity == severity]
            figure = frame(at_severity, title=title, note=moved_grid_legend(items), experts=experts_of(items))
            frames += save(figure, stem.with_name(f"{stem.name}-{number:03d}"))
            progress.advance(1)
        first = [item for item in items if item.image_id == items[0].image_id]
        figure = strip(first, title=title, unit=spec.view.unit, colors=colors)
        written += [
            write_gif(frames, stem.with_name(f"{stem.name}.gif")),
            *save(figure, stem.with_name(f"{stem.name}-strip"), svg=svg),
            *frames,
        ]
        result.sidecar["frames"][layer] = [
            {"severity": severity, "file": path.relative_to(folder).as_posix()}
            for severity, path in zip(spec.severities, frames, strict=True)
        ]
    return written
