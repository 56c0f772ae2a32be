"""Recorded routing that several processes share: the bytes of one process, however the inputs are divided."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.probes.engine.shard import Shard
from moeprobe.recorded.engine import input_sums
from moeprobe.recorded.engine.division import blocks_of, share_of
from moeprobe.recorded.trace_balance import measure as balance
from moeprobe.recordings.format import metadata, writing
from moeprobe.recordings.rows import to_rows
from moeprobe.runtime.run_files import FINISHED, PARTS
from tests.commands import PATIENCE, names_in, pictures, refused, run
from tests.probes.test_shards import contents
from tests.recordings.test_mismatch import served, with_two_choices
from tests.recordings.test_parts import log_lines
from tests.routing.routings import routing

# By command: the function, and what it takes of two recordings.
QUESTIONS: dict[str, Any] = {
    "trace analyze": (api.analyze_trace, lambda traces: {"traces": traces}),
    "trace locality": (api.trace_locality, lambda traces: {"traces": traces}),
    "trace drift": (api.drift, lambda traces: {"traces": traces}),
    "trace balance": (api.trace_balance, lambda traces: {"trace": traces[0], "ranks": 2}),
    # Batches of two requests, the baseline of which is cut by a shard.
    "watched": (api.trace_balance, lambda traces: {"trace": traces[0], "every": 2, "baseline": 6}),
}
COMMANDS = {"watched": "trace balance"}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two recordings of the same requests, the second of which is a token shorter; one of them in parts."""
    folder = tmp_path_factory.mktemp("shards")
    paths = []
    for seed, name in enumerate(("step-1", "step-2")):
        log, path = folder / f"{name}.jsonl", folder / f"{name}.parquet"
        lines = [json.loads(line) for line in log_lines(seed=seed)]
        # Tokens that one side alone has are counted by each process, and the counts added.
        cut = [line | {"experts": line["experts"][: len(line["experts"]) - seed]} for line in lines]
        log.write_text("\n".join(map(json.dumps, cut)))
        api.import_trace(log, path, name="model")
        paths.append(path)
    return paths


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four inputs in parts of ten: shards cut parts, and no block."""
    monkeypatch.setattr(input_sums, "INPUTS_AT_ONCE", 4)
    monkeypatch.setattr(input_sums, "INPUTS_IN_MEMORY", 10)
    monkeypatch.setattr(balance, "REQUESTS_AT_ONCE", 4)


QUICK = ("trace analyze", "trace balance", "watched")


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow, pytest.mark.promise])
        for name in QUESTIONS
    ],
)
def test_shards_merge_into_the_run_of_one_process(question: str, traces: list[Path], tmp_path: Path) -> None:
    function, fields_of = QUESTIONS[question]
    fields = fields_of(traces)
    function(**fields, out=tmp_path / "one/run", figures=False)
    shards = [
        api.measure_shard(
            COMMANDS.get(question, question), **fields, shard=f"{number}/3", out=tmp_path / str(number)
        )
        for number in (3, 1, 2)
    ]
    assert sum(shard.sidecar["images"] for shard in shards) == 23
    assert all(shard.sidecar["images"] for shard in shards)
    merged = api.merge([shard.path for shard in shards], out=tmp_path / "merged/run", figures=False)
    assert contents(tmp_path / "merged/run") == contents(tmp_path / "one/run")
    assert names_in(tmp_path / "merged/run") == names_in(tmp_path / "one/run")
    one, of_shards = (
        json.loads((tmp_path / folder / "run" / FINISHED).read_bytes()) for folder in ("one", "merged")
    )
    assert of_shards.get("ignored") == one.get("ignored") and of_shards["notes"] == one["notes"]
    assert question in ("trace locality", "trace balance", "watched") or one["ignored"]
    assert [shard["shard"] for shard in merged.sidecar["shards"]] == ["1/3", "2/3", "3/3"]


def test_counts_of_a_shard_are_read_with_care(traces: list[Path], tmp_path: Path) -> None:
    folders = [tmp_path / "1", tmp_path / "2"]
    for number, folder in enumerate(folders, start=1):
        api.measure_shard("trace balance", trace=traces[0], shard=f"{number}/2", out=folder)
    counts = folders[1] / PARTS / "counts.safetensors"
    whole, array = counts.read_bytes(), {"choices": np.zeros((2, 4), np.int32)}
    for content, message in (
        (whole[:-8], "counts.safetensors is not as moeprobe wrote it"),
        (save(array), "counts other layers or experts"),
        (None, "Cannot read"),
    ):
        counts.unlink()
        if content is not None:
            counts.write_bytes(content)
        with pytest.raises(UserError, match=message):
            api.merge(folders, out=tmp_path / "merged")
        counts.write_bytes(whole)
    assert len(api.merge(folders, out=tmp_path / "merged", figures=False).table)


def test_a_cluster_is_in_one_shard(tmp_path: Path) -> None:
    """Choices of one request are one sample, whose sums no two processes may have a part of."""
    path, names = tmp_path / "t.parquet", [f"r{number:02d}" for number in range(30)]
    # Of five and five, so that no block of four ends where a cluster does but every fifth.
    clusters = {name: names[number - number % 5] for number, name in enumerate(names) if number % 5}
    with writing(path) as file:
        for start in range(0, 30, 3):
            file.write([to_rows(names[start : start + 3], "l", routing(seed=start))])
        file.close(metadata(checkpoint={"name": "a", "sha256": None}, layers=["l"], clusters=clusters))
    api.analyze_trace(path, out=tmp_path / "one/run", figures=False)
    folders = [tmp_path / str(number) for number in (1, 2, 3, 4)]
    for number, folder in enumerate(folders, start=1):
        api.measure_shard("trace analyze", traces=path, shard=f"{number}/4", out=folder)
    api.merge(folders, out=tmp_path / "merged/run", figures=False)
    assert contents(tmp_path / "merged/run") == contents(tmp_path / "one/run")


@pytest.fixture(scope="module")
def served_with_choices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with its responses, each of two choices, which are one sample."""
    return with_two_choices(served(tmp_path_factory.mktemp("served"), "olmoe", rerouted=0.3, noise=0.1))


