"""Critical noise and predicted flips, against a linear router, gradients, and loops over tokens."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.metrics.analyses.critical_noise import median
from moeprobe.metrics.analyses.flip_prediction import BINS, bin_name
from moeprobe.metrics.stats.of_totals import OfTotals
from moeprobe.models.nn.capture import moe_layers
from moeprobe.probes.margins import Margins
from moeprobe.probes.margins.curve import MarginDraws
from moeprobe.routing.record import LayerRouting, RoutingTrace
from tests.commands import Trained, refused, run
from tests.routing.routings import Softened, checkpoint, routing, tiny

# Intervals are asserted.
pytestmark = pytest.mark.resamples


LAYER = "router"
UNCLIPPED = "gaussian_noise,clip=false"
SIGMAS, DRAWS = (0.1, 0.3), 64


class LinearRouter:
    """A softmax router of two experts that reads the pixels of each patch of 2 × 2 pixels, and nothing else."""

    layer_names: tuple[str, ...] = (LAYER,)
    group_images = 1

    def __init__(self, seed: int = 0, *, scale: float = 1.0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.scale, self.weight = scale, scale * 0.3 * torch.randn(2, 3 * 4, generator=random)

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        patches = (
            images.unflatten(-1, (16, 2))
            .unflatten(-3, (16, 2))
            .permute(0, 2, 4, 1, 3, 5)
            .reshape(-1, 256, 12)
        )
        # A part that belongs to the place, so that margins of black patches differ.
        places = torch.linspace(-1.5, 1.5, 256)[
            torch.randperm(256, generator=torch.Generator().manual_seed(1))
        ]
        logits_of_experts = patches @ self.weight.T
        logits_of_experts[..., 0] += self.scale * places
        gates = logits_of_experts.softmax(-1)
        selected = gates.argmax(-1, keepdim=True).to(torch.int16)
        valid = torch.ones(gates.shape[:2], dtype=torch.bool)
        layer = LayerRouting(
            gates, None, selected, selected >= 0, valid, PatchGrid(16, 16, 2), 0, True, True, "linear"
        )
        return None, RoutingTrace({LAYER: layer})

    @property
    def sensitivity(self) -> float:
        """Exactly: the norm of the difference of both experts' weights."""
        return float((self.weight[0] - self.weight[1]).norm())


def linear(name: str = "linear", **arguments: Any) -> Checkpoint:
    model = LinearRouter(**arguments)
    return dataclasses.replace(checkpoint(name), model=model)


def values(table: pd.DataFrame, metric: str, **where: Any) -> pd.DataFrame:
    rows = table[table["metric"] == metric]
    for column, value in {"tokens": "patch", **where}.items():
        rows = rows[rows[column] == value]
    return rows


@pytest.fixture(scope="module")
def planted() -> pd.DataFrame:
    probe = Margins(view=UNCLIPPED, severities=list(SIGMAS), draws=DRAWS)
    return api.probe(probe, [linear()], data="digits", limit=80).table


def test_flips_of_a_linear_router_are_predicted(planted: pd.DataFrame) -> None:
    for sigma in SIGMAS:
        [error] = values(planted, "flip_ece", severity=sigma)["value"]
        [rate] = values(planted, "flip_rate", severity=sigma)["value"]
        [predicted] = values(planted, "flip_rate_predicted", severity=sigma)["value"]
        [floor] = values(planted, "flip_ece_floor", severity=sigma)["value"]
        assert error <= 0.01 and 0 < floor < 0.01
        assert predicted == pytest.approx(rate, abs=0.005)
    assert rate > 0.1, "there is something to predict"


def test_the_sensitivity_of_a_linear_router_is_the_norm_of_its_weights(planted: pd.DataFrame) -> None:
    [measured] = values(planted, "margin_sensitivity")["value"]
    # The root of a mean of R squares is 1 / 4 R too small.
    assert measured == pytest.approx(LinearRouter().sensitivity * (1 - 1 / (4 * DRAWS)), rel=0.005)


def test_larger_weights_change_margins_and_no_set() -> None:
    """What a loss does that only scales logits up: margins double, and nothing becomes more stable."""
    probe = Margins(view=UNCLIPPED, severities=list(SIGMAS), draws=2)
    table = api.probe(probe, [linear(), linear("twice", scale=2.0)], data="digits", limit=20).table
    margins = values(table, "selection_margin_logit")["value"].to_numpy()
    assert margins[1] == pytest.approx(2 * margins[0], rel=1e-5)
    for metric in ("critical_sigma_mean", "margin_over_sensitivity", "flip_rate", "flip_rate_predicted"):
        rows = values(table, metric)
        one, other = (
            rows.loc[rows["checkpoint"] == name, "value"].to_numpy() for name in ("linear", "twice")
        )
        assert len(one) and one == pytest.approx(other, rel=1e-4)
    [said] = Margins.conclusions(table)
    assert "2.00 times as large as in linear, and noise moves them 2.00 times as much" in said


