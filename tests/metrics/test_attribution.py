"""What features and switching have in a change: against a model whose answer is known in closed form."""

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.images import Framing
from moeprobe.inputs.views.gaussian_noise import GaussianNoise
from moeprobe.metrics.analyses.attribution import CORNERS, SHARES, Attribution
from moeprobe.metrics.base import Corners
from moeprobe.metrics.stats.bootstrap import Bootstrap, Estimate
from moeprobe.probes.engine.loop import run
from moeprobe.routing.capabilities import Replayable
from moeprobe.routing.record import RoutingTrace
from tests.commands import Trained, refused
from tests.commands import run as command
from tests.results.stores import cells
from tests.routing.routings import checkpoint, probe, routing

SLOPE, STEP = 3.0, 0.5


class Switch:
    """One token, two experts: above a brightness of ``threshold`` the second, which adds STEP to the first score.

    The scores are (SLOPE · brightness + STEP · expert, 0, 0).
    """

    layer_names = ("blocks.0",)
    group_images = 1

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.replayed: list[str] = []

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        expert = (images.mean((1, 2, 3)) > self.threshold).long()
        gates = torch.nn.functional.one_hot(expert, 2).float()[:, None]
        selected = expert.view(-1, 1, 1).to(torch.int16)
        layer = routing(
            len(images), grid=(1, 1), prefix=0, gates=gates, selected=selected, processed=selected >= 0
        )
        return self._scores(images, expert), RoutingTrace({"blocks.0": layer})

    def replay(self, images: Tensor, routing: RoutingTrace, *, gates: str = "recomputed") -> Tensor:
        self.replayed.append(gates)
        return self._scores(images, routing.layers["blocks.0"].selected[:, 0, 0].long())

    def _scores(self, images: Tensor, expert: Tensor) -> Tensor:
        first = SLOPE * images.mean((1, 2, 3)) + STEP * expert
        return torch.stack([first, torch.zeros_like(first), torch.zeros_like(first)], dim=1)


def attributed(model: object, severity: float, **changes: object) -> dict[str, np.ndarray]:
    """The columns of the perturbed images' output."""
    asked = probe("noise", GaussianNoise(), severities=(0.0, severity), analyses=(Attribution(),), **changes)
    one = model if isinstance(model, Checkpoint) else Checkpoint("a", model, Framing(32))  # type: ignore[arg-type]
    images, _ = run(asked, one)
    return next(columns for _, cell, _, columns in cells(images) if cell.severity == severity)


