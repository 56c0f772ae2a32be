"""``import vmoe`` and ``export vmoe`` as a user meets them, and probes of what was imported."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from tests.commands import Trained, refused, run, shell
from tests.models.checkpoints import making
from tests.models.nn.released import random_parameters


@pytest.fixture
def imported(trained: Trained, tmp_path: Path) -> Path:
    """A checkpoint that went out and came in again, without its classes."""
    assert run("export", "vmoe", trained["prc"], tmp_path / "out" / "prc", "--shards", 3).exit_code == 0
    result = run("import", "vmoe", tmp_path / "out" / "prc", tmp_path / "imported")
    assert result.exit_code == 0, result.output
    return tmp_path / "imported"


@pytest.mark.slow
def test_what_is_found_and_what_is_assumed_is_said(tmp_path: Path) -> None:
    state = {
        "params": making.nested(random_parameters()),
        "step": np.array(7, "i4"),
        "rngs": {"a": np.zeros(2, "u4")},
    }
    prefix = making.write(tmp_path / "ckpt_7", *making.content(state, shards=2))
    result = shell("import", "vmoe", prefix, tmp_path / "c", "--top-k", 1, "--mean", "0.1,0.2,0.3")
    assert (result.returncode, result.stderr) == (0, "")
    # Embedding, positions, norm, head and pre-logits 189; attention and norms twice 192; dense block 71; router and
    # three experts 18 + 3 · 71.
    for words in (
        "875 parameters (float32); 2 blocks of width 6 with 2 heads; 3 experts of hidden width 5 in blocks.1; patches "
        "of 2 at 4 pixels; 3 classes, pre-logits of width 6.",
        "top-k 1; capacity factor 1.05 in training, none in evaluation; groups of 8 images",
        "mean [0.1, 0.2, 0.3], std [0.5, 0.5, 0.5]; classes unknown.",
        "Ignored, as it is no parameter: 'rngs' (1), 'step' (1).",
        f"Written to {tmp_path / 'c'}/: last.safetensors, last.json",
        f"Next: moeprobe noise-sweep {tmp_path / 'c'} --data",
    ):
        assert words in result.stdout, result.stdout
    found = json.loads(run("import", "vmoe", prefix, tmp_path / "c", "--overwrite", "--json").stdout)
    assert found["parameters"] == 875 and found["ignored"] == {"rngs": 1, "step": 1}
    assert found["sizes"]["layers"] == [1] and found["model"]["top_k"] == 2
    inspected = json.loads(run("inspect", tmp_path / "c", "--json").stdout)
    assert inspected["parameters"] == 875 and inspected["training"]["imported"] == "vmoe"


def test_plans_and_names_of_what_was_imported(imported: Path, trained: Trained, tmp_path: Path) -> None:
    for more in ((), ("--dry-run",)):
        assert "does not say what it was trained on" in refused(
            "compare", imported, trained["prc"], "--limit", 4, *more
        )
    # The same folder name in two places: told apart by the folders above.
    twin = tmp_path / "elsewhere" / imported.name
    shutil.copytree(imported, twin)
    result = run("confidence", imported, twin, "--data", "digits", "--limit", 20, "--json")
    assert result.exit_code == 0, result.output
    names = {row["checkpoint"] for row in json.loads(result.stdout)["table"]}
    assert names == {f"{folder.parent.name}/{folder.name}/last" for folder in (imported, twin)}


def test_what_is_routed_otherwise_is_not_exported(tmp_path: Path) -> None:
    """The parameters of other routers have the same names: the program would read another model."""
    for name, router, words in (
        ("a", "priority", "routed by priority"),
        (
            "b",
            {"name": "softmax_token_choice", "renormalise": True},
            "renormalizes the weights of the chosen experts",
        ),
        ("c", "softmax_token_choice", "needs 'cls_token'"),
    ):
        config = ModelConfig.model_validate({"num_classes": 10, "router": router, "head": "gap"})
        model = build_model(config)
        checkpoint.save(
            tmp_path / name / "last.safetensors", model, config=config, training={}, class_names=()
        )
        assert words in refused("export", "vmoe", tmp_path / name, tmp_path / "out" / "x")
    assert not (tmp_path / "out").exists()


def test_mistakes_are_sentences(trained: Trained, tmp_path: Path) -> None:
    prefix = making.write(tmp_path / "x", *making.content(making.nested(random_parameters())))
    assert "no checkpoint 'nowhere'" in refused("import", "vmoe", "nowhere", tmp_path / "c")
    assert "takes one number" in refused("import", "vmoe", prefix, tmp_path / "c", "--capacity-factor", "1,2")
    assert "got 'much'" in refused("import", "vmoe", prefix, tmp_path / "c", "--eval-capacity-factor", "much")
    assert "or three" in refused("import", "vmoe", prefix, tmp_path / "c", "--std", "0.5,0.5")
    assert "There is no checkpoint 'nowhere'" in refused("export", "vmoe", "nowhere", tmp_path / "out")
    (tmp_path / "x.index").write_bytes(b"\x91" * 100_000)
    assert "is damaged" in refused("import", "vmoe", prefix, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_the_same_numbers_come_of_the_imported_model(trained: Trained, imported: Path) -> None:
    tables = {}
    for name, folder in (("ours", trained["prc"]), ("imported", imported)):
        result = run("noise-sweep", folder, "--data", "digits", "--limit", 25, "--sigmas", "0,0.2", "--json")
        assert result.exit_code == 0, result.output
        table = pd.DataFrame(json.loads(result.stdout)["table"])
        # Classes were left behind, and with them accuracies.
        assert ("accuracy" in set(table["metric"])) == (name == "ours")
        kept = table[~table["metric"].isin(["accuracy", "top5_accuracy", "loss"])]
        tables[name] = kept.drop(columns=["checkpoint", "train_seed", "group"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(tables["ours"], tables["imported"], check_dtype=False)


def test_classes_bring_accuracies_back(trained: Trained, imported: Path, tmp_path: Path) -> None:
    assert "import it again with --classes digits" in refused("eval", imported, "--data", "digits")
    source = tmp_path / "out" / "prc"
    assert run("import", "vmoe", source, imported, "--classes", "digits", "--overwrite").exit_code == 0
    values = [
        pd.DataFrame(
            json.loads(run("eval", folder, "--data", "digits", "--limit", 60, "--json").stdout)["table"]
        )
        for folder in (trained["prc"], imported)
    ]
    assert values[0]["value"].tolist() == values[1]["value"].tolist()


@pytest.mark.parametrize(
    "command",
    [
        ("match-ratio",),
        ("noise-sweep", "--sigmas", "0,0.1"),
        ("confidence",),
        ("overlay", "--json"),
        ("discontinuity", "--limit", "1"),
        ("compare",),
    ],
)
def test_probes_ask_for_the_data(trained: Trained, imported: Path, command: tuple[str, ...]) -> None:
    models = [imported, trained["prc"]] if command[0] == "compare" else [imported]
    asked = refused(command[0], *models, *command[1:])
    assert "imported does not say what it was trained on; name the data, e.g. --data" in asked


def test_an_image_of_one_s_own_needs_no_data(imported: Path, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((40, 40, 3), dtype=np.uint8)).save(tmp_path / "x.png")
    result = run("overlay", imported, "--file", tmp_path / "x.png", "--json")
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_probes_and_reports_take_an_imported_model(trained: Trained, imported: Path, tmp_path: Path) -> None:
    more = ("--data", "digits", "--limit", 21, "--out")
    for name in ("match-ratio", "confidence"):
        result = run(name, trained["baseline"], imported, *more, tmp_path / name)
        assert result.exit_code == 0, result.output
    result = run("overlay", imported, "--data", "digits", "--count", 1, "--out", tmp_path / "overlay")
    assert result.exit_code == 0, result.output
    result = run("compare", tmp_path / "match-ratio", "--out", tmp_path / "compare")
    assert result.exit_code == 0, result.output
    folders = [tmp_path / name for name in ("match-ratio", "confidence", "overlay", "compare")]
    result = run("report", *folders, "--out", tmp_path / "report")
    assert result.exit_code == 0, result.output
    assert "imported" in (tmp_path / "report" / "report.md").read_text()
