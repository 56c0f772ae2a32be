"""``moeprobe plan``: its numbers by other code, what pilots like these come to, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

from moeprobe import api
from moeprobe.judging.differences import compare
from moeprobe.judging.trainings import TRAININGS
from moeprobe.metrics.analyses.output import Output
from moeprobe.metrics.stats.proportions import critical
from moeprobe.results.columns import PLAN_COLUMNS, TRAININGS_COLUMNS
from moeprobe.results.csv_files import read_values
from moeprobe.results.stored import of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import concatenate, image_table
from moeprobe.studies.plan import plan_images
from moeprobe.studies.plan.layout import images_table
from moeprobe.studies.plan.pilots import _of_differences
from moeprobe.studies.plan.run import _plan_rows, _select
from tests.commands import refused, run
from tests.judging.test_differences import ABOUT

REPORTS = Path(__file__).parents[2] / "reports"
# Committed runs have no sums per image: the errors are those of their tables.
NOISE = REPORTS / "digits" / "noise-sweep"


def by_hand(row: dict[str, Any], difference: float, power: float) -> int:
    """Recompute the images of one comparison with scipy's distributions."""
    factor = (row["sim_high"] - row["value"]) / row["se"]
    n = int(row["images"])
    limit = row["se"] * np.sqrt((n - 1) / stats.chi2.ppf(0.2, n - 1))
    return int(max(np.ceil(n * ((factor + stats.norm.ppf(power)) * limit / difference) ** 2), 20))


def test_a_committed_run_is_a_pilot() -> None:
    plan = plan_images(NOISE, difference=0.01, power=0.9)
    assert list(plan.table) == list(PLAN_COLUMNS)
    rows = read_values(NOISE / "comparison.csv")
    keys = ["layer", "severity", "tokens", "metric", "null"]
    expected = {
        tuple(row[key] for key in keys): by_hand(row, 0.01, 0.9)
        for row in rows.to_dict("records")
        if row["se"] > 0 and np.isfinite(row["sim_high"])
    }
    planned = plan.table.dropna(subset="images_needed").to_dict("records")
    assert len(planned) > 50
    for row in planned:
        assert row["images_needed"] == expected[tuple(row[key] for key in keys)]
    # A line of the table is the comparison of its metric that needs most.
    for row in plan.families.to_dict("records"):
        family = plan.table.query(f"metric == {row['metric']!r} and null == {row['null']!r}")
        of_kind = family[family["tokens"] == row["tokens"]]
        assert row["images_needed"] == of_kind["images_needed"].max()


def test_the_command_says_it_in_a_sentence(tmp_path: Path) -> None:
    result = run("plan", NOISE, "--difference", 0.01, "--metric", "top1_match", "--out", tmp_path / "plan")
    assert result.exit_code == 0, result.output
    (line,) = read_values(tmp_path / "plan" / "plan.csv", numbers=[])["metric"].unique()
    assert line == "top1_match"
    assert result.output.startswith(
        "About 8,000 images show a difference of 0.01 in top-1 match, with 80% power;"
    )
    answer = json.loads(run("plan", NOISE, "--difference", 0.01, "--json").output)
    assert answer["sentences"][0].startswith("About ") and answer["files"] == []
    again = ("plan", NOISE, "--difference", 0.02, "--out", tmp_path / "plan")
    assert "holds plan.csv already" in refused(*again)
    assert run(*again, "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--difference", 0), "takes a number above 0; got 0.0"),
        (("--difference", 0.1, "--power", 1), "takes a number between 0 and 1; got 1.0"),
        (("--difference", 0.1, "--metric", "top1_mach"), "Did you mean 'top1_match'?"),
        (("--difference", 0.1, "--trainings"), "takes 3 or more pairs of trainings"),
    ],
)
def test_what_cannot_be_planned(arguments: tuple[object, ...], message: str) -> None:
    assert message in refused("plan", NOISE, *arguments)


def test_what_is_no_pilot(tmp_path: Path) -> None:
    assert "is no finished run; plan reads" in refused("plan", tmp_path, "--difference", 0.1)
    assert "is no finished run; plan reads" in refused("plan", tmp_path / "none", "--difference", 0.1)


