"""What experts specialize in, for routers of every kind and for texts: rows where something exists, and no others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeprobe import api
from moeprobe.adapters.open import load_model
from tests.adapters.tiny_texts import olmoe, texts
from tests.routing.routings import checkpoint

INFORMATION = {
    f"{kind}_information{part}"
    for kind in ("class", "position", "color")
    for part in ("", "_plain", "_permuted")
}
ROUTES = {
    f"{name}{part}" for name in ("distinct_routes", "largest_route_group") for part in ("", "_permuted", "_p")
}
GATES = {"image_variation_gates", "image_variation_gates_share"}
WEIGHTS = {"image_variation_weights", "image_variation_weights_share"}
PAIRS = {"coactivation", "coactivation_lift"}
LOAD = {"load_entropy", "dead_experts", "expert_share", "max_violation", "load_cv", "load_gini"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"router": "soft_moe"}, GATES),
        ({"router": "softmax_expert_choice"}, GATES | WEIGHTS | PAIRS),
        ({"router": "softmax_token_choice", "top_k": 1}, GATES | WEIGHTS | LOAD),
        (
            {"router": "softmax_token_choice", "top_k": 2},
            GATES | WEIGHTS | LOAD | PAIRS | {f"{name}_first" for name in LOAD},
        ),
    ],
    ids=["soft", "experts choose", "one expert", "two experts"],
)
def test_each_kind_of_router_has_what_applies(arguments: dict[str, Any], expected: set[str]) -> None:
    result = api.routes([checkpoint(**arguments)], data="digits", limit=25, count=1)
    assert set(result.table["metric"]) == INFORMATION | ROUTES | expected
    assert result.table["value"].notna().all()
    (sheet,) = result.sheets
    for marks in sheet.marks.values():
        assert marks.min() >= 0 and marks.max() <= 1 and marks.any()
    assert {"information", "experts", "classes-a", "places-a", "sheet-1-a"} <= set(result.plot())


def test_checkpoints_of_different_kinds_are_compared_by_what_both_have() -> None:
    pair = [checkpoint("one", router="soft_moe"), checkpoint("other", top_k=1)]
    result = api.routes(pair, data="digits", limit=25, count=0)
    assert result.comparison is not None
    assert set(result.comparison["metric"]) == INFORMATION | GATES


@pytest.mark.slow
@pytest.mark.promise
def test_texts_have_places_and_classes_but_no_colors(tmp_path: Path) -> None:
    olmoe(tmp_path / "one")
    lines = [json.dumps({"text": text, "label": "ab"[n % 2]}) for n, text in enumerate(texts(24))]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines), encoding="utf-8")
    model = load_model(f"hf:{tmp_path / 'one'}", device="cpu")
    found = [
        api.routes(
            [model], data=f"text:{tmp_path / 'lines.jsonl'}", batch_size=size, out=tmp_path / str(size)
        )
        for size in (5, 64)
    ]
    for result in found:
        metrics = set(result.table["metric"])
        assert {one for one in INFORMATION | ROUTES if "color" not in one} <= metrics
        assert not any("color" in one for one in metrics) and not result.sheets
        assert set(result.table["tokens"]) == {"token", "prefix"}
    # However long the texts of a batch are, places are places of the text.
    assert found[0].table["value"].tolist() == pytest.approx(found[1].table["value"].tolist(), abs=1e-6)
    places = found[0].places
    assert (places["trials"] > 0).all() and places["place"].min() == 0
    first = places[(places["layer"] == "layers.0") & (places["place"] == 0)]
    assert len(first) == 8 and first["value"].sum() == pytest.approx(1) and set(first["images"]) == {24}
    assert "places-one" in found[0].plot()


def test_of_many_experts_a_sheet_shows_those_that_have_patches() -> None:
    result = api.routes([checkpoint(num_experts=20, top_k=1)], data="digits", limit=20, count=1)
    (sheet,) = result.sheets
    figure = result.plot()["sheet-1-a"]
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    expected = [
        f"expert {expert}" for marks in sheet.marks.values() for expert in np.flatnonzero(marks.sum((1, 2)))
    ]
    assert titles == expected and len(titles) < 40
