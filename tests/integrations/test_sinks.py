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
    sink.attach()
    sink.open()
    for record in RECORDS:
        sink.write(record)
    sink.close()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines_are_whole_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "a" / "routing.jsonl"
    for _ in range(3):
        write(JsonLines(path))
    lines = lines_of(path)
    assert [(line["step"], line[KEY], line["intervals"][KEY]) for line in lines[:2]] == [
        (0, 0.5, [0.4, 0.9]),
        (20, 0.7, [0.4, 0.9]),
    ]
    assert [line.pop("run") for line in lines] == [1, 1, 2, 2, 3, 3]
    assert lines[4:] == lines[2:4] == lines[:2]


@pytest.mark.parametrize(
    ("before", "runs"),
    [
        (b"", [1, 1]),
        (b'{"step": 0}\n', [None, 2, 2]),
        (b'{"step": 0, "run": 7}', [7, 8, 8]),
        (b'{"step": 0, "run": 7}\n{"step": 20, "ru', [7, 8, 8]),
        (b'{"step": 0, "run": "x"}\n', ["x", 2, 2]),
        (b'{"step": 0, "ru', [1, 1]),
        (b'{"st', [1, 1]),
        (b'{"step":0,"run":7}\n{"step":20', [7, 8, 8]),
        (b'{"step": 0, "run": 7}\n{"text": "' + 200_000 * b"x", [7, 8, 8]),
    ],
)
def test_half_a_line_of_a_killed_process_is_cut_off(before: bytes, runs: Any, tmp_path: Path) -> None:
    path = tmp_path / "routing.jsonl"
    path.write_bytes(before)
    write(JsonLines(path))
    assert [line.get("run") for line in lines_of(path)] == runs


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "routing.jsonl"
    sink, limits = JsonLines(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    sink.open()
    sink.write(RECORDS[0])
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            sink.write(RECORDS[1])
        assert [line["step"] for line in lines_of(path)] == [0]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    sink.write(RECORDS[1])
    assert [line["step"] for line in lines_of(path)] == [0, 20]


def test_a_file_that_is_removed_is_made_again(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "routing.jsonl")
    sink.path.unlink()
    write(sink)
    assert [line["run"] for line in lines_of(sink.path)] == [1, 1]


@pytest.mark.parametrize(
    "content",
    [
        "to do:\nbuy bread",
        '{\n  "step": 0\n}',
        '{"lr": 0.1,\n "seed": 1}',
        '{"lr": 0.1',
        '{"steps": 3}',
        "[]",
        "{}",
    ],
)
def test_a_file_of_something_else_stays_as_it_is(content: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=r"notes\.txt holds no records of a monitor; name another file"):
        write(JsonLines(path))
    assert path.read_text() == content


@pytest.mark.parametrize("path", [".", "file/routing", "null\0byte"])
@pytest.mark.parametrize("sink", [JsonLines, TensorBoard])
def test_a_path_that_cannot_be_written_is_named(sink: Any, path: str, tmp_path: Path) -> None:
    if sink is TensorBoard:
        pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    (tmp_path / "file").touch()
    path = "file" if sink is TensorBoard and path == "." else path
    with pytest.raises(UserError, match="Cannot write"):
        sink(tmp_path / path)


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
        WeightsAndBiases().attach()
    run = wandb.init(project="moeprobe", dir=str(tmp_path), mode="offline")
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
        Mlflow().attach()
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
