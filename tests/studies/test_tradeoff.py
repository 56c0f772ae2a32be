"""Trainings beside one another: trained once, measured once, drawn as often as wanted."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch import Tensor

from moeprobe import api
from moeprobe.declarations import Probe
from moeprobe.errors import UserError
from moeprobe.inputs.batches import Batch
from moeprobe.models.training.loop import Trainer
from moeprobe.results.figures.tradeoff import draw, draw_published
from moeprobe.results.figures.tradeoff.rows import numbers_of, shared_kappa
from moeprobe.results.packed import Place, read_pack, read_packed_images
from moeprobe.results.stored import of_table, write
from moeprobe.results.tables import COLUMNS
from moeprobe.runtime.files import write_json
from moeprobe.runtime.locks import Lock
from moeprobe.studies.tradeoff import TradeoffProgress, trainings
from moeprobe.studies.tradeoff.run import _Work
from moeprobe.studies.tradeoff.table import TRADEOFF_COLUMNS, published_values
from moeprobe.studies.tradeoff.trainings import find_cells
from tests.commands import PATIENCE, Trained, pictures, refused, run, started, wait_for

SWEEP = """
base: digits-baseline
fixed:
  steps: 4
  schedule.warmup_steps: 1
  evaluate_every: 2
  batch_size: 8
  model.image_size: 16
cells:
  - {model.router: softmax_token_choice, model.top_k: 1}
  - model.router: softmax_expert_choice
    model.capacity_factor: 1
    fixed: {objective.importance_weight: 0.0, objective.load_weight: 0.0}