def claims_of(path: Path, **changes: float) -> None:
    """Write the claims of a comparison beside its differences."""
    row = dict.fromkeys(TRAININGS_COLUMNS, "") | {
        "checkpoint": "b", "reference": "a", "layer": "blocks.1", "severity": 0.1, "tokens": "patch",
        "trainings": 4, "metric": "top1_match", "value": 0.02, "error": 0.01, "freedom": 3, "images": 360,
        "spread": 0.02, "image_spread": 0.1, "residual_spread": 0.3, "verdict": "no significant difference",
    } | changes  # fmt: skip
    for name in ("comparison.csv", "table.json"):
        (path / name).write_bytes((NOISE / name).read_bytes())
    pd.DataFrame([row]).to_csv(path / TRAININGS, index=False)


def test_trainings_and_images_by_hand(tmp_path: Path) -> None:
    claims_of(tmp_path)
    plan = plan_images(tmp_path, difference=0.05, metric="top1_match", trainings=True)
    for row in plan.trainings.to_dict("records"):
        pairs, images = row["pairs"], np.inf if np.isnan(row["images"]) else row["images"]
        of_pairs = 0.02**2 * 3 / stats.chi2.ppf(0.2, 3) / pairs
        of_image = 0.1**2 * 359 / stats.chi2.ppf(0.2, 359) / images
        of_both = 0.3**2 * 359 / stats.chi2.ppf(0.2, 359) / (pairs * images)
        parts = (of_pairs + of_both) ** 2 / (pairs - 1)
        if np.isfinite(images):
            parts += (of_image + of_both) ** 2 / (images - 1)
        variance = of_pairs + of_image + of_both
        freedom = variance**2 / parts
        reach = stats.t.ppf(0.975, freedom) + stats.t.ppf(0.8, freedom)
        assert row["detectable"] == pytest.approx(reach * np.sqrt(variance))
    assert plan.trainings["pairs"].min() == 4 and plan.trainings["images"].isna().any()
    (sentence,) = [text for text in plan.sentences if text.startswith("For other trainings")]
    assert "with the 4 pairs of the run no number of images shows it" in sentence
    # The least number of pairs that is enough with the images of the run has a line.
    with_images = plan.trainings.query("images == 360").set_index("pairs")["detectable"]
    enough = min(pairs for pairs, size in with_images.items() if size <= 0.05)
    assert f"about {enough} pairs show it" in sentence and enough not in (4, 8, 16)


def test_where_trainings_agree_more_images_help(tmp_path: Path) -> None:
    claims_of(tmp_path, spread=0.0, image_spread=1.0)
    plan = plan_images(tmp_path, difference=0.05, metric="top1_match", trainings=True)
    (sentence,) = [text for text in plan.sentences if text.startswith("For other trainings")]
    assert "images show it" in sentence and "no number of pairs shows it" in sentence


# Two models that are right in 0.7 and 0.8 of all images, half of the time about the same ones.
LEVELS, TOGETHER, DIFFERENCE = (0.7, 0.8), 0.5, 0.1
_COVARIANCE = TOGETHER**2 * (min(LEVELS) - LEVELS[0] * LEVELS[1])
SPREAD = np.sqrt(sum(level * (1 - level) for level in LEVELS) - 2 * _COVARIANCE)


def answers(rng: np.random.Generator, pilots: int, images: int) -> NDArray[np.bool_]:
    """Return which answers are right ``(2, pilots, images)``."""
    shared = rng.random((pilots, images))
    return np.array(
        [
            np.where(rng.random(shared.shape) < TOGETHER, shared, rng.random(shared.shape)) < level
            for level in LEVELS
        ]
    )


