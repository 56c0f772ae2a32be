"""What PRC and other changes of models do over other trainings and other images at once.

    python -m reports.scripts.regenerate_trainings [REPORT ...]

The three committed pairs of checkpoints (V-MoE, and V-MoE with PRC) run over the same images: crops, corruptions,
attacks, deformations, margins, flips, shots of other data, and Fashion-MNIST. Claims about trainings are those of
``moeprobe compare``, over seeds and images at once; the layers of one view and severity are a family. Writes
``reports/trainings/REPORT.csv``: the sums per image that the claims follow from are too large for git.

Some reports are of sweeps, whose models are not committed (``COMPARED``). Their sums per image come from the history
of the checkout (``make fetch-archive``). To train instead, give ``moeprobe tradeoff SWEEP --out FOLDER/SWEEP`` and name
the folder: ``--sweeps FOLDER``. One core trains ``thesis-digits`` in two hours, the others in one or less. With other
code or another processor, these models end with other bits than the committed ones.
"""

import argparse
import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from moeprobe import api
from moeprobe.inputs.corruptions import FAMILIES, MEAN, NAMES
from moeprobe.judging import differences
from moeprobe.judging.summarize import Combine
from moeprobe.judging.trainings import compare_trainings, groups_of_pairs
from moeprobe.metrics.analyses.flips import FORCED, flip_metric
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.declaration import NumberName
from moeprobe.metrics.stats.bootstrap import average
from moeprobe.metrics.stats.statistic import Array
from moeprobe.probes.corruptions.measure import Mean, mean_values, means_of
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.results import finished
from moeprobe.results.columns import TRAININGS_COLUMNS
from moeprobe.results.packed import read_pack
from moeprobe.results.stored import concat
from moeprobe.results.stored_cell import StoredCell
from moeprobe.results.summaries import About
from moeprobe.results.values import CellValues
from moeprobe.runtime.files import write_csv
from reports.scripts import (
    regenerate_attack,
    regenerate_corruptions,
    regenerate_critical,
    regenerate_deformations,
    regenerate_fashion,
    regenerate_flips,
    regenerate_routers,
    regenerate_sweeps,
    regenerate_transfer,
)
from reports.scripts.seeds import sums_of_cells, with_cells
from reports.scripts.sweep_list import COMPARED, LAYOUTS, Compared, Number

OUT, CHECKPOINTS = Path("reports/trainings"), Path("checkpoints/reference")
SEEDS, TOP_KS, OBJECTIVES = (0, 1, 2), (2, 1), ("baseline", "prc")
VIEWS = ("random_crop", "prc_crops")
# What pages say of attacks: the run, and view and severity of the perturbed images.
ATTACKS = {
    ("answer", "attack"): (2, 8),
    ("answer", "random_signs"): (8,),
    ("routes", "attack_routes"): (8,),
    ("overload", "attack_overload"): (8,),
}
ANALYSES = {
    "output",
    "fewshot",
    "match",
    "set_match",
    "busiest_expert",
    "information",
    "selection",
    "critical_noise",
    "flip_prediction",
    "flips",
    "discontinuity",
}
_ACCURACY = {"accuracy": ("",)}
# The same in all rows, or what follows from the rest.
_LEFT_OUT = {"checkpoint", "reference", "tokens", "ci_low", "ci_high", "verdict", "judgement", "margin"}
# The first columns: k, or what a sweep compares, and the number.
COLUMNS = ["top_k", "group", "number", *(name for name in TRAININGS_COLUMNS if name not in _LEFT_OUT)]
# Those that only sweeps, or only other reports, have.
_OF_ONE_KIND = {"top_k", "group", "number"}
# More digits are noise of the machine.
_DIGITS = 6


def main(reports: Sequence[str], *, sweeps: Path | None = None) -> None:
    """Measure and write.

    Args:
        reports: by name.
        sweeps: folder of the packed cells of sweeps; None = where each is committed.
    """
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    for report in reports:
        make = REPORTS.get(report) or partial(of_packed, report, sweeps=sweeps)
        tables = list(make())
        # A sweep whose sums are not here stays as it is.
        if tables:
            claims = pd.concat(tables, ignore_index=True)
            columns = [name for name in COLUMNS if name in claims or name not in _OF_ONE_KIND]
            write_csv(OUT / f"{report}.csv", claims[columns].round(_DIGITS))


def of_crops(
    data: str, *, top_ks: Sequence[int] = TOP_KS, limit: int | None = None
) -> Iterator[pd.DataFrame]:
    """Yield the claims of the output, and of patches in each view, for each k."""
    for top_k in top_ks:
        options: dict[str, Any] = {"data": data, "limit": limit}
        yield from claims_of(api.evaluate, data, top_k, _ACCURACY, **options)
        for view in VIEWS:
            yield from claims_of(api.match_ratio, data, top_k, _matches(top_k), view=view, **options)


