"""Files of runs that were changed by hand or damaged: each reader says so in a sentence, and nothing is computed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moeprobe.errors import UserError
from moeprobe.studies.train import read_summary
from tests.commands import refused, run
from tests.security.slots import CHECKPOINT

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Both shards of a run."""
    folders = [tmp_path_factory.mktemp("shards") / f"s{number}" for number in (1, 2)]
    for number, folder in enumerate(folders, start=1):
        line = ("confidence", CHECKPOINT, "--limit", 4, "--batch-size", 2, "--shard", f"{number}/2")
        assert run(*line, "--out", folder).exit_code == 0
    return folders


@pytest.fixture
def shards(measured: list[Path]) -> Any:
    """The shards, put back as they were afterwards."""
    kept = {path: path.read_bytes() for folder in measured for path in folder.rglob("*") if path.is_file()}
    yield measured
    for path, content in kept.items():
        path.write_bytes(content)


SIDECARS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a foreign option": lambda about: about["asked"]["options"].update(nonsense=1),
    "an option of a process": lambda about: about["asked"]["options"].update(out="elsewhere"),
    "a foreign field": lambda about: about["asked"]["fields"].update(nonsense=1),
    "an empty request": lambda about: about.update(request={}),
    "no rate": lambda about: about.update(images_per_second={}),
    "a word as a rate": lambda about: about.update(images_per_second={"digits-prc-k2-seed0": "fast"}),
}


@pytest.mark.parametrize("change", SIDECARS)
def test_sidecars_of_shards(shards: list[Path], tmp_path: Path, change: str) -> None:
    for folder in shards:
        about = json.loads((folder / "shard.json").read_text("utf-8"))
        SIDECARS[change](about)
        (folder / "shard.json").write_text(json.dumps(about), encoding="utf-8")
    refused("merge", *shards, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, values)


PARTS: dict[str, Change] = {
    "float16": lambda table: with_column(
        table, "label", table["label"].cast(pa.float32()).cast(pa.float16())
    ),
    "words": lambda table: with_column(table, "label", table["label"].cast(pa.string())),
    "an image twice": lambda table: pa.concat_tables([table.slice(0, 1), table]),
    "no image": lambda table: table.slice(0, 0),
    "no column of layers": lambda table: table.drop_columns(["layer"]),
}


def rewrite(path: Path, change: Change) -> None:
    table = pq.read_table(path)
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)


@pytest.mark.parametrize("change", PARTS)
def test_parts_of_shards(shards: list[Path], tmp_path: Path, change: str) -> None:
    for path in (shards[0] / "parts").glob("*.parquet"):
        rewrite(path, PARTS[change])
    said = refused("merge", *shards, "--out", tmp_path / "out")
    assert "does not hold its part of" in said


@pytest.mark.parametrize("change", [name for name in PARTS if name != "no image"])
def test_sums_of_a_finished_run(tmp_path: Path, change: str) -> None:
    for name in ("a", "b"):
        line = ("match-ratio", CHECKPOINT, "--limit", 4, "--batch-size", 4, "--out", tmp_path / name)
        assert run(*line).exit_code == 0
    rewrite(tmp_path / "a/images.parquet", PARTS[change])
    assert "again" in refused("compare", tmp_path / "a", tmp_path / "b")


def test_a_draw_without_one_of_its_images(tmp_path: Path) -> None:
    for name in ("a", "b"):
        line = ("fewshot", CHECKPOINT, "--shots", 1, "--draws", 2, "--limit", 20, "--out", tmp_path / name)
        assert run(*line).exit_code == 0
    rewrite(tmp_path / "a/images.parquet", lambda table: table.slice(0, table.num_rows - 1))
    said = refused("compare", tmp_path / "a", tmp_path / "b")
    assert "The random draws of" in said and "are of different images; run the probe again" in said


def copied(trained: Path, into: Path) -> Path:
    shutil.copytree(trained, into)
    return into


@pytest.mark.parametrize("word", ["fast", ""])
@pytest.mark.parametrize("column", ["step", "epoch", "val_accuracy"])
def test_a_word_in_the_curve_of_a_training(
    trained: dict[str, Path], tmp_path: Path, column: str, word: str
) -> None:
    folder = copied(trained["prc"], tmp_path / "training")
    curve = pd.read_csv(folder / "metrics.csv", dtype=str)
    curve.loc[0, column] = word
    curve.to_csv(folder / "metrics.csv", index=False)
    if word or column != "val_accuracy":
        said = refused("curves", folder, "--metric", "val_accuracy")
        assert f"The metrics.csv of {folder} cannot be read" in said


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"steps": "8"}, "steps"),
        ({"images_per_second": "fast"}, "images_per_second"),
        ({"val_accuracy": "0.5"}, "val_accuracy"),
        ({"best_val_accuracy": None}, "it lacks val_accuracy or val_loss"),
        ({"validated_on": 3}, "validated_on"),
    ],
)
def test_a_number_as_text_at_the_end_of_a_training(
    trained: dict[str, Path], tmp_path: Path, changes: dict[str, Any], place: str
) -> None:
    folder = copied(trained["prc"], tmp_path / "training")
    path = folder / "finished.json"
    assert read_summary(folder)["steps"] > 0
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")
    with pytest.raises(UserError) as found:
        read_summary(folder)
    assert f"({place})" in found.value.sentence