@pytest.mark.parametrize("gates", ["recomputed", "replayed"])
def test_a_planted_switch_has_its_closed_form_effect(gates: str) -> None:
    brightness = brightness_of_digits(0.4)
    threshold = float(np.median(brightness))
    model = Switch(threshold)
    assert isinstance(model, Replayable)
    columns = attributed(model, 0.4, replayed_gates=gates)
    expert = (brightness > threshold).astype(int)
    switched = expert[0] != expert[1]
    assert 3 < switched.sum() < 27, "some switch and some do not"
    moved, jumped = (SLOPE * np.diff(brightness, axis=0)[0], STEP * np.diff(expert, axis=0)[0])
    for corner, expected in zip(CORNERS, (0 * moved, moved, jumped, moved + jumped), strict=True):
        np.testing.assert_allclose(columns[f"logit_distance_{corner}"], np.abs(expected), atol=1e-5)
    assert set(model.replayed) == {gates}
    # The first class' probability follows from the score alone; its label does not matter here.
    score = SLOPE * brightness + STEP * expert
    np.testing.assert_allclose(
        columns["class_probability_perturbed_perturbed"], np.exp(score[1]) / (np.exp(score[1]) + 2), atol=1e-6
    )
    metrics = {
        m.name: m.statistic.evaluate(np.ones((30, 1)))[0]
        for m in Attribution().estimators(columns, aligned=True)
    }
    # Where no term mixes the two, the Shapley shares are the closed forms themselves, and there is no interaction.
    add = {
        name: np.asarray(share) @ (np.arange(4) % 2 * 2.0 + np.arange(4) // 2 * 5.0)
        for name, share in SHARES.items()
    }
    assert add == {"features": 2.0, "switching": 5.0, "interaction": 0.0}
    for value in ("logit_distance", "class_probability", "accuracy"):
        change = metrics[f"{value}_perturbed_perturbed"] - metrics[f"{value}_clean_clean"]
        assert metrics[f"{value}_features"] + metrics[f"{value}_switching"] == pytest.approx(
            change, abs=1e-12
        )
    distance = {corner: columns[f"logit_distance_{corner}"].mean() for corner in CORNERS}
    assert metrics["logit_distance_switching"] == pytest.approx(
        (distance["clean_perturbed"] + distance["perturbed_perturbed"] - distance["perturbed_clean"]) / 2
    )
    assert metrics["logit_distance_interaction"] == pytest.approx(
        distance["perturbed_perturbed"] - distance["perturbed_clean"] - distance["clean_perturbed"]
    )


def brightness_of_digits(severity: float) -> np.ndarray:
    """Mean pixel of the clean and of the noisy digits ``(2, 30)``, by the view itself."""
    from moeprobe.runtime.seeds import generator
    from tests.routing.routings import digits

    found = []
    for index in range(30):
        example = digits().example(index)
        rng = generator(0, "noise", example.image_id)
        samples = GaussianNoise().perturb(
            example.image, framing=Framing(32), severities=(0, severity), rng=rng
        )
        found.append([float(sample.pixels.mean()) for sample in samples])
    # In the order of the names, as the tables are.
    order = np.argsort([digits().image_ids[index] for index in range(30)], kind="stable")
    return np.array(found).T[:, order]


def test_without_a_switch_switching_is_nothing_at_all() -> None:
    """Not small but zero: and in the same batch other images do switch."""
    columns = attributed(checkpoint(), 0.02)
    exact = columns["logit_distance_clean_perturbed"] == 0
    assert 3 <= exact.sum() < 30
    for value in ("logit_distance", "class_probability"):
        for pixels in ("clean", "perturbed"):
            one, two = (columns[f"{value}_{pixels}_{routing}"] for routing in ("clean", "perturbed"))
            assert np.array_equal(one[exact], two[exact])
            assert (one[~exact] != two[~exact]).any()


@pytest.mark.parametrize(("value", "changed"), [("accuracy", 0), ("accuracy", 1), ("class_probability", 0)])
def test_where_no_image_switched_the_effect_may_still_not_be_0(value: str, changed: int) -> None:
    """40 images: the perturbation lowers the probability in all of them, the routing alone in ``changed``."""
    rng = np.random.default_rng(0)
    corners = np.ones((4, 40)) if value == "accuracy" else 10.0 ** -rng.uniform(0, 12, (2, 40))[[0, 1, 0, 1]]
    corners[2:, :changed] = 0
    columns: dict[str, np.ndarray] = dict.fromkeys(("attributed", "attributed_labelled"), np.ones(40, int))
    for name in ("logit_distance", "class_probability", "accuracy"):
        columns |= {f"{name}_{corner}": found for corner, found in zip(CORNERS, corners, strict=True)}
    metrics = {metric.name: metric for metric in Attribution().estimators(columns, aligned=True)}
    bootstrap = Bootstrap(40, seed=0, num_resamples=200)

    def interval(name: str) -> Estimate:
        metric = metrics[f"{value}_{name}"]
        return bootstrap.replicate([(metric.statistic, metric.trials)])[0].interval()

    switching, interaction = interval("switching"), interval("interaction")
    unseen = stats.t.ppf(0.975, 39) ** 2 / (40 + stats.t.ppf(0.975, 39) ** 2)
    # Half of the four corners on either side: no more than 1 in an image, and 2 of the interaction.
    assert (interaction.low, interaction.value, interaction.high) == pytest.approx(
        (-2 * unseen, 0, 2 * unseen)
    )
    if changed == 0:
        assert (switching.low, switching.value, switching.high) == pytest.approx((-unseen, 0, unseen))
    else:
        # One image more of those that are right or wrong could have changed to either side.
        assert switching.value == -1 / 40 and switching.low < -1.5 / 40 and switching.high > 0
    # Distances have no end, so nothing says how far one could be.
    distance = metrics["logit_distance_interaction"]
    found = bootstrap.replicate([(distance.statistic, distance.trials)])[0].interval()
    assert (found.low, found.high) == (0, 0)


def test_sums_by_a_loop() -> None:
    random = torch.Generator().manual_seed(0)
    logits = tuple(torch.randn(6, 4, generator=random) for _ in CORNERS)
    labels = torch.tensor([0, 1, 2, 3, -1, 0])
    found = Attribution().sums(Corners(logits, labels))  # type: ignore[arg-type]
    for image in range(6):
        clean = logits[0][image].double().numpy()
        for corner, scores in zip(CORNERS, logits, strict=True):
            here = scores[image].double().numpy()
            chance = np.exp(here) / np.exp(here).sum()
            assert found[f"logit_distance_{corner}"][image] == pytest.approx(
                np.sqrt(((here - clean) ** 2).sum()), abs=1e-6
            )
            assert found[f"class_probability_{corner}"][image] == pytest.approx(
                chance[clean.argmax()], rel=1e-5
            )
            assert found[f"accuracy_{corner}"][image] == (here.argmax() == int(labels[image]))


@pytest.mark.slow
def test_attribution_on_the_command_line(trained: Trained) -> None:
    arguments = ("noise-sweep", *trained.values(), "--sigmas", "0,0.2", "--limit", 25, "--attribute")
    found = json.loads(command(*arguments, "--json").stdout)
    table = pd.DataFrame(found["table"]).set_index(["checkpoint", "metric", "severity"])["value"]
    for name in trained:
        assert (
            table[name, "logit_distance_clean_clean", 0.2] == 0 < table[name, "logit_distance_features", 0.2]
        )
        assert table[name, "class_probability_switching", 0.0] == 0
        # The corner of the perturbed image with its own routing is the ordinary forward.
        assert table[name, "accuracy_perturbed_perturbed", 0.2] == table[name, "accuracy", 0.2]
    assert found["sidecar"]["request"]["replayed_gates"] == "recomputed"
    assert "features" in command(*arguments).output and "switching" in command(*arguments).output
    other = json.loads(command(*arguments, "--gates", "replayed", "--json").stdout)
    assert other["table"] != found["table"]
    assert "x 4 forward passes" in command(*arguments, "--dry-run").output


def test_what_cannot_be_attributed(trained: Trained) -> None:
    moved = ("sweep", trained["prc"], "--view", "affine", "--attribute")
    assert "leaves the patches where they are" in refused(*moved)
    assert "recomputed or replayed; got 'old'" in refused(
        "noise-sweep", trained["prc"], "--attribute", "--gates", "old"
    )
