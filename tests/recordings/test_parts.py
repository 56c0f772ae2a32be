"""A trace in several files is the same trace: same numbers, same sums; files that do not fit are named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from moeprobe import api
from moeprobe.errors import RunWarning, UserError
from moeprobe.recordings.format import metadata, writing
from moeprobe.recordings.reading import TraceFile
from moeprobe.recordings.rows import to_rows
from moeprobe.recordings.trace_paths import is_trace_path
from moeprobe.runtime import parquet
from moeprobe.runtime.parquet import open_parquet
from tests.commands import refused, run
from tests.routing.routings import routing

LAYERS = ("mlp.0", "mlp.1")
NUM_REQUESTS = 23


def log_lines(*, seed: int, names: str = "r{:02d}", num_experts: int = 4) -> list[str]:
    """A log of requests of other lengths, each with all of its layers."""
    random, lines = np.random.default_rng(seed), []
    for number in range(NUM_REQUESTS):
        # Not in the order of the names, which is that of tables.
        name, tokens = names.format(number * 7 % NUM_REQUESTS), 3 + number % 5
        for layer in LAYERS:
            experts = np.argsort(random.random((tokens, num_experts)), axis=1)[:, :2].tolist()
            lines.append(
                json.dumps({"id": name, "layer": layer, "num_experts": num_experts, "experts": experts})
            )
    return lines


def imported(path: Path, lines: list[str], **more: Any) -> Path:
    log = path.with_suffix(".jsonl")
    log.write_text("\n".join(lines))
    api.import_trace(log, path, **more)
    return path


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings, each in one file and in parts of seven rows or more."""
    folder = tmp_path_factory.mktemp("parts")
    for seed, name in enumerate(("first", "second")):
        lines = log_lines(seed=seed)
        imported(folder / f"{name}.parquet", lines)
        imported(folder / f"{name}-parts", lines, rows_per_file=7, name=name)
    return folder


def test_parts_end_between_inputs(traces: Path) -> None:
    files = sorted((traces / "first-parts").iterdir())
    rows = [pq.read_metadata(file).num_rows for file in files]
    # Of the seven rows that a part has at least, three requests of two layers and the next one.
    assert rows == [8] * 5 + [6] and files[0].name == "part-00000.parquet"
    whole, cut = TraceFile(traces / "first.parquet"), TraceFile(traces / "first-parts")
    assert cut.ids == whole.ids and cut.about == whole.about and cut.layers == whole.layers
    assert [name for file in files for name in TraceFile(file).ids] == whole.ids
    # Of any inputs, in any order, whatever file they are in.
    chosen = whole.ids[::-3]
    for layer in LAYERS:
        for column in ("experts", "num_tokens", "valid"):
            first, second = (getattr(trace.read(layer, chosen), column) for trace in (whole, cut))
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("form", ["{}-parts", "{}-part*/part-0000[0-9].parquet"])
def test_numbers_and_sums_are_those_of_one_file(form: str, traces: Path, tmp_path: Path) -> None:
    out = {}
    for kind, pattern in (("one", "{}.parquet"), ("parts", form)):
        out[kind] = tmp_path / kind / "run"
        api.analyze_trace(
            [traces / pattern.format(name) for name in ("first", "second")], out=out[kind], figures=False
        )
    for name in ("table.csv", "comparison.csv", "images.parquet"):
        first, second = (folder / name for folder in out.values())
        assert first.exists() == second.exists()
        assert not first.exists() or first.read_bytes() == second.read_bytes(), name
    assert (out["one"] / "table.csv").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.promise
def test_every_command_takes_a_folder(traces: Path) -> None:
    folder, second = traces / "first-parts", traces / "second-parts"
    for command in (
        ["trace", "locality", folder],
        ["trace", "balance", folder, "--ranks", 2],
        ["trace", "drift", folder, second],
        ["trace", "coverage", folder, "--need", 1],
    ):
        result = run(*command, "--json")
        assert result.exit_code == 0, result.output
    assert api.check_trace(folder).inputs == NUM_REQUESTS
    assert (
        api.recorded_routing(folder, inputs=["r07"], layers=["mlp.1"]).layers["mlp.1"].selected.shape[2] == 2
    )
    audited = api.audit([folder, second], figures=False)
    assert set(audited.models) == {"first", "second"}
    assert "no file matches the pattern" in refused("trace", "balance", traces / "none-*.parquet")