def of_fashion(*, top_ks: Sequence[int] = TOP_KS, limit: int | None = None) -> Iterator[pd.DataFrame]:
    """Yield the claims of each run of ``regenerate_fashion`` that has all seeds."""
    metrics = {
        "eval": _ACCURACY,
        "routes": {f"{kind}_information": ("",) for kind in ("class", "position", "color")},
    }
    for top_k in top_ks:
        for folder, probe, names, options in regenerate_fashion.questions(SEEDS[-1]):
            if any(f"-k{top_k}-" in name for name in names):
                fewer = {} if limit is None else {"limit": limit}
                wanted = metrics.get(folder, _matches(top_k))
                yield from claims_of(probe, "fashion", top_k, wanted, data="fashion_mnist", **options | fewer)


def of_corruptions(*, limit: int = regenerate_corruptions.IMAGES) -> Iterator[pd.DataFrame]:
    """Yield the claims of means over severities: of each corruption, each family, and all standard ones."""
    severities = regenerate_corruptions.SEVERITIES
    means = [mean for mean in means_of(NAMES, severities) if mean.severity != mean.severity]
    means = [mean for mean in means if mean.view in (MEAN, *FAMILIES, *NAMES)]
    for claims in claims_of(
        api.corruptions,
        "digits",
        2,
        _ACCURACY | {"top2_set_match_kappa": ("pooled",)},
        combine=partial(_means, means=means),
        data="digits",
        severities=severities,
        controls=False,
        limit=limit,
    ):
        yield claims[claims["severity"].isna()]


def of_attacks(*, limit: int | None = None) -> Iterator[pd.DataFrame]:
    """Yield the claims of each attack that ``ATTACKS`` names."""
    metrics = ("accuracy", "top1_match", "top2_set_match", "busiest_expert")
    for run in dict.fromkeys(run for run, _ in ATTACKS):
        sites = {view: severities for (of_run, view), severities in ATTACKS.items() if of_run == run}
        yield from claims_of(
            api.attack,
            "digits",
            2,
            dict.fromkeys(metrics, ("",)),
            sites=sites,
            limit=limit,
            on=regenerate_attack.RUNS[run].get("on", "answer"),
            epsilons=sorted({0, *itertools.chain(*sites.values())}),
        )


def of_margins(*, limit: int | None = None) -> Iterator[pd.DataFrame]:
    """Yield the claims of margins and critical noise, and of flips under noise, under a blur and in bfloat16."""
    metrics = dict.fromkeys(regenerate_critical.METRICS, ("",))
    for transfer in (regenerate_critical.BLUR, regenerate_critical.BFLOAT16):
        is_first = transfer == regenerate_critical.BLUR
        for claims in claims_of(
            api.margins, "digits", 2, metrics, data="digits", transfer=transfer, limit=limit
        ):
            is_level = claims["severity"].isna() | claims["severity"].isin(regenerate_critical.SIGMAS)
            # Both runs have the noise; the first one's is kept.
            yield claims[claims["view"].eq(transfer) | (is_level & is_first)]


def of_deformations(*, top_ks: Sequence[int] = TOP_KS, limit: int | None = None) -> Iterator[pd.DataFrame]:
    """Yield the claims of κ at one severity of each view, and of switches on the way there."""
    kappa, switches = {regenerate_deformations.KAPPA: ("pooled",)}, {regenerate_deformations.SWITCHES: ("",)}
    for top_k, (view, severity) in itertools.product(top_ks, regenerate_deformations.VIEWS.items()):
        options: dict[str, Any] = {"data": "digits", "view": view}
        if severity is None:
            yield from claims_of(api.match_ratio, "digits", top_k, kappa, limit=limit, **options)
            continue
        levels = [0.0, severity]
        for claims in claims_of(api.sweep, "digits", top_k, kappa, severities=levels, limit=limit, **options):
            yield claims[claims["severity"] == severity]
        if view in regenerate_deformations.PATHS:
            images = limit or regenerate_deformations.PATH_IMAGES
            yield from claims_of(
                api.discontinuity, "digits", top_k, switches, until=severity, limit=images, **options
            )


def of_transfer(*, top_ks: Sequence[int] = TOP_KS, limit: int | None = None) -> Iterator[pd.DataFrame]:
    """Yield the claims of accuracy with ten shots of the data set that models were not trained on."""
    shots = regenerate_transfer.SHOTS
    for data, trained_on in regenerate_transfer.OTHER.items():
        images = limit or regenerate_transfer.LIMITS[data]
        for top_k in top_ks:
            for claims in claims_of(
                api.fewshot,
                trained_on,
                top_k,
                {"fewshot_accuracy": ("",)},
                data=data,
                shots=[shots],
                limit=images,
            ):
                yield claims.assign(group=data)