def test_the_share_of_pilots_that_plan_enough_is_what_the_page_measures() -> None:
    page = (REPORTS.parent / "docs" / "concepts" / "intervals.md").read_text(encoding="utf-8")
    rows = page.split("| images of the pilot |")[1].split("\n\n")[0].splitlines()[2:]
    shares = [float(row.strip("|").split("|")[2]) for row in rows]
    plan = plan_images(NOISE, difference=0.01)
    assert (
        f"In simulations, {min(shares):.3f} to {max(shares):.3f} of pilots plan enough." in plan.sentences[0]
    )


def powers(needed: Any, *, factor: float) -> Any:
    """Return the true power of planned numbers of images: the interval ends ``factor`` standard errors away."""
    return stats.nct.sf(factor, needed - 1, DIFFERENCE * np.sqrt(needed) / SPREAD)


@pytest.mark.parametrize("images", [40, 100, 300])
def test_four_of_five_pilots_plan_enough(images: int) -> None:
    """2,000 pilots, a row each; the error of a share is 0.01. Power lies between 0.8 and 0.9."""
    first, second = answers(np.random.default_rng(images), 2000, images).astype(float)
    errors = (second - first).std(axis=1, ddof=1) / np.sqrt(images)
    value = (second - first).mean(axis=1)
    table = pd.DataFrame({"value": value, "se": errors, "sim_high": value + critical(images) * errors})
    table = table.assign(checkpoint_value=second.mean(axis=1), reference_value=first.mean(axis=1))
    table = table.assign(
        metric="accuracy",
        null="",
        severity=np.nan,
        images=images,
        trials=images,
        dataset="digits",
        interval="t",
    )
    rows = _plan_rows(_select(_of_differences(table, pd.DataFrame()).rows, None), DIFFERENCE, 0.8)
    power = powers(rows["images_needed"].to_numpy(), factor=critical(10**6))
    print(f"{images} images: mean power {power.mean():.3f}, reached {np.mean(power >= 0.8):.3f}")
    assert 0.8 <= power.mean() <= 0.9
    assert np.mean(power >= 0.8) >= 0.7
    # The design effect of one answer per image, less what the two models have in common.
    independent = sum(level * (1 - level) for level in LEVELS)
    assert rows["effect"].mean() == pytest.approx(SPREAD**2 / independent, abs=0.05)


@pytest.mark.slow
@pytest.mark.promise
def test_pilots_through_the_tables_of_runs() -> None:
    """200 pilots of 60 images, resampled and judged as runs are; four severities, whose intervals hold together."""
    number, images, steps = 200, 60, 4
    rng, found = np.random.default_rng(1), []
    for _ in range(number):
        parts = []
        both = answers(rng, steps, images)
        for name, right in zip("ab", both, strict=True):
            accumulator = Accumulator()
            for step, of_step in enumerate(right):
                cell = Cell("", "", 0, "noise", 0.1 * (step + 1), 0, "")
                ones = np.ones(images, np.int64)
                columns = {"labelled": ones, "predicted": ones, "accuracy": of_step.astype(np.int64)}
                names = [f"{image:04d}" for image in range(images)]
                accumulator.add(cell, names, columns | {"loss": 1.0 - of_step})
            parts.append(image_table(accumulator, checkpoint=name))
        table = compare(
            of_table(concatenate(parts)), analyses=(Output(),), run_info=ABOUT, selected_pairs=[("b", "a")]
        )
        rows = _plan_rows(_select(_of_differences(table, pd.DataFrame()).rows, "accuracy"), DIFFERENCE, 0.8)
        found.append(rows["images_needed"].to_numpy())
    # Four independent intervals that hold together.
    power = powers(np.array(found), factor=critical(10**6, confidence=0.95**0.25))
    print(f"mean power {power.mean():.3f}, reached {np.mean(power >= 0.8):.3f}")
    assert 0.8 <= power.mean() <= 0.92
    assert np.mean(power >= 0.8) >= 0.7


