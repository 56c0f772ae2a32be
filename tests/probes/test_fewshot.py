"""``moeprobe fewshot`` as a user meets it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.probes.engine import loop
from moeprobe.probes.fewshot import figure, measure
from moeprobe.results import palette
from moeprobe.results.numbers import interval
from moeprobe.results.tables import COLUMNS
from moeprobe.studies.report.reading import read_runs
from moeprobe.studies.report.summary import findings, headline_table
from tests.commands import Trained, names_in, pictures, refused, run
from tests.routing.routings import checkpoint

# Intervals are asserted.
pytestmark = pytest.mark.resamples


QUICK = ("--shots", "2,5", "--draws", 2, "--limit", 40)


@pytest.fixture(scope="module")
def finished(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two checkpoints."""
    out = tmp_path_factory.mktemp("fewshot") / "run"
    with pictures():
        result = run("fewshot", *trained.values(), *QUICK, "--out", out)
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    for name in ("table.csv", "comparison.csv", "images.parquet", "figures/fewshot.png"):
        assert name in result.stdout
    assert "40 images of digits test; [low, high]: 95 % interval" in result.stdout
    return out


def test_the_files_say_what_was_measured(finished: Path) -> None:
    assert names_in(finished) == {
        "run.json", "table.csv", "table.json", "comparison.csv", "images.parquet", "figures",
    }  # fmt: skip
    table = pd.read_csv(finished / "table.csv")
    assert list(table.columns) == list(COLUMNS)
    assert set(table["metric"]) == {f"fewshot_accuracy{what}" for what in ("", "_chance", "_kappa")}
    accuracy = table[table["metric"] == "fewshot_accuracy"].set_index(["checkpoint", "severity", "draw"])
    images = pq.read_table(finished / "images.parquet").to_pandas()
    assert len(images) == 2 * 2 * 2 * 40
    # Every value follows from the sums per image, and those from what was predicted.
    right = images["fewshot_class"].str[0] == images["fewshot_predicted"].str[0]
    assert (images["fewshot_accuracy"] == right).all() and (
        images["fewshot_class"].str[0] == images["label"]
    ).all()
    for (name, count), here in images.groupby(["checkpoint", "severity"]):
        for draw, part in here.groupby("draw"):
            row = accuracy.loc[(name, count, float(draw))]
            assert row["value"] == pytest.approx(part["fewshot_accuracy"].mean())
            assert (row["images"], row["trials"]) == (40, 40)
        row = accuracy.loc[(name, count, np.nan)]
        assert row["value"] == pytest.approx(here["fewshot_accuracy"].mean())
        assert (row["images"], row["trials"]) == (40, 80)
        assert row["ci_low"] < row["value"] < row["ci_high"]
    sidecar = json.loads((finished / "table.json").read_text())
    assert sidecar["request"]["draws"] == 2 and sidecar["request"]["held_out_per_class"] == 10
    assert "in no draw" in sidecar["l2_chosen_by"] and "released" in sidecar["l2_chosen_by"]
    assert {len(found) for chosen in sidecar["l2_chosen"].values() for found in chosen.values()} == {2}
    assert sidecar["training_images"] <= 10 * (10 + 2 * 5)


def test_differences_are_those_of_the_same_draws_and_images(finished: Path) -> None:
    table, comparison = (pd.read_csv(finished / f"{name}.csv") for name in ("table", "comparison"))
    keys = ["severity", "draw", "metric"]
    sides = [table[table["checkpoint"] == name].set_index(keys)["value"] for name in ("prc", "baseline")]
    differences = comparison.set_index(keys)["value"]
    assert len(differences) == 2 * 3 * 3
    np.testing.assert_allclose(differences, (sides[0] - sides[1]).loc[differences.index], atol=1e-9)