def of_flips(*, limit: int | None = None) -> Iterator[pd.DataFrame]:
    """Yield the claims of single flips, where a difference has an interval."""
    kinds = [
        flip_metric(measured, forced).name
        for measured in ("size", "price", "beyond", "answer")
        for forced in FORCED
    ]
    yield from claims_of(
        api.flips,
        "digits",
        2,
        dict.fromkeys([*kinds, *regenerate_flips.COSTS], ("",)),
        data="digits",
        patches=regenerate_flips.PATCHES,
        predict=regenerate_flips.VIEWS,
        limit=limit,
    )


REPORTS: dict[str, Callable[..., Iterator[pd.DataFrame]]] = {
    "digits": partial(of_crops, "digits"),
    "shapes": partial(of_crops, "shapes"),
    "corruptions": of_corruptions,
    "attack": of_attacks,
    "fashion": of_fashion,
    "margins": of_margins,
    "deformations": of_deformations,
    "transfer": of_transfer,
    "flips": of_flips,
}


def claims_of(
    probe: Any,
    trained_on: str,
    top_k: int,
    nulls: Mapping[str, Sequence[str]],
    *,
    sites: Mapping[str, Sequence[float]] | None = None,
    combine: Combine | None = None,
    **options: Any,
) -> Iterator[pd.DataFrame]:
    """Yield the claims of a run over all models: a table for each view and severity, or one of all with means.

    Args:
        probe: of ``moeprobe.api``.
        trained_on: the data of the checkpoints, in their names.
        top_k: k.
        nulls: metric -> its chance levels that are wanted.
        sites: view -> its severities that are wanted; None = all.
        combine: makes means of them (``compare_trainings``).
        options: of the probe.
    """
    models = [f"{trained_on}-{kind}-k{top_k}-seed{seed}" for kind in OBJECTIVES for seed in SEEDS]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        probe([CHECKPOINTS / name for name in models], out=run, device="cpu", figures=False, **options)
        measured = finished.read(run)
        analyses = make_analyses([name for name in measured.request.analyses if name in ANALYSES])
        groups, seeds = measured.training("group"), measured.training("seed")
        pairs = differences.pairs(list(measured.checkpoints), groups=groups, seeds=seeds)
        info = About.of_request(
            measured.request, run="", aligned=measured.is_aligned, train_seeds={}, groups={}
        )
        sums = measured.sums.pool_draws(lists=trial_lists(analyses)).select(
            lambda stored: (
                stored.cell.tokens in ("patch", "")
                and (sites is None or stored.cell.severity in sites.get(stored.cell.view, ()))
            )
        )
        places = dict.fromkeys(map(_place, sums))
        # A mean needs all places; without means, each place is a family.
        for place in places if combine is None else [None]:
            claims = compare_trainings(
                sums.select(partial(_is_at, place=place)),
                analyses=analyses,
                run_info=info,
                pairs=groups_of_pairs(pairs, groups),
                combine=combine,
            )
            if len(claims):
                numbers = zip(claims["metric"], claims["null"], strict=True)
                claims = claims.assign(top_k=top_k)
                yield claims[[null in nulls.get(metric, ()) for metric, null in numbers]]


def committed(name: str) -> Path:
    """Return the folder of a sweep's tables, where the archive puts its sums per image."""
    if name in LAYOUTS:
        return regenerate_routers.REPORTS / name.removeprefix("routers-")
    return regenerate_sweeps.REPORTS / name


def of_packed(name: str, *, sweeps: Path | None) -> Iterator[pd.DataFrame]:
    """Yield the claims of a sweep; none where its sums per image are not there."""
    names = filter(None, (name, COMPARED[name].otherwise))
    folders = [sweeps / one if sweeps else committed(one) for one in names]
    if all(with_cells(folder.parent, [folder.name]) for folder in folders):
        yield from of_sweep(COMPARED[name], *folders)


