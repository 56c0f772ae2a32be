"""What a trade-off says of trainings: groups of three or more seeds against the first group, over seeds and images."""

from collections.abc import Iterator, Sequence

import pandas as pd

from moeprobe.judging import trainings
from moeprobe.judging.trainings import Pair
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.stats.training_pairs import FEWEST
from moeprobe.probes.engine.checks import analyses_of
from moeprobe.results import finished, stored
from moeprobe.results.columns import TRAININGS_COLUMNS
from moeprobe.results.summaries import About
from moeprobe.runtime.progress import Advance
from moeprobe.studies.tradeoff.packing import needed_sums
from moeprobe.studies.tradeoff.trainings import Training


def claims(cells: Sequence[Training], *, progress: Advance = lambda _: None) -> pd.DataFrame:
    """Return the mean differences of groups from the first group, with ``columns.TRAININGS_COLUMNS``.

    Seed s of a group is paired with seed s of the first. Only runs with the same request are compared.
    """
    tables = [
        _of_run(members, folder, progress)
        for members in _measured_alike(cells)
        for folder in dict.fromkeys(question.folder for cell in members for question in cell.questions())
    ]
    non_empty = [table for table in tables if len(table)]
    return (
        pd.concat(non_empty, ignore_index=True)
        if non_empty
        else pd.DataFrame(columns=list(TRAININGS_COLUMNS))
    )


def _measured_alike(cells: Sequence[Training]) -> Iterator[list[Training]]:
    """Return the cells of each data set and measurement whose groups have enough seeds."""
    parts: dict[tuple[str, str], list[Training]] = {}
    for cell in cells:
        # A diverged training has no measurements.
        if cell.questions():
            parts.setdefault((cell.data, cell.measure.model_dump_json()), []).append(cell)
    for members in parts.values():
        seeds: dict[str, set[int]] = {}
        for cell in members:
            seeds.setdefault(cell.config.group, set()).add(cell.config.seed)
        yield [cell for cell in members if cell.config.group and len(seeds[cell.config.group]) >= FEWEST]


def _of_run(cells: Sequence[Training], folder: str, progress: Advance) -> pd.DataFrame:
    """Return the claims from one run of each cell."""
    members = [cell for cell in cells if any(question.folder == folder for question in cell.questions())]
    groups = {cell.name: cell.config.group for cell in members}
    pairs = trainings.groups_of_pairs(_pairs(members), groups)
    if not pairs:
        return pd.DataFrame()
    sums = []
    for cell in members:
        measured = finished.read(cell.folder / folder)
        # A pipeline's checkpoint is called after its last stage.
        renamed = dict.fromkeys(measured.checkpoints, cell.name)
        sums.append(needed_sums(measured.sums).rename(renamed))
        progress(1)
    analyses = analyses_of(measured.request)
    info = About.of_request(measured.request, run="", aligned=measured.is_aligned, train_seeds={}, groups={})
    return trainings.compare_trainings(
        stored.concat(sums).pool_draws(lists=trial_lists(analyses)),
        analyses=analyses,
        run_info=info,
        pairs=pairs,
    )


def _pairs(cells: Sequence[Training]) -> list[Pair]:
    """Return (cell, reference) of each seed that a group shares with the first."""
    if not cells:
        return []
    first = {cell.config.seed: cell.name for cell in cells if cell.config.group == cells[0].config.group}
    return [
        (cell.name, first[cell.config.seed])
        for cell in cells
        if cell.config.group != cells[0].config.group and cell.config.seed in first
    ]
