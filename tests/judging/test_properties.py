"""Verdicts of an audit, column by column: models by themselves, two models, variants, and the bands of scales."""

from collections.abc import Sequence
from typing import Any

import pytest
from scipy import stats

from moeprobe.declarations import Headline, Property, Rule
from moeprobe.declarations.kinds import audit_entry
from moeprobe.declarations.registry import of_kind
from moeprobe.judging.headlines import RunTables
from moeprobe.judging.properties import COLUMNS, UNDECIDED, Row, judge_run
from moeprobe.judging.scales import Scale
from moeprobe.judging.words import IDENTICAL, NO_INTERVAL
from moeprobe.results.folder import Result
from moeprobe.results.sidecars import Sidecar
from moeprobe.results.tables import frame
from moeprobe.studies.audit.sentences import difference_text, value_text
from tests.judging.test_headlines import collapsed, measured, with_one_expert, with_one_expert_and_two
from tests.studies.report.making import NAN, frame_of_differences, row

CROPS = "Routing under crops"
# Two intervals hold at once: their confidence is the root of 0.95.
WIDER = stats.t.isf((1 - 0.95**0.5) / 2, 359) / stats.t.isf(0.025, 359)


def declared(kind: str) -> Sequence[Property]:
    found = of_kind(kind)
    entry = None if found is None else audit_entry(found)
    assert entry is not None
    return entry.properties


def judged(
    run: RunTables, properties: Sequence[Property], *models: str, classes: int | None = 10
) -> list[Row]:
    assert run.table is not None
    result = Result(run.table, run.comparison, None, Sidecar({}))  # type: ignore[arg-type]
    commands = {item.name: f"more {item.name}" for item in properties}
    rows = judge_run(properties, result, run="run", classes=classes, commands=commands, models=models)
    assert all(set(one) == set(COLUMNS) for one in rows)
    return rows


def test_two_models_column_by_column() -> None:
    """Of a, b and b − a: the worst layer, or the largest difference, with intervals of both layers at once."""
    run = measured(["a", "b"], view="random_crop")
    assert run.comparison is not None
    run.comparison["checkpoint_value"], run.comparison["reference_value"] = 0.5, 0.4
    of_a, of_b, of_both, *collapse = judged(run, declared("match-ratio"), "a", "b")
    shared: dict[str, Any] = {
        "property": "crops",
        "title": CROPS,
        "symbol": "κ",
        "metric": "top2_set_match_kappa",
        "null": "pooled",
    }
    shared |= {
        "view": "random_crop",
        "severity": NAN,
        "images": 360,
        "trials": 5530,
        "experts": 0,
        "layers": 2,
    }
    shared |= {"variants": 1, "run": "run", "command": "more crops", "first_layer": "blocks.1"}
    for found, name, lowest, image, first in ((of_a, "a", 0.35, 0.25, 0.4), (of_b, "b", 0.45, 0.35, 0.5)):
        reach = 0.02 * WIDER
        expected = shared | {"checkpoint": name, "reference": "", "layer": "blocks.3", "value": lowest}
        expected |= {"ci_low": lowest - reach, "ci_high": lowest + reach, "of_layers": "worst"}
        expected |= {"first_value": first, "first_low": first - reach, "first_high": first + reach}
        expected |= {"beside": f"κ within the image {image:.3f}, κ₁ (first choice) {image + 0.15:.3f}"}
        expected |= {"checkpoint_value": NAN, "reference_value": NAN, "judgement": "", "verdict": "unstable"}
        expected |= {"grade": "poor", "advice": declared("match-ratio")[0].advice["unstable"]}
        assert found == pytest.approx(expected, nan_ok=True)
    expected = shared | {
        "checkpoint": "b",
        "reference": "a",
        "layer": "blocks.1",
        "value": 0.1,
        "of_layers": "largest",
    }
    expected |= {"ci_low": 0.07, "ci_high": 0.13, "first_value": 0.1, "first_low": 0.07, "first_high": 0.13}
    expected |= {"beside": "", "checkpoint_value": 0.5, "reference_value": 0.4, "grade": "", "advice": ""}
    expected |= dict.fromkeys(("verdict", "judgement"), "better in 1 of 2 layers")
    assert of_both == pytest.approx(expected, nan_ok=True)
    assert [(one["checkpoint"], one["value"], one["verdict"], one["grade"]) for one in collapse] == [
        ("a", pytest.approx(0.2), "no", "good"), ("b", pytest.approx(0.3), "no", "good"),
    ]  # fmt: skip


