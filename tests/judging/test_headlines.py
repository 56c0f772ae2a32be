"""Headlines of a run: the same whether it was just measured or read back, and their sentences, word by word."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from moeprobe.declarations import headlines
from moeprobe.judging import headlines as judged_headlines
from moeprobe.judging.headlines import (
    RunTables,
    beside_sentence,
    collect_headlines,
    conclusions_of,
    headlines_of,
    sentences_of,
)
from moeprobe.results.sidecars import Sidecar
from moeprobe.results.tables import frame
from tests.studies.report.making import NAN, Value, frame_of_differences, row, sidecar

KEY = ("", "", "fewshot_accuracy", "")


def run_of(table: pd.DataFrame) -> RunTables:
    return RunTables(sidecar=sidecar("fewshot", "a"), table=table, comparison=None)


def values_in(table: pd.DataFrame) -> list[float]:
    (headline,) = collect_headlines(run_of(table), (headlines.Headline("fewshot_accuracy"),))
    return [line["value"] for line in headline.rows[headline.which]]


def test_single_draws_are_no_headline() -> None:
    together: Value = (0.5, 0.4, 0.6)
    rows = [row("a", KEY, (0.1 * draw, 0.0, 1.0), draw=draw) for draw in (1, 2)]
    in_memory = frame([row("a", KEY, together), *rows])
    assert in_memory["draw"].tolist()[1:] == [1, 2]
    assert values_in(in_memory) == [0.5]
    read_back = in_memory.assign(draw=["", "1", "2"])
    assert values_in(read_back) == [0.5]


def test_a_run_without_a_table_has_no_headline() -> None:
    run = RunTables(sidecar=sidecar("evaluate", "a"), table=None, comparison=None)
    assert collect_headlines(run, (headlines.Headline("accuracy"),)) == []


# Values of a in blocks.1, where tokens have two experts; b has 0.1 more, c 0.2, and blocks.3 0.05 less.
KAPPAS = {("top2_set_match_kappa", "pooled"): 0.4, ("top2_set_match_kappa", "image"): 0.3}
KAPPAS |= {("top1_match_kappa", "pooled"): 0.45}
VALUES = KAPPAS | {("top2_set_match", ""): 0.5, ("top2_set_match_chance", "pooled"): 0.2}
VALUES |= {("top2_set_match_chance", "image"): 0.3}
VALUES |= {("top1_match", ""): 0.6, ("top1_match_chance", "pooled"): 0.25}
LAYERS = ("blocks.1", "blocks.3")
IN_FIRST = "In blocks.1, the first MoE layer (360 images, 5,530 trials), κ is"


def measured(names: Sequence[str], layers: Sequence[str] = LAYERS, **more: Any) -> RunTables:
    """A run of crops, with differences of 0.1 in the first layer that are 0.12 less in the second."""
    rows, differences = [], []
    for order, name in enumerate(names):
        for at, layer in enumerate(layers):
            for which, value in VALUES.items():
                own = value + 0.1 * order - 0.05 * at
                rows.append(row(name, (layer, "patch", *which), (own, own - 0.02, own + 0.02), **more))
            for which in KAPPAS if order else ():
                size = 0.1 * order - 0.12 * at
                of_pair = size, size - 0.03, size + 0.03
                differences.append(row(name, (layer, "patch", *which), of_pair, reference=names[0], **more))
    comparison = frame_of_differences(differences) if differences else None
    return RunTables(sidecar=sidecar("match-ratio", names), table=frame(rows), comparison=comparison)


def told(run: RunTables) -> list[str]:
    """All that is said: of the primary number, and beside it."""
    first, *beside = headlines_of(run)
    return [*sentences_of(run, first), beside_sentence(beside)]


def test_a_single_model_in_words() -> None:
    assert told(measured(["a"])) == [
        f"{IN_FIRST}: a 0.400 [0.380, 0.420] (raw 0.500 [0.480, 0.520], by chance 0.200 [0.180, 0.220]). "
        "κ over all 2 MoE layers: a 0.350 (blocks.3, the worst; separated from all others) to 0.400 (blocks.1).",
        "Beside it in blocks.1: κ within the image: a 0.300 [0.280, 0.320]; κ₁ (first choice): a 0.450 [0.430, 0.470].",
    ]
    # A single layer has no range.
    assert told(measured(["a"], ["blocks.1"]))[0].endswith("by chance 0.200 [0.180, 0.220]).")


def test_an_overlap_of_sets_without_an_order_is_not_called_a_first_choice() -> None:
    """As of a server's experts: the second number beside κ is of the overlap."""
    run = measured(["a"], ["blocks.1"])
    assert run.table is not None
    names = run.table["metric"].str.replace("top1_match", "set_jaccard")
    unordered = RunTables(sidecar=run.sidecar, table=run.table.assign(metric=names), comparison=None)
    assert told(unordered)[1].endswith("; κ of overlap of expert sets: a 0.450 [0.430, 0.470].")


