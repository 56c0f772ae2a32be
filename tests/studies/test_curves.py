"""Learning curves of several trainings together, against means taken by hand."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from moeprobe import api
from moeprobe.models.config import dump, load
from moeprobe.results.columns import CURVE_COLUMNS
from moeprobe.studies.curves import Curves
from tests.commands import names_in, refused, run, shell

PACK = Path(__file__).parents[2] / "reports" / "routers" / "digits"
STEPS = (16, 32, 48)


def training(folder: Path, name: str, *, seed: int, values: tuple[float, ...], top_k: int = 1) -> Path:
    """A folder as a training leaves it, without weights."""
    path = folder / f"{name}-k{top_k}-seed{seed}"
    path.mkdir()
    overrides = [f"name={path.name}", f"group={name}-k{top_k}", f"seed={seed}", f"model.top_k={top_k}"]
    (path / "config.yaml").write_text(dump(load("routers/digits", overrides)), encoding="utf-8")
    metrics = pd.DataFrame(
        {"step": STEPS[: len(values)], "epoch": range(1, 1 + len(values)), "val_accuracy": values}
    )
    metrics["train_main_loss"] = 1 - metrics["val_accuracy"]
    metrics.to_csv(path / "metrics.csv", index=False)
    return path


@pytest.fixture
def four(tmp_path: Path) -> list[Path]:
    return [
        training(tmp_path, "plan", seed=0, values=(0.1, 0.4, 0.6)),
        training(tmp_path, "plan", seed=1, values=(0.2, 0.5, 0.8)),
        training(tmp_path, "softmax", seed=0, values=(0.3, 0.5, 0.65)),
        training(tmp_path, "softmax", seed=1, values=(0.3, 0.6)),  # interrupted after two evaluations
    ]


def test_the_table_holds_every_evaluation_and_last_the_paired_differences(four: list[Path]) -> None:
    found = api.curves(four)
    assert list(found.table.columns) == list(CURVE_COLUMNS) and len(found.table) == 3 + 3 + 3 + 2
    own = found.table[found.table["run"] == "plan-k1-seed1"]
    assert own["value"].tolist() == [0.2, 0.5, 0.8] and own["step"].tolist() == list(STEPS)
    assert set(own["group"]) == {"plan-k1"} and set(own["train_seed"]) == {1}
    first, second = found.last().to_dict("records")
    assert (first["group"], first["runs"], first["step"]) == ("plan-k1", 2, 48) and np.isnan(
        first["difference"]
    )
    np.testing.assert_allclose([first["value"], first["value_low"], first["value_high"]], [0.7, 0.6, 0.8])
    # Seed by seed: .65 - .6 and .6 - .8, though the second was interrupted.
    found_differences = [second[f"difference{end}"] for end in ("", "_low", "_high")]
    np.testing.assert_allclose(found_differences, [-0.075, -0.2, 0.05])
    assert second["step"] == 32


def lines(axes: Any, *, width: float) -> list[np.ndarray]:
    return [np.asarray(line.get_xydata()) for line in axes.get_lines() if line.get_linewidth() == width]


def test_thin_lines_are_seeds_and_bold_ones_their_mean_where_all_have_a_value(four: list[Path]) -> None:
    figure = api.curves(four, x="epoch").plot()
    (axes,) = figure.axes
    assert axes.get_xlabel() == "epoch" and axes.get_ylabel() == "val accuracy"
    assert [len(points) for points in lines(axes, width=0.8)] == [3, 3, 3, 2]
    plan, softmax = lines(axes, width=2)
    np.testing.assert_allclose(plan, [(1, 0.15), (2, 0.45), (3, 0.7)])
    np.testing.assert_allclose(softmax, [(1, 0.3), (2, 0.55)])
    assert [text.get_text() for text in axes.texts] == ["plan-k1", "softmax-k1"]
    assert [text.xy for text in axes.texts] == [(3, pytest.approx(0.7)), (2, pytest.approx(0.55))]


def test_a_key_makes_panels_in_which_a_group_has_one_color(four: list[Path], tmp_path: Path) -> None:
    more = [training(tmp_path, "softmax", seed=0, values=(0.5, 0.7, 0.9), top_k=2)]
    found = api.curves([*four, *more], by="model.top_k", metric="train_main_loss")
    assert list(dict.fromkeys(found.table["panel"])) == ["1", "2"]
    assert list(dict.fromkeys(found.table["group"])) == ["plan", "softmax"]
    one, two = found.plot().axes
    assert [one.get_title(), two.get_title()] == ["model.top_k = 1", "model.top_k = 2"]
    colors = {text.get_text(): text.get_color() for text in one.texts}
    assert {text.get_text(): text.get_color() for text in two.texts}.items() <= colors.items()
    assert one.get_ylim() == two.get_ylim()


def test_a_committed_trade_off_is_all_its_cells() -> None:
    found = api.curves(PACK, by="model.top_k")
    cells = json.loads((PACK / "cells.json").read_text(encoding="utf-8"))["cells"]
    assert set(found.table["run"]) == set(cells)
    # Where experts choose there is no k.
    assert list(dict.fromkeys(found.table["panel"])) == ["1", "2", "None"]
    assert "softmax_token_choice" in set(found.table["group"])
    one = api.curves(PACK / "cells" / "soft_moe-c1-seed0").table
    assert set(one["run"]) == {"soft_moe-c1-seed0"} and len(one) == 10


def test_more_groups_than_colors_have_other_lines(four: list[Path]) -> None:
    one = api.curves(four[0]).table
    table = pd.concat([one.assign(run=f"run {number}", group=f"group {number}") for number in range(15)])
    figure = Curves(table, by="", x="step").plot()
    drawn = figure.axes[0].lines
    looks = {(line.get_color(), line.get_linestyle()) for line in drawn if len(line.get_xdata()) == len(one)}
    assert len(looks) == 15
    named = [text.get_text() for text in figure.axes[0].texts]
    assert [sum(word in one for one in named) for word in ("dashed", "dotted")] == [6, 3]


@pytest.mark.pictures
def test_files_are_written_once_and_replaced_when_asked(four: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("curves", *four, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert names_in(out) == {"curves.csv", "curves.png"} and len(content["table"]) == 11
    assert content["last"][0]["difference"] is None
    pd.testing.assert_frame_equal(
        pd.read_csv(out / "curves.csv", keep_default_na=False), api.curves(four).table, check_dtype=False
    )
    with Image.open(out / "curves.png") as image:
        assert min(image.size) > 300
    first = (out / "curves.png").read_bytes()
    assert "add --overwrite" in refused("curves", *four, "--out", out)
    assert run("curves", *four, "--out", out, "--overwrite", "--svg").exit_code == 0
    assert names_in(out) == {"curves.csv", "curves.png", "curves.svg"}
    assert (out / "curves.png").read_bytes() == first
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert "holds no curves" in refused("curves", *four, "--out", tmp_path / "mine")


def test_stages_of_pipelines_have_the_pipelines_name(four: list[Path], tmp_path: Path) -> None:
    stages = []
    for number, path in enumerate(four[:2]):
        stages.append(tmp_path / f"moe-seed{number}" / "pretrain")
        stages[-1].parent.mkdir()
        path.rename(stages[-1])
    assert set(api.curves(stages).table["run"]) == {"moe-seed0/pretrain", "moe-seed1/pretrain"}
    assert set(api.curves(stages[0]).table["run"]) == {"pretrain"}


def test_what_is_wrong_is_one_sentence(four: list[Path], tmp_path: Path) -> None:
    assert "Did you mean 'val_accuracy'?" in refused("curves", *four, "--metric", "val_acuracy")
    assert "Did you mean 'model.top_k'?" in refused("curves", *four, "--by", "model.topk")
    assert "holds no learning curve" in refused("curves", tmp_path / "none")
    assert "from its first evaluation on" in refused("curves", tmp_path)
    assert re.search(
        "2 trainings are called plan-k1-seed0; .* name it once", refused("curves", four[0], four[0])
    )
    other = tmp_path / "cells"
    shutil.copytree(PACK, other)
    assert re.search("2 trainings .* draw them in separate calls", refused("curves", PACK, other))
    (four[1] / "metrics.csv").write_text("step\n1\n")
    assert "cannot be read" in refused("curves", *four)
    with pytest.raises(api.UserError, match="Name the folders"):
        api.curves([])


@pytest.mark.slow
@pytest.mark.promise
def test_in_a_process_of_its_own_without_torch(four: list[Path], tmp_path: Path) -> None:
    said = shell("curves", *(path.name for path in four), "--out", "out", cwd=tmp_path)
    assert said.returncode == 0 and not said.stderr, said.stderr
    assert "Written to out/: curves.csv, curves.png" in said.stdout
    assert "-0.0750 [-0.2000, +0.0500]" in said.stdout
    code = (
        "import sys; from moeprobe.studies.curves import curves; "
        f"curves({[str(path) for path in four]!r}).plot(); assert 'torch' not in sys.modules"
    )
    assert shell_python(code) == 0


def shell_python(code: str) -> int:
    import subprocess
    import sys

    return subprocess.run([sys.executable, "-c", code], check=False).returncode
