"""``moeprobe compare`` as a user meets it: from checkpoints, from finished runs, in a continuous integration."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from moeprobe import api
from moeprobe.declarations import registry
from moeprobe.errors import FinishedError, RunWarning, UserError
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.results.tables import COLUMNS, COMPARISON_COLUMNS
from moeprobe.studies import compare as comparing
from tests.commands import Trained, names_in, refused, run

# Intervals are asserted.
pytestmark = pytest.mark.resamples


QUICK = ("--limit", 30)


@pytest.fixture(scope="module")
def probed(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs: both checkpoints in one, and each in one of its own."""
    root = tmp_path_factory.mktemp("runs")
    wanted = {"both": list(trained), "one": ["baseline"], "other": ["prc"]}
    for name, checkpoints in wanted.items():
        result = run("match-ratio", *(trained[c] for c in checkpoints), *QUICK, "--out", root / name)
        assert result.exit_code == 0, result.output
    return {name: root / name for name in wanted}


@pytest.fixture(scope="module")
def collapsed(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The baseline with a gate of zeros in its last MoE layer: every tie goes to the first expert."""
    folder = tmp_path_factory.mktemp("made") / "collapsed"
    shutil.copytree(trained["baseline"], folder)
    path = folder / "last.safetensors"
    with safe_open(path, "pt") as file:
        description = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    tensors["blocks.3.mlp.router.gate.weight"].zero_()
    save_file(tensors, path, description)
    return folder


def table_of(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "comparison.csv", keep_default_na=False, na_values=[""])


@pytest.mark.pictures
def test_from_checkpoints_it_writes_what_it_says(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "compare"
    result = run("compare", *trained.values(), *QUICK, "--out", out)
    assert result.exit_code == 0, result.output
    assert names_in(out) == {
        "run.json",
        "table.json",
        "comparison.csv",
        "figures",
        "probe",
    }
    assert sorted(path.name for path in (out / "figures").iterdir()) == ["forest.png"]
    assert (out / "probe" / "images.parquet").exists() and not (out / "probe" / "parts").exists()
    table = table_of(out)
    assert set(table.columns) == set(COLUMNS) | set(COMPARISON_COLUMNS)
    assert set(table["checkpoint"]) == {"prc"} and set(table["reference"]) == {"baseline"}
    sidecar = json.loads((out / "table.json").read_text())
    assert sidecar["request"]["probe"]["limit"] == 30 and len(sidecar["checkpoints"]["prc"]["sha256"]) == 64
    # What the screen shows is what the file holds.
    row = table.query(
        "metric == 'top2_set_match_kappa' and null == 'pooled' and tokens == 'patch' and layer == 'blocks.3'"
    ).iloc[0]
    assert f"{row['value']:+.3f} [{row['sim_low']:+.3f}, {row['sim_high']:+.3f}]" in result.output
    assert "by chance" not in result.output
    # It opens with the verdicts, and how they were reached comes below.
    assert result.output.startswith("Verdicts: prc against baseline")
    said = [found["sentence"] for found in sidecar["verdicts"] if found["metric"] == "top2_set_match_kappa"]
    assert said[0] in result.output


@pytest.mark.pictures
@pytest.mark.slow
def test_runs_give_what_checkpoints_give(trained: Trained, probed: dict[str, Path], tmp_path: Path) -> None:
    assert run("compare", *trained.values(), *QUICK, "--out", tmp_path / "x" / "c").exit_code == 0
    assert run("compare", probed["both"], "--out", tmp_path / "y" / "c").exit_code == 0
    assert run("compare", probed["one"], probed["other"], "--out", tmp_path / "z" / "c").exit_code == 0
    files = ("comparison.csv", "figures/forest.png")
    for name in files:
        first, *others = ((tmp_path / which / "c" / name).read_bytes() for which in "xyz")
        assert all(other == first for other in others), name
    sidecar = json.loads((tmp_path / "z" / "c" / "table.json").read_text())
    assert list(sidecar["runs"]) == [str(probed["one"]), str(probed["other"])]
    # The first is the reference, whichever it is.
    turned = run("compare", probed["other"], probed["one"], "--json")
    back = pd.DataFrame(json.loads(turned.stdout)["comparison"])
    forth = table_of(tmp_path / "z" / "c")
    assert set(back["reference"]) == {"prc"}
    np.testing.assert_allclose(back["value"].astype(float), -forth["value"].astype(float), atol=1e-9)
    np.testing.assert_allclose(back["sim_low"].astype(float), -forth["sim_high"].astype(float), atol=1e-9)


@pytest.mark.slow
def test_the_same_checkpoint_under_two_names_is_identical(
    trained: Trained, probed: dict[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained["prc"], copy)
    result = run("compare", trained["prc"], copy, *QUICK, "--json")
    found = json.loads(result.stdout)
    assert {row["verdict"] for row in found["comparison"]} == {"identical"}
    assert all("identical" in row["sentence"] for row in found["verdicts"])
    # And so are runs of it: checkpoints of one name are told apart by their runs.
    again = tmp_path / "again"
    shutil.copytree(probed["other"], again)
    found = json.loads(run("compare", probed["other"], again, "--json").stdout)
    assert {row["verdict"] for row in found["comparison"]} == {"identical"}
    assert {(row["checkpoint"], row["reference"]) for row in found["comparison"]} == {
        ("again/prc", "other/prc")
    }


def test_runs_of_one_name_are_told_apart_by_more_of_their_path(
    probed: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("seed-0", "seed-1"):
        shutil.copytree(probed["other"], tmp_path / name / "match")
    found = api.compare([tmp_path / "seed-0" / "match", tmp_path / "seed-1" / "match"])
    assert set(found.table["checkpoint"]) == {"seed-1/match/prc"}


@pytest.mark.pictures
@pytest.mark.slow
def test_a_collapsed_router_fails_what_it_would_seem_to_pass(
    trained: Trained, collapsed: Path, tmp_path: Path
) -> None:
    arguments = ("compare", trained["baseline"], collapsed, *QUICK, "--fail-if-worse", "top1_match")
    result = run(*arguments, "--svg", "--out", tmp_path / "out")
    assert result.exit_code == 3, result.output
    assert "collapsed collapsed" in result.output
    assert "comparisons.\n  collapsed collapsed (blocks.3, patches)\n" in result.output
    rows = table_of(tmp_path / "out").query(
        "layer == 'blocks.3' and metric == 'top1_match' and tokens == 'patch'"
    )
    assert rows["verdict"].item() == "collapsed" and rows["checkpoint_value"].item() == 1
    assert ">collapsed</text>" in (tmp_path / "out" / "figures" / "forest.svg").read_text()
    # The other way round the reference is to blame, and nothing fails.
    assert (
        run("compare", collapsed, trained["baseline"], *QUICK, "--fail-if-worse", "top1_match").exit_code == 0
    )


@pytest.mark.slow
def test_a_worse_metric_fails_and_a_better_one_passes(trained: Trained) -> None:
    found = api.compare(list(trained.values()), limit=60)
    judged = found.table[(found.table["metric"] == "top1_match") & (found.table["tokens"] == "patch")]
    assert set(judged["judgement"]) == {"better"}, "PRC is steadier even after twelve steps"
    forth = run("compare", *trained.values(), "--limit", 60, "--fail-if-worse", "top1_match_kappa")
    said = run(
        "compare", *reversed(trained.values()), "--limit", 60, "--fail-if-worse", "top1_match_kappa"
    ).output
    # What failed is told by all that tells it from the others of its metric.
    assert "(blocks.3, patches, null pooled)" in said and "(blocks.3, patches, null image)" in said
    assert forth.exit_code == 0 and "passed; it is worse nowhere" in forth.output
    back = run(
        "compare", *reversed(trained.values()), "--limit", 60, "--fail-if-worse", "top1_match_kappa", "--json"
    )
    assert back.exit_code == 3
    failures = json.loads(back.stdout)["failures"]
    assert failures and {row["judgement"] for row in failures} == {"worse"}
    assert {row["metric"] for row in failures} == {"top1_match_kappa"}


def test_metrics_that_cannot_become_worse(trained: Trained, probed: dict[str, Path]) -> None:
    for given in ([probed["both"]], [*trained.values(), *QUICK]):
        said = refused("compare", *given, "--fail-if-worse", "top1_mach")
        assert "There is no metric 'top1_mach'. Did you mean 'top1_match'?" in said
        said = refused("compare", *given, "--fail-if-worse", "load_entropy")
        assert "More load_entropy is neither better nor worse; take one of: churn, " in said
        assert ", top1_match, " in said and "load_entropy, " not in said
    said = refused("compare", probed["both"], "--fail-if-worse", "accuracy")
    assert "There are: churn, " in said and said.strip().endswith(
        "accuracy is measured by: agree, attack, corruptions, determinism, eval, experts, frames, noise-sweep, "
        "precision, sweep."
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("probe", "more", "metrics"),
    [
        ("confidence", (), {"gate_highest", "load_entropy"}),
        ("eval", (), {"accuracy", "loss"}),
        ("noise-sweep", ("--severities", "0,0.2"), {"top1_match_kappa", "prediction_agreement"}),
        ("sweep", ("--view", "affine", "--severities", "0.5"), {"top1_match_kappa", "accuracy"}),
        ("match-ratio", ("--view", "prc_crops"), {"top1_match_kappa"}),
        ("s-matrix", (), {"s_diagonal", "prc_offdiagonal"}),
    ],
)
def test_every_probe_can_be_compared(
    trained: Trained, tmp_path: Path, probe: str, more: tuple[str, ...], metrics: set[str]
) -> None:
    out = tmp_path / "out"
    result = run("compare", *trained.values(), "--probe", probe, *more, *QUICK, "--out", out)
    assert result.exit_code == 0, result.output
    assert metrics <= set(table_of(out)["metric"])
    assert len(result.output.splitlines()) < 75, "the screen is for reading"
    again = run("compare", out / "probe", "--out", tmp_path / "other" / "out")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "other" / "out" / "comparison.csv").read_bytes() == (
        out / "comparison.csv"
    ).read_bytes()


@pytest.mark.slow
@pytest.mark.promise
def test_at_severity_0_both_are_the_clean_image(trained: Trained) -> None:
    given = list(trained.values())
    table = api.compare(given, probe="noise-sweep", severities=[0, 0.2], limit=30).table
    rows = table[(table["metric"] == "top1_match") & (table["tokens"] == "patch")]
    assert set(rows[rows["severity"] == 0]["verdict"]) == {"identical"}
    assert set(rows["family_cells"]) == {2}, "what cannot differ is no cell of the family"


@pytest.mark.slow
@pytest.mark.promise
def test_what_was_interrupted_goes_on(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = ("compare", *trained.values(), *QUICK, "--out", out)

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(comparing.differences, "compare", stop)
        assert run(*arguments).exit_code == 130
    assert (out / "probe" / "table.json").exists() and not (out / "table.json").exists()
    assert "unfinished run of something else" in refused(*arguments, "--margin", 0.1)
    before = (out / "probe" / "table.json").stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(Measurement, "run", stop)
        first = run(*arguments)
        assert first.exit_code == 0
    assert (out / "probe" / "table.json").stat().st_mtime_ns == before
    with pytest.warns(RunWarning, match="out is finished; add overwrite=True to repeat it"):
        again = run(*arguments)
    assert again.exit_code == 0 and again.stdout == first.stdout
    # A probe that was replaced by hand is not the one of this comparison.
    (out / "table.json").unlink()
    by_hand = ("match-ratio", *trained.values(), "--limit", 4, "--out", out / "probe", "--overwrite")
    assert run(*by_hand).exit_code == 0
    assert "probe holds a finished run of something else; add --overwrite" in refused(*arguments)
    assert run(*arguments, "--overwrite").exit_code == 0


@pytest.mark.slow
@pytest.mark.promise
def test_models_without_a_hash_are_never_taken_for_those_of_before(trained: Trained, tmp_path: Path) -> None:
    """A notebook changes a model that has no file, and compares again into the same folder."""

    def compared(first: str, second: str) -> pd.DataFrame:
        models = []
        for name, path in (("first", first), ("second", second)):
            checkpoint = api.load_model(trained[path])
            provenance = {**checkpoint.provenance, "sha256": None}
            models.append(dataclasses.replace(checkpoint, name=name, provenance=provenance))
        return api.compare(models, limit=12, out=tmp_path / "out").table

    before = compared("baseline", "prc")
    with pytest.raises(FinishedError):
        compared("prc", "prc")
    (tmp_path / "out" / "table.json").unlink()
    after = compared("prc", "prc")
    assert not after["value"].equals(before["value"])
    assert not after["value"].any(), "one model with itself"


def test_runs_that_were_not_asked_the_same(trained: Trained, probed: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "seed"
    assert run("match-ratio", trained["prc"], *QUICK, "--seed", 1, "--out", other).exit_code == 0
    said = refused("compare", probed["one"], other)
    assert "not probed alike: seed is 0 in the first and 1 in the second" in said
    eval_run = tmp_path / "eval"
    assert run("eval", trained["prc"], *QUICK, "--out", eval_run).exit_code == 0
    assert 'kind is "match-ratio" in the first and "eval" in the second' in refused(
        "compare", probed["one"], eval_run
    )


def test_what_cannot_be_compared(trained: Trained, probed: dict[str, Path], tmp_path: Path) -> None:
    both, one = probed["both"], probed["one"]
    assert "at least two checkpoints" in refused("compare", one)
    assert "at least two checkpoints" in refused("compare", trained["prc"], *QUICK)
    assert "was named twice" in refused("compare", one, one)
    assert f"{both} is a finished run and {trained['prc']} is not" in refused("compare", both, trained["prc"])
    said = refused("compare", both, "--limit", 10, "--probe", "eval", "--capacity", "trained")
    assert "fix these options; remove --probe, --limit, --capacity." in said
    assert "need no forward passes" in refused("compare", both, "--dry-run")
    assert "--margin takes a number from 0 up" in refused("compare", both, "--margin", "nan")
    assert f"{both} is in {both}; choose another --out" in refused(
        "compare", both, "--out", both, "--overwrite"
    )
    assert (both / "images.parquet").exists()
    assert "There is no MoE layer 'blocks.2' in these runs; there are: blocks.1, blocks.3." in refused(
        "compare", both, "--layers", "blocks.2"
    )
    compared = tmp_path / "compared"
    assert run("compare", both, "--out", compared).exit_code == 0
    assert "it is a run of compare, or the file is gone; give the folder of a probe" in refused(
        "compare", compared
    )
    crowded = tmp_path / "crowded"
    shutil.copytree(one, crowded)
    text = (crowded / "table.json").read_text()
    (crowded / "table.json").write_text(text.replace('"group_images": 1', '"group_images": 4'))
    assert 'group_images is ["1"] in the first and ["4"]' in refused("compare", one, crowded)
    unfinished = tmp_path / "unfinished"
    shutil.copytree(both, unfinished)
    (unfinished / "table.json").unlink()
    assert "holds an unfinished run; give its command again" in refused("compare", unfinished)
    gone = tmp_path / "gone"
    shutil.copytree(both, gone)
    (gone / "images.parquet").write_bytes(b"PAR1")
    assert "images.parquet is not as moeprobe wrote it" in refused("compare", gone)
    (gone / "images.parquet").unlink()
    assert "holds no images.parquet" in refused("compare", gone)
    (gone / "table.json").write_text("{}")
    assert "table.json is not as moeprobe wrote it" in refused("compare", gone)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--probe", "match"), "Did you mean 'match-ratio'?"),
        (("--probe", "sweep"), "Name the view of the sweep, e.g. --view affine."),
        (("--probe", "eval", "--view", "affine"), "eval has no choice of view; leave --view out"),
        (("--severities", "0.1"), "match-ratio has no choice of severities"),
        (("--view", "gaussian_noise"), "makes no pairs"),
    ],
)
def test_what_cannot_be_probed(trained: Trained, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("compare", *trained.values(), *arguments)


def test_layers_of_runs_make_a_smaller_family(probed: dict[str, Path]) -> None:
    whole, part = (api.compare([probed["both"]], layers=layers) for layers in (None, ("blocks.3",)))
    assert set(part.table["layer"]) == {"blocks.3"}
    rows = [
        found.table.query("layer == 'blocks.3' and metric == 'top1_match_kappa' and tokens == 'patch'")
        for found in (whole, part)
    ]
    for (_, wide), (_, narrow) in zip(*(found.iterrows() for found in rows), strict=True):
        assert wide["value"] == narrow["value"] and wide["se"] == narrow["se"]
        assert narrow["sim_low"] > wide["sim_low"] and narrow["family_cells"] == 1


@pytest.mark.slow
def test_checkpoints_of_other_layers_and_k(trained: Trained, tmp_path: Path) -> None:
    for name, layers in (("middle", "[2,3]"), ("apart", "[2]")):
        overrides = [f"name={name}", "steps=2", "epochs=null", "schedule.warmup_steps=1", "model.top_k=1"]
        api.train("digits-baseline", overrides=[*overrides, f"model.layers={layers}"], folder=tmp_path / name)
    three = (trained["baseline"], tmp_path / "middle", tmp_path / "apart")
    result = run("compare", *three, *QUICK, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    table = table_of(tmp_path / "out")
    assert {(row.checkpoint, row.layer) for row in table.itertuples()} == {("middle", "blocks.3")}
    assert "training seed or layers): apart" in result.output
    said = refused("compare", three[0], three[2], *QUICK)
    assert "no MoE layer in common" in said
    with pytest.raises(UserError, match="top2_match in no layer in common"):
        api.compare([three[0], three[1]], limit=20, fail_if_worse="top2_match")


def test_dry_run_says_how_long_and_writes_nothing(trained: Trained, tmp_path: Path) -> None:
    arguments = ("compare", *trained.values(), "--probe", "noise-sweep", "--severities", "0,0.1", *QUICK)
    result = run(*arguments, "--out", tmp_path / "out", "--dry-run")
    assert result.exit_code == 0 and "2 checkpoints x 30 images x 2 forward passes" in result.output
    assert not (tmp_path / "out").exists()


def test_under_twenty_images_nothing_is_claimed(trained: Trained) -> None:
    result = run("compare", *trained.values(), "--limit", 12)
    assert result.exit_code == 0, result.output
    assert "few images" in result.output and "no intervals: they need at least 20 images" in result.output
    assert "better" not in result.output


@pytest.mark.slow
def test_severity_zero_and_a_gate_of_no_worse_than(trained: Trained, tmp_path: Path) -> None:
    """Clean against itself is the same in any two models, whatever float32 makes of its sums."""
    arguments = ("compare", *trained.values(), "--probe", "noise-sweep", "--severities", "0", "--limit", 60)
    gate = ("--fail-if-worse", "weight_cosine")
    for more in ((), ("--fail-unless-no-worse-than", 0.001)):
        result = run(*arguments, *gate, *more)
        assert result.exit_code == 0 and "weight_cosine" in result.output, result.output
        assert "passed" in result.output
    # Of twelve steps' accuracy sixty images cannot tell, so that it is not shown to be no worse.
    narrow = ("--fail-if-worse", "accuracy", "--fail-unless-no-worse-than", 0.001)
    result = run("compare", *trained.values(), "--probe", "eval", "--limit", 60, *narrow)
    assert result.exit_code == 3 and "may be worse by 0.001 [" in result.output
    assert "name the metric: --fail-if-worse METRIC" in refused(*arguments, *narrow[2:])
    assert "takes a number above 0" in refused(*arguments, *gate, "--fail-unless-no-worse-than", 0)


def test_equivalence_is_said_in_the_sentence_and_the_sidecar(probed: dict[str, Path]) -> None:
    """Shares differ by less than 2; whether they do by less than 0.0001 is more than 40 images show."""
    for within, is_equivalent in ((2, True), (0.0001, False)):
        content = json.loads(run("compare", probed["both"], "--equivalent-within", within, "--json").stdout)
        assert content["sidecar"]["equivalent_within"] == within
        said = [verdict for verdict in content["verdicts"] if verdict["equivalent"] is not None]
        assert said and {verdict["equivalent"] for verdict in said} == {is_equivalent}
        assert all(("Equivalent within" in verdict["sentence"]) is is_equivalent for verdict in said)
    assert "takes a number above 0" in refused("compare", probed["both"], "--equivalent-within", 0)


def test_what_a_comparison_cannot_ask_is_said(trained: Trained, probed: dict[str, Path]) -> None:
    words = set(re.split(r"[\s,;:.│]+", run("compare", "--help").output))
    assert {*registry.comparable()} <= words
    assert "remove --max-length" in refused("compare", probed["both"], "--max-length", 64)
    said = refused("compare", *trained.values(), "--probe", "analyze-trace")
    assert "moeprobe trace analyze ... --out FOLDER" in said and "moeprobe compare FOLDER" in said
    assert "There is no probe 'overlay'" in refused("compare", *trained.values(), "--probe", "overlay")
    assert "leave --view out" in refused("compare", *trained.values(), "--probe", "eval", "--view", "affine")
    assert "Name the view of the sweep" in refused("compare", *trained.values(), "--probe", "sweep")


@pytest.mark.parametrize(
    "name",
    ["contagion", "fewshot", pytest.param("discontinuity", marks=[pytest.mark.slow, pytest.mark.promise])],
)
def test_every_probe_of_checkpoints_is_compared_directly(trained: Trained, tmp_path: Path, name: str) -> None:
    """As its finished run is, in every number."""
    few = ("--limit", 2 if name == "discontinuity" else 8)
    assert run(name, *trained.values(), *few, "--out", tmp_path / "run").exit_code == 0
    found = [
        api.compare([tmp_path / "run"]).table,
        api.compare(list(trained.values()), probe=name, limit=few[1]).table,
    ]
    pd.testing.assert_frame_equal(*(table.drop(columns="run", errors="ignore") for table in found))
    assert len(found[0])