@pytest.mark.slow
@pytest.mark.promise
def test_a_mismatch_is_scored_in_shards_of_whole_batches_and_requests(
    served_with_choices: Path, tmp_path: Path
) -> None:
    """In batches of three, every other batch ends between the choices of a request."""
    fields = mismatch_of(served_with_choices) | {"batch_size": 3}
    api.mismatch(**fields, out=tmp_path / "one/run", figures=False)
    folders = [tmp_path / str(number) for number in (1, 2, 3)]
    for number, folder in enumerate(folders, start=1):
        shard = api.measure_shard("trace mismatch", **fields, shard=f"{number}/3", out=folder)
        # Two batches with three requests of two choices.
        assert shard.sidecar["images"] % 6 == 0 and 0 < shard.sidecar["images"] < 96
    api.merge(folders, out=tmp_path / "merged/run", figures=False)
    assert contents(tmp_path / "merged/run") == contents(tmp_path / "one/run")
    model = api.load_model(fields["model"])
    with pytest.raises(UserError, match="name the model by its path"):
        api.measure_shard("trace mismatch", **fields | {"model": model}, shard="1/3", out=tmp_path / "x")
    # Whoever merges folders of somebody else runs no code of theirs.
    sidecar = folders[0] / "shard.json"
    foreign = json.loads(sidecar.read_text())
    foreign["asked"]["fields"]["model"] = "py:somebody:model"
    sidecar.write_text(json.dumps(foreign))
    with pytest.raises(UserError, match="'py:somebody:model', Python code that would be run"):
        api.merge(folders, out=tmp_path / "again")