def test_a_folder_of_parts_is_no_checkpoint_and_no_run(traces: Path, tmp_path: Path) -> None:
    assert is_trace_path(traces / "first-parts") and is_trace_path(str(traces / "*.parquet"))
    (tmp_path / "images.parquet").touch()
    assert is_trace_path(tmp_path)
    (tmp_path / "run.json").touch()
    assert not is_trace_path(tmp_path) and not is_trace_path("hf:model") and not is_trace_path("none")


def test_few_files_are_open_at_a_time(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of thousands of parts must not take thousands of file handles."""
    open_parquet.cache_clear()
    cut = TraceFile(traces / "first-parts")
    cut.read(LAYERS[0], cut.ids)
    assert 0 < open_parquet.cache_info().currsize <= parquet._OPEN < 100
    assert not any(isinstance(value, pq.ParquetFile) for value in vars(cut.parts).values())


def test_an_input_in_two_files_names_both(tmp_path: Path) -> None:
    for name in ("a", "b"):
        imported(tmp_path / f"{name}.parquet", log_lines(seed=0), name="model")
    message = r"a\.parquet and .*b\.parquet both hold the input r00"
    with pytest.raises(UserError, match=message):
        TraceFile(tmp_path / "*.parquet")
    with pytest.raises(UserError, match=message):
        TraceFile(tmp_path)


def test_parts_that_do_not_fit_are_named(tmp_path: Path) -> None:
    other = log_lines(seed=1, names="s{:02d}")
    imported(tmp_path / "a.parquet", log_lines(seed=0), name="model")
    pattern = tmp_path / "*.parquet"
    imported(tmp_path / "b.parquet", other, name="trainer")
    with pytest.raises(
        UserError,
        match=r'a\.parquet and .*b\.parquet are no parts of one trace: the checkpoint\'s name is "model" in the '
        r'first and "trainer" in the second; give their imports one name',
    ):
        TraceFile(pattern)
    more_experts = log_lines(seed=1, names="s{:02d}", num_experts=6)
    imported(tmp_path / "b.parquet", more_experts, name="model", overwrite=True)
    with pytest.raises(
        UserError, match=r"b\.parquet are .*: num_experts of mlp\.0 is 4 in the first and 6 in the"
    ):
        TraceFile(pattern)
    imported(
        tmp_path / "b.parquet",
        [line.replace("mlp.1", "mlp.2") for line in other],
        name="model",
        overwrite=True,
    )
    with pytest.raises(UserError, match=r'layers is \["mlp\.0", "mlp\.1"\] in the first'):
        TraceFile(pattern)
    imported(tmp_path / "b.parquet", other, name="model", overwrite=True)
    assert len(TraceFile(pattern).ids) == 2 * NUM_REQUESTS
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"b\.parquet cannot be read"):
        TraceFile(pattern)


def test_views_in_one_folder_are_no_trace(tmp_path: Path) -> None:
    """What ``trace record`` writes: a file for each view of the same images."""
    for view, severity in (("clean", None), ("gaussian_noise", 0.3)):
        with writing(tmp_path / f"{view}.parquet") as file:
            file.write([to_rows(["test/0", "test/1", "test/2"], "l", routing())])
            checkpoint = {"name": "a", "sha256": None}
            file.close(metadata(checkpoint=checkpoint, layers=["l"], view=view, severity=severity))
    with pytest.raises(
        UserError, match=r"is a folder; name the traces in it, e\.g\. .*/clean\.parquet\..* view is"
    ):
        TraceFile(tmp_path)


def test_metadata_of_parts_are_joined(tmp_path: Path) -> None:
    facts: tuple[dict[str, Any], ...] = (
        {"skipped": ["x"], "clusters": {"test/1": "test/0"}},
        {"skipped": ["y"], "missing": ["half of it"], "misplaced": 2, "clusters": {"more/1": "test/0"}},
    )
    for folder, about in zip(("test", "more"), facts, strict=True):
        with writing(tmp_path / f"{len(about)}.parquet") as file:
            file.write([to_rows([f"{folder}/{number}" for number in range(3)], "l", routing())])
            file.close(metadata(checkpoint={"name": "a", "sha256": None}, layers=["l"], **about))
    about = TraceFile(tmp_path).about
    assert about["skipped"] == ["x", "y"] and about["misplaced"] == 2 and about["missing"] == ["half of it"]
    assert about["clusters"] == {"test/1": "test/0", "more/1": "test/0"}


def test_parts_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    lines, log, out = log_lines(seed=0), tmp_path / "log.jsonl", tmp_path / "traces" / "served"
    log.write_text("\n".join([*lines, '{"id": "r99"}']))
    assert "line 47" in refused("trace", "import", log, out, "--rows-per-file", 8)
    assert not list(tmp_path.glob("traces/*")) and not list(tmp_path.glob("traces/.*"))
    # Layer by layer, no request is whole before the last lines.
    log.write_text("\n".join(lines[::2] + lines[1::2]))
    assert "do not follow one another" in refused("trace", "import", log, out, "--rows-per-file", 8)
    log.write_text("\n".join(lines))
    assert "leave .parquet out" in refused("trace", "import", log, f"{out}.parquet", "--rows-per-file", 8)
    assert "--rows-per-file" in refused("trace", "import", log, out)
    result = run("trace", "import", log, out, "--rows-per-file", 8)
    assert result.exit_code == 0 and len(list(out.iterdir())) == 6, result.output
    before = {path: path.read_bytes() for path in out.iterdir()}
    with pytest.warns(RunWarning, match="is finished"):
        assert run("trace", "import", log, out, "--rows-per-file", 8).exit_code == 0
    assert "exists; add --overwrite" in refused("trace", "import", log, out, "--rows-per-file", 20)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert run("trace", "import", log, out, "--rows-per-file", 20, "--overwrite").exit_code == 0
    assert len(list(out.iterdir())) == 3
    single = (out / "part-00000.parquet").rename(tmp_path / "single")
    assert "is one file" in refused("trace", "import", log, single, "--rows-per-file", 8, "--overwrite")
    (out / "notes.txt").write_text("mine")
    message = refused("trace", "import", log, out, "--rows-per-file", 8, "--overwrite")
    assert "notes.txt is no part of a trace" in message and (out / "notes.txt").exists()


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_parts_stay_where_others_cannot_take_their_place(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = imported(tmp_path / "served", log_lines(seed=0), rows_per_file=8)
    before = {path: path.read_bytes() for path in out.iterdir()}
    rename, sources = Path.rename, []

    def failing(path: Path, target: Path) -> Path:
        sources.append(path)
        if len(sources) == 2:
            raise error
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises(UserError if isinstance(error, OSError) else KeyboardInterrupt):
            imported(out, log_lines(seed=1), rows_per_file=8, overwrite=True)
    assert sources[0] == out and {path: path.read_bytes() for path in out.iterdir()} == before
    assert not list(tmp_path.glob(".served*"))


def test_the_index_takes_few_bytes_for_a_row(tmp_path: Path) -> None:
    """What grows with rows is an input's name once, and twelve bytes a row; strings of all rows took hundreds."""
    layers, path = [f"l{number}" for number in range(8)], tmp_path / "t.parquet"
    with writing(path) as file:
        for start in range(0, 60, 3):
            ids = [f"request-{number:08d}" for number in range(start, start + 3)]
            file.write([to_rows(ids, layer, routing()) for layer in layers])
        file.close(metadata(checkpoint={"name": "a", "sha256": None}, layers=layers))
    trace = TraceFile(path)
    index = trace._index
    arrays = [*index.rows.values(), *index.num_tokens.values()]
    assert sum(array.nbytes for array in arrays) == 12 * trace.num_rows == 12 * 480
