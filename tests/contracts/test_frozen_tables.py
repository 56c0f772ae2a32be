"""What commands write on small inputs stays what it is, unless a change is meant.

    python -m tests.contracts.test_frozen_tables       # after a change that is meant: writes the file anew

Kept are of each table its columns, its rows by what they are about, and the mean of each metric: on another processor
single choices of experts may differ, and no mean of many moves far. ``benchmarks.fingerprints`` compares bytes on one
machine. The help of commands and the functions of the API are frozen by their pages (``docs/generate.py``).
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks import fingerprints
from tests.commands import run

FROZEN = Path(__file__).with_name("frozen_tables.json")
# What a row is about, and not what was measured.
KEYS = (
    "checkpoint",
    "view",
    "layer",
    "router",
    "top_k",
    "severity",
    "tokens",
    "metric",
    "null",
    "expert",
    "expert_b",
)
# Of a mean over layers, tokens and experts: far above what a flipped choice moves, far below what a fault does.
CLOSE = 0.02


def found(root: Path, commands: list[str]) -> dict[str, Any]:
    """Return the summary of each table that the commands write."""
    summaries: dict[str, Any] = {}
    for name, words, _ in fingerprints.lines(commands, root):
        result = run(*words, "--out", root / name)
        assert result.exit_code == 0, (name, result.output)
        for path in sorted((root / name).glob("*.csv")):
            summaries[f"{name}: {path.name}"] = summary(pd.read_csv(path))
    return summaries


def summary(table: pd.DataFrame) -> dict[str, Any]:
    """Columns and rows as they are, numbers by their means."""
    keys = table[[column for column in KEYS if column in table]].astype(str)
    content = "\n".join(sorted(" ".join(map(str, row)) for row in keys.itertuples(index=False)))
    numbers = [column for column in ("value", "ci_low", "ci_high") if column in table]
    means = table.groupby("metric")[numbers].mean() if "metric" in table else pd.DataFrame()
    return {
        "columns": list(table.columns),
        "rows": len(table),
        "keys": hashlib.sha256(content.encode()).hexdigest()[:16],
        "means": {
            str(metric): {column: round(float(mean), 6) for column, mean in row.dropna().items()}
            for metric, row in means.iterrows()
        },
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what a reader must know of two summaries, a line each."""
    said = [f"{name}: only in one" for name in sorted(before.keys() ^ after.keys())]
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        said += [f"{name}: {key} differ" for key in ("columns", "rows", "keys") if old[key] != new[key]]
        for metric in sorted(old["means"].keys() | new["means"].keys()):
            means, others = old["means"].get(metric, {}), new["means"].get(metric, {})
            if means.keys() != others.keys() or any(
                abs(means[column] - others[column]) > CLOSE * max(1, abs(means[column])) for column in means
            ):
                said.append(f"{name}: {metric} was {means} and is {others}")
    return said


@pytest.mark.slow
@pytest.mark.promise
def test_tables_are_as_they_were(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    commands = [*fingerprints.COMMANDS, *fingerprints.RECORDED]
    assert differences(json.loads(FROZEN.read_text()), found(tmp_path, commands)) == []


def test_every_kind_of_question_is_frozen() -> None:
    from moeprobe.declarations import registry

    frozen = {name.partition(":")[0] for name in json.loads(FROZEN.read_text())}
    without_table = {"trace record"}  # writes traces
    # Clips are a data set of one's own.
    assert {kind.name for kind in registry.kinds()} - frozen == without_table | {"frames"}


def test_the_comparison_sees_a_changed_number() -> None:
    rows = [{"metric": "a", "value": value, "layer": "blocks.1"} for value in (0.1, 0.3)]
    before = {"x: table.csv": summary(pd.DataFrame(rows))}
    assert differences(before, before) == []
    rows[0]["value"] = 0.2
    after = {"x: table.csv": summary(pd.DataFrame(rows))}
    assert differences(before, after) == ["x: table.csv: a was {'value': 0.2} and is {'value': 0.25}"]
    rows[1]["layer"] = "blocks.3"
    assert "x: table.csv: keys differ" in differences(before, {"x: table.csv": summary(pd.DataFrame(rows))})


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        written = found(Path(folder), [*fingerprints.COMMANDS, *fingerprints.RECORDED])
    FROZEN.write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
