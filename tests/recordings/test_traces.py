"""Recorded routing says what the direct probe says, and what cannot be compared is refused."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.recorded.engine import describe, input_sums, layout
from moeprobe.recordings import format as traced_file
from moeprobe.recordings.reading import TraceFile
from moeprobe.results.stored_cell import Spilled
from moeprobe.results.tables import FLOORS
from moeprobe.runtime.progress import Progress
from tests.commands import names_in
from tests.routing.routings import Softened, checkpoint

LIMIT = 20
# Of one layer all is tried; that there may be more, once.
ONE = ("blocks.3",)
KEY = ["layer", "router", "top_k", "view", "severity", "tokens", "metric", "null", "expert"]


@pytest.fixture(scope="module")
def model() -> Checkpoint:
    return checkpoint("a")


@pytest.fixture(scope="module")
def traces(model: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two models: of one along a noise, a rotation and two crops; of the other along a noise."""
    root = tmp_path_factory.mktemp("traces")
    for view, severities in (
        ("gaussian_noise", [0.0, 0.1, 0.3]),
        ("rotation", [10.0]),
        ("random_crop", None),
    ):
        api.record([model], view=view, severities=severities, layers=ONE, limit=LIMIT, out=root / view)
    other = dataclasses.replace(checkpoint("b", seed=1), train_seed=3)
    api.record([other], view="gaussian_noise", severities=[0.3], layers=ONE, limit=LIMIT, out=root / "other")
    return root


