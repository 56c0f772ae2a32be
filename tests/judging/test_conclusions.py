"""What a report concludes of one run: its circumstances, its table, and the verdicts of a comparison."""

from types import SimpleNamespace
from typing import Any

from moeprobe.declarations import Headline
from moeprobe.declarations.registry import scales
from moeprobe.inputs.modality import IMAGE
from moeprobe.judging import conclusions
from moeprobe.judging.headlines import RunTables, collect_headlines
from moeprobe.results.tables import frame
from tests.studies.report.making import frame_of_differences, row, sidecar

ACCURACY = ("", "", "accuracy", "")
ENDS = (Headline("accuracy", at="weakest"), Headline("accuracy", at="strongest"))
UNIT = "noise σ, in units of the pixel range"


def reported(kind: str, **more: Any) -> Any:
    """A run whose accuracy is lower at σ 0.2, and where b is right more often."""
    rows, differences = [], []
    for severity, right in ((0.0, 0.9), (0.2, 0.6)):
        for name, gain in (("a", 0.0), ("b", 0.05)):
            value = right + gain
            rows.append(row(name, ACCURACY, (value, value - 0.03, value + 0.03), severity=severity))
        for key, size in ((ACCURACY, 0.05), (("", "", "nll", ""), -0.1)):
            interval = (size, size - 0.03, size + 0.03)
            differences.append(row("b", key, interval, severity=severity, reference="a"))
    comparison = frame_of_differences(differences)
    run = RunTables(
        sidecar=sidecar(kind, ["a", "b"], severity_unit=UNIT), table=frame(rows), comparison=comparison
    )
    fields: dict[str, Any] = {"label": "run", "trainings": None, "gate": None, "view": "gaussian noise"}
    fields |= {"comparison": run.comparison, "sidecar": run.sidecar, "checkpoints": run.checkpoints}
    fields |= {"headlines": collect_headlines(run, ENDS), "modality": IMAGE}
    return SimpleNamespace(**fields | more)


def test_the_weakest_end_is_clean_and_the_strongest_has_its_severity() -> None:
    concluded = conclusions.conclude([reported("sweep")], scales())
    assert concluded.sentences == [
        "On clean images, b is more accurate than a: accuracy +0.050 [+0.020, +0.080].",
        "Under gaussian noise at σ 0.2, b is more accurate than a: accuracy +0.050 [+0.020, +0.080].",
    ]
    (table,) = concluded.tables
    assert table.caption == "Verdicts: b against a"
    assert [*table.columns] == ["property", "verdict", "Δ [simultaneous 95 %]", "layer"]
    assert [[cell.line for cell in line] for line in table.rows] == [
        [f"Accuracy, {where}", "better", "+0.050 [+0.020, +0.080]", "output"]
        for where in ("on clean images", "under gaussian noise at σ 0.2")
    ]
    assert table.note.endswith("would name a side in up to 0.1 of these 2 verdicts, on average.")


def test_a_mean_over_severities_says_so_and_names_no_unit() -> None:
    declared = Headline("accuracy", at="mean", severity="over all severities")
    run = reported("sweep")
    (headline,) = run.headlines[:1]
    mean = SimpleNamespace(declared=declared, severity=float("nan"), layer="")
    assert conclusions._circumstances(run, mean) == "under gaussian noise over all severities"  # type: ignore[arg-type]
    assert conclusions._circumstances(reported("sweep", view=""), headline) == "on clean images"


def test_a_comparison_shows_what_its_gate_watches() -> None:
    (alone,) = conclusions.conclude([reported("compare", headlines=[])], scales()).tables
    (watched,) = conclusions.conclude([reported("compare", headlines=[], gate="nll")], scales()).tables
    assert [line[0].text for line in alone.rows] == ["Accuracy"]
    assert len(watched.rows) == 2 and watched.rows[0][0].text == "Accuracy"


def test_the_lead_has_both_values_before_the_verdict() -> None:
    assert conclusions.lead_of(reported("sweep"), scales()) == (
        "Accuracy, on clean images: a 0.900 [0.870, 0.930], b 0.950 [0.920, 0.980] (360 images). Verdict: better."
    )