def test_a_difference_that_names_a_side_is_shown_before_larger_ones() -> None:
    run = measured(["a", "b"], view="random_crop")
    comparison = run.comparison
    assert comparison is not None
    is_open = comparison["layer"] == "blocks.3"
    columns = ["value", "sim_low", "sim_high", "verdict", "judgement"]
    comparison.loc[is_open, columns] = [-0.3, -0.8, 0.2, "no significant difference", ""]
    of_both = judged(run, declared("match-ratio"), "a", "b")[2]
    assert (of_both["layer"], of_both["value"], of_both["verdict"]) == (
        "blocks.1",
        0.1,
        "better in 1 of 2 layers",
    )
    comparison.loc[~is_open, ["verdict", "judgement"]] = ["no significant difference", ""]
    of_both = judged(run, declared("match-ratio"), "a", "b")[2]
    assert (of_both["layer"], of_both["value"]) == ("blocks.3", -0.3)


@pytest.mark.parametrize(
    ("words", "layer", "verdict"),
    [
        # Nothing differs in any layer: that with the most dead experts is shown.
        ((NO_INTERVAL, NO_INTERVAL, NO_INTERVAL), "blocks.3", NO_INTERVAL),
        # The verdict is that of one layer alone, so its numbers stand beside it.
        ((IDENTICAL, IDENTICAL, NO_INTERVAL), "blocks.5", NO_INTERVAL),
    ],
)
def test_of_equal_differences_that_of_the_worst_layer_with_the_verdict_is_shown(
    words: tuple[str, ...], layer: str, verdict: str
) -> None:
    dead = dict(zip(("blocks.1", "blocks.3", "blocks.5"), (0.0, 2.0, 1.0), strict=True))
    rows = [
        row(name, (layer, "patch", "dead_experts", ""), (value, value, value), view="clean")
        for name in "ab"
        for layer, value in dead.items()
    ]
    comparison = frame_of_differences(
        [
            row("b", (layer, "patch", "dead_experts", ""), (0.0, NAN, NAN), reference="a", view="clean")
            for layer in dead
        ]
    )
    comparison["checkpoint_value"] = comparison["reference_value"] = [*dead.values()]
    comparison["verdict"], comparison["judgement"] = words, ""
    run = RunTables(sidecar=measured(["a", "b"]).sidecar, table=frame(rows), comparison=comparison)
    properties = [item for item in declared("confidence") if item.name == "dead"]
    *_, of_both = judged(run, properties, "a", "b")
    assert (of_both["layer"], of_both["verdict"]) == (layer, verdict)
    assert difference_text(of_both).startswith(f"{dead[layer]:.0f} → {dead[layer]:.0f}, +0")


def test_a_collapsed_model_is_poor_and_worse() -> None:
    run = collapsed(measured(["a", "b"], view="random_crop"))
    assert run.comparison is not None
    run.comparison["verdict"], run.comparison["judgement"], run.comparison["collapsed"] = (
        "collapsed",
        "",
        "checkpoint",
    )
    _, of_b, of_both, _, chance = judged(run, declared("match-ratio"), "a", "b")
    assert (of_b["verdict"], of_b["grade"], of_b["layer"]) == ("collapsed", "poor", "blocks.1")
    assert of_b["advice"] == declared("match-ratio")[0].advice["collapsed"] != ""
    assert of_both["verdict"] == of_both["judgement"] == "worse (collapsed)"
    assert (chance["verdict"], chance["grade"]) == ("collapsed", "poor")
    assert chance["beside"] == "not separated from it by these inputs: blocks.3"