def test_one_checkpoint_stands_for_two(tmp_path: Path) -> None:
    """Accuracy: the error of a share of n images, times √2; one recording of requests: by their design effect."""
    checkpoint = Path(__file__).parents[2] / "checkpoints" / "reference" / "digits-baseline-k2-seed0"
    run_folder = tmp_path / "run"
    table = api.noise_sweep(
        checkpoint, sigmas=[0.4], limit=60, out=run_folder, figures=False, floor_images=0
    ).table
    plan = plan_images(run_folder, difference=0.1)
    assert "The run has one value of it" in plan.sentences[1]
    (row,) = plan.table.query("metric == 'accuracy'").to_dict("records")
    (value,) = table.query("metric == 'accuracy' and severity == 0.4")["value"]
    error = np.sqrt(value * (1 - value) / 59 + (1 / 60) ** 2)
    assert row["se"] == pytest.approx(np.sqrt(2) * error, rel=0.05)


def test_requests_are_the_unit_of_recorded_routing(tmp_path: Path) -> None:
    """Requests whose tokens all agree: each counts once, however many tokens it has."""
    rng = np.random.default_rng(0)
    lines: dict[str, list[str]] = {"one": [], "other": []}
    for request in range(60):
        first = rng.integers(0, 4, size=(20, 1))
        second = first if rng.random() < 0.7 else (first + 1) % 4
        for name, experts in (("one", first), ("other", second)):
            entry = {"id": f"r{request}", "layer": "mlp", "experts": experts.tolist()}
            lines[name].append(json.dumps(entry))
    for name, text in lines.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(text))
        api.import_trace(tmp_path / f"{name}.jsonl", tmp_path / f"{name}.parquet", num_experts=4)
    traces = [tmp_path / "one.parquet", tmp_path / "other.parquet"]
    api.analyze_trace(traces, out=tmp_path / "run", figures=False)
    plan = plan_images(tmp_path / "run", difference=0.05, metric="top1_match")
    (row,) = plan.table.to_dict("records")
    assert row["effect"] == pytest.approx(20, rel=0.05) and row["images"] == 60
    assert (
        plan.sentences[0].startswith("About ") and " requests show a difference of 0.05" in plan.sentences[0]
    )
    assert "design effect" in plan.sentences[-1]


def test_units_that_were_sampled_are_counted(tmp_path: Path) -> None:
    """Hours of two alike requests: half as many samples, so the error is √2 as large as that of requests."""
    rng = np.random.default_rng(0)
    experts = np.repeat(rng.integers(0, 4, size=(40, 6, 1)), 2, axis=0)
    lines = [
        json.dumps({"id": f"r{at:02d}", "layer": "mlp", "experts": of_request.tolist()})
        for at, of_request in enumerate(experts)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    api.import_trace(tmp_path / "a.jsonl", tmp_path / "a.parquet", num_experts=4)
    hours = tmp_path / "hours.csv"
    hours.write_text("\n".join(["image_id,hour", *(f"r{at:02d},{at // 2}" for at in range(80))]))
    plans = {}
    for unit in (None, str(hours)):
        out = tmp_path / f"run-{bool(unit)}"
        api.analyze_trace(tmp_path / "a.parquet", unit=unit, out=out, figures=False)
        plans[unit] = plan_images(out, difference=0.1, metric="load_entropy")
    (first,), (second,) = (plan.table.to_dict("records") for plan in plans.values())
    assert (first["images"], second["images"]) == (80, 40)
    assert (first["unit"], second["unit"]) == ("request", "hour")
    assert second["se"] == pytest.approx(np.sqrt(2) * first["se"], rel=0.02)
    said = " ".join(plans[str(hours)].sentences)
    assert " hours show a difference of 0.1" in said and "on different hours" in said
    assert "requests" not in said
    assert images_table(plans[str(hours)]).caption.startswith("Hours for a difference of 0.1")


def test_the_mean_of_any_corruption_is_not_planned() -> None:
    """Its error is over corruptions, too, so that no number of images would be enough."""
    table = read_values(NOISE / "comparison.csv").query("metric == 'accuracy' and se > 0")
    crossed = table.head(1).assign(view="mean of any", interval="crossed")
    pilot = _of_differences(pd.concat([table, crossed]), pd.DataFrame())
    assert len(pilot.rows) == len(table) > 0
    assert "mean of any" not in set(pilot.rows["view"])
