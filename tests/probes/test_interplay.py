"""What commands must not make of each other's tables: floors, regions, other groups, few images, other quantities."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs import geometry, regions
from moeprobe.inputs.images import Framing
from moeprobe.results.tables import FLOORS
from moeprobe.studies.report import report
from tests.commands import Trained, refused, run
from tests.routing.routings import tiny

# Intervals are asserted.
pytestmark = pytest.mark.resamples


@pytest.mark.slow
@pytest.mark.promise
def test_a_report_of_masked_data_tells_of_the_patches(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "shapes"
    run("match-ratio", *trained.values(), "--data", "shapes:32", "--limit", 30, "--out", out)
    headlines = report([out]).headlines
    # Raw, chance and kappa of two checkpoints and their difference, for first choices, sets, and sets within the image:
    # of the patches, and of nothing else.
    table = pd.read_csv(out / "table.csv").query("layer == 'blocks.1' and tokens == 'patch'")
    assert len(headlines) == 27
    assert set(headlines.loc[headlines["reference"] == "", "value"]) <= set(table["value"])


@pytest.fixture(scope="module")
def swept(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A noise sweep of both checkpoints, with its attribution."""
    out = tmp_path_factory.mktemp("interplay") / "noise"
    result = run(
        "noise-sweep", *trained.values(), "--sigmas", "0,0.2", "--attribute", "--limit", 24, "--out", out
    )
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def jumped(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both checkpoints followed along a little noise."""
    out = tmp_path_factory.mktemp("interplay") / "jumps"
    result = run("discontinuity", *trained.values(), "--until", 0.05, "--limit", 20, "--out", out)
    assert result.exit_code == 0, result.output
    return out


@pytest.mark.slow
def test_the_noise_floor_is_no_result(swept: Path) -> None:
    assert set(pd.read_csv(swept / "table.csv")["view"]) == {"gaussian_noise", *FLOORS}
    assert set(pd.read_csv(swept / "comparison.csv")["view"]) == {"gaussian_noise"}
    document = report([swept])
    short = document.markdown.split("## Settings", maxsplit=1)[0]
    lines = [line for line in short.splitlines() if line.startswith(("| baseline |", "| prc |"))]
    assert lines and all(line.split("|")[2].strip() for line in lines), "a line without a severity"


@pytest.mark.slow
def test_a_report_tells_of_jumps_switching_and_s(
    trained: Trained, swept: Path, jumped: Path, tmp_path: Path
) -> None:
    result = run("s-matrix", *trained.values(), "--limit", 20, "--out", tmp_path / "s")
    assert result.exit_code == 0, result.output
    document = report([swept, tmp_path / "s", jumped])
    said = document.markdown
    for words in (
        "due to switching experts",
        "due to features",
        "mean diagonal of S",
        "sum of the jumps per image",
    ):
        assert words in said, words
    assert "the only of the run" not in said
    row = document.headlines.query("metric == 'class_probability_switching'").iloc[0]
    table = pd.read_csv(swept / "table.csv").query(
        "metric == 'class_probability_switching' and severity == 0.2"
    )
    assert row["value"] in set(table["value"])


def test_a_single_severity_is_told_once(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "noise"
    run("noise-sweep", trained["prc"], "--sigmas", "0.3", "--limit", 20, "--out", out)
    assert (report([out]).headlines["metric"] == "accuracy").sum() == 1


@pytest.mark.slow
def test_checkpoints_of_other_groups_are_swept_side_by_side() -> None:
    from moeprobe.adapters.vmoe import Vmoe

    def one(name: str, factor: float | None) -> Checkpoint:
        model = tiny(eval_capacity_factor=factor)
        adapter = Vmoe(model, mean=(0.5,) * 3, std=(0.5,) * 3, trained_capacity=True, group_images=2)
        about = {"sha256": name, "training": {"data": "digits"}}
        return Checkpoint(name, adapter, Framing(32), provenance=about)

    for batch_size in (4, 64):
        result = api.noise_sweep(
            [one("a", 1.0), one("b", None)], sigmas=[0, 0.1], limit=23, batch_size=batch_size
        )
        assert result.comparison is not None and len(result.comparison)


def test_a_class_of_one_image_is_no_collapse(trained: Trained, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(24):
        (tmp_path / "data" / f"class{number}").mkdir(parents=True)
        pixels = random.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / f"class{number}" / "0.png")
    arguments = (
        "match-ratio",
        trained["prc"],
        "--data",
        f"folder:{tmp_path / 'data'}",
        "--split",
        "all",
        "--class-null",
        "--json",
    )
    rows = pd.DataFrame(json.loads(run(*arguments).stdout)["table"])
    rows = rows[rows["null"] == "class"]
    assert len(rows) and set(rows["flag"]) == {"no_trials"} and set(rows["trials"]) == {0}


def test_kappa_and_its_chance_are_about_the_same_trials() -> None:
    """Half of the images have a classmate and match at chance; the others have none, and always match."""
    from moeprobe.metrics.analyses.match import Match

    random = np.random.default_rng(0)
    one, two = random.integers(0, 4, (2, 200, 8))
    two[100:] = one[100:]
    columns = {
        "trials": np.full(200, 8),
        "top1_match": (one == two).sum(1),
        "reference_selected": one[..., None],
        "view_selected": two[..., None],
        "label": np.concatenate([np.repeat(np.arange(50), 2), np.arange(50, 150)]),
    }
    metrics = {(m.name, m.null): m for m in Match(class_null=True).estimators(columns, aligned=False)}
    kappa = metrics["top1_match_kappa", "class"]
    assert abs(kappa.statistic.evaluate(np.ones((200, 1)))[0]) < 0.05
    assert kappa.trials.sum() == 800 and np.count_nonzero(kappa.trials) == 100
    assert metrics["top1_match_kappa", "pooled"].statistic.evaluate(np.ones((200, 1)))[0] > 0.4


def test_what_cannot_be_judged_does_not_pass(trained: Trained) -> None:
    arguments = ("compare", *trained.values(), "--probe", "eval", "--fail-if-worse", "accuracy")
    few = run(*arguments, "--limit", 19)
    assert few.exit_code == 3 and "cannot be judged (few images)" in few.output
    assert "passed" in run("compare", trained["prc"], trained["prc"].parent / "prc" / "best.safetensors",
                           "--probe", "eval", "--fail-if-worse", "accuracy", "--limit", 60).output  # fmt: skip


@pytest.mark.pictures
@pytest.mark.slow
def test_jumps_are_compared_without_a_margin_of_shares(jumped: Path, tmp_path: Path) -> None:
    out = tmp_path / "compared"
    result = run("compare", jumped, "--out", out)
    assert result.exit_code == 0, result.output
    assert "switches" in result.output
    table = pd.read_csv(out / "comparison.csv")
    assert {"switches", "jump_sum"} <= set(table["metric"])
    assert table["margin"].isna().all() and "no difference" not in set(table["verdict"])
    assert (out / "figures" / "forest.png").exists()


def test_options_of_the_probe_are_not_for_finished_runs(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run("match-ratio", *trained.values(), "--limit", 20, "--out", out)
    assert "remove --class-null" in refused("compare", out, "--class-null")
    assert "remove --masks" in refused("compare", out, "--masks", tmp_path)
    assert "--masks is about matches" in refused("confidence", trained["prc"], "--masks", tmp_path)


def test_an_image_is_named_once(trained: Trained, tmp_path: Path) -> None:
    twice = "digits/1091,digits/1091"
    for command in ("overlay", "discontinuity", "correspond"):
        said = refused(command, trained["prc"], "--images", twice, "--out", tmp_path / command)
        assert "'digits/1091' is named twice" in said


def test_gates_are_chosen_for_a_replay_alone(trained: Trained) -> None:
    assert "add --attribute" in refused("noise-sweep", trained["prc"], "--gates", "replayed")


def test_a_run_that_stopped_before_it_had_anything_leaves_its_folder_free(
    trained: Trained, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(tmp_path / "data" / "0.png")
    (tmp_path / "data" / "bad.png").write_bytes(b"no image")
    out = tmp_path / "out"
    arguments = ("confidence", trained["prc"], "--data", f"folder:{tmp_path / 'data'}", "--out", out)
    assert "bad.png" in refused(*arguments)
    result = run(*arguments, "--skip-bad-images")
    assert result.exit_code == 0, result.output


@pytest.mark.slow
@pytest.mark.promise
def test_regions_are_called_by_their_names(trained: Trained) -> None:
    arguments = (
        "compare",
        *trained.values(),
        "--data",
        "shapes:32",
        "--limit",
        24,
        "--fail-if-worse",
        "top1_match",
    )
    shown = run(*arguments, "--full").output
    assert (
        "foreground patches" in shown and shown.count("CLS") == 3
    )  # its verdict, its table and its sentence


def test_an_overlay_of_own_files_is_not_of_the_data_set(trained: Trained, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(tmp_path / "mine.png")
    out = tmp_path / "overlay"
    run("overlay", trained["prc"], "--file", tmp_path / "mine.png", "--out", out)
    assert json.loads((out / "table.json").read_text())["request"]["data"] == "files"


def test_the_region_is_that_of_the_view_that_covers_less() -> None:
    """The whole image against its upper left quarter: all patches of the quarter are object, few of the whole are."""
    from moeprobe.inputs.batches import Batch
    from moeprobe.routing import correspondence
    from tests.routing.routings import routing

    whole, quarter = geometry.crop(0, 0, 32, 32, 32), geometry.crop(0, 0, 16, 16, 32)
    mask = np.zeros((32, 32), dtype=bool)
    mask[:16, :16] = True
    layer = routing(1, grid=(4, 4), prefix=0)
    for maps in ([whole, quarter], [quarter, whole]):
        batch = Batch(
            image_ids=["x"],
            labels=torch.tensor([0]),
            views=[torch.zeros(1, 3, 32, 32)] * 2,
            to_source=[to_source[None] for to_source in maps],
            source_size=np.array([[32.0, 32.0]]),
            foreground=[regions.foreground(mask, to_source, 32)[None] for to_source in maps],
            skipped=[],
        )
        pair = correspondence.pair_up(batch, layer, layer, 1, aligned=False, symmetric=False)
        assert pair.region is not None and (pair.region == 2).all() and (pair.reference_patch >= 0).all()


def test_what_is_dropped_belongs_to_the_routing() -> None:
    """The same choices of which other ones find room are another routing."""
    import dataclasses

    from moeprobe.probes.engine.batch_sums import _same_routing
    from moeprobe.routing.record import RoutingTrace
    from tests.routing.routings import routing

    layer = routing(2)
    dropped = layer.processed.clone()
    dropped[1, 3, 0] = False
    one = RoutingTrace({"blocks.1": layer})
    two = RoutingTrace({"blocks.1": dataclasses.replace(layer, processed=dropped)})
    assert _same_routing(one, two).tolist() == [True, False]
    assert _same_routing(one, one).tolist() == [True, True]
    # In another order the same experts work on a token, and the sum over them is the same.
    turned = dataclasses.replace(layer, selected=layer.selected.flip(-1), processed=layer.processed.flip(-1))
    assert _same_routing(one, RoutingTrace({"blocks.1": turned})).tolist() == [True, True]


def test_an_undefined_resample_does_not_make_two_of_a_kind_differ() -> None:
    from moeprobe.metrics.stats.bootstrap import Replicates
    from moeprobe.metrics.stats.families import difference, judge

    values = np.zeros(2000)
    values[:3] = np.nan
    same = difference(Replicates(0.4, values, 40, 400), Replicates(0.4, values, 40, 400), np.zeros(40))
    assert same.identical
    (judged,) = judge([same])
    assert (judged.sim_low, judged.sim_high) == (0, 0)


@pytest.mark.slow
def test_a_narrow_window_cuts_no_interval(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from moeprobe.cli.front import tables

    result = api.noise_sweep(list(trained.values()), sigmas=[0, 0.1], attribute=True, limit=22)
    narrow = Console(width=80, force_terminal=False, highlight=False)
    monkeypatch.setattr(tables, "console", lambda: narrow)
    with narrow.capture() as captured:
        for table in tables.along_severity(result, title="gaussian_noise"):
            narrow.print(table)
    text = captured.get()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    row = result.table.query("metric == 'class_probability_switching' and severity == 0.1").iloc[0]
    assert (
        f"{row['ci_low']:.3f}, {row['ci_high']:.3f}]" in text
        or f"{row['ci_low']:.5f}, {row['ci_high']:.5f}]" in text
    )


def test_an_overlay_of_hundreds_is_refused(trained: Trained, tmp_path: Path) -> None:
    assert "at most 24 images; got 200" in refused(
        "overlay", trained["prc"], "--count", 200, "--out", tmp_path / "x"
    )


@pytest.mark.slow
@pytest.mark.promise
def test_routers_of_unequal_sizes_are_named(trained: Trained, tmp_path: Path) -> None:
    """A flip of one expert and of a set of two are not one thing, whatever their prices."""
    path = trained["prc"]
    unequal, equal = (f"{path},top_k=1", path), (trained["baseline"], path)
    words = "The routers differ: "
    for probe, *more in (("flips", "--severities", 0.3), ("match-ratio",)):
        said = [run(probe, *models, *more, "--limit", 3).output for models in (unequal, equal)]
        assert [words in text for text in said] == [True, False], said
        assert re.search(
            r"gives a token 1 of 8 experts, \S+ 2 of 8\. Numbers about sets", " ".join(said[0].split())
        )
    # What a model answers has one meaning.
    assert words not in run("eval", *unequal, "--limit", 3).output
    out = tmp_path / "run"
    assert words in run("match-ratio", *unequal, "--limit", 3, "--out", out).output
    assert words in run("match-ratio", *unequal, "--limit", 3, "--out", out).output  # read from its folder
    assert words in " ".join(report([out]).html.split())
    compared = run("compare", *unequal, "--probe", "match-ratio", "--limit", 3)
    assert words in compared.output, compared.output