def test_the_sensitivity_is_the_norm_of_the_gradient() -> None:
    model = Vmoe(tiny(top_k=2), mean=(0.5,) * 3, std=(0.25,) * 3)
    images = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    layer = "blocks.1"
    size, sigma = 100, 1e-3
    draws = MarginDraws(model.trace(images.expand(size, -1, -1, -1))[1].layers[layer])
    random = torch.Generator().manual_seed(4)
    for _ in range(6):
        noise = sigma * torch.randn(size, 3, 32, 32, generator=random)
        draws.add(model.trace(images + noise, layers=[layer], logits=False)[1].layers[layer])
    # Each image of the batch is a draw.
    measured = draws.margins(sigma).sensitivity.square().mean(0).sqrt()
    moe, logits = moe_layers(model.model)[layer], []
    handle = moe.router.register_forward_hook(lambda _module, _inputs, output: logits.append(output.logits))
    pixels = images.clone().requires_grad_()
    with torch.inference_mode(False), torch.enable_grad():
        model.model((pixels - 0.5) / 0.25)
        handle.remove()
        for token in (0, 1, 5, 11):
            ranked = logits[0].reshape(-1, logits[0].shape[-1])[token].sort(descending=True).values
            gradient = torch.autograd.grad(ranked[1] - ranked[2], pixels, retain_graph=True)[0]
            # 600 draws know a standard deviation to 3 %.
            assert float(measured[token]) == pytest.approx(float(gradient.norm()), rel=0.1)


def test_probabilities_are_students() -> None:
    clean = routing(2, num_experts=4)
    draws = MarginDraws(clean)
    noisy = [routing(2, num_experts=4, seed=seed) for seed in (1, 2, 3)]
    for one in noisy:
        draws.add(one)
    margins = draws.margins(0.5)
    logits = [one.gates.double().log() for one in (clean, *noisy)]
    for image, token in np.ndindex(*clean.valid.shape):
        order = logits[0][image, token].argsort(descending=True)
        differences = [float(one[image, token, order[1]] - one[image, token, order[2]]) for one in logits]
        margin = differences[0]
        sensitivity = math.sqrt(sum((one - margin) ** 2 for one in differences[1:]) / 3) / 0.5
        assert float(margins.margin[image, token]) == pytest.approx(margin)
        assert float(margins.sensitivity[image, token]) == pytest.approx(sensitivity)
        expected = stats.t.cdf(-margin / (0.2 * sensitivity), df=3)
        assert float(margins.probability(0.2)[image, token]) == pytest.approx(expected)
    many = dataclasses.replace(margins, draws=10**6)
    normal = special.ndtr(-(margins.critical / 0.2).numpy())
    np.testing.assert_allclose(many.probability(0.2).numpy(), normal, atol=1e-5)


def test_the_median_is_interpolated() -> None:
    levels = [0.1, 0.2, 0.4]
    for counts, expected in (
        ([10, 0, 0, 0], 0.05), ([2, 2, 4, 0], 0.2), ([1, 2, 4, 1], 0.25), ([2, 1, 1, 6], math.nan), ([5, 0, 0, 5], 0.1),
    ):  # fmt: skip
        sums = np.array([*counts, *(sum(counts) * level for level in levels)], float)[:, None]
        np.testing.assert_allclose(median(sums), [expected])


def test_influences_are_derivatives() -> None:
    random = np.random.default_rng(1)
    columns = random.integers(0, 9, (30, 7)).astype(float)
    number = OfTotals(columns, median)
    step = 1e-5
    for image in (0, 7, 29):
        weights = np.ones((30, 2))
        weights[image] += (step, -step)
        up, down = number.evaluate(weights)
        assert number.influence()[image] == pytest.approx((up - down) / (2 * step), abs=1e-6)
    assert number.influence().sum() == pytest.approx(0, abs=1e-8)


