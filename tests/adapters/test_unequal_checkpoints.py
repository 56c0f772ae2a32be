"""Checkpoints that differ in their MoE layers and in k are probed side by side."""

import json
from pathlib import Path

import pandas as pd
import pytest

from moeprobe import api
from tests.commands import Trained, refused, run


@pytest.fixture(scope="module")
def others(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """``middle``: blocks 2 and 3 route, to one expert; ``apart``: block 2 alone."""
    root = tmp_path_factory.mktemp("unequal")
    folders = {"baseline": trained["baseline"]}
    for name, layers in (("middle", "[2,3]"), ("apart", "[2]")):
        overrides = [f"name={name}", "steps=2", "epochs=null", "schedule.warmup_steps=1", "model.top_k=1"]
        api.train("digits-baseline", overrides=[*overrides, f"model.layers={layers}"], folder=root / name)
        folders[name] = root / name
    return folders


@pytest.mark.pictures
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [("match-ratio",), ("confidence",), ("noise-sweep", "--sigmas", "0,0.1"), ("overlay", "--count", "1")],
)
def test_every_probe_runs_and_compares_what_is_shared(
    others: Trained, tmp_path: Path, command: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    result = run(command[0], *others.values(), *command[1:], "--limit", 22, "--out", out)
    assert result.exit_code == 0, result.output
    assert list((out / "figures").glob("*.png"))
    if command[0] == "overlay":
        return
    assert (
        "baseline has blocks.1, blocks.3; middle has blocks.2, blocks.3; apart has blocks.2" in result.output
    )
    assert "no MoE layer in common in which this is measured, so no differences" in result.output
    table, comparison = pd.read_csv(out / "table.csv"), pd.read_csv(out / "comparison.csv")
    layers = table.dropna(subset="layer").groupby("checkpoint")["layer"].agg(set).to_dict()
    assert layers == {
        "baseline": {"blocks.1", "blocks.3"}, "middle": {"blocks.2", "blocks.3"}, "apart": {"blocks.2"},
    }  # fmt: skip
    compared = comparison.dropna(subset="layer").groupby("checkpoint")["layer"].agg(set).to_dict()
    assert compared == {"middle": {"blocks.3"}}


def test_a_layer_that_only_some_have(others: Trained) -> None:
    pair = others["baseline"], others["middle"]
    result = run("confidence", *pair, "--layers", "blocks.1,blocks.3", "--limit", 20, "--json")
    rows = json.loads(result.stdout)["table"]
    found = {(row["checkpoint"], row["layer"]) for row in rows}
    assert found == {("baseline", "blocks.1"), ("baseline", "blocks.3"), ("middle", "blocks.3")}
    assert "middle has none of the layers blocks.1; it has: blocks.2, blocks.3" in refused(
        "confidence", *pair, "--layers", "blocks.1"
    )
    assert "There is no MoE layer 'blocks.0'" in refused("confidence", *pair, "--layers", "blocks.3,blocks.0")


@pytest.mark.slow
@pytest.mark.promise
def test_a_checkpoint_keeps_its_color_in_every_panel(others: Trained) -> None:
    from matplotlib.colors import to_hex

    from moeprobe.probes.sweep import figure as sweep

    found = api.noise_sweep([others["baseline"], others["apart"]], sigmas=[0, 0.1], limit=20)
    figure = sweep.draw(found.table, colors=found.sidecar["colours"], unit="σ")["routing"]
    colors: dict[str, set[str]] = {}
    for axes in figure.axes:
        for line in axes.get_lines():
            colors.setdefault(str(line.get_label()), set()).add(to_hex(str(line.get_color())))
    assert len(colors["baseline"]) == len(colors["apart"]) == 1
    assert colors["baseline"] != colors["apart"]


def test_the_screen_leaves_cells_empty_rather_than_shifting_them(others: Trained) -> None:
    result = run(
        "match-ratio",
        others["baseline"],
        others["middle"],
        "--limit",
        22,
        "--layers",
        "blocks.1,blocks.3",
        "--full",
    )
    lines = [
        line for line in result.output.splitlines() if "top-2 match  " in line or "top-2 match │" in line
    ]
    assert lines, result.output
    for line in lines:
        # middle has one choice: nothing under its name, and no difference.
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        assert cells[3] and cells[4:] == ["", ""], line


def test_capacity_as_trained_says_where_there_is_none(others: Trained) -> None:
    result = run("confidence", others["baseline"], "--capacity", "trained", "--limit", 20)
    assert "capacity of baseline: evaluates without a limit" in result.output
    assert "capacity of" not in run("confidence", others["baseline"], "--limit", 20).output