def mismatch_of(folder: Path) -> dict[str, Any]:
    """What is asked of a model and its responses."""
    return {
        "model": f"hf:{folder}/model", "tokens": folder / "responses.jsonl", "routing": folder / "served.parquet",
    }  # fmt: skip


@pytest.mark.parametrize("of", [1, 2, 3, 7, 40])
def test_shares_are_disjoint_and_complete(of: int) -> None:
    starts = blocks_of([(0, 10), (10, 20), (20, 23)], 4)
    assert starts == [0, 4, 8, 10, 14, 18, 20]
    bounds = [share_of(starts, 23, Shard(of=of, number=number)) for number in range(1, of + 1)]
    assert [index for first, last in bounds for index in range(first, last)] == list(range(23))
    assert all(first in [*starts, 23] for first, _ in bounds)


def test_what_does_not_fit_is_refused(traces: list[Path], tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    command = ("trace", "analyze", *traces, "--shard")
    result = run(*command, "1/2", "--out", first)
    assert result.exit_code == 0, result.output
    assert "Shard 1/2: 10 of 23 inputs measured" in " ".join(result.output.split())
    assert "moeprobe merge FOLDER... --out FOLDER" in " ".join(result.output.split())
    assert "A shard is written to a folder of its own" in refused(*command, "2/2")
    merge = ("merge", first, second, "--out", tmp_path / "merged")
    assert "holds no shard" in refused(*merge)
    # Another trace under the same name.
    run("trace", "analyze", traces[0], "--shard", "2/2", "--out", second)
    assert "do not ask the same" in refused(*merge)
    assert run(*command, "2/2", "--overwrite", "--out", second).exit_code == 0
    [lost, *_] = sorted(second.glob(f"{PARTS}/*/*.parquet"))
    lost.rename(tmp_path / "away")
    assert f"Cannot read {lost}" in refused(*merge).replace("\n", "")
    (tmp_path / "away").rename(lost)
    assert run(*merge).exit_code == 0
    with pytest.raises(UserError, match=r"no probe 'trace coverage'|unknown|There is no"):
        api.measure_shard("trace coverage", traces=traces, shard="1/2", out=tmp_path / "3")
    with pytest.raises(UserError, match="Name the checkpoints of confidence"):
        api.measure_shard("confidence", shard="1/2", out=tmp_path / "3")


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.resamples  # as many as the processes take
@pytest.mark.parametrize("question", ["locality", "balance", "mismatch"])
def test_torchrun_leaves_the_bytes_of_one_process(
    question: str, traces: list[Path], served_with_choices: Path, tmp_path: Path
) -> None:
    """Two real processes; the second process has requests too, since long traces are cut into blocks."""
    program = tmp_path / "small_blocks.py"
    program.write_text(
        "from moeprobe.recorded.engine import input_sums\n"
        "from moeprobe.recorded.trace_balance import measure\n"
        "input_sums.INPUTS_AT_ONCE, input_sums.INPUTS_IN_MEMORY = 4, 10\n"
        "measure.REQUESTS_AT_ONCE = 4\n"
        "from moeprobe.cli import main\n"
        "main()\n"
    )
    files = mismatch_of(served_with_choices)
    arguments = {
        "locality": map(str, traces),
        "balance": (str(traces[0]), "--ranks", "2"),
        "mismatch": (files["model"], "--tokens", str(files["tokens"]), "--routing", str(files["routing"])),
    }
    asked = ["trace", question, *arguments[question]]
    with pictures():
        assert run(*asked, "--out", tmp_path / "one/run").exit_code == 0
    out = tmp_path / "two/run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(program), *asked, "--out", str(out), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["out"] == str(out)
    assert contents(out) == contents(tmp_path / "one/run")
    shards = json.loads((out / FINISHED).read_bytes())["shards"]
    inputs = {"locality": [10, 13], "balance": [12, 11], "mismatch": [48, 48]}
    assert [shard["images"] for shard in shards] == inputs[question]
