"""A run measured in parts and put together leaves the bytes that one process leaves, whatever the parts."""

import itertools
import json
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from moeprobe import api
from moeprobe.declarations import registry
from moeprobe.errors import UserError
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.shard import BlockSizes, Shard, image_ranges
from moeprobe.runtime.records import RECORD
from moeprobe.runtime.run_files import FINISHED, PARTS, SHARD
from tests.commands import PATIENCE, Trained, names_in, pictures, refused, run, sentence, shell, started

# Commands in processes of their own leave the same bytes.
pytestmark = pytest.mark.resamples

# Every probe whose sums per image are kept, with what makes it short; batches of five images, cut to whole groups.
# Those that take long.
LONG = (
    "noise-sweep", "discontinuity", "fewshot", "routes", "precision", "determinism", "corruptions", "flips", "margins",
    "attack", "sweep", "experts", "s-matrix",
)  # fmt: skip
# Those that are tried with one model; the others compare two.
OF_ONE = ("sweep", "attack", "margins", "flips", "experts", "regret")
PROBES = {
    "noise-sweep": ["--sigmas", "0,0.1"],
    "sweep": ["--view", "affine", "--severities", "0,0.5"],
    "match-ratio": [],
    "s-matrix": [],
    "confidence": ["--group-images", "2", "--capacity", "trained"],
    "eval": ["--skip-bad-images"],
    "routes": ["--count", "1"],
    "contagion": ["--group-images", "3"],
    "fewshot": ["--shots", "1,2", "--draws", "2"],
    "precision": ["--formats", "int8", "--parts", "router,experts"],
    "determinism": ["--batches", "1,5", "--repeats", "1"],
    "flips": ["--patches", "2"],
    "experts": ["--layers", "first", "--experts-per-layer", "3"],
    "regret": ["--tried", "2"],
    "prefetch": [],
    "coverage": ["--need", "16"],
    "corruptions": ["--corruptions", "fog,zoom_blur", "--severities", "5"],
    "margins": ["--sigmas", "0.1,0.3", "--draws", "2"],
    "attack": ["--epsilons", "0,4", "--steps", "1"],
    "discontinuity": ["--limit", "3", "--count", "2", "--layers", "first"],
}


# Five batches.
SWEEP = ("--limit", "20", "--batch-size", "4", "--sigmas", "0,0.1")


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a run, but for the sidecar, which says when and how quick."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in (FINISHED, ".moeprobe.lock")
    }


def test_shards_are_whole_batches_and_together_the_run() -> None:
    drawn = random.Random(0)
    for _ in range(300):
        count, of = drawn.randint(0, 60), drawn.randint(1, 9)
        cuts = BlockSizes(block=drawn.randint(1, 20), batch=drawn.randint(1, 9))
        batches = [
            list(range(count))[begun : begun + cuts.block][at : at + cuts.batch]
            for begun in range(0, count, cuts.block)
            for at in range(0, min(cuts.block, count - begun), cuts.batch)
        ]
        seen = []
        for number in range(1, of + 1):
            pieces = list(image_ranges(count, cuts, Shard(of=of, number=number)))
            own = [image for piece in pieces for image in range(piece.start, piece.stop)]
            whole = [batch for batch in batches if set(batch) <= set(own)]
            assert [image for batch in whole for image in batch] == own
            assert len(whole) in (len(batches) // of, -(-len(batches) // of))
            for piece in pieces:
                assert piece.start // cuts.block == (piece.stop - 1) // cuts.block == piece.block
            seen += own
        assert seen == list(range(count))
        assert [(one.start, one.stop) for one in image_ranges(count, cuts)] == [
            (begun, min(begun + cuts.block, count)) for begun in range(0, count, cuts.block)
        ]


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "1/0", "-1/2", "1/2/3", "a/b", "", "1 / 2", "01/2"])
def test_a_shard_that_does_not_exist_is_refused(text: str, trained: Trained) -> None:
    assert f"got {text!r}" in refused("confidence", trained["prc"], "--shard", text, "--out", "x")
    with pytest.raises(UserError, match="for the second of eight"):
        Shard.read(text)


