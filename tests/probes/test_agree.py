"""Two forms of one model: planted differences are found where they are, and nothing is found where there is none."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing
from moeprobe.probes.agree.records import FormPass, Records
from moeprobe.probes.agree.sentences import sentences
from moeprobe.probes.engine.batch_sums import load_batches
from moeprobe.probes.engine.run_spec import choose_images
from moeprobe.routing.record import RoutingTrace
from tests.commands import few_resamples, refused, run  # noqa: F401  # a fixture
from tests.routing import routings
from tests.routing.routings import checkpoint, digits, with_numpy_weights

pytestmark = pytest.mark.usefixtures("few_resamples")
LIMIT = 24


def agree(*models: Any, **more: Any) -> Any:
    options: dict[str, Any] = {"data": "digits", "limit": LIMIT, "figures": False}
    return api.agree(list(models), **(options | more))


def two(change: Callable[[dict[str, Tensor]], None] = lambda _: None) -> tuple[Checkpoint, Checkpoint]:
    """A model and another form of it, changed in its parameters by name."""
    pair = with_numpy_weights(checkpoint("one")), with_numpy_weights(checkpoint("other"))
    with torch.no_grad():
        for model in pair:
            # Routers as certain as trained ones, of which no two experts have a gate of zero.
            for name, parameter in cast(Vmoe, model.model).model.named_parameters():
                if ".router." in name:
                    parameter.mul_(5)
        change(dict(cast(Vmoe, pair[1].model).model.named_parameters()))
    return pair


def values(result: Any, name: str = "other") -> dict[tuple[str, str], float]:
    """By layer and metric, what a table says of ordinary tokens or of the output."""
    table = result.table
    rows = table[
        (table["checkpoint"] == name) & table["tokens"].isin(["", "patch", "token"]) & table["null"].eq("")
    ]
    return {(row["layer"], row["metric"]): row["value"] for row in rows.to_dict("records")}


def images(model: Checkpoint) -> Tensor:
    """The images of a run."""
    spec = routings.probe("clean", None, indices=choose_images(digits(), limit=LIMIT, seed=0))
    return torch.cat([batch.views[0] for batch in load_batches(spec, model, spec.indices)])


def swap_experts(layer: str, first: int, second: int) -> Callable[[dict[str, Tensor]], None]:
    """Let two experts change places in the router of a layer alone."""

    def change(parameters: dict[str, Tensor]) -> None:
        weight = parameters[f"{layer}.mlp.router.gate.weight"]
        weight[[first, second]] = weight[[second, first]]

    return change


@pytest.mark.parametrize("layer", ["blocks.1", "blocks.3"])
def test_exchanged_rows_of_a_router_change_the_tokens_that_chose_one_of_them(layer: str) -> None:
    one, other = two(swap_experts(layer, 2, 5))
    selected = one.model.trace(images(one))[1].layers[layer].selected[:, 1:]
    has = [(selected == expert).any(-1) for expert in (2, 5)]
    # A token with both, or with neither, has the same set.
    predicted = (has[0] ^ has[1]).double().mean().item()
    assert 0.05 < predicted < 0.95
    result = agree(one, other, batch_size=7)
    found = values(result)
    assert found[layer, "choice_differs"] == pytest.approx(predicted)
    # Behind the first layer that differs, other tokens may differ too.
    sets = [model.model.trace(images(model))[1].layers for model in (one, other)]
    first, last = (
        (sets[0][name].selected.sort(-1).values != sets[1][name].selected.sort(-1).values).any(-1)[:, 1:]
        for name in ("blocks.1", "blocks.3")
    )
    of_layer = first if layer == "blocks.1" else last & ~first
    share = (of_layer.sum() / (first | last).sum()).item()
    assert found[layer, "first_layer_share"] == pytest.approx(share) and share > 0.9
    if layer == "blocks.3":
        assert found["blocks.1", "choice_differs"] == 0 and found["blocks.1", "first_layer_share"] == 0
        # Every other token keeps its set, so the later half differs by all of it.
        assert found["", "differ_growth"] == pytest.approx(predicted)
        assert found["", "pairs_differ"] == pytest.approx(predicted / 2)
    margins = values(result)[layer, "margin_changed"], values(result)[layer, "margin_kept"]
    scores = (
        one.model.trace(images(one))[1].layers[layer].gates[:, 1:].double().sort(-1, descending=True).values
    )
    margin, differs = scores[..., 1] - scores[..., 2], has[0] ^ has[1]
    assert margins == pytest.approx((margin[differs].mean().item(), margin[~differs].mean().item()), rel=1e-5)
    [finding, *_] = result.leading(result)
    assert finding.startswith("other does not route like one") and "higher." in finding


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_said_to_differ_between_equal_weights(seed: int) -> None:
    one, other = two()
    same = dataclasses.replace(other, provenance=one.provenance)
    result = agree(one, same, seed=seed, batch_size=6)
    found = values(result)
    zeros = (
        "pairs_differ",
        "tokens_touched",
        "sequences_touched",
        "loss_rise",
        "loss_gap",
        "loss_gap_routing",
    )
    assert {found["", name] for name in zeros} == {0.0}
    assert {found[layer, "top2_set_match"] for layer in ("blocks.1", "blocks.3")} == {1.0}
    said = " ".join(result.leading(result))
    # As an audit calls it: 24 inputs leave κ far below 1 possible.
    assert said.startswith("other shows no change from one: the experts differ in 0.000 [0.000,")
    assert "(0 of 768)" in said and "read from the same files (sha256 hash of one)" in said
    assert "other: no log-probability changes. one against itself" in said
    assert not re.search(r"\b(higher|lower|not route|nearly|accounts)\b", said)


def test_of_few_inputs_there_is_no_word() -> None:
    """Where nothing changes, either: five images show little."""
    one, other = two()
    [finding, *_] = (few := agree(one, other, limit=5)).leading(few)
    assert finding.startswith("other against one: the experts differ in 0.000")


def test_the_largest_share_of_several_layers_need_not_be_most() -> None:
    result = agree(*two(swap_experts("blocks.1", 2, 5)))
    for share, most, than in ((0.6, "Most", ""), (0.4, "More", " than in any other layer")):
        table = result.table.copy()
        shares = table["metric"] == "first_layer_share"
        values = table.loc[shares, "layer"].map({"blocks.1": share, "blocks.3": share / 2})
        table.loc[shares, "value"] = values
        table.loc[shares, ["ci_low", "ci_high"]] = np.stack([values - 0.01, values + 0.01], axis=1)
        words = f"{most} patches that change differ first in blocks.1 (separated from all others){than}: {share:.3f} ["
        assert any(words in said for said in sentences(table, result.comparison, result.sidecar))


@pytest.mark.parametrize(("part", "share"), [("router", 1.0), ("head", 0.0)])
def test_the_price_of_another_router_is_routing_and_that_of_another_head_is_none(
    part: str, share: float
) -> None:
    # Trained, so that it matters which experts a token has.
    one, other = (api.load_model("checkpoints/reference/digits-prc-k2-seed0") for _ in range(2))
    with torch.no_grad():
        for name, parameter in cast(Vmoe, other.model).model.named_parameters():
            if f"{part}." in name and parameter.ndim > 1:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    result = agree(one, dataclasses.replace(other, name="other"), gates="replayed")
    found = values(result)
    assert found["", "loss_gap"] > 0.01
    assert found["", "loss_gap_routing_share"] == pytest.approx(share, abs=1e-5)
    assert found["", "loss_gap_arithmetic"] == pytest.approx((1 - share) * found["", "loss_gap"], abs=1e-6)
    assert found["", "loss_gap_choices"] == pytest.approx(share * found["", "loss_gap"], abs=1e-6)
    assert (found["", "pairs_differ"] > 0) == (part == "router")


def test_a_record_has_what_was_chosen_and_its_margins() -> None:
    """Of a router with absent choices, and of one without any: every gate of the latter is kept."""
    layers = {
        "few": routings.routing(4, absent=0.3),
        "experts": routings.expert_choice(4),
        "soft": routings.soft(4),
    }
    records, names = Records(), ("a", "b", "c", "d")
    records.write(names, FormPass.of(RoutingTrace(layers), torch.zeros(4, 3, 8, 8)))
    back = records.read(names)
    for name, layer in layers.items():
        found = back.routing.layers[name]
        assert torch.equal(found.selected, layer.selected) and torch.equal(found.weights, layer.weights)
        assert found.grid == layer.grid and torch.equal(found.valid, layer.valid)
    assert torch.equal(back.routing.layers["soft"].gates, layers["soft"].gates)
    assert torch.equal(back.margins["few"].isnan(), (layers["few"].selected < 0).any(-1))


def test_models_that_are_no_forms_of_one_are_refused() -> None:
    one = checkpoint("one")
    with pytest.raises(UserError, match="Name at least two forms"):
        agree(one)
    with pytest.raises(
        UserError, match="run is named twice, and agree compares the first form with itself anyway"
    ):
        agree("run", "other", "run")
    for other, words in (
        (checkpoint("two", num_experts=4), r"a token of two chooses 2 of 4 experts, and one of one 2 of 8"),
        (checkpoint("two", top_k=1), r"a token of two chooses 1 of 8 experts"),
        (
            checkpoint("two", layers=[3]),
            r"two has the MoE layers blocks.3, and one has blocks.1, blocks.3",
        ),
        (
            dataclasses.replace(checkpoint("two"), framing=Framing(32, 0.5)),
            "two crops or resizes images otherwise",
        ),
    ):
        with pytest.raises(UserError, match=words):
            agree(one, other)
    # Of one layer in common, forms can be compared.
    assert len(agree(one, checkpoint("two", layers=[3]), layers=("blocks.3",), limit=4).table)


@pytest.mark.pictures
def test_the_command(tmp_path: Path) -> None:
    source = "checkpoints/reference/digits-prc-k2-seed0"
    command = ("agree", source, f"{source},capacity=0.6", "--limit", "24", "--out", tmp_path / "agree")
    result = run(*command)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "against itself, in batches of another size" in said and "log-probabilities change by" in said
    # Where the other form drops tokens, it cannot repeat choices that all had room.
    assert "since choices cannot be repeated: The routing was made with more room" in said
    assert (tmp_path / "agree" / "figures" / "agree.png").exists()
    assert "is finished" in run(*command).output
    about = json.loads((tmp_path / "agree" / "table.json").read_text())
    assert about["request"]["gates"] == "recomputed" and len(about["checkpoints"]) == 2
    page = run("report", tmp_path / "agree", "--out", tmp_path / "page")
    assert page.exit_code == 0 and "against itself" in (tmp_path / "page" / "report.md").read_text()
    assert "takes recomputed or replayed" in refused("agree", source, f"{source},top_k=1", "--gates", "own")


def test_the_finding_goes_by_the_interval_of_all_layers() -> None:
    result = agree(*two(swap_experts("blocks.3", 2, 5)))
    for value, half_width, alone, verb in (
        (0.986, 0.003, "routes like", "routes like"),
        (0.966, 0.003, "routes nearly like", "routes nearly like"),
        (0.7, 0.2, "does not route like", "does not route like"),
        (0.98, 0.01, "routes like or nearly like", "routes like or nearly like"),
        (0.965, 0.025, "may or may not route like", "may or may not route like"),
        # The layer's own interval excludes the next band, and that for both layers does not.
        (0.9832, 0.003, "routes like", "routes like or nearly like"),
        (0.9454, 0.0044, "does not route like", "routes nearly like or unlike"),
        (0.9, float("nan"), "against", "against"),
    ):
        table = result.table.copy()
        of_kappa = (table["metric"] == "top2_set_match_kappa") & (table["null"] == "pooled")
        worst = of_kappa & (table["layer"] == "blocks.3")
        ends = ["value", "ci_low", "ci_high"]
        table.loc[of_kappa & ~worst, ends] = 0.995, 0.994, 0.996
        table.loc[worst, ends] = value, value - half_width, value + half_width
        for rows, word in ((table, verb), (table[~of_kappa | worst], alone)):
            [finding, *_] = sentences(rows, result.comparison, result.sidecar)
            assert finding.startswith(f"other {word} one: ")
