"""Records arrive where they are sent, and are read there by the program itself."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from moeprobe.errors import UserError
from moeprobe.integrations import JsonLines, Mlflow, RoutingRecord, Sink, TensorBoard, WeightsAndBiases

KEY = "routing/kappa/typos"
RECORDS = [RoutingRecord(step, {KEY: 0.5 + step / 100}, {KEY: (0.4, 0.9)}, {}, 24, 0.1) for step in (0, 20)]


def write(sink: Sink) -> None:
    sink.open()
    for record in RECORDS:
        sink.write(record)
    sink.close()


def test_json_lines_are_whole_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "a" / "routing.jsonl"
    for _ in range(2):
        write(JsonLines(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line[KEY], line["intervals"][KEY]) for line in lines[:2]] == [
        (0, 0.5, [0.4, 0.9]),
        (20, 0.7, [0.4, 0.9]),
    ]
    assert lines[2:] == lines[:2]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot write"):
        JsonLines(tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(TensorBoard(tmp_path))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars(KEY)] == [
        (0, pytest.approx(0.5)),
        (20, pytest.approx(0.7)),
    ]


@pytest.mark.filterwarnings("default")
def test_weights_and_biases_keeps_them_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(UserError, match=r"call wandb\.init first"):
        WeightsAndBiases().open()
    run = wandb.init(project="moeprobe", dir=tmp_path, mode="offline")
    write(WeightsAndBiases())
    assert run.summary[KEY] == pytest.approx(0.7)
    assert run.summary["routing/step"] == 20
    run.finish()
    wandb.teardown()  # its own process may still be writing when the run is finished
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert KEY.encode() in file.read_bytes()


@pytest.mark.filterwarnings("default")
def test_mlflow_keeps_them_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask before they use one
    uri = f"file:{tmp_path}"
    client = mlflow.MlflowClient(uri)
    experiment = client.create_experiment("moeprobe")
    with pytest.raises(UserError, match=r"call mlflow\.start_run first"):
        Mlflow().open()
    run = client.create_run(experiment)
    write(Mlflow(run.info.run_id, uri))
    history: list[Any] = client.get_metric_history(run.info.run_id, KEY)
    assert [(metric.step, metric.value) for metric in history] == [(0, 0.5), (20, 0.7)]


@pytest.mark.parametrize(
    ("package", "sink"), [("tensorboard", TensorBoard), ("wandb", WeightsAndBiases), ("mlflow", Mlflow)]
)
def test_a_missing_package_is_one_sentence(
    package: str, sink: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"is not installed: pip install .* -e '\.\[{package}\]'"):
        sink(tmp_path) if sink is TensorBoard else sink()