def test_every_probe_is_tried_or_refuses() -> None:
    # Clips are no built-in data: tests/probes/test_frames.py does it with its own.
    others = {"overlay", "trace record", "frames"} | {one.name for one in registry.probes() if not one.splits}
    assert set(PROBES) | others == {probe.name for probe in registry.probes()}


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    """One probe shows at once what holds of all."""
    if name == "confidence":
        return []
    return [pytest.mark.slow] if name in LONG else [pytest.mark.slow, pytest.mark.promise]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in PROBES])
def test_shards_put_together_are_the_run(
    name: str, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 16 and batches of 5 images or less; three shards of 25 images cut blocks, and none is as large."""
    monkeypatch.setattr(loop, "BLOCK_IMAGES", 16)
    models = [trained["prc"]] if name in OF_ONE else trained.values()
    asked = [name, *models, "--limit", "25", "--batch-size", "5", "--device", "cpu", *PROBES[name]]
    assert run(*asked, "--out", tmp_path / "one/run").exit_code == 0
    for number in (3, 1, 2):
        result = run(*asked, "--shard", f"{number}/3", "--out", tmp_path / f"shard-{number}")
        assert result.exit_code == 0, result.output
        assert f"Shard {number}/3" in result.output
    shards = [tmp_path / f"shard-{number}" for number in (2, 3, 1)]
    before = [contents(shard) for shard in shards]
    result = run("merge", *shards, "--out", tmp_path / "many/run")
    assert result.exit_code == 0, result.output
    assert contents(tmp_path / "one/run") == contents(tmp_path / "many/run")
    assert [contents(shard) for shard in shards] == before
    one, many = (json.loads((tmp_path / place / "run" / FINISHED).read_bytes()) for place in ("one", "many"))
    assert [shard["shard"] for shard in many["shards"]] == ["1/3", "2/3", "3/3"]
    differs = {"command", "images_per_second", "wall_seconds", "shards"}
    assert {key: one[key] for key in one.keys() - differs} == {
        key: many[key] for key in many.keys() - differs
    }


@pytest.fixture(scope="module")
def measured(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 images by one process, and in three shards of 5 batches."""
    root = tmp_path_factory.mktemp("shards")
    asked = ["noise-sweep", *trained.values(), *SWEEP]
    for name, more in (
        ("one/sweep", []),
        *((f"{number}", ["--shard", f"{number}/3"]) for number in (1, 2, 3)),
        ("other-seed", ["--shard", "1/3", "--seed", "1"]),
        ("of-two", ["--shard", "1/2"]),
        ("other-batches", ["--shard", "1/3", "--batch-size", "2"]),
    ):
        with pictures():
            assert run(*asked, *more, "--out", root / name).exit_code == 0
    return root


@pytest.mark.pictures
@pytest.mark.slow
@pytest.mark.promise
def test_a_command_in_processes_of_its_own(measured: Path, trained: Trained, tmp_path: Path) -> None:
    """Figures too, from another number of shards, as a scheduler starts them."""
    asked = ["noise-sweep", *trained.values(), *SWEEP]
    for number in (2, 1):
        done = shell(*asked, "--shard", f"{number}/2", "--out", tmp_path / f"{number}", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["sidecar"]["images_of_run"] == 20
    done = shell("merge", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "many/sweep")
    assert done.returncode == 0, done.stderr
    assert "top-1 match" in done.stdout or "κ" in done.stdout
    assert contents(measured / "one/sweep") == contents(tmp_path / "many/sweep")
    assert any(name.endswith(".png") for name in contents(tmp_path / "many/sweep"))


def test_more_shards_than_batches(trained: Trained, tmp_path: Path) -> None:
    asked = ["confidence", trained["prc"], "--limit", "6", "--batch-size", "3"]
    assert run(*asked, "--out", tmp_path / "one/run").exit_code == 0
    for number in range(1, 6):
        assert run(*asked, "--shard", f"{number}/5", "--out", tmp_path / f"{number}").exit_code == 0
    assert (
        run("merge", *(tmp_path / f"{n}" for n in range(1, 6)), "--out", tmp_path / "many/run").exit_code == 0
    )
    assert contents(tmp_path / "one/run") == contents(tmp_path / "many/run")


def test_what_is_missing_doubled_or_foreign_is_refused_by_name(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(measured)
    out = tmp_path / "out"
    for shards, said in (
        (["1", "3"], ["Shard 2/3 is missing", "--shard 2/3"]),
        (["3"], ["Shards 1/3, 2/3 are missing"]),
        (["1", "2", "3", "2"], ["2 and 2 both hold shard 2/3"]),
        (["other-seed", "2", "3"], ["other-seed and 2 do not ask the same: seed is 1", "0 in the second"]),
        (["2", "3", "1", "of-two"], ["2 is one of 3 shards and of-two one of 2"]),
        (["2", "3", "other-batches"], ["other-batches", "batch_size is 4", "2 in the second"]),
        (["1", "2", "one/sweep"], ["one/sweep holds a whole run"]),
        (["1", "2", "nowhere"], ["nowhere holds no shard"]),
    ):
        for order in itertools.islice(itertools.permutations(shards), 2):
            text = refused("merge", *order, "--out", out)
            assert all(part in text for part in said) or order != tuple(shards), text
        assert not out.exists()
    assert "holds a shard of a run; put the shards together first" in refused("compare", "1", "--out", out)
    assert "put the shards together first" in refused("report", "1", "--out", out)
    for more in ([], ["--overwrite"]):
        assert "2 is one of the shards" in refused("merge", "1", "2", "3", "--out", "one/../2", *more)
    assert "complete" in run("merge", "3", "2", "1", "--out", out, "--dry-run").output and not out.exists()


@pytest.mark.parametrize("damage", ["gone", "cut", "of another", "not JSON", "no list", "a shard 9/3"])
def test_a_damaged_shard_is_named(measured: Path, tmp_path: Path, damage: str) -> None:
    shards = [shutil.copytree(measured / name, tmp_path / name) for name in ("1", "2", "3")]
    part = sorted((shards[1] / PARTS).iterdir())[0]
    mark = shards[1] / SHARD
    if damage == "gone":
        part.unlink()
    elif damage == "cut":
        part.write_bytes(part.read_bytes()[:-100])
    elif damage == "of another":
        shutil.copy(shards[0] / PARTS / part.name, part)
    elif damage == "not JSON":
        mark.write_text("{")
    elif damage == "no list":
        mark.write_text(json.dumps(json.loads(mark.read_text()) | {"asked": []}))
    else:
        mark.write_text(json.dumps(json.loads(mark.read_text()) | {"shard": "9/3"}))
    result = run("merge", *shards, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert str(shards[1]) in sentence(result)
    assert not (tmp_path / "out" / FINISHED).exists() and not (tmp_path / "out/table.csv").exists()


def test_a_checkpoint_that_has_changed_since_is_refused(
    measured: Path, trained: Trained, tmp_path: Path
) -> None:
    own = shutil.copytree(trained["prc"], tmp_path / "prc")
    for number in (1, 2):
        asked = ["confidence", own, "--limit", "8", "--batch-size", "4", "--shard", f"{number}/2"]
        assert run(*asked, "--out", tmp_path / f"{number}").exit_code == 0
    for name in ("last.safetensors", "last.json"):
        shutil.copy(trained["baseline"] / name, own / name)
    assert "checkpoint prc is" in refused("merge", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.promise
def test_a_shard_goes_on_after_a_kill_and_a_finished_one_says_so(
    measured: Path, trained: Trained, tmp_path: Path
) -> None:
    asked = ["noise-sweep", *trained.values(), *SWEEP]
    asked += ["--shard", "2/3", "--out", tmp_path / "2"]
    with started(*asked) as process:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and not list((tmp_path / "2").glob("parts/*.parquet")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    result = run(*asked)
    assert result.exit_code == 0
    own, whole = contents(tmp_path / "2"), contents(measured / "2")
    assert {name: own[name] for name in own if "parquet" in name} == {
        name: whole[name] for name in whole if "parquet" in name
    }
    assert "is finished; --overwrite repeats it" in run(*asked).stderr
    assert {name for name in own if PARTS in name} <= set(contents(tmp_path / "2"))


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
@pytest.mark.parametrize("moment", ["table.csv", 0.0, 0.3, 1.0, "figures/routing.png"])
def test_a_killed_merge_leaves_nothing_half_written_and_goes_on(
    measured: Path, tmp_path: Path, moment: float | str
) -> None:
    out = tmp_path / "sweep"
    command = ["merge", measured / "3", measured / "1", measured / "2", "--out", out]
    with started(*command) as process:
        deadline = time.monotonic() + PATIENCE
        awaited = out / (moment if isinstance(moment, str) else "parts")
        while process.poll() is None and not awaited.exists():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(moment if isinstance(moment, float) else 0)
        process.send_signal(signal.SIGKILL)
        process.wait()
    whole = contents(measured / "one/sweep")
    for name, content in contents(out).items():
        if PARTS not in name and not name.endswith(".tmp") and name != RECORD:
            assert content == whole[name], name
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert contents(out) == whole
    assert names_in(out) == names_in(measured / "one/sweep")


def test_what_is_done_by_one_process_says_so(trained: Trained, tmp_path: Path) -> None:
    for command in ("overlay", "trace record"):
        asked = [*command.split(), trained["prc"], "--shard", "1/2", "--out", tmp_path / command]
        assert "is done by one process" in refused(*asked)
        assert not (tmp_path / command).exists()
    assert "name it, e.g. --out reports/eval-1-of-2" in refused("eval", trained["prc"], "--shard", "1/2")


def test_a_dry_run_is_about_the_shard(trained: Trained, tmp_path: Path) -> None:
    asked = ["confidence", trained["prc"], "--limit", "40", "--batch-size", "8", "--json", "--dry-run"]
    plans = [json.loads(run(*asked, *more).stdout) for more in ([], ["--shard", "2/3"])]
    assert [plan["images"] for plan in plans] == [40, 16]
    assert not (tmp_path / "x").exists()


def test_a_shard_of_texts_counts_texts(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.adapters.tiny_texts import olmoe, texts

    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(texts(5)), encoding="utf-8")
    asked = ["confidence", f"hf:{olmoe(tmp_path / 'model')}", "--data", f"text:{lines}", "--batch-size", "1"]
    result = run(*asked, "--shard", "1/2", "--out", tmp_path / "shard")
    assert "of 5 texts measured" in " ".join(result.output.split()), result.output


def test_models_in_memory_are_named_again(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = api.load_model(trained["prc"])
    asked: dict[str, Any] = {"limit": 12, "batch_size": 4}
    whole = api.match_ratio(model, **asked, out=tmp_path / "one/run")
    for number in (1, 2):
        part = api.measure_shard(
            "match-ratio", model, shard=f"{number}/2", **asked, out=tmp_path / f"{number}"
        )
        assert repr(part).startswith("MeasuredShard(") and part.sidecar["images_of_run"] == 12
    runs = [tmp_path / "2", tmp_path / "1"]
    with pytest.raises(UserError, match="models="):
        api.merge(runs, out=tmp_path / "many/run")
    merged = api.merge(runs, out=tmp_path / "many/run", models=model)
    assert merged.table.equals(whole.table)
    assert contents(tmp_path / "one/run") == contents(tmp_path / "many/run")