def test_kappa_of_first_choices_is_not_called_kappa() -> None:
    """Models with one expert per token and with two share the match of first choices alone."""
    values = judged(with_one_expert_and_two(), declared("match-ratio"), "a", "b")
    symbols = [(one["property"], one["symbol"], value_text(one)[:8]) for one in values]
    assert symbols == [("crops", "κ₁", "κ₁ 0.450")] * 2 + [("collapse", "chance", "chance 0")] * 2
    # Where all have one expert, its first choice is what processes a token.
    of_one = RunTables(
        sidecar=measured(["a"]).sidecar,
        table=with_one_expert(measured(["a"], view="random_crop")),
        comparison=None,
    )
    assert judged(of_one, declared("match-ratio"), "a")[0]["symbol"] == "κ"


def variants(**kappas: tuple[float, float]) -> RunTables:
    """A model whose parts are rounded: κ of either layer by variant, ± 0.001."""
    run = measured(["a"])
    rows = [
        row(
            "a",
            (layer, "patch", metric, null),
            (value, value - 0.001, value + 0.001),
            view=view.replace("_", " "),
        )
        for view, values in kappas.items()
        for layer, value in zip(("blocks.1", "blocks.3"), values, strict=True)
        for metric, null in (("top2_set_match_kappa", "pooled"), ("top2_set_match", ""))
    ]
    return RunTables(sidecar=run.sidecar, table=frame(rows), comparison=None)


@pytest.mark.parametrize(
    ("kappas", "text", "grade"),
    [
        ({"router_int8": (0.99, 0.99), "experts_int8": (0.995, 0.99)}, "safe: int8 all", "good"),
        ({"int8": (0.99, 0.99)}, "safe: int8 all", "good"),
        ({"router_int8": (0.99, 0.97), "experts_int8": (0.995, 0.99)}, "safe: int8 experts", "fair"),
        (
            {"router_int8": (0.99, 0.9), "experts_int8": (0.9, 0.9), "router_float16": (0.99, 0.99)},
            "safe: int8 none; float16 all",
            "fair",
        ),
        ({"router_int8": (0.9, 0.99)}, "safe: int8 none", "poor"),
        # An interval that reaches below the band is not in it.
        ({"router_int8": (0.99, 0.9805)}, "safe: int8 none", "poor"),
    ],
)
def test_variants_are_safe_in_every_layer_or_not(
    kappas: dict[str, tuple[float, float]], text: str, grade: str
) -> None:
    (found,) = judged(variants(**kappas), declared("precision"), "a")
    assert (found["verdict"], found["grade"], found["variants"]) == (text, grade, len(kappas))
    assert found["advice"] == declared("precision")[0].advice.get(grade, "")


def test_the_best_band_of_variants_is_the_lowest_where_that_is_good() -> None:
    rows = [
        row(
            "a",
            ("blocks.1", "patch", "flip_rate", ""),
            (value, value - 0.001, value + 0.001),
            view=f"{part} int8",
        )
        for part, value in (("router", 0.5), ("experts", 0.05))
    ]
    item = Property("low", "Low", (Headline("flip_rate"),), "price", rule=Rule.VARIANTS)
    run = RunTables(sidecar=Sidecar({}), table=frame(rows), comparison=None)
    (found,) = judged(run, [item], "a")
    assert (found["verdict"], found["grade"]) == ("negligible: int8 none", "poor")


HIGHEST = Property(
    "named", "Named", (Headline("accuracy", noun="right"), Headline("prediction_agreement", noun="kept")), "load",
    rule=Rule.HIGHEST, advice={"right": "because"},
)  # fmt: skip


def highest(right: float, kept: float, reach: float) -> Row:
    rows = [
        row("a", ("", "", metric, ""), (value, value - reach, value + reach), view="noise")
        for metric, value in (("accuracy", right), ("prediction_agreement", kept))
    ]
    (found,) = judged(RunTables(sidecar=Sidecar({}), table=frame(rows), comparison=None), [HIGHEST], "a")
    return found


