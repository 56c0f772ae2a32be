"""How fast moeprobe is, from the committed runs of ``benchmarks.speed`` in ``reports/bench``, a folder per part."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.speed.facts import CLOCKS, sentence
from benchmarks.speed.parts.layer import OURS
from benchmarks.speed.parts.sweep import BARE, FROM_FILES, NOTEBOOK
from benchmarks.speed.race import BEST
from benchmarks.speed.table import BENCH_COLUMNS
from writers import full_size, profiles
from writers.markdown import code, inline, page, table

REPORTS = Path(__file__).parents[2] / "reports" / "bench"
_UNITS = {"s": ("ms", 1e3)}
# Why a part misses targets.
_NOTES = {
    "probes": "Images are JPEG files of 500 x 375 pixels. The digits models take 32 x 32 pixels, so for them files, "
    "views and statistics often take longer than the passes ([profile](#where-the-time-of-a-small-model-goes)). With "
    "32 images of the larger model the figure and the intervals weigh much too; their cost does not grow with the "
    "images."
}
ON_GPU = " on a GPU"
_HOW = (
    "`python -m benchmarks.speed layer startup --out reports/bench/mine` runs moeprobe against other ways to "
    "do the same work, and against limits that nothing can beat. It first checks that these ways compute the "
    "same values, then measures all in interleaved rounds of one run. *Speed 0.95 of X*: in the same time it "
    "does 0.95 times as much as X. *Time 0.25 of X*: it takes a quarter of the time of X. Brackets hold the "
    "quartiles over the rounds. CPU time (`--clock cpu`) hardly depends on what else the machine does, but "
    "does not show threads that wait for each other; how long a training waits for images is always wall "
    "time.\n\nColumns of `table.csv`. "
    + " ".join(f"{code(name)}: {text}." for name, text in BENCH_COLUMNS.items())
)
# The table of a run, and what its sidecar says.
Run = tuple[pd.DataFrame, dict[str, Any]]


def pages() -> dict[str, str]:
    """Return the page of whole runs, and the page of the layer alone, with its GPU."""
    runs = [
        (pd.read_csv(folder / "table.csv", keep_default_na=False, na_values={"ratio": [""]}), sidecar)
        for folder in sorted(REPORTS.iterdir())
        for sidecar in [json.loads((folder / "table.json").read_text(encoding="utf-8"))]
    ]
    on_cpu, on_gpu = (
        [run for run in runs if (run[1]["machine"]["device"] == "cpu") is cpu] for cpu in (True, False)
    )
    of_layer, of_program = (
        [run for run in on_cpu if ("layer" in run[1]["request"]["parts"]) is layer] for layer in (True, False)
    )
    program = page(
        f"Whole runs of moeprobe reach {_reached(of_program)} targets of speed",
        "reports/bench",
        _summary(of_program, []),
        f"The [MoE layer alone](layer-speed.md) has a page of its own. {_HOW}",
        *_sections(of_program),
        profiles.section(),
        full_size.section(),
    )
    layer = page(
        f"On a CPU the MoE layer reaches {_reached(of_layer)} targets of speed, on a GPU {_reached(on_gpu)}",
        "reports/bench",
        _summary(of_layer, on_gpu),
        f"[Whole runs](speed.md) have a page of their own. {_HOW}",
        *_sections(of_layer),
        "## On a GPU\n\nThe targets were set for a CPU. On a GPU these sizes are small: a product takes less time than "
        "the steps around it take to start, so what does fewer steps is quicker. The matrices of one MoE layer of "
        "V-MoE-S/32 with 16 images are meant to fill a CPU. Other processes used this machine at the same time. Shown "
        "is the quickest of the others; limits are in the table of the report.",
        *_sections(_against_others(on_gpu), suffix=ON_GPU),
    )
    return {"results/speed.md": program, "results/layer-speed.md": layer}


def _reached(runs: list[Run]) -> str:
    reached = pd.concat([table["reached"] for table, _ in runs])
    number = reached.isin(["yes", "no"]).sum()
    return f"{(reached == 'yes').sum()} of {number}" if number else "none set"


def _summary(on_cpu: list[Run], on_gpu: list[Run]) -> str:
    """Return a table of the parts: the targets reached, and the one that is missed by most."""
    lines = [
        [_heading(str(part), suffix), _reached([(rows, sidecar)]), _furthest(rows)]
        for runs, suffix in ((on_cpu, ""), (on_gpu, ON_GPU))
        for found, sidecar in runs
        for part, rows in found.groupby("part", sort=False)
    ]
    return table(["part", "targets reached", "missed by most"], lines)


def _furthest(rows: pd.DataFrame) -> str:
    missed = rows[rows["reached"] == "no"]
    if missed.empty:
        return "–"
    wanted = missed["target"].str.split().str[1].astype(float)
    ratio = missed["ratio"].astype(float)
    share = (ratio / wanted).where(missed["target"].str.startswith("≥"), wanted / ratio)
    row = missed.loc[share.idxmin()].to_dict()
    return f"{inline(row['race'])}, {code(row['contestant'])}: {_ratio(row)}, {row['target']}"


def _heading(part: str, suffix: str) -> str:
    return part.replace("_", " ").capitalize() + suffix


def _against_others(runs: list[Run]) -> list[Run]:
    """Return the runs without what is compared with limits, or with itself."""
    return [(rows[rows["against"].str.startswith("best")], sidecar) for rows, sidecar in runs]


def _sections(runs: list[Run], *, suffix: str = "") -> list[str]:
    return [
        _section(str(part), rows, sidecar, suffix=suffix)
        for found, sidecar in runs
        for part, rows in found.groupby("part", sort=False)
    ]


def _section(part: str, rows: pd.DataFrame, sidecar: dict[str, Any], *, suffix: str) -> str:
    shown = rows[rows["target"] != ""] if (rows["target"] != "").any() else rows
    loads = f"load average {sidecar['load_at_start']} at the start and {sidecar['load_at_end']} at the end"
    clock = CLOCKS[sidecar["request"].get("clock", "wall")]
    rounds = int(rows["rounds"].max())
    on = f"{sentence(sidecar['machine'])}; {loads}; {clock}, {rounds} round{'s' if rounds > 1 else ''}."
    abreast = shown["contestant"].eq(OURS) & shown.duplicated(["race", "contestant"], keep=False).any()
    tables = [
        draw(shown[chosen]) for draw, chosen in ((_abreast, abreast), (_one_by_one, ~abreast)) if chosen.any()
    ]
    notes = [_NOTES[part]] if part in _NOTES else []
    return "\n\n".join([f"## {_heading(part, suffix)}", on, *notes, *tables, *_most(rows)])


def _abreast(rows: pd.DataFrame) -> str:
    """Return a table with a line per race of moeprobe, and a column for all that it is compared with."""
    against = rows["against"].where(~rows["against"].str.startswith(BEST), BEST)
    columns = rows["ratio_of"] + " of " + against + ", " + rows["target"]
    headings, lines = columns.unique(), []
    for race, ratios in rows.groupby("race", sort=False):
        records = ratios.to_dict("records")
        cells = {column: _cell(row) for column, row in zip(columns[ratios.index], records, strict=True)}
        lines.append(
            [
                inline(str(race)),
                *_times(records[0], rows),
                *(cells.get(heading, "") for heading in headings),
            ]
        )
    return table([f"{code(OURS)} (bold: missed)", *_times_of(rows), *headings], lines)


def _one_by_one(rows: pd.DataFrame) -> str:
    """Return a table with a line per ratio, and per contestant that is compared with nothing."""
    lines, before = [], ("", "")
    for row in rows.to_dict("records"):
        same = before == (row["race"], row["contestant"])
        times = _times(row, rows)
        lines.append(
            [
                "" if row["race"] == before[0] else inline(row["race"]),
                "" if same else code(row["contestant"]),
                *([""] * len(times) if same else times),
                _ratio(row),
                f"{row['target']} {'reached' if row['reached'] == 'yes' else 'missed'}"
                if row["target"]
                else "",
            ]
        )
        before = (row["race"], row["contestant"])
    return table(["race", "contestant", *_times_of(rows), "ratio", "target"], lines)


def _most(rows: pd.DataFrame) -> list[str]:
    """Return what no probe can reach: more than its passes against a notebook, or than its files and views leave."""
    medians = (
        rows.drop_duplicates(["race", "contestant"]).set_index(["contestant", "race"])["median"].astype(float)
    )
    if NOTEBOOK not in medians.index:
        return []
    races = medians[NOTEBOOK].index
    bare = medians[BARE].reindex(races)
    return [
        f"The {BARE} are this many times as fast as the {NOTEBOOK}: {_by_race(medians[NOTEBOOK] / bare)}. Whatever "
        "runs these passes is hardly faster, so a target more than 5 % above that number is out of reach. Rounds "
        "differ by some percent, so a probe or the reading may come out ahead of the passes.",
        "Reading the files and making the views alone leaves this much of the speed of the passes: "
        f"{_by_race(bare / medians[FROM_FILES].reindex(races))}.",
    ]


def _by_race(numbers: pd.Series) -> str:
    return "; ".join(f"{inline(str(race))}: {number:.2f}" for race, number in numbers.items())


def _times_of(rows: pd.DataFrame) -> list[str]:
    """Return the headings of what ``_times`` returns."""
    units = _units(rows)
    return [
        f"median, {units[0]}" if len(units) == 1 else "median",
        *(["CPU, ms"] if "cpu_seconds" in rows else []),
    ]


def _times(row: dict[str, Any], rows: pd.DataFrame) -> list[str]:
    """Return how long a contestant took, in a table of these rows."""
    unit, scale = _UNITS.get(row["unit"], (row["unit"], 1.0))
    low, median, high = (float(row[name]) * scale for name in ("quartile_low", "median", "quartile_high"))
    quartiles = f" [{low:,.4g}, {high:,.4g}]" if int(row["rounds"]) > 1 else ""
    text = f"{median:,.4g}{quartiles}" + (f" {unit}" if len(_units(rows)) > 1 else "")
    text += f", {float(row['items_per_second']):,.0f}/s" if row["items_per_second"] else ""
    if "cpu_seconds" not in row:
        return [text]
    return [text, f"{float(row['cpu_seconds']) * 1e3:,.4g}" if row["unit"] == "s" else ""]


def _units(rows: pd.DataFrame) -> list[str]:
    return [_UNITS.get(unit, (unit, 1.0))[0] for unit in rows["unit"].unique()]


def _cell(row: dict[str, Any]) -> str:
    """Return a ratio below the heading that says of what: bold where it misses its target."""
    # Which of the others was the best.
    _, _, other = row["against"].partition(f"{BEST}: ")
    return f"{_number(row, mark='**' if row['reached'] == 'no' else '')} {other}".rstrip()


def _ratio(row: dict[str, Any]) -> str:
    if not row["against"]:
        return ""
    of = f"{row['ratio_of']} " if row["unit"] == "s" else ""
    return f"{of}{_number(row)} of {row['against'].removeprefix('of ')}"


def _number(row: dict[str, Any], *, mark: str = "") -> str:
    low, ratio, high = (float(row[name]) for name in ("ratio_quartile_low", "ratio", "ratio_quartile_high"))
    # What misses its target by less than a hundredth would read as if it reached it.
    digits = 3 if row["reached"] == "no" and f"{ratio:.2f}" in row["target"] else 2
    quartiles = f" [{low:.{digits}f}, {high:.{digits}f}]" if int(row["rounds"]) > 1 else ""
    return f"{mark}{ratio:.{digits}f}{mark}{quartiles}"