def assert_same(direct: pd.DataFrame, traced: pd.DataFrame, *, every_gate: bool = False) -> None:
    """Every row of the probe is there: counts and all that follows from them to the last bit, gates to 1e-6."""
    direct, traced = (table.astype({"severity": float}) for table in (direct, traced))
    direct = direct[(direct["layer"] != "") & ~direct["view"].isin(FLOORS)]
    # Without every gate neither the entropy is known nor what was just not chosen.
    unknown = ["gate_entropy", "selection_margin", "selection_margin_logit"]
    assert traced["metric"].isin(unknown).any() == every_gate
    direct = direct[~direct["metric"].isin(unknown) | every_gate]
    assert len(direct) > 10
    both = direct.merge(traced, on=KEY, how="left", suffixes=("", "_traced"), indicator=True)
    assert (both["_merge"] == "both").all(), both.loc[both["_merge"] != "both", KEY]
    for column in ("images", "trials", "flag"):
        assert (both[column] == both[f"{column}_traced"]).all(), column
    # How far an interval reaches where nothing was seen depends on the other cells, which are not the same.
    unseen = both["value"].isin([0, 1])
    for column in ("value", "ci_low", "ci_high"):
        one, two = both[column].astype(float), both[f"{column}_traced"].astype(float)
        of_gates = both["metric"].str.match("gate_|selection_|chosen_mass")
        exact = ~of_gates & ~(unseen & (column != "value"))
        pd.testing.assert_series_equal(one[exact], two[exact], check_names=False, rtol=0, atol=0)
        pd.testing.assert_series_equal(one[of_gates], two[of_gates], check_names=False, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def swept(model: Checkpoint) -> api.Result:
    """The direct probe of both models along the noise."""
    both = [model, checkpoint("b", seed=1)]
    return api.sweep(both, view="gaussian_noise", severities=[0.1, 0.3], layers=ONE, limit=LIMIT)


def test_a_noise_is_that_of_the_sweep(model: Checkpoint, traces: Path, swept: api.Result) -> None:
    files = sorted((traces / "gaussian_noise" / "a").iterdir())
    assert [file.name for file in files] == [
        "clean.parquet",
        "gaussian_noise-0.1.parquet",
        "gaussian_noise-0.3.parquet",
    ]
    traced = api.analyze_trace(files)
    assert_same(swept.table[swept.table["checkpoint"] == "a"], traced.table)
    clean = api.confidence([model], layers=ONE, limit=LIMIT)
    assert_same(clean.table, traced.table)
    assert (traced.table["null"] == "position").any()


def test_a_view_that_moves_patches_is_that_of_the_sweep(model: Checkpoint, traces: Path) -> None:
    folder = traces / "rotation" / "a"
    traced = api.analyze_trace([folder / "clean.parquet", folder / "rotation-10.parquet"])
    assert_same(
        api.sweep([model], view="rotation", severities=[10.0], layers=ONE, limit=LIMIT).table, traced.table
    )
    assert not (traced.table["null"] == "position").any()


def test_two_crops_are_those_of_the_match_ratio(model: Checkpoint, traces: Path) -> None:
    folder = traces / "random_crop" / "a"
    traced = api.analyze_trace([folder / "random_crop-1.parquet", folder / "random_crop-2.parquet"])
    assert_same(api.match_ratio([model], view="random_crop", layers=ONE, limit=LIMIT).table, traced.table)
    assert set(traced.table["view"]) == {"random_crop", "random_crop-1"}


@pytest.mark.parametrize(
    "arguments", [{"router": "softmax_expert_choice", "capacity_factor": 1.0}, {"adapter": Softened}]
)
def test_other_routers_are_traced_too(arguments: dict[str, Any], tmp_path: Path) -> None:
    one = checkpoint("a", **arguments)
    soft = "adapter" in arguments
    if soft:
        with pytest.raises(UserError, match="a trace without all gates would be empty; add all_gates=True"):
            api.record([one], limit=2, out=tmp_path / "t")
    found = api.record([one], view="random_crop", layers=ONE, limit=8, out=tmp_path / "t", all_gates=soft)
    traced = api.analyze_trace(found.files)
    assert_same(
        api.match_ratio([one], view="random_crop", layers=ONE, limit=8).table, traced.table, every_gate=soft
    )
    first = "slot_match" if soft else "set_jaccard"
    assert (traced.table["metric"] == first).any()


def test_the_entropy_of_the_gates_needs_every_gate(model: Checkpoint, tmp_path: Path) -> None:
    found = api.record([model], layers=ONE, limit=8, out=tmp_path / "t", all_gates=True)
    direct = api.confidence([model], layers=ONE, limit=8).table
    assert (direct["metric"] == "gate_entropy").sum() == 2, "patches and the class token"
    assert_same(direct, api.analyze_trace(found.files).table, every_gate=True)


def test_two_models_are_compared_as_their_probes_are(
    model: Checkpoint, traces: Path, tmp_path: Path, swept: api.Result
) -> None:
    files = [traces / "gaussian_noise" / "a" / "clean.parquet", traces / "other" / "b" / "clean.parquet"]
    traced = api.analyze_trace(files)
    direct = api.confidence([model, checkpoint("b", seed=1)], layers=ONE, limit=LIMIT)
    assert direct.comparison is not None
    assert traced.comparison is not None
    own = traced.comparison[traced.comparison["metric"].isin(direct.comparison["metric"].unique())]
    assert_same(direct.comparison, own)
    assert set(traced.table.loc[traced.table["checkpoint"] == "b", "train_seed"]) == {3}
    matched = traced.table[traced.table["metric"] == "top1_match"]
    assert set(matched["checkpoint"]) == {"b"}
    assert "whether expert e of one checkpoint" in traced.sidecar["notes"][0]
    # Each with its own clean images, and then the two differences: as for finished sweeps.
    runs = []
    for name, folder in (("a", "gaussian_noise"), ("b", "other")):
        of_one = [traces / folder / name / f"{view}.parquet" for view in ("clean", "gaussian_noise-0.3")]
        api.analyze_trace(of_one, out=tmp_path / name, figures=False)
        runs.append(tmp_path / name)
    differences = api.compare(runs).table.query("severity == 0.3")
    assert swept.comparison is not None
    known = swept.comparison[(swept.comparison["layer"] != "") & swept.comparison["expert"].isna()]
    keys = [key for key in KEY if key not in ("top_k", "expert")]
    # What sequences differ in is asked of recorded routing alone.
    differences = differences[differences["metric"] != "choice_differs"]
    merged = differences.merge(known, on=keys, suffixes=("", "_direct"))
    assert len(merged) == len(differences) > 20
    np.testing.assert_allclose(merged["value"], merged["value_direct"], atol=1e-6)


def test_inputs_that_not_all_have_are_left_out(model: Checkpoint, traces: Path, tmp_path: Path) -> None:
    fewer = api.record([model], limit=10, out=tmp_path / "t").files[0]
    more = traces / "other" / "b" / "clean.parquet"
    with pytest.raises(UserError, match=r"has no layer blocks.1; it has blocks.3: choose common layers"):
        api.analyze_trace([fewer, more])
    with pytest.raises(UserError, match=r"has no layer blocks.1, which .* has; choose with layers"):
        api.analyze_trace([more, fewer])
    found = api.analyze_trace([fewer, more], layers=ONE)
    assert (found.table["images"] <= 10).all()
    assert "10 of the 20 inputs of b clean, which not all of the traces have" in found.sidecar["notes"][0]
    val = api.record([model], limit=10, split="val", out=tmp_path / "v").files[0]
    with pytest.raises(
        UserError, match="are of different inputs: split is test in the first and val in the second"
    ):
        api.analyze_trace([fewer, val], layers=ONE)


def test_what_does_not_correspond_is_refused(model: Checkpoint, traces: Path, tmp_path: Path) -> None:
    noise = traces / "gaussian_noise" / "a"
    crops, rotated = traces / "random_crop" / "a", traces / "rotation" / "a" / "rotation-10.parquet"
    for files in (
        [noise / "gaussian_noise-0.1.parquet", rotated],
        [rotated, noise / "clean.parquet"],
        [crops / "random_crop-2.parquet", crops / "random_crop-1.parquet"],
        [noise / "clean.parquet", crops / "random_crop-1.parquet"],
    ):
        with pytest.raises(UserError, match=r"have different positions, and no correspondence"):
            api.analyze_trace(files)
    with pytest.raises(UserError, match="was named twice"):
        api.analyze_trace([rotated, rotated])
    with pytest.raises(UserError, match=r"has no layer blocks.2; it has blocks.3"):
        api.analyze_trace([rotated], layers=("blocks.2",))
    one = api.record([checkpoint("c", top_k=1)], layers=ONE, limit=4, out=tmp_path / "k1").files[0]
    with pytest.raises(UserError, match=r"cannot be compared: top_k is 2 in the first and 1 in the second"):
        api.analyze_trace([noise / "clean.parquet", one])
    # What is alike may be looked at.
    assert set(api.analyze_trace([rotated], layers=("blocks.3",)).table["layer"]) == {"blocks.3"}


def test_traces_of_one_name_are_told_apart(model: Checkpoint, tmp_path: Path) -> None:
    impostor = checkpoint("a", seed=1)
    impostor = dataclasses.replace(impostor, provenance={**impostor.provenance, "sha256": "another"})
    files = [
        api.record([one], layers=ONE, limit=2, out=tmp_path / name).files[0]
        for one, name in ((model, "x"), (impostor, "y"))
    ]
    table = api.analyze_trace(files).table
    assert set(table["checkpoint"]) == {"x/a/clean", "y/a/clean"}


def log(path: Path, seed: int, *, names: range = range(25), **more: Any) -> Path:
    """A made-up log of requests of 3 to 6 tokens, two of 16 experts each."""
    random = np.random.default_rng(seed)
    lines = []
    for name in names:
        length = 3 + name % 4
        for layer in ("mlp.0", "mlp.1"):
            experts = np.argsort(random.random((length, 16)))[:, :2]
            lines.append({"id": name, "layer": layer, "num_experts": 16, "experts": experts.tolist()} | more)
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_two_logs_of_a_server(tmp_path: Path) -> None:
    """Sets of choices alone: match by a plain loop over the lines; nothing about gates, or which choice came first."""
    files = []
    for seed, day in enumerate(("monday", "tuesday")):
        source = log(tmp_path / f"{day}.jsonl", seed, names=range(seed, 25 + seed))
        files.append(api.import_trace(source, tmp_path / f"{day}.parquet").path)
    found = api.analyze_trace(files)
    table = found.table[found.table["tokens"] == "token"]
    lines = [
        {
            (line["id"], line["layer"]): line["experts"]
            for line in map(json.loads, path.with_suffix(".jsonl").read_text().splitlines())
        }
        for path in files
    ]
    for layer in ("mlp.0", "mlp.1"):
        pairs = [
            (first, second)
            for key in lines[0].keys() & lines[1].keys()
            if key[1] == layer
            for first, second in zip(lines[0][key], lines[1][key], strict=True)
        ]
        expected = {
            "top2_set_match": np.mean([set(first) == set(second) for first, second in pairs]),
        }
        for metric, value in expected.items():
            row = table[(table["layer"] == layer) & (table["metric"] == metric)]
            assert row["value"].item() == value
            assert (row["checkpoint"].item(), row["trials"].item(), row["images"].item()) == (
                "tuesday",
                len(pairs),
                24,
            )
    assert not table["metric"].str.contains("gate_|weight_").any(), "nothing is known of the gates"
    assert set(table["view"]) == {"recorded"}
    assert set(table["dataset"]) == {"requests"}
    assert found.comparison is not None
    loads = {"load_entropy", "dead_experts"}
    assert set(found.comparison["metric"]) == {"unserved", "dropped"} | loads
    assert not table["metric"].str.contains("top1|top2_match|_first$").any()
    assert any("which expert came first in mlp.0, mlp.1" in note for note in found.sidecar["notes"])
    assert table["metric"].str.startswith("set_jaccard").any() and (table["metric"] == "churn").any()


def test_gates_or_a_single_expert_say_which_came_first(tmp_path: Path) -> None:
    experts = [[[3, 1], [0, 2]], [[3], [0]]]
    for number, (chosen, gates) in enumerate(((experts[0], [[0.2, 0.7], [0.6, 0.3]]), (experts[1], None))):
        line = {"id": "r", "layer": "mlp", "num_experts": 4, "experts": chosen}
        source = tmp_path / f"{number}.jsonl"
        source.write_text(json.dumps(line if gates is None else line | {"gates": gates}))
        made = api.import_trace(source, tmp_path / f"{number}.parquet")
        assert made.unordered == []
        found = api.analyze_trace([made.path])
        first = {"load_entropy_first"} if number == 0 else set()
        assert {"load_entropy"} | first <= set(found.table["metric"])
        # The larger gate came first: expert 1 of the first token, 0 of the second.
        assert found.images.to_pandas()["load"].iloc[0].tolist() == [[1, 1, 0, 0], [1, 0, 0, 1]][number]


def test_logs_that_do_not_fit(tmp_path: Path) -> None:
    files = [api.import_trace(log(tmp_path / "m.jsonl", 1), tmp_path / "m.parquet").path]
    other = api.import_trace(log(tmp_path / "o.jsonl", 3, names=range(90, 99)), tmp_path / "o.parquet").path
    with pytest.raises(UserError, match="have no input in common"):
        api.analyze_trace([files[0], other])
    longer = api.import_trace(log(tmp_path / "l.jsonl", 3, names=range(1)), tmp_path / "l.parquet").path
    shorter = tmp_path / "s.jsonl"
    shorter.write_text(
        "\n".join(
            json.dumps({"id": "0", "layer": f"mlp.{n}", "num_experts": 16, "experts": [[1, 2]]})
            for n in (0, 1)
        )
    )
    found = api.analyze_trace([longer, api.import_trace(shorter, tmp_path / "s.parquet").path])
    assert set(found.table[found.table["metric"] == "choice_differs"]["trials"]) == {0, 1}
    assert found.sidecar["ignored"] == ["2 extra tokens of l"]


def test_views_of_several_kinds_have_a_column_each(model: Checkpoint, traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "t"
    bright = api.record(
        [model], view="brightness", severities=[0.2, 0.4], layers=ONE, limit=LIMIT, out=out
    ).files
    noise = sorted((traces / "gaussian_noise" / "a").iterdir())
    assert layout.along_a_severity(api.analyze_trace(noise))
    assert not layout.along_a_severity(api.analyze_trace(noise[:2]))
    mixed = api.analyze_trace([noise[0], noise[2], *bright[1:]])
    assert not layout.along_a_severity(mixed)
    shown = layout.label_traces(mixed).table
    assert set(shown["checkpoint"]) == {
        "a clean", "a gaussian_noise 0.3", "a brightness 0.2", "a brightness 0.4",
    }  # fmt: skip
    assert len(shown) == len(mixed.table)
    assert list(mixed.plot()) == ["match-ratio", "confidence"]


def test_runs_that_were_recorded_otherwise_are_not_compared(traces: Path, tmp_path: Path) -> None:
    def analyzed(name: str, change: Callable[[dict[str, Any]], object]) -> Path:
        """Analyze traces whose metadata say something else."""
        files = []
        for path in sorted((traces / "gaussian_noise" / "a").iterdir())[:2]:
            table = pq.read_table(path)
            about = json.loads(table.schema.metadata[traced_file.KEY])
            about["checkpoint"]["capacity"] = "unlimited"
            change(about)
            files.append(tmp_path / "traces" / name / path.name)
            files[-1].parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.replace_schema_metadata({traced_file.KEY: json.dumps(about)}), files[-1])
        api.analyze_trace(files, out=tmp_path / name, figures=False)
        return tmp_path / name

    first = analyzed("a", lambda about: None)
    other = analyzed("b", lambda about: about["checkpoint"].update(sha256="b"))
    assert len(api.compare([first, other]).table)
    seed = analyzed("seed", lambda about: about["inputs"].update(seed=7))
    with pytest.raises(UserError, match=r'recorded as \w+ is .*"seed": 7'):
        api.compare([first, seed])
    seed = analyzed("view", lambda about: about["inputs"].update({"view.factor": 2}))
    with pytest.raises(UserError, match=r"not probed alike: the capture recorded as \w+ is .*view.factor"):
        api.compare([first, seed])
    limited = analyzed("capacity", lambda about: about["checkpoint"].update(capacity="1.5"))
    with pytest.raises(
        UserError, match=r'capacity is \["unlimited"\] in the first and \["1.5"\] in the second'
    ):
        api.compare([first, limited])


def test_severities_that_are_all_but_equal_have_files_of_their_own(model: Checkpoint, tmp_path: Path) -> None:
    steps = [0.1, 0.10000001, 1.0]
    asked: dict[str, Any] = {"view": "gaussian_noise", "severities": steps, "layers": ONE, "limit": 1}
    files = api.record([model], **asked, out=tmp_path / "t").files
    assert [path.stem for path in files] == [
        "clean", "gaussian_noise-0.1", "gaussian_noise-0.10000001", "gaussian_noise-1",
    ]  # fmt: skip
    assert all(path.is_file() for path in files)
    request = api.analyze_trace(files).sidecar["request"]
    assert len(request["checkpoints"]["a"]["traces"]) == 4


def test_a_log_of_one_expert_says_nothing(tmp_path: Path) -> None:
    lines = [{"id": "a", "layer": "l", "num_experts": 1, "experts": [[0]]}]
    (tmp_path / "l.jsonl").write_text("\n".join(map(json.dumps, lines)))
    path = api.import_trace(tmp_path / "l.jsonl", tmp_path / "l.parquet").path
    found = api.analyze_trace([path])
    assert set(found.table["metric"]) <= {"unserved", "dropped"}


def test_an_interrupted_recording_goes_on(model: Checkpoint, tmp_path: Path) -> None:
    both = [model, checkpoint("b", seed=1)]

    class Stop(Progress):
        """Interrupts the second checkpoint."""

        def start(self, description: str, total: int) -> None:
            self.second = description.endswith("b")

        def advance(self, count: int) -> None:
            if self.second:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.record(both, limit=10, out=tmp_path / "t", watcher=Stop())
    assert names_in(tmp_path / "t") == {"a", "run.json"}
    first = (tmp_path / "t" / "a" / "clean.parquet").stat().st_mtime_ns
    found = api.record(both, limit=10, out=tmp_path / "t")
    assert (tmp_path / "t" / "a" / "clean.parquet").stat().st_mtime_ns == first
    assert [path.name for path in found.files] == ["clean.parquet"] * 2
    with pytest.raises(UserError, match="is finished; add overwrite=True"):
        api.record(both, limit=10, out=tmp_path / "t")


def test_weights_of_long_inputs_are_left_out_and_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        {"id": name, "layer": "l", "num_experts": 4, "experts": [[0], [1], [2]], "gates": [[1], [1], [1]]}
        for name in range(3)
    ]
    (tmp_path / "l.jsonl").write_text("\n".join(map(json.dumps, lines)))
    files = [api.import_trace(tmp_path / "l.jsonl", tmp_path / f"{name}.parquet").path for name in "ab"]
    whole = api.analyze_trace(files)
    assert (whole.table["metric"] == "weight_cosine").any() and whole.sidecar["notes"] == []
    monkeypatch.setattr(describe, "LONGEST", 2)
    found = api.analyze_trace(files)
    assert not found.table["metric"].str.startswith("weight_").any()
    assert found.sidecar["notes"] == ["the weights in l, as inputs have more than 2 tokens"]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("INPUTS_AT_ONCE", 7),
        ("INPUTS_IN_MEMORY", 7),
        pytest.param("INPUTS_IN_MEMORY", 1, marks=pytest.mark.slow),
    ],
)
def test_blocks_change_nothing(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    """Those that are read, and those that are kept in files."""
    files = [*sorted((traces / "gaussian_noise" / "a").iterdir()), *(traces / "other" / "b").glob("gauss*")]
    whole = api.analyze_trace(files, out=tmp_path / "whole" / "run", figures=False)
    monkeypatch.setattr(input_sums, name, size)
    again = api.analyze_trace(files, out=tmp_path / "parts" / "run", figures=False)
    assert again.images.equals(whole.images)
    for file in ("table.csv", "comparison.csv", "images.parquet"):
        one, two = ((tmp_path / folder / "run" / file).read_bytes() for folder in ("whole", "parts"))
        assert one == two, file


@pytest.mark.parametrize("name", ["INPUTS_IN_MEMORY", "CHOICES_IN_MEMORY"])
def test_of_many_inputs_one_part_is_held(traces: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Sums leave memory part by part: what is summarized is read from files, of which none holds all inputs."""
    files = sorted((traces / "rotation" / "a").iterdir())
    trace = TraceFile(files[0])
    choices = {
        layer: trace.layers[layer].top_k * int(trace.num_tokens(layer, trace.ids).max()) for layer in ONE
    }
    sizes = {"INPUTS_IN_MEMORY": 7, "CHOICES_IN_MEMORY": 7 * sum(choices.values())}
    monkeypatch.setattr(input_sums, name, sizes[name])
    found = api.analyze_trace(files)
    for cell in found.sums:
        assert [type(chunk) for chunk in cell.chunks] == [Spilled] * 3
        assert [chunk.num_rows for chunk in cell.chunks] == [7, 7, 6]
        # Nor does a schema of its own stay in memory of each of them.
        assert len({id(chunk.schema) for chunk in cell.chunks}) == 1