def test_the_highest_number_names_the_verdict() -> None:
    found = highest(0.9, 0.8, 0.01)
    assert (found["verdict"], found["advice"], found["grade"], found["value"]) == (
        "right",
        "because",
        "",
        0.9,
    )
    assert (found["of_layers"], found["layers"], found["beside"]) == ("first", 0, "kept 0.800")
    # Two whose intervals meet, for both at once, are both named; a number without one is compared by its value.
    assert highest(0.9, 0.88, 0.0101)["verdict"] == highest(0.9, 0.878, 0.01)["verdict"] == "right or kept"
    assert highest(0.9, 0.89, NAN)["verdict"] == "right"
    # Below the first edge of the scale, none is high.
    assert highest(0.6, 0.5, 0.01)["verdict"] == "uneven"


def accuracy(
    value: float, reach: float, *, classes: int | None = 10, images: int = 360, flag: str = ""
) -> Row:
    rows = [
        row("a", ("", "", "accuracy", ""), (value, value - reach, value + reach), view="clean", flag=flag)
    ]
    table = frame(rows).assign(images=images)
    run = RunTables(sidecar=Sidecar({}), table=table, comparison=None)
    (found,) = judged(run, declared("eval"), "a", classes=classes)
    return found


def test_an_accuracy_is_judged_by_its_lower_end_and_not_without_classes() -> None:
    assert [accuracy(0.15, reach)["verdict"] for reach in (0.04, 0.0499, 0.0501)] == [
        "above chance", "above chance", "at chance",
    ]  # fmt: skip
    assert accuracy(0.15, 0.04, classes=4)["verdict"] == "at chance"
    assert [accuracy(0.9, 0.01, classes=None)[what] for what in ("verdict", "grade", "advice")] == [
        "no verdict",
        "",
        "",
    ]
    assert accuracy(0.9, 0.01, images=19)["verdict"] == "no verdict: fewer than 20 inputs"
    assert accuracy(0.9, 0.01, images=20)["verdict"] == "above chance"
    assert accuracy(NAN, NAN)["verdict"] == "no verdict"


def test_an_undecided_band_asks_for_more_inputs() -> None:
    """Between stable and moderately stable: the advice of the worse band counts if the value itself is in it."""
    item = declared("match-ratio")[0]
    worse = item.advice.get("unstable")
    assert worse
    for value, advice in ((0.51, UNDECIDED), (0.49, worse)):
        rows = [
            row(
                "a",
                ("blocks.1", "patch", metric, null),
                (value, value - 0.02, value + 0.02),
                view="random_crop",
            )
            for metric, null in (("top1_match_kappa", "pooled"), ("top1_match", ""))
        ]
        run = RunTables(sidecar=Sidecar({}), table=frame(rows), comparison=None)
        found = judged(run, [item], "a")[0]
        assert (found["verdict"], found["grade"]) == ("moderately stable to unstable", "poor")
        assert found["advice"] == advice


# Scales.


def test_a_band_begins_at_its_edge() -> None:
    scale = Scale("x", (0.25, 0.75), ("low", "medium", "high"))
    bands = [scale.bands(value, value) for value in (0.2, 0.25, 0.5, 0.75)]
    assert bands == [[0], [1], [1], [2]]
    assert scale.bands(0.2, 0.8) == [2, 0] and scale.word([2, 0]) == "high to low"
    assert [scale.grade(each) for each in ([0], [1], [2], [2, 0], [2, 1])] == [
        "poor",
        "fair",
        "good",
        "poor",
        "fair",
    ]
    assert scale.bands(0.5, 0.5, unit=2) == [1] and scale.bands(0.49, 0.49, unit=2) == [0]


def test_where_low_values_are_good_the_lowest_band_comes_first() -> None:
    scale = Scale("x", (0.25, 0.75), ("low", "medium", "high"), best="lowest")
    assert scale.bands(0.2, 0.8) == [0, 2]
    assert [scale.grade(each) for each in ([0], [1], [2], [0, 1])] == ["good", "fair", "poor", "fair"]
    assert Scale("x", (0.5,), ("no", "yes"), best="").grade([1]) == ""
    of_chance = Scale("x", (1.0,), ("no", "yes"), of_chance=True)
    assert of_chance.bands(0.05, 0.3, unit=0.1) == [0] and of_chance.bands(0.1, 0.3, unit=0.1) == [1]