def with_one_expert(run: RunTables) -> pd.DataFrame:
    """The table of a run as if tokens had one expert."""
    assert run.table is not None
    return run.table[~run.table["metric"].str.contains("set_match")].assign(top_k=1)


def with_one_expert_and_two(*, view: str = "random_crop") -> RunTables:
    """A run in which tokens of a have one expert, and of b two."""
    of_one, of_two = (measured([name], ["blocks.1"], view=view) for name in ("a", "b"))
    assert of_two.table is not None
    both = pd.concat([with_one_expert(of_one), of_two.table.assign(top_k=2)], ignore_index=True)
    return RunTables(sidecar=sidecar("match-ratio", ["a", "b"]), table=both, comparison=None)


def test_with_different_numbers_of_experts_per_token_kappa_is_of_the_first_choice() -> None:
    assert ", κ₁ (first choice) is: a 0.450 " in told(with_one_expert_and_two())[0]
    of_one = with_one_expert(measured(["a"], ["blocks.1"]))
    of_one_expert = RunTables(sidecar=sidecar("match-ratio", ["a"]), table=of_one, comparison=None)
    assert ", κ is: a 0.450 " in told(of_one_expert)[0]


def test_two_models_in_words() -> None:
    assert told(measured(["a", "b"])) == [
        f"{IN_FIRST} higher (better) in b (0.500 [0.480, 0.520]) than in a (0.400 [0.380, 0.420]), by 0.100 [0.070, "
        "0.130]. κ over all 2 MoE layers: difference -0.020 (blocks.3) to +0.100 (blocks.1), better in 1 of 2 layers.",
        "Beside it in blocks.1: κ within the image +0.100 [+0.070, +0.130], better in 1 of 2 layers; κ₁ (first choice) "
        "+0.100 [+0.070, +0.130], better in 1 of 2 layers.",
    ]


def test_three_models_in_words() -> None:
    values = {"b": "(0.500 [0.480, 0.520])", "c": "(0.600 [0.580, 0.620])"}
    sizes = {"b": "0.100 [0.070, 0.130]", "c": "0.200 [0.170, 0.230]"}
    first, second, beside = told(measured(["a", "b", "c"]))
    against = "than in a (0.400 [0.380, 0.420]), by"
    assert first == f"{IN_FIRST} higher (better) in b {values['b']} {against} {sizes['b']}."
    assert second == (
        f"{IN_FIRST} higher (better) in c {values['c']} {against} {sizes['c']}. κ over all 2 MoE layers: "
        "b − a -0.020 (blocks.3) to +0.100 (blocks.1), better in 1 of 2 layers; "
        "c − a +0.080 (blocks.3) to +0.200 (blocks.1), better in 2 of 2 layers."
    )
    signed = {name: size.replace("0.", "+0.") for name, size in sizes.items()}
    parts = [
        f"{noun} ({name} − a) {signed[name]}, better in {number} of 2 layers"
        for noun in ("κ within the image", "κ₁ (first choice)")
        for name, number in (("b", 1), ("c", 2))
    ]
    assert beside == f"Beside it in blocks.1: {'; '.join(parts)}."


