"""Layers are chosen by name, or as the first and the last of each model."""

from pathlib import Path

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.probes.engine.run_spec import check_layers, chosen_layers, layer_label
from tests.commands import Trained, refused, run

KNOWN = ("blocks.1", "blocks.3", "blocks.5")


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (None, ["blocks.1", "blocks.3", "blocks.5"]),
        (("blocks.5", "blocks.1"), ["blocks.1", "blocks.5"]),
        (("first",), ["blocks.1"]),
        (("last", "blocks.3"), ["blocks.3", "blocks.5"]),
        (("nosuch",), []),
    ],
)
def test_layers_are_chosen_in_the_models_order(wanted: tuple[str, ...] | None, chosen: list[str]) -> None:
    assert chosen_layers(KNOWN, wanted) == chosen


def test_a_layer_is_called_as_it_was_asked_for() -> None:
    assert [layer_label(name, KNOWN, ("last", "blocks.1")) for name in ("blocks.1", "blocks.5")] == [
        "blocks.1",
        "last",
    ]
    assert layer_label("blocks.1", KNOWN, None) == "blocks.1"
    # Of a single layer that is both, and of a layer that bears the name.
    assert layer_label("blocks.1", ("blocks.1",), ("first", "last")) == "first"
    assert chosen_layers(("last", "blocks.2"), ("last",)) == ["last"]


def test_layers_that_no_model_has_are_refused() -> None:
    check_layers({"a": KNOWN, "b": ("layers.0",)}, ("first",))
    with pytest.raises(UserError, match=r"no MoE layer 'frist' in a; there are: blocks\.1.* first and last"):
        check_layers({"a": KNOWN}, ("frist",))
    with pytest.raises(UserError, match=r"b has none of the layers blocks\.1; it has: layers\.0"):
        check_layers({"a": KNOWN, "b": ("layers.0",)}, ("blocks.1",))


@pytest.mark.slow
@pytest.mark.promise
def test_the_last_layer_has_the_numbers_of_its_name(trained: Trained, tmp_path: Path) -> None:
    name = str(trained["prc"])
    tables = {}
    for layers in ("last", api.load_model(name).model.layer_names[-1]):
        found = api.confidence(name, limit=20, layers=layers).table
        assert set(found["layer"]) == {layers}
        tables[layers] = found.drop(columns="layer")
    pd.testing.assert_frame_equal(*tables.values())
    out = tmp_path / "out"
    assert (
        run("match-ratio", *trained.values(), "--limit", 20, "--layers", "first", "--out", out).exit_code == 0
    )
    assert set(pd.read_csv(out / "comparison.csv")["layer"]) == {"first"}
    said = run("confidence", trained["prc"], "--limit", 20, "--layers", "last").output
    assert "In the last MoE layer (20 images" in said
    assert "There is no MoE layer 'frist'" in refused("match-ratio", trained["prc"], "--layers", "frist")