def test_what_is_printed_stands_in_the_table(finished: Path, trained: Trained) -> None:
    result = run("fewshot", *trained.values(), *QUICK)
    table = pd.read_csv(finished / "table.csv")
    # Of kappa, whose values lie between two that are shown and not halfway, as those of 40 images may.
    rows = table[(table["metric"] == "fewshot_accuracy_kappa") & table["draw"].isna()]
    assert len(rows) == 4
    for _, row in rows.astype({"flag": object}).fillna({"flag": ""}).iterrows():
        assert interval(row) in result.output
    assert "Nothing was written" in result.output and "2 draws of the training images" in result.output


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
def test_the_same_command_goes_on_where_it_stopped_and_gives_the_same_bytes(
    finished: Path, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(loop, "BLOCK_IMAGES", 32)
    real, calls = measure.batch_features, []

    def interrupted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(measure, "batch_features", interrupted)
    arguments = ("fewshot", *trained.values(), *QUICK, "--out", out)
    assert run(*arguments).exit_code == 130
    assert not (out / "table.json").exists()
    assert run(*arguments).exit_code == 0
    blocks = -(-json.loads((finished / "table.json").read_text())["training_images"] // 32) + 2
    assert len(calls) == 2 * blocks + 1, "one block was begun twice"
    for path in finished.rglob("*"):
        if path.suffix in (".csv", ".parquet", ".png"):
            assert (out / path.relative_to(finished)).read_bytes() == path.read_bytes(), path
    assert "is finished" in run(*arguments).output


def test_a_finished_run_is_compared_and_reported(finished: Path, tmp_path: Path) -> None:
    result = run("compare", finished, "--fail-if-worse", "fewshot_accuracy", "--out", tmp_path / "compare")
    assert result.exit_code in (0, 3), result.output
    table = pd.read_csv(tmp_path / "compare" / "comparison.csv")
    # Of all draws together alone: single draws are no cells of a family.
    assert table["draw"].isna().all() and len(table) == 2 * 3
    assert (table[table["metric"] == "fewshot_accuracy"]["family_cells"] == 2).all()
    runs = read_runs([finished])
    (finding,) = findings(runs)
    assert finding.title == "Few-shot accuracy of frozen features"
    assert finding.sentences[0].startswith("With 5 shots, the most of the run (40 images, 80 trials), ")
    headlines = headline_table(runs)
    assert headlines is not None and [row[1].text for row in headlines.rows] == [
        "few-shot accuracy", "chance of few-shot accuracy",
    ]  # fmt: skip


def test_other_classes_than_the_models_can_be_learnt(trained: Trained) -> None:
    arguments = ("fewshot", trained["prc"], "--data", "shapes:32", "--draws", 1, "--limit", 30, "--json")
    found = json.loads(run(*arguments).stdout)
    assert found["comparison"] is None and found["sidecar"]["request"]["labels_used"]
    assert [row["draw"] for row in found["table"]] == [None] * 3 + [1] * 3


def test_dry_run_counts_training_images_too(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "never"
    result = run("fewshot", trained["prc"], *QUICK, "--dry-run", "--json", "--out", out)
    plan = json.loads(result.stdout)
    sidecar = json.loads(run("fewshot", trained["prc"], *QUICK, "--json").stdout)["sidecar"]
    assert plan["images"] == 40 + sidecar["training_images"]
    assert (plan["checkpoints"], plan["passes"]) == (1, 1) and plan["seconds"] > 0
    assert not out.exists()


def test_what_cannot_be_asked_is_one_sentence(trained: Trained, tmp_path: Path) -> None:
    for given in ("0,5", "5,5", "2.5", ""):
        said = refused("fewshot", trained["prc"], "--shots", given)
        assert "different whole numbers from 1 up" in said and f"got {given!r}" in said
    assert "--draws takes a whole number from 1 up" in refused("fewshot", trained["prc"], "--draws", 0)
    assert "cannot be judged too" in refused("fewshot", trained["prc"], "--split", "train")
    assert "leave --layers out" in refused("fewshot", trained["prc"], "--layers", "blocks.3")
    assert "--masks is about matches" in refused("fewshot", trained["prc"], "--masks", tmp_path)
    many = refused("fewshot", trained["prc"], "--shots", 1000)
    assert "images in digits train, fewer than the 1000 shots requested; ask for at most --shots 10" in many


def test_data_without_labels_or_a_train_split_are_one_sentence(trained: Trained, tmp_path: Path) -> None:
    for name in ("loose/0", "classes/cat/0", "classes/dog/1", "half/test/cat/0", "half/train/0"):
        path = tmp_path / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(path)

    def said(name: str) -> str:
        return refused("fewshot", trained["prc"], "--data", f"folder:{tmp_path / name}")

    assert "drawn from the split train of" in said("loose") and "falls to the split 'test'" in said("classes")
    assert f"{tmp_path / 'half'} train has no labels" in said("half")


def test_what_gives_no_features_is_refused() -> None:
    full = checkpoint()

    class Traced:
        layer_names, group_images, trace = full.model.layer_names, 1, full.model.trace

    with pytest.raises(UserError, match="mute does not say what its head reads"):
        api.fewshot([full, dataclasses.replace(full, name="mute", model=Traced())])


def test_the_figure_shows_every_draw_and_the_interval_of_all(finished: Path) -> None:
    table = pd.read_csv(finished / "table.csv", keep_default_na=False, na_values={"draw": [""]})
    for name in ("severity", "value", "ci_low", "ci_high"):
        table[name] = table[name].astype(float)
    axes = figure.draw(table, colors=palette.colors(list(table["checkpoint"].unique())))["fewshot"].axes[0]
    low, high = axes.get_ylim()
    shown = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()])
    assert ((shown >= low) & (shown <= high)).all()
    for value in table[table["metric"] == "fewshot_accuracy"]["value"]:
        assert np.isclose(shown, value).any()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "5"]


def test_from_python(trained: Trained) -> None:
    result = api.fewshot([trained["prc"]], shots=[5], draws=2, limit=30)
    again = api.fewshot([api.load_model(trained["prc"])], shots=[1, 5], draws=2, limit=30, batch_size=7)
    five = again.table[again.table["severity"] == 5]
    np.testing.assert_array_equal(result.table["value"], five["value"])