def of_sweep(sweep: Compared, out: Path, otherwise: Path | None = None) -> Iterator[pd.DataFrame]:
    """Yield the claims about each number of a sweep, of all its differences over trainings.

    Args:
        sweep: what is compared.
        out: the trade-off's folder.
        otherwise: that of ``sweep.otherwise``.
    """
    # What names of groups and cells end in.
    ends = {"": out} | ({f" of {sweep.otherwise}": otherwise} if otherwise else {})
    packed = {end: read_pack(folder) for end, folder in ends.items()}
    cells = {
        (cell.about["config"]["group"] + end, cell.about["config"]["seed"]): name + end
        for end, of_end in packed.items()
        for name, cell in of_end.items()
    }
    seeds = sorted({seed for _, seed in cells})
    # The cells whose mean is a side of a difference, by what the side is called.
    sides: dict[str, list[str]] = {}
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, members in sweep.pairs().items():
        pairs[name, ""] = []
        for seed in seeds:
            checkpoint, reference = f"{name}, seed {seed}", f"reference of {name}, seed {seed}"
            sides[checkpoint] = [cells[group, seed] for group, _ in members]
            sides[reference] = [cells[group, seed] for _, group in members]
            pairs[name, ""].append((checkpoint, reference))
    numbers: dict[tuple[str, str, bool, float | None], list[Number]] = {}
    for number in (*sweep.numbers, *sweep.of_trainings):
        place = number.folder, number.analysis, number.layered, number.severity
        numbers.setdefault(place, []).append(number)
    for (folder, analysis, layered, severity), of_place in numbers.items():
        found = []
        for end, of_end in packed.items():
            # A dense model has no routing to be probed.
            probed = [
                one for one, cell in of_end.items() if cell.about["router"] != "none" or folder in cell.runs
            ]
            of_cells, about = sums_of_cells(ends[end], probed, folder, severities=[severity], layered=layered)
            found.append(of_cells.rename({one: one + end for one in probed}))
        sums, analyses = concat(found), make_analyses([analysis])
        claims = compare_trainings(
            # What was measured at other severities is no part of the family.
            sums.pool_draws(lists=trial_lists(analyses)).select(partial(_has_severity, severity=severity)),
            analyses=analyses,
            run_info=about,
            pairs=pairs,
            combine=partial(_mean_sides, sides=sides),
        )
        for number in of_place:
            rows = claims[(claims["metric"] == number.metric) & (claims["null"] == number.null)]
            yield rows.assign(group=rows["checkpoint"], number=number.heading)


def _place(stored: StoredCell) -> tuple[str, str]:
    """Return view and severity as words: a missing severity equals nothing, not even itself."""
    return stored.cell.view, str(stored.cell.severity)


def _is_at(stored: StoredCell, *, place: tuple[str, str] | None) -> bool:
    return place in (None, _place(stored))


def _has_severity(stored: StoredCell, *, severity: float | None) -> bool:
    return severity in (None, stored.cell.severity)


def _matches(top_k: int) -> dict[str, tuple[str, ...]]:
    """Return the match of the experts that process a token, and of its first one, with κ."""
    names = dict.fromkeys(["top1_match", "top1_match" if top_k == 1 else f"top{top_k}_set_match"])
    return dict.fromkeys(names, ("",)) | {f"{name}_kappa": ("pooled", "image") for name in names}


def _means(valued: Sequence[Sequence[CellValues]], *, means: Sequence[Mean]) -> Iterable[list[CellValues]]:
    """Yield means over corruptions, with the influence of each image."""
    by_place = {
        (values.checkpoint, values.cell.view, values.cell.severity): values
        for of_site in valued
        for values in of_site
    }
    for mean, of_mean in zip(means, mean_values(valued, means=means, baseline=None), strict=True):
        yield [
            dataclasses.replace(values, influences=_mean_influences(
                [by_place[values.checkpoint, *at].influences for at in mean.parts], list(values.numbers)
            ))
            for values in of_mean
        ]  # fmt: skip


def _mean_sides(
    valued: Sequence[Sequence[CellValues]], *, sides: Mapping[str, Sequence[str]]
) -> Iterator[list[CellValues]]:
    """Yield, for each site, the mean of some checkpoints as a checkpoint of its own, with the influence of each image.

    A site that one of them lacks has no mean, and numbers that one lacks are left out.
    """
    for of_site in valued:
        by_name = {values.checkpoint: values for values in of_site}
        means = []
        for side, names in sides.items():
            if not by_name.keys() >= set(names):
                continue
            members = [by_name[name] for name in names]
            shared = [
                name for name in members[0].numbers if all(name in member.numbers for member in members)
            ]
            for member in members:
                differences.check_same_images(members[0], member)
            means.append(
                dataclasses.replace(
                    members[0],
                    checkpoint=side,
                    not_finite=any(member.not_finite for member in members),
                    numbers={name: average([member.numbers[name] for member in members]) for name in shared},
                    influences=_mean_influences([member.influences for member in members], shared),
                )
            )
        yield means


def _mean_influences(
    influences: Sequence[Mapping[NumberName, Array]], names: Sequence[NumberName]
) -> dict[NumberName, Array]:
    """Return the influence of each image on the mean of some values, those of each."""
    return {name: np.mean([of_part[name] for of_part in influences], axis=0) for name in names}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="*", default=[*REPORTS, *COMPARED])
    parser.add_argument(
        "--sweeps", type=Path, help="folder of the sweeps' packed cells; default: where they are committed"
    )
    asked = parser.parse_args()
    main(asked.reports, sweeps=asked.sweeps)
