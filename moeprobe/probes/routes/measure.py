"""The work of ``routes``: the loop over images, then numbers over all layers and classes."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from moeprobe.errors import UserError, option
from moeprobe.inputs.data.checkerboard import Checkerboard
from moeprobe.inputs.modality import IMAGE, ORDINARY
from moeprobe.inputs.open import pick_images
from moeprobe.metrics.analyses.color_bias import ColorBias
from moeprobe.metrics.analyses.information import Information
from moeprobe.metrics.declaration import Metric, NumberName
from moeprobe.metrics.key_routes import DISTINCT, LARGEST, SUPERCLASSES
from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.permutations import compare_with
from moeprobe.probes.engine.blank_passes import routing_of_blank_input
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run_spec import RunSpec, chosen_layers
from moeprobe.probes.routes import MODALITIES, Routes
from moeprobe.probes.routes.key_routes import (
    KeyRoutes,
    distance_table,
    key_routes,
    route_table,
    superclass_information,
)
from moeprobe.probes.routes.modality import ModalityTable, modality_frame, modality_table
from moeprobe.probes.routes.sheets import MOST_SHEETS, Sheet, check_cells, make_sheets
from moeprobe.probes.routes.tables import Tables, class_table, color_table, name_of, place_table, tables_of
from moeprobe.results.files_for_reports import CLASSES
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sidecars import rename_items
from moeprobe.results.stored import SumsStore
from moeprobe.results.stored_cell import StoredCell
from moeprobe.results.summaries import About, row
from moeprobe.results.sums import Cell
from moeprobe.runtime.files import write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Rows and columns of patches, by checkpoint and layer.
Grids = Mapping[tuple[str, str], tuple[int, int]]


@dataclass(frozen=True)
class RoutesResult(Result):
    """The tables over all images, and the numbers per class that follow.

    Attributes:
        classes: share of each class' tokens that each expert has, layer by layer; all classes where it is empty.
        places: share of the tokens at each place that each expert has.
        routes: key routes of the classes of each checkpoint that has any.
        colors: of checkerboards, share of the patches of each color that each expert has.
        modalities: share of each expert's choices that image tokens make, where words stand beside a picture.
        sheets: single images with the patches of each expert.
    """

    classes: pd.DataFrame = field(default_factory=pd.DataFrame)
    places: pd.DataFrame = field(default_factory=pd.DataFrame)
    routes: list[KeyRoutes] = field(default_factory=list)
    colors: pd.DataFrame = field(default_factory=pd.DataFrame)
    modalities: pd.DataFrame = field(default_factory=pd.DataFrame)
    sheets: list[Sheet] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"RoutesResult({super().__repr__()}, routes={len(self.routes)})"


class RoutesMeasurement(Measurement[RoutesResult]):
    """Tokens per expert, layer, class and position."""

    probe: Routes

    def make_spec(self) -> RunSpec:
        """Return the run specification; checkerboards are treated as such where their cells are patches."""
        spec = super().make_spec()
        self._sheets = self._images_of_sheets(spec)
        if isinstance(spec.dataset, Checkerboard):
            check_cells(spec, self.models, data=self.data)
        # Boards are no images drawn at random: each color is as often at each place, each pair of colors twice.
        excluded = Information if isinstance(spec.dataset, Checkerboard) else ColorBias
        analyses = tuple(analysis for analysis in spec.analyses if not isinstance(analysis, excluded))
        return dataclasses.replace(spec, analyses=analyses)

    def more_rows(self, sums: SumsStore, info: About) -> list[dict[str, Any]]:
        """Return the numbers of the key routes of each checkpoint."""
        data = self.spec.dataset
        names = data.class_names or ()
        self._tables: list[Tables] = []
        self._routes: list[KeyRoutes] = []
        self._modalities: list[ModalityTable] = []
        rows: list[dict[str, Any]] = []
        for model in self.models:
            cells = [cell for cell in sums if cell.checkpoint == model.name and _has_experts(cell)]
            tables = [tables_of(cell, num_classes=len(names)) for cell in cells]
            self._tables += tables
            for cell in cells:
                modality = modality_table(cell, seed=info.seed)
                if modality is not None:
                    self._modalities.append(modality)
                    rows += modality.rows(cell, info)
            boards = any(table.by_color is not None for table in tables)
            if not tables or boards:
                continue
            classes_routes = key_routes(
                cells, tables, names=names, seed=info.seed, superclasses=data.superclasses
            )
            if classes_routes is not None:
                self._routes.append(classes_routes)
                rows += _rows(classes_routes, cells[0].cell, info)
        return rows

    def finish(self, result: Result, folder: OutputFolder | None) -> RoutesResult:
        """Write the tables of classes, places and key routes."""
        classes = class_table(self._tables, self.spec.dataset.class_names or ())
        by_place = place_table(self._tables)
        colors, modalities = color_table(self._tables), modality_frame(self._modalities)
        if folder is not None:
            write_csv(folder.path / CLASSES, classes)
            write_csv(folder.path / "places.csv", by_place)
            if len(colors):
                write_csv(folder.path / "colors.csv", colors)
            if len(modalities):
                write_csv(folder.path / MODALITIES, modalities)
            if self._routes:
                write_csv(folder.path / "key_routes.csv", route_table(self._routes))
                write_csv(folder.path / "class_distances.csv", distance_table(self._routes))
        sheets = make_sheets(self.spec, self.models, self._sheets)
        fields = {item.name: getattr(result, item.name) for item in dataclasses.fields(result)}
        drawing = partial(
            _draw,
            tables=self._tables,
            routes=self._routes,
            modalities=self._modalities,
            grids=self._grids(),
            sheets=sheets,
        )
        routes_fields = {
            "classes": classes,
            "places": by_place,
            "routes": self._routes,
            "sheets": sheets,
            "colors": colors,
            "modalities": modalities,
        }
        routes_fields |= {"drawing": drawing}
        return RoutesResult(**(fields | routes_fields))

    def _images_of_sheets(self, spec: RunSpec) -> list[int]:
        """Return the images that are drawn; of texts none."""
        if spec.dataset.modality is not IMAGE:
            if self.probe.images:
                raise UserError(
                    f"{self.data} holds texts, of which no sheets are drawn; leave {option('images')} out."
                )
            return []
        _, named_indices, _ = pick_images(spec.dataset, images=self.probe.images, files=(), data=self.data)
        indices = list(spec.indices[: self.probe.count]) if named_indices is None else named_indices
        if len(indices) > MOST_SHEETS:
            raise UserError(f"Sheets are drawn of at most {MOST_SHEETS} images; got {len(indices)}.")
        return indices

    def _grids(self) -> Grids:
        """Return how the patches of each layer lie in the image; nothing of texts."""
        grids = {}
        for model in self.models:
            names = chosen_layers(model.model.layer_names, self.spec.layers)
            for name, routing in zip(names, routing_of_blank_input(model, self.spec.layers), strict=True):
                if routing.grid is not None:
                    label = self.spec.label_of(model.model, name)
                    grids[model.name, label] = routing.grid.rows, routing.grid.columns
        return grids


def _has_experts(cell: StoredCell) -> bool:
    return cell.cell.tokens in ORDINARY and name_of(next(cell.blocks())[1]) is not None


def _rows(routes: KeyRoutes, cell: Cell, info: About) -> list[dict[str, Any]]:
    """Return the lines of the table on the key routes of a checkpoint."""
    all_layers = dataclasses.replace(cell, layer="all")

    def line(name: str, value: float, **more: object) -> dict[str, Any]:
        number = Replicates(value, np.empty(0), images=routes.images, trials=len(routes.names))
        return row(info, routes.checkpoint, all_layers, NumberName(name, ""), number) | {"flag": ""} | more

    numbers: list[tuple[tuple[Metric, ...], float, Any, bool]] = [
        (DISTINCT, routes.distinct, routes.permuted[:, 0], False),
        (LARGEST, routes.largest, routes.permuted[:, 1], True),
    ]
    if (grouped := superclass_information(routes.groups, routes.superclasses, seed=info.seed)) is not None:
        numbers.append((SUPERCLASSES, *grouped, False))
    rows = []
    for metrics, observed, permuted, fewer in numbers:
        mean, low, high, p = compare_with(permuted, observed, fewer=fewer)
        rows += [
            line(metrics[0].name, observed),
            line(metrics[1].name, mean, ci_low=low, ci_high=high, interval="permutations"),
            line(metrics[2].name, p),
        ]
    return rows


def _draw(
    result: Result,
    *,
    tables: list[Tables],
    routes: list[KeyRoutes],
    modalities: list[ModalityTable],
    grids: Grids,
    sheets: list[Sheet],
) -> "dict[str, Figure]":
    """Return the figures of a result."""
    from moeprobe.probes.routes import figure, modality_figure

    # A checkpoint's layers may have different grids: one for each table, in the tables' order.
    sides = [grids.get((layer_table.checkpoint, layer_table.layer)) for layer_table in tables]
    tables, routes = rename_items(tables, result.sidecar), rename_items(routes, result.sidecar)
    sheets = rename_items(sheets, result.sidecar)
    grids = {
        (layer_table.checkpoint, layer_table.layer): side
        for layer_table, side in zip(tables, sides, strict=True)
        if side is not None
    }
    return {
        **figure.draw(result.table, colors=result.sidecar.colors),
        **figure.experts(tables, result.table),
        **figure.classes(tables, routes, result.table),
        **figure.distances(routes, result.table),
        **figure.colors(tables, result.table),
        **figure.position_maps(tables, grids, result.table),
        **figure.together(result.table),
        **modality_figure.draw(rename_items(modalities, result.sidecar), result.table),
        **figure.draw_sheets(sheets),
    }
