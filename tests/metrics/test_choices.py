"""Numbers about choices, against a loop over tokens, and their intervals against planted truths."""

import numpy as np
import pytest
import torch
from scipy import stats

from moeprobe.metrics.analyses.choices import ROUNDING, ChoicesAnalysis, TriedChoices
from moeprobe.metrics.declaration import Estimator
from moeprobe.metrics.stats.bootstrap import Bootstrap

DELTA = 0.05


def drawn(rng: np.random.Generator, inputs: int, *, tried: int = 7, skill: float = 0.7) -> TriedChoices:
    """Tokens of unlike weight, one to three of an input, whose losses share a part; gates know some of the quality."""
    source = np.repeat(np.arange(inputs), rng.integers(1, 4, inputs))
    shared = rng.normal(size=inputs)[source, None]
    gates = rng.normal(size=(len(source), 1 + tried))
    # The option with the highest gate is the router's choice.
    gates = -np.sort(-gates, axis=1)
    loss = 0.2 * np.exp(0.3 * shared) * (-skill * gates + rng.normal(size=gates.shape))
    return TriedChoices(
        inputs,
        torch.from_numpy(source),
        torch.from_numpy(rng.integers(1, 5, len(source)).astype(float)),
        torch.from_numpy(loss[:, 1:] - loss[:, :1]),
        torch.from_numpy(gates),
        DELTA,
    )


def estimators(subject: TriedChoices) -> dict[tuple[str, str], Estimator]:
    columns = {name: column.numpy() for name, column in ChoicesAnalysis().sums(subject).items()}
    return {(one.name, one.null): one for one in ChoicesAnalysis().estimators(columns, aligned=True)}


def values(subject: TriedChoices) -> dict[tuple[str, str], float]:
    ones = np.ones((subject.inputs, 1))
    return {key: float(one.statistic.evaluate(ones)[0]) for key, one in estimators(subject).items()}


def test_numbers_are_those_of_a_loop_over_tokens() -> None:
    subject = drawn(np.random.default_rng(0), 40)
    # A token without a label, one whose losses are all equal, and one whose gates are.
    subject.rise[3] = torch.nan
    subject.rise[5] = ROUNDING / 2
    subject.gates[7] = 0.1
    totals: dict[str, list[tuple[float, float]]] = {}

    def add(name: str, weight: float, value: float) -> None:
        totals.setdefault(name, []).append((weight, value))

    for weight, rise, gates in zip(
        subject.weight.tolist(), subject.rise.tolist(), subject.gates.tolist(), strict=True
    ):
        if any(np.isnan(rise)):
            continue
        loss = [0.0, *rise]
        regrets = [one - min(loss) for one in loss]
        add("lead", weight, sum(rise) / len(rise))
        add("regret", weight, regrets[0])
        add("regret_random", weight, sum(regrets) / len(regrets))
        add("right", weight, regrets[0] <= DELTA)
        add("right_chance", weight, sum(one <= DELTA for one in regrets) / len(regrets))
        moved = any(abs(one) > ROUNDING for one in rise)
        add("stakes", weight, moved)
        if moved:
            add("rank", weight, sum(1.0 if one > 0 else 0.0 for one in rise) / len(rise))
            if len(set(gates)) > 1:
                add("correlation", weight, stats.spearmanr(gates, [-one for one in loss]).statistic)
    expected = {
        name: sum(weight * value for weight, value in pairs) / sum(weight for weight, _ in pairs)
        for name, pairs in totals.items()
    }
    found = values(subject)
    for name in ("rank", "right", "lead", "regret", "regret_random", "correlation", "stakes"):
        assert found[f"choice_{name}", ""] == pytest.approx(expected[name]), name
    assert found["choice_rank_chance", "option"] == pytest.approx(0.5)
    assert found["choice_rank_kappa", "option"] == pytest.approx(2 * expected["rank"] - 1)
    assert found["choice_right_chance", "option"] == pytest.approx(expected["right_chance"])
    chance = expected["right_chance"]
    assert found["choice_right_kappa", "option"] == pytest.approx((expected["right"] - chance) / (1 - chance))
    assert found["choice_gain", ""] == pytest.approx(1 - expected["regret"] / expected["regret_random"])


def test_the_best_of_many_equal_choices_looks_better() -> None:
    """The winner's curse: choices that differ by chance alone have a regret, and as much as a random one's."""
    found = {}
    for tried in (2, 50):
        rng = np.random.default_rng(1)
        loss = rng.normal(size=(4000, 1 + tried))
        subject = TriedChoices(
            4000,
            torch.arange(4000),
            torch.ones(4000),
            torch.from_numpy(loss[:, 1:] - loss[:, :1]),
            torch.from_numpy(rng.random(loss.shape)),
            DELTA,
        )
        found[tried] = values(subject)
    assert found[50]["choice_regret", ""] > 2 * found[2]["choice_regret", ""] > 1
    for tried in found:
        for name, none in (("lead", 0), ("rank", 0.5), ("gain", 0), ("correlation", 0)):
            assert found[tried][f"choice_{name}", ""] == pytest.approx(none, abs=0.06), name
        assert found[tried]["choice_right_kappa", "option"] == pytest.approx(0, abs=0.05)


def test_choices_that_move_nothing_have_no_rank_and_no_gain() -> None:
    subject = drawn(np.random.default_rng(0), 40)
    subject.rise[:] = 0
    found = values(subject)
    assert ("choice_rank", "") not in found and ("choice_correlation", "") not in found
    assert found["choice_right", ""] == 1 and found["choice_regret", ""] == found["choice_stakes", ""] == 0
    assert np.isnan(found["choice_gain", ""]) and np.isnan(found["choice_right_kappa", "option"])


@pytest.fixture(scope="module")
def truth() -> dict[tuple[str, str], float]:
    return values(drawn(np.random.default_rng(12345), 100_000))


@pytest.mark.resamples
@pytest.mark.parametrize(
    ("inputs", "runs"),
    [
        (40, 400),
        pytest.param(200, 1000, marks=pytest.mark.slow),
        pytest.param(1000, 400, marks=pytest.mark.slow),
    ],
)
def test_intervals_cover(inputs: int, runs: int, truth: dict[tuple[str, str], float]) -> None:
    """Where there is an interval: means of losses that few inputs carry have none."""
    rng = np.random.default_rng(inputs)
    bootstrap = Bootstrap(inputs, seed=0)
    covered, judged = (dict.fromkeys(truth, 0) for _ in range(2))
    for _ in range(runs):
        found = estimators(drawn(rng, inputs))
        every = bootstrap.replicate(
            [(one.statistic, one.used_trials) for one in found.values()], paired=False
        )
        for key, replicates in zip(found, every, strict=True):
            interval = replicates.interval()
            covered[key] += interval.low <= truth[key] <= interval.high
            judged[key] += np.isfinite(interval.low)
    print(
        inputs, {key: (round(count / max(judged[key], 1), 3), judged[key]) for key, count in covered.items()}
    )
    for key, count in covered.items():
        error = np.sqrt(0.93 * 0.07 / max(judged[key], 1))
        assert count / max(judged[key], 1) >= 0.93 - 3 * error or judged[key] < 20, key
    assert judged["choice_rank_kappa", "option"] == judged["choice_correlation", ""] == runs
    assert inputs == 40 or min(judged.values()) > 0.95 * runs
