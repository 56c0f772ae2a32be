"""``trace record``, ``trace analyze`` and ``trace import`` as a user meets them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from moeprobe.errors import RunWarning
from tests.commands import Trained, names_in, refused, run
from tests.recordings.test_trace_balance import recording, uniform

NOISE = ("--view", "gaussian_noise", "--severities", "0.1,0.3", "--limit", 20)


@pytest.fixture(scope="module")
def recorded(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recorded") / "traces"
    result = run("trace", "record", *trained.values(), *NOISE, "--out", out)
    assert result.exit_code == 0, result.output
    names = ("clean.parquet", "gaussian_noise-0.1.parquet", "gaussian_noise-0.3.parquet")
    files = [out / checkpoint / name for checkpoint in ("baseline", "prc") for name in names]
    assert all(str(file) in result.output and file.is_file() for file in files)
    assert "baseline: blocks.1, blocks.3" in result.output
    assert "20 images" in result.output and "per input and layer" in result.output
    assert f"Next: moeprobe trace analyze {files[0]} {files[1]} {files[2]}" in result.output
    return out


def test_the_plan_and_what_is_refused(trained: Trained, recorded: Path, tmp_path: Path) -> None:
    plan = run("trace", "record", trained["prc"], *NOISE, "--out", tmp_path / "t", "--dry-run")
    assert "1 checkpoint x 20 images x 3 forward passes = 60 passes" in plan.output
    assert list(tmp_path.iterdir()) == []
    assert "Name a folder for the traces" in refused("trace", "record", trained["prc"])
    again = run("trace", "record", *trained.values(), *NOISE, "--out", recorded)
    assert again.exit_code == 0 and "is finished; --overwrite repeats it" in again.stderr
    assert "clean.parquet" in again.stdout
    crop = ("trace", "record", trained["prc"], "--view", "random_crop", "--out", tmp_path / "t")
    assert "has no severity; leave --severities out" in refused(*crop, "--severities", "1")
    found = json.loads(run(*crop, "--limit", 2, "--full-gates", "--json").stdout)
    assert [Path(file).name for file in found["files"]] == ["random_crop-1.parquet", "random_crop-2.parquet"]
    assert found["images"] == 2 and found["layers"] == {"prc": ["blocks.1", "blocks.3"]}
    assert set(pd.read_parquet(found["files"][1])["gates_kept"]) == {"all"}


def test_the_next_command_names_files_as_they_were_typed(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("trace", "record", trained["prc"], "--limit", 2, "--out", "some/traces")
    assert "Next: moeprobe trace analyze some/traces/prc/clean.parquet" in result.output
    assert str(tmp_path) not in result.output


@pytest.mark.pictures
def test_recorded_runs_are_runs_like_others(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "prc"
    result = run(
        "trace",
        "analyze",
        *sorted((recorded / "prc").iterdir()),
        "--layers",
        "blocks.3",
        "--full",
        "--svg",
        "--out",
        out,
    )
    assert result.exit_code == 0, result.output
    assert "Recorded routing: blocks.3, patches" in result.output
    assert "20 images of digits test" in result.output
    assert names_in(out) == {
        "run.json", "table.csv", "table.json", "images.parquet", "figures",
    }  # fmt: skip
    assert {path.name for path in (out / "figures").iterdir()} == {"routing.png", "routing.svg"}
    report = run("report", out, "--out", tmp_path / "report")
    assert report.exit_code == 0, report.output
    assert "Recorded routing: gaussian noise" in (tmp_path / "report" / "report.md").read_text()
    assert "holds no images.parquet" in refused("compare", recorded)


def test_traces_are_called_as_the_user_does(recorded: Path, tmp_path: Path) -> None:
    traces = [recorded / name / "clean.parquet" for name in ("baseline", "prc")]
    command = ("trace", "analyze", *traces, "--layers", "blocks.3", "--out", tmp_path / "out")
    first = run(*command, "--names", "rollout,trainer").stdout
    assert "trainer" in first and "prc" not in first.split("Written")[0]
    # Files keep the names, so a finished run can be called otherwise.
    assert set(pd.read_csv(tmp_path / "out" / "table.csv")["checkpoint"]) == {"baseline", "prc"}
    again = run(*command, "--names", "before,after").stdout
    assert "after" in again and "trainer" not in again
    assert "a name for each of the 2 checkpoints" in refused(*command[:-2], "--names", "one")


@pytest.mark.pictures
def test_every_trace_has_a_column_of_its_own(recorded: Path, tmp_path: Path) -> None:
    files = [recorded / "prc" / f"{name}.parquet" for name in ("clean", "gaussian_noise-0.3")]
    out = tmp_path / "two"
    result = run("trace", "analyze", *files, "--layers", "blocks.3", "--full", "--out", out)
    assert result.exit_code == 0, result.output
    for words in ("prc clean", "prc gaussian_noise 0.3", "top-1 match", "highest gate"):
        assert words in result.output
    assert {path.stem for path in (out / "figures").iterdir()} == {"match-ratio", "confidence"}
    alone = json.loads(run("trace", "analyze", files[0], "--layers", "blocks.1", "--json").stdout)
    assert {row["metric"] for row in alone["table"]} == {
        "gate_highest", "gate_second", "gate_rest", "gate_margin", "chosen_mass", "unserved",
        "load_entropy", "dead_experts", "expert_share", "load_entropy_first", "dead_experts_first",
        "expert_share_first", "dropped",
    }  # fmt: skip
    assert "is a folder; name the traces in it" in refused("trace", "analyze", recorded / "prc")


def test_a_log_is_imported(tmp_path: Path) -> None:
    log, trace = tmp_path / "routing.jsonl", tmp_path / "traces" / "monday.parquet"
    line = {"id": "r17", "layer": "blocks.3", "experts": [[3, 5], [0, 1]], "gates": [[0.6, 0.3], [0.5, 0.4]]}
    log.write_text(json.dumps(line))
    assert "line 1: num_experts is missing" in refused("trace", "import", log, trace)
    assert not trace.parent.exists() or not list(trace.parent.iterdir())
    result = run("trace", "import", log, trace, "--num-experts", 8)
    assert result.exit_code == 0, result.output
    assert "1 requests, layers blocks.3: 2 tokens in all layers" in result.output
    before = trace.stat().st_mtime_ns
    with pytest.warns(RunWarning, match=r"monday\.parquet is finished; add overwrite=True to repeat it"):
        again = run("trace", "import", log, trace, "--num-experts", 8)
    assert again.exit_code == 0 and again.stdout == result.stdout
    assert "exists; add --overwrite" in refused("trace", "import", log, trace, "--num-experts", 9)
    log.write_text(json.dumps(line | {"experts": [[3, 5], [0, 2]]}))
    assert "exists; add --overwrite" in refused("trace", "import", log, trace, "--num-experts", 8)
    assert trace.stat().st_mtime_ns == before
    log.write_text(json.dumps(line))
    (tmp_path / "mine.parquet").write_text("mine")
    said = refused("trace", "import", log, tmp_path / "mine.parquet", "--num-experts", 8, "--overwrite")
    assert "replaces traces alone" in said and (tmp_path / "mine.parquet").read_text() == "mine"
    assert "end its name in .parquet" in refused("trace", "import", log, tmp_path / "t", "--num-experts", 8)
    assert "There is no log" in refused("trace", "import", tmp_path / "no.jsonl", trace, "--overwrite")
    again = run(
        "trace", "import", log, trace, "--num-experts", 8, "--overwrite", "--name", "server", "--json"
    )
    assert json.loads(again.stdout)["requests"] == 1
    table = json.loads(run("trace", "analyze", trace, "--json").stdout)["table"]
    assert {row["checkpoint"] for row in table} == {"server"}
    assert "not known which of a token's experts" not in result.output
    # Nothing of confidence: the gates of the other experts are not known.
    load = {
        f"{name}{form}"
        for name in ("load_entropy", "dead_experts", "expert_share")
        for form in ("", "_first")
    }
    assert {row["metric"] for row in table} == load | {"unserved", "dropped"}
    bare = log.with_name("bare.jsonl")
    bare.write_text(json.dumps({key: value for key, value in line.items() if key != "gates"}))
    said = run("trace", "import", bare, tmp_path / "bare.parquet", "--num-experts", 8).output
    assert (
        "Neither gates nor ordered_by were logged of blocks.3, so it is not known which of a token's" in said
    )


def test_a_log_and_responses_take_their_own_options(tmp_path: Path) -> None:
    log, trace = tmp_path / "routing.jsonl", tmp_path / "t.parquet"
    log.write_text(json.dumps({"id": "r", "choices": []}))
    assert "line 1: it has neither layer nor experts; a server's responses need --model-config" in refused(
        "trace", "import", log, trace
    )
    assert "A log is one file" in refused("trace", "import", log, log, trace)
    assert "--reader is for a server's responses" in refused(
        "trace", "import", log, trace, "--reader", "vllm"
    )
    model = ("--model-config", tmp_path / "config.json")
    assert "--num-experts is for logs" in refused("trace", "import", log, trace, *model, "--num-experts", 8)


def test_dead_experts_of_few_requests_are_not_measurable(tmp_path: Path) -> None:
    """Each request chooses two of four experts for all its tokens: 24 say little of the twelve others."""

    def choose(number: int, layer: int) -> NDArray[np.int64]:
        return np.tile(np.random.default_rng([number, layer]).choice(4, 2, replace=False), (16, 1))

    path, out = recording(tmp_path, choose, requests=24), tmp_path / "out"
    printed = run("trace", "analyze", path, "--out", out)
    assert "– not measurable with 24 requests" in " ".join(printed.stdout.split())
    table = pd.read_csv(out / "table.csv")
    dead = table[table["metric"] == "dead_experts"]
    assert set(dead["flag"]) == {"not_measurable"} and dead[["value", "ci_low", "ci_high"]].isna().all(
        axis=None
    )
    audited = " ".join(run("audit", path).stdout.split())
    assert "no verdict" in audited and "Good: faults of the recording (no known fault)" in audited
    more = recording(tmp_path, uniform, requests=60, name="more")
    assert "not measurable" not in run("trace", "analyze", more).stdout
