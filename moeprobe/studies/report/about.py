"""What a run was asked, and what made it: for the head of its section and the end of the report."""

from collections.abc import Mapping, Sequence
from typing import Any

from moeprobe.inputs.modality import IMAGE, Modality
from moeprobe.metrics.stats.bootstrap import MIN_IMAGES
from moeprobe.results.layouts.cells import Table, TableCell
from moeprobe.studies.report.reading import Run
from moeprobe.studies.report.summary import Names

_REQUESTED = {
    "data": "data set", "split": "split", "view": "view", "severities": "severities", "layers": "MoE layers",
    "limit": "{units} asked for", "seed": "seed of the probing", "skip_bad_images": "unreadable {units} skipped",
    "trained_capacity": "capacity", "labels_used": "labels used",
}  # fmt: skip
_ABSENT = {"layers": "all", "limit": "all"}
# More severities than this are a path, described by its ends.
_MOST_NAMED = 20
_TELLS_NOTHING = ("kind", "checkpoints", "recorded", "texts")


def request_lines(run: Run) -> list[tuple[str, str]]:
    """Return what determined the numbers of a run: (name, value)."""
    lines = []
    for name, value in run.settings.items():
        if value in ([], {}, "") or _says_nothing(name, run):
            continue
        text = _ABSENT.get(name, "none") if value is None else _text(value)
        if name == "severities":
            text = _severities(value, run.sidecar.severity_unit)
        if name == "trained_capacity":
            text = _capacity(run, trained=bool(value))
        called = _REQUESTED.get(name, name.replace("_", " ")).format(units=run.modality.plural)
        lines.append((called, text))
    if run.images is not None:
        lines.append((run.modality.units, f"{run.images:,}"))
        lines.append(("intervals", _intervals(run)))
    if run.sidecar.look is not None:
        look, looks = run.sidecar.look
        lines.append(("look", f"{look} of {looks}; simultaneous intervals hold in all {looks} at once"))
    notes = run.sidecar.notes
    if notes:
        lines.append(("not measured", _text(notes)))
    if run.sidecar.ignored:
        lines.append(("ignored", _text(run.sidecar.ignored)))
    skipped = run.sidecar.skipped_images
    if skipped:
        lines.append(("skipped as unreadable", f"{len(skipped)}: {_text(skipped)}"))
    return lines


def _severities(severities: Sequence[float], unit: str | None) -> str:
    # Recorded routing has one severity per trace, so the same may occur several times.
    different = list(dict.fromkeys(severities))
    text = _text(different)
    if len(different) > _MOST_NAMED:
        text = f"{different[0]:g} to {different[-1]:g} in {len(different) - 1} steps"
    return f"{text} ({unit})" if unit else text


def _says_nothing(name: str, run: Run) -> bool:
    """Whether a setting determines no number, or is said by another one."""
    settings = run.settings
    return (
        name in _TELLS_NOTHING
        # The number of the look says it, too.
        or (name == "looks" and run.sidecar.look is not None)
        # Where images were named, how many to draw at random says nothing.
        or (name == "limit" and "images" in settings)
        # Recorded routing has its own capacity, and gates are replayed only where asked.
        or (name == "trained_capacity" and "capacity" in settings)
        or (name == "replayed_gates" and settings[name] is None)
    )


def _capacity(run: Run, *, trained: bool) -> str:
    """Return the capacity that each checkpoint was probed with; where it is the choice itself it is never lifted."""
    parts = []
    limited = {
        name: info
        for name, info in run.checkpoints.items()
        if trained or info.get("capacity", "unlimited") != "unlimited"
    }
    if not trained and not limited:
        return "unlimited"
    for name, info in limited.items():
        images = info.get("group_images", 1)
        parts.append(
            f"{name}: {info.get('capacity', 'unknown')}, {images} image{'s' if images != 1 else ''} per group"
        )
    listed = f"as trained ({'; '.join(parts)})"
    return listed if len(limited) == len(run.checkpoints) else f"unlimited, but {listed}"


def _intervals(run: Run) -> str:
    tables = [table for table in (run.table, run.comparison) if table is not None]
    if any(table["ci_low"].notna().any() for table in tables):
        return f"95 % interval over {run.modality.units}, shown as [low, high]; differences are paired"
    return f"none: they need at least {MIN_IMAGES} {run.modality.units}"


