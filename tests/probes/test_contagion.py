"""``moeprobe contagion``, and what becomes of its tables: figures, comparisons, reports."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.images import Framing
from moeprobe.probes.contagion import Contagion, measure
from moeprobe.results.tables import COLUMNS
from moeprobe.routing.record import LayerRouting, RoutingTrace
from tests.commands import Trained, names_in, pictures, refused, run
from tests.results.drawn import words
from tests.routing.routings import checkpoint

KINDS = ("batch", "token", "attention")
METRICS = {f"{kind}_contagion{end}" for kind in KINDS for end in ("", "_dropped", "_distance")}


class Soft:
    """A model that gives every expert a share of every token: by its brightness alone, and its gates are no choice."""

    layer_names: tuple[str, ...] = ("blocks.0",)
    group_images = 1

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        # A patch sees the whole image a little, as attention would have it.
        patches = images[:, 0, ::2, ::2].reshape(len(images), 4) + images.mean((1, 2, 3))[:, None]
        gates = torch.stack([3 * patches, -patches, 0 * patches], dim=-1).softmax(-1)
        none = torch.zeros(len(images), 4, 0)
        layer = LayerRouting(
            gates=gates,
            scores=None,
            selected=none.to(torch.int16),
            processed=none.bool(),
            valid=torch.ones(len(images), 4, dtype=torch.bool),
            grid=PatchGrid(2, 2, 2),
            num_prefix_tokens=0,
            gates_sum_to_one=True,
            token_local=False,
            router="soft",
        )
        return None, RoutingTrace({"blocks.0": layer})


@pytest.fixture(scope="module")
def finished(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "contagion"
    with pictures():
        result = run("contagion", *trained.values(), "--limit", 26, "--out", out)
    assert result.exit_code == 0, result.output
    assert "groups of 4, 25% of the patches exchanged" in result.output
    assert "attention contagion: distance" in result.output
    return out


@pytest.mark.pictures
def test_contagion_writes_what_it_says(finished: Path) -> None:
    assert names_in(finished) == {
        "run.json", "table.csv", "table.json", "comparison.csv", "images.parquet", "figures",
    }  # fmt: skip
    assert {path.name for path in (finished / "figures").iterdir()} == {"contagion.png"}
    table = pd.read_csv(finished / "table.csv")
    assert list(table.columns) == list(COLUMNS)
    assert set(table["metric"]) == METRICS and set(table["tokens"]) == {"patch", "prefix"}
    assert set(table["layer"]) == {"blocks.1", "blocks.3"} and set(table["view"]) == {"clean"}
    assert (table["images"] == 26).all()
    patches = table[table["tokens"] == "patch"]
    assert set(patches.loc[patches["metric"] == "batch_contagion", "trials"]) == {26 * 16}
    assert set(patches.loc[patches["metric"] == "token_contagion", "trials"]) == {26 * 12}
    # These checkpoints route every token by itself, and there is room for all.
    local = table["metric"].str.startswith(("batch", "token"))
    assert (table.loc[local, ["value", "ci_low"]] == 0).all(axis=None)
    assert (table.loc[table["metric"] == "attention_contagion", "value"] > 0).all()
    comparison = pd.read_csv(finished / "comparison.csv")
    assert set(comparison["metric"]) == METRICS and set(comparison["reference"]) == {"baseline"}
    sidecar = json.loads((finished / "table.json").read_text())
    assert (sidecar["request"]["share"], sidecar["request"]["group_images"]) == (0.25, 4)
    assert sidecar["notes"] == []


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
def test_a_report_and_a_comparison_tell_of_it(finished: Path, tmp_path: Path) -> None:
    document = api.report([finished])
    said = document.markdown
    for said_there in (
        "Dependence of routing on other tokens",
        "when batch-mates are exchanged",
        "other patches",
        "0 exactly when batch-mates are exchanged or other tokens at the router are exchanged: each token",
    ):
        assert said_there in said, said_there
    table = pd.read_csv(finished / "table.csv").query("layer == 'blocks.1' and tokens == 'patch'")
    rows = document.headlines.query("metric == 'attention_contagion' and reference == ''")
    assert set(rows["value"]) == set(table.loc[table["metric"] == "attention_contagion", "value"])
    assert "contagion.png" in document.markdown
    result = run("compare", finished, "--out", tmp_path / "compared")
    assert result.exit_code == 0, result.output
    compared = pd.read_csv(tmp_path / "compared" / "comparison.csv")
    assert set(compared.loc[compared["metric"] == "batch_contagion", "verdict"]) == {"identical"}
    assert set(compared["margin"]) == {0.02} and compared["judgement"].isna().all()


def test_an_interrupted_run_goes_on(
    trained: Trained, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "contagion"
    real, calls = measure.run_block, []

    def interrupted(*arguments: Any, **more: Any) -> Any:
        calls.append(arguments[2])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **more)

    monkeypatch.setattr(measure, "run_block", interrupted)
    monkeypatch.setattr(measure, "BLOCK_IMAGES", 10)  # cut down to two groups
    arguments = ("contagion", *trained.values(), "--limit", 26, "--out", out)
    assert run(*arguments).exit_code == 130
    assert not (out / "table.json").exists()
    assert run(*arguments).exit_code == 0
    assert [len(block) for block in calls] == [8, 8, 8, 8, 2, 8, 8, 8, 2]
    before, after = (pd.read_csv(folder / "table.csv") for folder in (finished, out))
    pd.testing.assert_frame_equal(before, after, rtol=1e-4, atol=1e-6)


def test_dry_run_and_json(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "never"
    result = run("contagion", trained["prc"], "--dry-run", "--out", out)
    # One pass as it is, four beside other mates, two that the routers' tokens are read off, one with other pixels.
    assert "1 checkpoint x 360 images x 8 forward passes" in result.output
    assert not out.exists()
    arguments = ("--limit", 20, "--layers", "blocks.3", "--share", 0.5, "--group-images", 1, "--json")
    found = json.loads(run("contagion", trained["prc"], *arguments).stdout)
    assert {row["layer"] for row in found["table"]} == {"blocks.3"}
    assert {row["metric"] for row in found["table"]} == {name for name in METRICS if "batch" not in name}
    assert found["sidecar"]["notes"] == ["batch contagion: in groups of one image there are no batch-mates"]
    watched = {row["trials"] for row in found["table"] if row["tokens"] == "patch"}
    assert watched == {20 * 8}


def test_what_cannot_be_exchanged_is_one_sentence(trained: Trained) -> None:
    assert "at least 8 images are needed" in refused("contagion", trained["prc"], "--limit", 7)
    for share in (0, 1, -0.5):
        assert "between 0 and 1" in refused("contagion", trained["prc"], f"--share={share}")
    assert "--group-images takes a number of images from 1 up" in refused(
        "contagion", trained["prc"], "--group-images", 0
    )
    assert "is about matches" in refused("contagion", trained["prc"], "--class-null")


def test_routers_that_couple_tokens_beside_one_that_does_not() -> None:
    models = [
        checkpoint("local"),
        checkpoint("experts", router="softmax_expert_choice", group_images=4),
        checkpoint("tight", eval_capacity_factor=0.7, trained_capacity=True, group_images=4),
    ]
    result = api.contagion(models, limit=20)
    assert result.comparison is not None
    values = result.table.query("tokens == 'patch'").pivot(
        index=["layer", "metric"], columns="checkpoint", values="value"
    )
    for kind in ("batch", "token"):
        for layer in ("blocks.1", "blocks.3"):
            share, dropped = (values.loc[(layer, f"{kind}_contagion{end}")] for end in ("", "_dropped"))
            assert share["local"] == 0 < min(share["experts"], share["tight"])
            assert dropped["experts"] == 0 < dropped["tight"] <= share["tight"]
    # In the first MoE layer nothing has reached the router yet that could make it wish for something else.
    first = values.loc["blocks.1"]
    assert first.loc["batch_contagion", "tight"] == first.loc["batch_contagion_dropped", "tight"]
    with pytest.raises(UserError, match="was loaded with groups of 4 images"):
        api.contagion(models, limit=20, group_images=2)


def test_soft_routers_have_a_distance_and_what_cannot_be_asked_is_said() -> None:
    about = {"sha256": "s", "training": {"data": "digits"}}
    models = [checkpoint("local"), Checkpoint("soft", Soft(), Framing(4), provenance=about)]
    result = api.contagion(models, limit=20)
    soft = result.table.query("checkpoint == 'soft'").set_index("metric")["value"]
    assert set(soft.index) == {"batch_contagion_distance", "attention_contagion_distance"}
    assert soft["batch_contagion_distance"] == 0 < soft["attention_contagion_distance"]
    assert result.sidecar["notes"] == ["token contagion of soft: its routers cannot be run one by one"]
    assert set(result.table.query("checkpoint == 'local'")["metric"]) == METRICS
    soft_alone = dataclasses.replace(result, table=result.table.query("checkpoint == 'soft'"))
    together, alone = (Contagion().draw(of_some)["contagion"] for of_some in (result, soft_alone))
    # What never changes is said, not drawn.
    assert len(together.axes) >= len(alone.axes) >= 1
    assert all("0 exactly when batch-mates are exchanged" in words(drawn) for drawn in (together, alone))
    for axes in [*together.axes, *alone.axes]:
        low, high = axes.get_ylim()
        for line in axes.get_lines():
            y = pd.Series(line.get_ydata(), dtype=float).dropna()
            assert y.between(low, high).all()


def test_in_groups_of_four_unless_told_otherwise(trained: Trained) -> None:
    default = api.contagion([trained["prc"]], limit=20)
    assert default.sidecar["request"]["group_images"] == 4
    other = api.contagion([trained["prc"]], options=api.Options(group_images=2, limit=20))
    assert other.sidecar["request"]["group_images"] == 2
    pixels = [found.table.query("metric == 'attention_contagion'")["trials"] for found in (default, other)]
    assert pixels[0].tolist() == pixels[1].tolist()