def test_what_is_open_or_of_one_choice_in_words() -> None:
    """Only first choices were measured, and the interval of their difference reaches below 0."""
    run = measured(["a", "b"], ["blocks.1"])
    assert run.table is not None and run.comparison is not None
    first_choice = run.table[run.table["metric"].str.startswith("top1")]
    judged = run.comparison[run.comparison["metric"].str.startswith("top1")]
    judged = judged.assign(sim_low=-0.01, verdict="no significant difference", judgement="")
    # A mean over layers is no layer.
    mean = first_choice.assign(layer="all", value=0.0)
    run = RunTables(sidecar=run.sidecar, table=pd.concat([first_choice, mean]), comparison=judged)
    assert told(run) == [
        "In blocks.1, the first MoE layer (360 images, 5,530 trials), b (0.550 [0.530, 0.570]) and a (0.450 [0.430, "
        "0.470]) show no significant difference in κ (+0.100 [-0.010, +0.130]), which excludes a loss above 0.010.",
        "",
    ]
    alone = RunTables(
        sidecar=run.sidecar, table=first_choice[first_choice["checkpoint"] == "a"], comparison=None
    )
    assert (
        told(alone)[0]
        == f"{IN_FIRST}: a 0.450 [0.430, 0.470] (raw 0.600 [0.580, 0.620], by chance 0.250 [0.230, 0.270])."
    )
    (bare,) = collect_headlines(alone, (headlines.Headline("top1_match_kappa", "pooled", noun="κ"),))
    assert sentences_of(alone, bare) == [f"{IN_FIRST}: a 0.450 [0.430, 0.470]."]


def collapsed(run: RunTables) -> RunTables:
    """The same run, in which b sends all tokens to one expert."""
    table, comparison = run.table, run.comparison
    assert table is not None and comparison is not None
    of_b, is_kappa = table["checkpoint"] == "b", table["metric"].str.endswith("_kappa")
    table.loc[of_b & ~is_kappa, ["value", "ci_low", "ci_high"]] = 1.0
    for rows, which in ((table, of_b & is_kappa), (comparison, comparison["checkpoint"] == "b")):
        ends = [name for name in ("value", "ci_low", "ci_high", "sim_low", "sim_high") if name in rows]
        rows.loc[which, ends] = NAN
        rows.loc[which, "flag"] = "collapsed"
    return run


def test_a_collapsed_model_in_words() -> None:
    first, second, _ = told(collapsed(measured(["a", "b"], ["blocks.1"])))
    assert first.startswith(f"{IN_FIRST}: a 0.400 [0.380, 0.420] (raw")
    assert second == (
        "In blocks.1, the first MoE layer (360 images, 5,530 trials), the router of b has collapsed: chance alone "
        "reaches 1, so its match of 1.000 says nothing about its stability, and κ does not exist."
    )


@pytest.mark.parametrize(
    ("images", "why"),
    [
        (0, "In blocks.1, the first MoE layer, there is nothing to compute κ from (no trials)."),
        (
            1,
            "In blocks.1, the first MoE layer (1 image, 5,530 trials), there is no κ: chance compares different "
            "images, and there is one alone. The raw value is: a 0.500 [0.480, 0.520].",
        ),
        (
            30,
            "In blocks.1, the first MoE layer (30 images, 5,530 trials), there is no κ: there is nothing to compute "
            "chance from (no trials). The raw value is: a 0.500 [0.480, 0.520].",
        ),
    ],
)
def test_what_nothing_could_be_counted_of_says_why(images: int, why: str) -> None:
    run = measured(["a"], ["blocks.1"], images=images)
    assert run.table is not None
    run.table.loc[run.table["metric"].str.endswith("_kappa"), "flag"] = "no_trials"
    assert told(run)[0] == why


def concluded(table: pd.DataFrame, comparison: pd.DataFrame | None, sidecar: Sidecar) -> list[str]:
    """What a kind of run may conclude with."""
    return [
        f"{len(table)} values, {0 if comparison is None else len(comparison)} differences, {sidecar.request.kind}"
    ]


def test_a_kind_concludes_with_values_differences_and_request(monkeypatch: pytest.MonkeyPatch) -> None:
    run = measured(["a", "b"], ["blocks.1"])
    assert conclusions_of(run) == []
    kind = SimpleNamespace(
        concluded_with=f"{__name__}:concluded", conclusions=lambda table: [f"{len(table)} values"]
    )
    monkeypatch.setattr(judged_headlines, "of_kind", lambda name: kind)
    assert conclusions_of(run) == ["16 values, 3 differences, match-ratio"]
    kind.concluded_with = ""
    assert conclusions_of(run) == ["16 values"]
    assert conclusions_of(RunTables(sidecar=run.sidecar, table=None, comparison=None)) == []