def test_a_run_agrees_with_a_loop_over_tokens() -> None:
    model, levels = checkpoint(), (0.1, 0.4)
    probe = Margins(severities=[0.0, 0.4, 0.1], draws=3)
    table = api.probe(probe, [model], data="digits", limit=16).table
    sweep = api.noise_sweep([model], data="digits", limit=16, sigmas=list(levels)).table
    for layer in ("blocks.1", "blocks.3"):
        for sigma in levels:
            [flips] = values(table, "flip_rate", layer=layer, severity=sigma)["value"]
            [match] = values(sweep, "top2_set_match", layer=layer, severity=sigma)["value"]
            assert flips == pytest.approx(1 - match), "the noise is that of a sweep"
        first, second = (
            values(table, "set_survival", layer=layer, severity=sigma)["value"].item() for sigma in levels
        )
        assert (
            second
            <= first
            == pytest.approx(1 - values(table, "flip_rate", layer=layer, severity=0.1)["value"].item())
        )
        [mean] = values(table, "critical_sigma_mean", layer=layer)["value"]
        area = 0.1 * (1 + first) / 2 + 0.3 * (first + second) / 2
        assert mean == pytest.approx(area), "the area below the survival curve"
        bins = table[
            table["tokens"].isin([bin_name(number) for number in range(BINS)]) & (table["layer"] == layer)
        ]
        assert bins[bins["metric"].eq("flip_rate") & bins["severity"].eq(0.1)]["trials"].sum() == 16 * 16


def test_a_band_holds_the_points_and_their_intervals() -> None:
    table = api.probe(Margins(severities=[0.1, 0.4], draws=2), [checkpoint()], data="digits", limit=24).table
    keys = ["layer", "tokens", "severity"]
    curves, bands = (table[table["metric"] == name] for name in ("set_survival", "set_survival_band"))
    both = curves.merge(bands, on=keys, suffixes=("", "_band"))
    assert len(both) == 4 * both["tokens"].nunique() and set(both["tokens"]) == {"patch", "prefix"}
    assert (both["value"] == both["value_band"]).all() and (both["interval_band"] == "simultaneous").all()
    assert (both["ci_low_band"] <= both["ci_low"]).all() and (both["ci_high_band"] >= both["ci_high"]).all()
    wider = (both["ci_high_band"] - both["ci_low_band"]) / (both["ci_high"] - both["ci_low"])
    assert (wider > 1.02).any() and (wider < 2).all()


@pytest.mark.parametrize(
    ("transfer", "severity"),
    [("gaussian_blur", 2.0), ("bfloat16", None), ("random_crop", None)],
)
def test_margins_are_compared_with_flips_under_others(transfer: str, severity: float | None) -> None:
    probe = Margins(severities=[0.1], draws=2, transfer=transfer, transfer_severity=severity)
    table = api.probe(probe, [checkpoint()], data="digits", limit=16).table
    rows = table[table["view"] == transfer]
    assert set(rows["metric"]) == {"flip_rate", "flip_auroc", "flip_auroc_margin"}
    assert set(rows["severity"].dropna()) == ({severity} if severity else set())
    [flips] = values(rows, "flip_rate", layer="blocks.1")["value"]
    [ranked] = values(rows, "flip_auroc", layer="blocks.1")["value"]
    assert flips < 0.9
    assert ranked > 0.5 or flips == 0 or transfer == "random_crop"


def test_any_batch_gives_the_same_numbers() -> None:
    probe = Margins(severities=[0.2], draws=2)
    tables = [
        api.probe(probe, [checkpoint()], data="digits", limit=16, batch_size=size).table for size in (16, 7)
    ]
    np.testing.assert_allclose(tables[0]["value"], tables[1]["value"], rtol=1e-4, atol=2e-3)


@pytest.mark.pictures
def test_the_command(trained: Trained, tmp_path: Path) -> None:
    options = ("--sigmas", "0.1,0.3", "--draws", "2", "--limit", "24", "--out", tmp_path / "margins")
    done = run("margins", trained["prc"], trained["baseline"], *options)
    assert "times as large as in prc, and noise moves them" in " ".join(done.stdout.split())
    assert (tmp_path / "margins/figures/margins.png").exists()
    request = json.loads((tmp_path / "margins/table.json").read_text())["request"]
    assert request["draws"] == 2 and request["severities"] == [0.1, 0.3] and request["small"] == 0.01


def test_refusals(trained: Trained) -> None:
    model = trained["prc"]
    assert "--draws takes a whole number from 2" in refused("margins", model, "--draws", "1")
    assert "--small takes a standard deviation above 0" in refused("margins", model, "--small", "0")
    assert "--view takes gaussian_noise or" in refused("margins", model, "--view", "affine")
    assert "at least one level above 0" in refused("margins", model, "--sigmas", "0")
    assert "is the noise of the run itself" in refused("margins", model, "--transfer", "gaussian_noise")
    assert "belongs to --transfer" in refused("margins", model, "--transfer-severity", "1")
    severity = ("--transfer", "bfloat16", "--transfer-severity", "1")
    assert "bfloat16 has no severity" in refused("margins", model, *severity)
    for other in (checkpoint(router="softmax_expert_choice"), checkpoint(adapter=Softened)):
        with pytest.raises(UserError, match=r"In no layer of a .* does a token's set have a margin"):
            api.probe(Margins(), [other], data="digits", limit=16)