seeds: [0, 1]
measure: {limit: 24, views: [random_crop], sigmas: [], shots: [], contagion: false}
"""
CELLS = [
    f"{kind}-seed{seed}"
    for kind in ("softmax_token_choice-k1", "softmax_expert_choice-c1")
    for seed in (0, 1)
]
PACKED = ("cells.json", "cells.parquet")
TIMES = ["step_seconds", "training_seconds"]


def sweep_file(folder: Path, text: str = SWEEP) -> Path:
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``small.yaml``, ``checkpoints/small/`` and ``out/``."""
    folder = tmp_path_factory.mktemp("tradeoff")
    sweep_file(folder)
    with pytest.MonkeyPatch.context() as patch, pictures():
        patch.chdir(folder)
        made = run("tradeoff", "small.yaml", "--out", "out", "--device", "cpu")
    assert made.exit_code == 0, made.output
    assert "4 cells: 4 trained" in made.stdout and "24 images" in made.stdout
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(finished, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without figures, for what is not about them: they take longer than all the rest."""
    monkeypatch.setattr("moeprobe.studies.tradeoff.run.draw_figures", lambda *_, **__: None)


def unpack(out: Path) -> None:
    """Give a finished trade-off the form that it had before cells were packed: a folder per cell and run."""
    for name, cell in read_pack(out).items():
        folder = out / "cells" / name
        for run_name, packed in cell.runs.items():
            place = Place(out, name, run_name, packed)
            write(folder / run_name / "images.parquet", of_table(read_packed_images(place)))
            write_json(folder / run_name / "run.json", packed.sidecar["request"])
            write_json(folder / run_name / "table.json", packed.sidecar)
        write_json(folder / "cell.json", cell.about)
        assert cell.metrics is not None
        (folder / "metrics.csv").write_text(cell.metrics, encoding="utf-8")
    for name in (*PACKED, ".moeprobe.files"):  # a record would not know these folders
        (out / name).unlink()


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def table(folder: Path) -> pd.DataFrame:
    words = dict.fromkeys(("layer", "tokens", "null", "view", "flag", "split"), str)
    found = pd.read_csv(folder / "out" / "table.csv", dtype=words)
    return found.fillna(dict.fromkeys(words, ""))


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes if axes.has_data()]


@pytest.mark.slow
def test_the_table_says_what_was_measured(finished: Path) -> None:
    found = table(finished)
    assert list(found.columns) == [*COLUMNS, *TRADEOFF_COLUMNS]
    assert list(dict.fromkeys(found["checkpoint"])) == CELLS
    for name in CELLS:
        rows = found[found["checkpoint"] == name].set_index("metric")
        about = read_pack(finished / "out")[name].about
        # Costs: those that inspection counts, and the training timed itself.
        known = json.loads(run("inspect", finished / "checkpoints" / "small" / name, "--json").stdout)
        for metric in ("flops_per_image", "active_parameters", "parameters"):
            assert rows.loc[metric, "value"] == known[metric]
        summary = json.loads((finished / "checkpoints" / "small" / name / "finished.json").read_text())
        assert about["training"] == summary and about["sha256"] == known["sha256"]
        assert rows.loc["step_seconds", "value"] == pytest.approx(summary["step_seconds"])
        assert rows.loc["step_seconds", "trials"] == summary["timed_steps"] == 4
        assert 0 < 4 * summary["step_seconds"] / 2 < summary["training_seconds"]
        # Measured values: those of a probe's own table, with interval and images.
        alone = run("eval", finished / "checkpoints" / "small" / name, "--limit", 24, "--json").stdout
        own = pd.DataFrame(json.loads(alone)["table"]).set_index("metric")
        for column in ("value", "ci_low", "ci_high", "images"):
            assert rows.loc["accuracy", column] == pytest.approx(own.loc["accuracy", column], rel=1e-9)
        assert rows.loc["accuracy", "images"] == 24
        assert rows.loc["accuracy", "source"] == f"cells/{name}/eval"
    kinds = found.drop_duplicates("checkpoint")[["top_k", "capacity_factor"]].to_numpy()
    np.testing.assert_array_equal(kinds, [[1, np.nan]] * 2 + [[np.nan, 1]] * 2)
    kappa = found[(found["metric"] == "top1_match_kappa") & (found["null"] == "pooled")]
    assert set(kappa["view"]) == {"random_crop"} and set(kappa["tokens"]) == {"patch"}
    curve = (finished / "checkpoints" / "small" / CELLS[0] / "metrics.csv").read_text()
    assert read_pack(finished / "out")[CELLS[0]].metrics == curve
    assert {path.name for path in (finished / "out" / "figures").glob("*.png")} == {
        "tradeoff.png",
        "steadiness.png",
        "time.png",
        "paper.png",
    }


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_nothing_is_done_twice(copy: Path) -> None:
    def kept() -> dict[str, int]:
        return stamps(copy / "checkpoints") | {
            name: (copy / "out" / name).stat().st_mtime_ns for name in PACKED
        }

    before, first = kept(), (copy / "out" / "table.csv").read_bytes()
    # Of a call that had more seeds; these are too few for claims about trainings.
    (copy / "out" / "trainings.csv").write_text("left\n")
    plan = json.loads(run("tradeoff", "small.yaml", "--out", "out", "--dry-run", "--json").stdout)
    assert {cell["state"] for cell in plan["cells"]} == {"done"} and plan["seconds"] == 0
    result = run("tradeoff", "small.yaml", "--out", "out", "--json")
    assert set(json.loads(result.stdout)["states"].values()) == {"kept"}
    assert kept() == before
    assert (copy / "out" / "table.csv").read_bytes() == first
    assert not (copy / "out" / "trainings.csv").exists()


@pytest.mark.pictures
@pytest.mark.slow
def test_drawn_anew_without_weights(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From what is packed alone: no checkpoints are needed."""
    names = ("table.csv", "paper.csv", "figures/tradeoff.png", "figures/time.png", "figures/paper.png")
    first = {name: (copy / "out" / name).read_bytes() for name in names}
    shutil.rmtree(copy / "checkpoints")
    for name in names:
        (copy / "out" / name).unlink()
    assert "4 cells: 4 kept" in run("tradeoff", "--out", "out").output
    assert {name: (copy / "out" / name).read_bytes() for name in names} == first
    # By the trainings' names too: what was measured of them is enough.
    monkeypatch.setattr("moeprobe.studies.tradeoff.run.draw_figures", lambda *_, **__: None)
    assert "4 cells: 4 kept" in run("tradeoff", *[f"gone/{name}" for name in CELLS], "--out", "out").output
    assert (copy / "out" / "table.csv").read_bytes() == first["table.csv"]
    assert not (copy / "checkpoints").exists()
    unpack(copy / "out")
    shutil.rmtree(copy / "out" / "cells" / CELLS[0] / "eval")
    said = refused("tradeoff", "small.yaml", "--out", "out")
    assert "lacks eval" in said and "weights" in said
    assert "leave --overwrite out" in refused("tradeoff", "--out", "out", "--overwrite")


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_what_is_missing_is_measured_and_trained(copy: Path) -> None:
    unpack(copy / "out")
    shutil.rmtree(copy / "out" / "cells" / CELLS[1])
    for folder in ("out/cells", "checkpoints/small"):
        shutil.rmtree(copy / folder / CELLS[3])
    plan = json.loads(run("tradeoff", "small.yaml", "--out", "out", "--dry-run", "--json").stdout)
    assert [cell["state"] for cell in plan["cells"]] == ["done", "to measure", "done", "to train"]
    assert [cell["steps"] for cell in plan["cells"]] == [0, 0, 0, 4] and plan["seconds"] > 0
    before = table(copy)
    result = json.loads(run("tradeoff", "small.yaml", "--out", "out", "--json", "--device", "cpu").stdout)
    assert list(result["states"].values()) == ["kept", "measured", "kept", "trained"]
    after = table(copy)
    kept = ~before["metric"].isin(TIMES)
    pd.testing.assert_frame_equal(before[kept], after[kept])  # training on a CPU repeats itself


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_what_is_asked_later_is_measured_then(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = (copy / "out" / "cells.parquet").read_bytes()
    # What is new stays in folders here, with the probes' own tables.
    monkeypatch.setattr("moeprobe.studies.tradeoff.run.pack", lambda *_: None)
    more = ("seeds=[0]", "measure.shots=[1]", "measure.contagion=true")
    result = json.loads(run("tradeoff", "small.yaml", *more, "--out", "out", "--json").stdout)
    assert set(result["states"].values()) == {"measured"}
    assert not list(copy.glob("out/cells/*/*/figures"))  # one for all cells is drawn
    found = table(copy)
    for name in (CELLS[0], CELLS[2]):
        for metric, probe in (("fewshot_accuracy", "fewshot"), ("batch_contagion", "contagion")):
            own = pd.read_csv(copy / "out" / "cells" / name / probe / "table.csv")
            last = own[(own["metric"] == metric) & own["draw"].isna() & (own["tokens"] != "prefix")].iloc[-1]
            here = found[(found["checkpoint"] == name) & (found["metric"] == metric) & found["draw"].isna()]
            for column in ("value", "ci_low", "ci_high", "images"):
                assert here[column].iloc[-1] == last[column]
        # Experts choose among the tokens of four images; a token's own choice knows of no other.
        assert (last["value"] > 0) == ("expert_choice" in name)
    monkeypatch.undo()
    monkeypatch.chdir(copy)
    monkeypatch.setattr("moeprobe.studies.tradeoff.run.draw_figures", lambda *_, **__: None)
    assert (copy / "out" / "cells.parquet").read_bytes() == first
    assert run("tradeoff", "small.yaml", *more, "--out", "out").exit_code == 0
    pd.testing.assert_frame_equal(table(copy), found)
    packed = read_pack(copy / "out")
    assert not (copy / "out" / "cells").exists() and list(packed) == CELLS
    assert list(packed[CELLS[0]].runs) == ["confidence", "contagion", "eval", "fewshot", "match-random_crop"]
    assert list(packed[CELLS[1]].runs) == ["confidence", "eval", "match-random_crop"]
    assert packed[CELLS[0]].about["measure"]["shots"] == [1]
    contagion = [f"{kind} contagion" for kind in ("batch", "token", "attention")]
    assert titles(draw(found)["steadiness"]) == ["κ, random_crop", "load entropy", *contagion]
    assert "1-shot accuracy" in titles(draw(found)["tradeoff"])


@pytest.mark.slow
@pytest.mark.promise
def test_ctrl_c_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SWEEP.replace("steps: 4", "steps: 600").replace("every: 2", "every: 5")
    sweep_file(tmp_path, text)
    command = ("tradeoff", "small.yaml", "--out", "out", "--device", "cpu")
    state = tmp_path / "checkpoints" / "small" / CELLS[0] / "state.safetensors"
    with started(*command, cwd=tmp_path) as running:
        wait_for(state, running)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, errors
    assert "Traceback" not in errors and state.exists()
    monkeypatch.chdir(tmp_path)
    plan = json.loads(run(*command, "--dry-run", "--json").stdout)
    assert [cell["state"] for cell in plan["cells"]] == ["interrupted", *["to train"] * 3]
    assert plan["cells"][0]["steps"] < 600
    assert "unfinished training" in refused("tradeoff", state.parent, "--out", "x")


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.usefixtures("undrawn")
def test_resumed_ends_with_the_same_table(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the training of the first cell, and again between the probes of the third."""
    monkeypatch.chdir(tmp_path)
    sweep_file(tmp_path)
    pressed: list[str] = []
    step, ask = Trainer.train_step, trainings.run

    def press(name: str, wanted: str) -> None:
        if name == wanted and name not in pressed:
            pressed.append(name)
            signal.raise_signal(signal.SIGINT)

    def pressed_step(self: Trainer, batch: Batch) -> dict[str, Tensor]:
        press(f"{self.config.name} {self.step}", f"{CELLS[0]} 3")
        return step(self, batch)

    def pressed_probe(probe: Probe[Any], models: list[api.Checkpoint], **named: Any) -> Any:
        press(f"{getattr(models[0], 'name', '')} {probe.name}", f"{CELLS[2]} confidence")
        return ask(probe, models, **named)

    monkeypatch.setattr(Trainer, "train_step", pressed_step)
    monkeypatch.setattr(trainings, "run", pressed_probe)
    command = ("tradeoff", "small.yaml", "--out", "out", "--device", "cpu")
    for number in (1, 2):
        assert run(*command).exit_code == 130
        assert len(pressed) == number and not (tmp_path / "out" / "table.json").exists()
    assert run(*command).exit_code == 0
    expected, found = table(finished), table(tmp_path)
    timed = expected["metric"].isin(TIMES)
    pd.testing.assert_frame_equal(found[~timed], expected[~timed])
    assert (found.loc[timed, "value"] > 0).all()
    sums = [(folder / "out" / "cells.parquet").read_bytes() for folder in (finished, tmp_path)]
    assert sums[0] == sums[1]
    # The times go on where they were: all four steps of the first cell count, and their seconds.
    summary = json.loads((tmp_path / "checkpoints" / "small" / CELLS[0] / "finished.json").read_text())
    assert summary["timed_steps"] == 4


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.usefixtures("undrawn")
def test_a_cell_that_another_process_trains_is_left_to_it(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes last, and by then may be done: here the other process finishes it while we wait."""
    unpack(copy / "out")
    done, held = copy / "out" / "cells" / CELLS[0], copy / "held"
    shutil.move(done, held)
    lock = Lock(copy / "checkpoints" / "small" / f".{CELLS[0]}.lock")
    seen: list[str] = []

    class Watch(TradeoffProgress):
        def cell(self, name: str, number: int, total: int) -> None:
            seen.append(name)

        def waiting(self, name: str) -> None:
            shutil.move(held, done)
            lock.release()

    result = api.tradeoff(["small.yaml"], out=Path("out"), watcher=Watch())
    assert seen == [*CELLS, CELLS[0]]
    assert set(result.states.values()) == {"kept"}


@pytest.mark.slow
def test_finished_trainings_without_a_sweep(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = ["measure.limit=24", "measure.views=[]", "measure.sigmas=[0.1]"]
    more += ["measure.shots=[]", "measure.contagion=false"]
    result = run("tradeoff", *trained.values(), *more, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = pd.DataFrame(json.loads(result.stdout)["table"])
    assert set(found["checkpoint"]) == {"baseline", "prc"} and set(found["top_k"]) == {2}
    noisy = found[(found["view"] == "gaussian_noise") & (found["metric"] == "accuracy")]
    assert list(noisy["severity"]) == [0.1, 0.1]
    assert not any((tmp_path / "out").rglob("*.lock"))
    report = run("report", out, "--out", tmp_path / "report")
    assert report.exit_code == 0, report.output
    assert "limit is 24 there and 30 now" in refused(
        "tradeoff", *trained.values(), "measure.limit=30", *more[1:], "--out", out
    )


def test_a_place_for_checkpoints_that_cannot_be_written_is_found_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep_file(tmp_path)
    Path("file").write_text("mine")
    command = ("tradeoff", "small.yaml", "--out", "out", "--device", "cpu", "--checkpoints")
    assert "file/below/small/softmax_token_choice-k1-seed0: file is no folder." in refused(
        *command, "file/below"
    )
    # As root everything may be written, but not on a file system that is mounted to be read.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "new/small/softmax_token_choice-k1-seed0: . is not writable." in refused(*command, "new")
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml", "file"}
    monkeypatch.undo()
    # What was writable then may not be any more.
    cell = find_cells([tmp_path / "small.yaml"], out=tmp_path / "out", checkpoints=tmp_path / "file")[0]
    with pytest.raises(UserError, match=r"Cannot write .*small: Not a directory"):
        _Work("cpu", "", TradeoffProgress()).finish(cell, 1, wait=False)


@pytest.mark.slow
def test_wrong_input_is_one_sentence(copy: Path, trained: Trained) -> None:
    assert "no sweep and no folder of a training called none" in refused("tradeoff", "none", "--out", "new")
    assert "There are no cells in new" in refused("tradeoff", "--out", "new")
    assert "needs config.yaml" in refused("tradeoff", "out", "--out", "new")
    assert "not both" in refused("tradeoff", "small.yaml", trained["prc"], "--out", "new")
    assert "are called prc" in refused("tradeoff", trained["prc"], trained["prc"], "--out", "new")
    assert "no sweep key 'steps'" in refused("tradeoff", trained["prc"], "steps=3", "--out", "new")
    assert "another configuration" in refused("tradeoff", "small.yaml", "steps=3", "--out", "new")
    assert "about another configuration" in refused(
        "tradeoff", "small.yaml", "name=new", "steps=3", "--out", "out"
    )
    assert "limit is 24 there and 25 now" in refused(
        "tradeoff", "small.yaml", "measure.limit=25", "--out", "out"
    )
    sweep_file(copy, SWEEP.replace("softmax_expert_choice", "softmax_expert_choise"))
    assert "Did you mean 'softmax_expert_choice'" in refused(
        "tradeoff", "small.yaml", "name=x", "--out", "new"
    )
    assert not Path("new").exists()
    Path("foreign").mkdir()
    (Path("foreign") / "notes.txt").write_text("mine")
    assert "not a folder of moeprobe" in refused("tradeoff", trained["prc"], "--out", "foreign")
    assert run("tradeoff", "small.yaml").exit_code == 2


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_other_weights_are_not_mixed_in(copy: Path) -> None:
    shutil.copy(
        copy / "checkpoints" / "small" / CELLS[1] / "last.safetensors",
        copy / "checkpoints" / "small" / CELLS[0],
    )
    unpack(copy / "out")
    shutil.rmtree(copy / "out" / "cells" / CELLS[0] / "eval")
    assert "measured on other weights" in refused("tradeoff", "small.yaml", "--out", "out")
    # Anew means all of it; the trainings stay.
    before = stamps(copy / "checkpoints")
    result = run("tradeoff", "small.yaml", "measure.limit=25", "--out", "out", "--overwrite", "--json")
    assert set(json.loads(result.stdout)["states"].values()) == {"measured"}
    assert stamps(copy / "checkpoints") == before
    assert set(table(copy).query("metric == 'accuracy'")["images"]) == {25}


def test_the_papers_values() -> None:
    """Spot checks of each table against the paper, and what it says in words."""
    paper = published_values()
    assert len(paper) == 72 and paper.groupby("table").size().to_dict() == dict.fromkeys(
        (1, 2, 3, 4, 6, 8), 12
    )
    key = ["table", "router", "top_k", "capacity_factor"]
    values = paper.set_index(key).sort_index()
    nan = float("nan")
    for place, accuracy, days in (
        ((1, "softmax_token_choice", 1, nan), 0.4123, 34.31),
        ((1, "sparse_expert_choice", nan, 2), 0.4430, 65.13),
        ((2, "sinkhorn_expert_choice", nan, 2), 0.5052, 155.03),
        ((3, "sinkhorn_token_choice", 2, nan), 0.5769, 1033.43),
        ((4, "soft_moe", nan, 1), 0.6737, nan),
        ((6, "sinkhorn_token_choice", 1, nan), 0.7004, nan),
        ((8, "softmax_expert_choice", nan, 2), 0.7838, nan),
    ):
        found = values.loc[[place]].iloc[0]
        np.testing.assert_allclose([found["accuracy"], found["tpuv3_days"]], [accuracy, days])
    # Three runs of L/16 have no number: sparse with c = 1, soft with c = 2 (unstable), in both tasks.
    missing = paper[paper["accuracy"].isna()]
    assert set(zip(missing["router"], missing["capacity_factor"], strict=True)) == {
        ("sparse_expert_choice", 1), ("soft_moe", 2),
    }  # fmt: skip
    assert set(missing["architecture"]) == {"L/16"} and len(missing) == 4
    figure = draw_published(paper)
    marks = [line for axes in figure.axes for line in axes.get_lines() if line.get_markersize() == 6]
    points = [len(np.asarray(line.get_xydata())) for line in marks if line.get_marker() in ("o", "s")]
    assert points.count(1) == 72 - 4


@pytest.mark.slow
def test_what_was_measured_is_drawn(finished: Path) -> None:
    """What a figure is of: ``tests/results/test_tradeoff_figures.py``."""
    found = table(finished)
    assert shared_kappa(found) == "set_jaccard_kappa"
    figures = draw(found)
    assert titles(figures["tradeoff"]) == [
        "accuracy", "ms per training step", "MFLOPs per image", "active parameters, millions",
    ]  # fmt: skip
    assert titles(figures["steadiness"]) == ["κ, random_crop", "load entropy"]
    costs = found[found["metric"] == "flops_per_image"]["value"] / 1e6
    drawn = [axes for axes in figures["tradeoff"].axes if axes.get_title(loc="left") == "MFLOPs per image"]
    marks = [np.asarray(line.get_xydata()) for line in drawn[0].get_lines() if line.get_marker() == "o"]
    places = {float(points[0, 0]) for points in marks if len(points)}
    np.testing.assert_allclose(sorted(places), sorted(set(costs)))


@pytest.mark.slow
@pytest.mark.promise
def test_a_dense_cell_stands_beside_sparse_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = SWEEP.replace(
        "  - model.router: softmax_expert", "  - {model.layers: none}\n  - model.router: softmax_expert"
    )
    sweep_file(tmp_path, text.replace("seeds: [0, 1]", "seeds: [0]"))
    made = run("tradeoff", "small.yaml", "--out", "out", "--device", "cpu")
    assert made.exit_code == 0, made.output
    table = pd.read_csv(tmp_path / "out" / "table.csv")
    dense = table[table["checkpoint"] == "layers-none-seed0"]
    assert set(dense["router"]) == {"none"} and dense["layer"].isna().all() and dense["top_k"].isna().all()
    assert {"accuracy", "parameters", "active_parameters", "flops_per_image"} <= set(dense["metric"])
    sizes = dense.set_index("metric")["value"]
    assert sizes["parameters"] == sizes["active_parameters"]
    assert "layers-none-seed0" in made.stdout
    again = run("tradeoff", "--out", "out", "--device", "cpu")
    assert "3 kept" in again.stdout, again.output


def times_of(folder: Path, groups: list[str]) -> Path:
    """What ``benchmarks.speed models`` writes, as far as it is read: a group takes as many seconds as its number."""
    rows = [
        {"part": "models", "race": race, "contestant": group, "median": number * scale, "rounds": 7}
        for race, scale in (("training step", 1.0), ("forward pass", 0.1))
        for number, group in enumerate(groups, 1)
    ]
    folder.mkdir()
    pd.DataFrame(rows).to_csv(folder / "table.csv", index=False)
    return folder


@pytest.mark.slow
def test_times_taken_in_turn_stand_on_the_axis(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[pd.DataFrame] = []
    monkeypatch.setattr(
        "moeprobe.studies.tradeoff.run.draw_figures", lambda made, *_, **__: drawn.append(made)
    )
    times_of(copy / "times", ["softmax_expert_choice-c1", "softmax_token_choice-k1"])
    made = run("tradeoff", "--out", "out", "--times", "times")
    assert made.exit_code == 0, made.output
    rows = table(copy)
    rows = rows[rows["metric"] == "step_seconds_in_turn"].set_index("checkpoint")
    assert list(rows.index) == CELLS
    assert list(rows["value"]) == [2, 2, 1, 1] and set(rows["trials"]) == {7}
    assert set(rows["source"]) == {"times/table.csv"}
    numbers = numbers_of(drawn[0])
    assert list(numbers["training_time"]["value"]) == [8, 8, 4, 4]  # of four steps
    figures = draw(drawn[0])
    text = " ".join(one.get_text() for one in figures["time"].findobj(Text))
    assert "all routers timed in turn" in " ".join(text.split())
    assert "ms per step, in turn" in titles(figures["tradeoff"])
    assert "ms per training step" not in titles(figures["tradeoff"])


@pytest.mark.slow
def test_times_of_another_sweep_are_refused(copy: Path) -> None:
    before = (copy / "out" / "table.csv").read_bytes()
    times_of(copy / "times", ["softmax_token_choice-k1"])
    said = refused("tradeoff", "--out", "out", "--times", "times")
    assert "no time of softmax_expert_choice-c1" in said
    assert "has no times of training steps" in refused("tradeoff", "--out", "out", "--times", "out")
    assert (copy / "out" / "table.csv").read_bytes() == before