def _text(value: Any) -> str:
    """Return a value of a request as words; a view is its name, then its parameters."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(part) for part in value)
    if isinstance(value, dict):
        parameters = "; ".join(f"{key} {_bracket(part)}" for key, part in value.items() if key != "name")
        name = str(value.get("name", ""))
        return f"{name} ({parameters})" if name and parameters else name or parameters
    return "none" if value is None else str(value)


def _bracket(part: Any) -> str:
    return f"[{_text(part)}]" if isinstance(part, (list, dict)) else _text(part)


def reading(modalities: Sequence[Modality]) -> dict[str, str]:
    """Return the words for the input (images or texts), with which a report explains its numbers."""
    words = {"unit": "name", "units": "plural", "token": "token", "tokens": "tokens"}
    readings = {
        key: " or ".join(getattr(modality, name) for modality in modalities) for key, name in words.items()
    }
    return readings | {"crop": " or in another crop" if IMAGE in modalities else ""}


def scope(runs: Sequence[Run]) -> str:
    """Return the first sentence of a report: how many runs, of which checkpoints, on which data."""
    names = checkpoint_names(runs)
    data = []
    for run in runs:
        where = " ".join(str(run.settings[part]) for part in ("data", "split") if run.settings.get(part))
        if run.images is not None:
            where += f" ({run.modality.format_count(run.images)})"
        data.append(where.strip())
    with_counts = [where for where in dict.fromkeys(data) if where]
    # A run without numbers, e.g. an overlay, adds nothing to a data set that is named with its number of images.
    data_sets = [
        where for where in with_counts if not any(longer.startswith(f"{where} (") for longer in with_counts)
    ]
    number = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    of = f" of {listing(names)}" if names else ""
    return f"{number}{of}{' on ' + listing(data_sets) if data_sets else ''}."


def checkpoint_names(runs: Sequence[Run]) -> list[str]:
    """Return the checkpoints of all runs, in the order they come, distinguished where several files share a name."""
    names = Names(runs)
    return list(dict.fromkeys(names.of(run, name) for run in runs for name in run.checkpoints))


def listing(parts: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def checkpoint_table(runs: Sequence[Run]) -> Table | None:
    """Return what each checkpoint is; None where the runs name none."""
    names = Names(runs)
    columns = ["checkpoint", "file", "SHA-256", "group", "training seed", "objective", "steps"]
    rows: dict[tuple[TableCell, ...], None] = {}
    for run in runs:
        for name, info in run.checkpoints.items():
            training = info.get("training") or {}
            cells = (
                TableCell(names.of(run, name)),
                *(_cell_of(info, key) for key in ("path", "sha256")),
                *(_cell_of(training, key) for key in ("group", "seed", "objective", "step")),
            )
            rows[cells] = None
    return Table("Checkpoints", columns, list(rows)) if rows else None


def _cell_of(info: Mapping[str, Any], key: str) -> TableCell:
    """Return the cell of what may not be known."""
    return TableCell("" if info.get(key) is None else _text(info[key]))


def computing_table(runs: Sequence[Run]) -> Table:
    """Return how each run was computed."""
    columns = ["run", "kind", "commit of moeprobe", "platform", "device", "batch size", "workers", "seconds"]
    rows = []
    for run in runs:
        side = run.sidecar
        seconds = side.get("wall_seconds")
        rows.append(
            [
                TableCell(run.label),
                TableCell(run.kind),
                *(
                    _cell_of(side, key)
                    for key in ("git_commit", "platform", "device", "batch_size", "workers")
                ),
                TableCell(f"{seconds:.1f}", key=float(seconds))
                if isinstance(seconds, (int, float))
                else TableCell(""),
            ]
        )
    return Table("Runs", columns, rows)


def version_lines(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return (runs, their package versions), runs with the same versions together."""
    same: dict[str, list[str]] = {}
    for run in runs:
        versions = run.sidecar.get("versions")
        packages = (
            ", ".join(f"{name} {v}" for name, v in versions.items())
            if isinstance(versions, dict)
            else "unknown"
        )
        same.setdefault(packages, []).append(run.label)
    return [
        ("all runs" if len(same) == 1 else ", ".join(labels), packages) for packages, labels in same.items()
    ]
