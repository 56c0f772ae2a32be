"""Who is named as most or least of several, and who is not separated from it, in experiments whose truth is known."""

import numpy as np
import pandas as pd
import pytest

from moeprobe.judging.selection import Extreme, widen_intervals
from moeprobe.metrics.stats.proportions import critical
from moeprobe.probes.precision import Precision

IMAGES, EXPERIMENTS = 100, 150


def layers(rng: np.random.Generator, truths: np.ndarray, *, shared: float = 0.1) -> pd.DataFrame:
    """Rows of layers with these truths; images are easy or hard for all layers alike, by a standard deviation."""
    values = truths + shared * rng.normal(size=(IMAGES, 1)) + 0.3 * rng.normal(size=(IMAGES, len(truths)))
    mean, reach = values.mean(0), critical(IMAGES) * values.std(0, ddof=1) / np.sqrt(IMAGES)
    names = [f"blocks.{layer}" for layer in range(len(truths))]
    rows = pd.DataFrame({"layer": names, "value": mean, "ci_low": mean - reach, "ci_high": mean + reach})
    return rows.assign(images=IMAGES, metric="top1_match_kappa")


@pytest.mark.parametrize("number", [2, pytest.param(8, marks=pytest.mark.slow), 24])
@pytest.mark.parametrize("shared", [0.0, 0.3])
def test_equal_layers_are_hardly_ever_called_separated(number: int, shared: float) -> None:
    """If all layers are equal, the named one is apart from the others, or from any of them, in at most 5 %."""
    rng = np.random.default_rng(number)
    from_any = 0
    for experiment in range(EXPERIMENTS):
        rows = layers(rng, np.full(number, 0.5), shared=shared)
        selection = Extreme.of(rows, lowest=bool(experiment % 2))
        from_any += len(selection.rivals) < number - 1
    error = np.sqrt(0.05 * 0.95 / EXPERIMENTS)
    print(f"{number} layers: {from_any / EXPERIMENTS:.3f} (error {error:.3f})")
    assert from_any / EXPERIMENTS <= 0.05 + 2 * error


def test_a_planted_layer_is_separated_from_all_others() -> None:
    """One of 24 layers is 0.4 lower: it is named, and apart, in nearly all experiments; its own neighbors are not."""
    rng = np.random.default_rng(0)
    truths = np.full(24, 0.6)
    truths[7] = 0.2
    selections = [Extreme.of(layers(rng, truths), lowest=True) for _ in range(60)]
    assert np.mean([one.row["layer"] == "blocks.7" and one.is_separated for one in selections]) > 0.95
    highest = [Extreme.of(layers(rng, truths), lowest=False) for _ in range(60)]
    assert np.mean([one.is_separated for one in highest]) <= 0.05
    assert np.mean(["blocks.7" in one.rivals for one in highest]) <= 0.05


def rows_of(*values: tuple[float, float, float]) -> pd.DataFrame:
    rows = pd.DataFrame(values, columns=["value", "ci_low", "ci_high"])
    names = [f"layers.{number}" for number in range(len(rows))]
    return rows.assign(layer=names, metric="top1_match_kappa", images=200)


def test_what_is_said_of_the_others() -> None:
    near = (0.5, 0.4, 0.6)
    assert Extreme.of(rows_of(near), lowest=True).clause() == ""
    assert Extreme.of(rows_of((0.1, 0.09, 0.11), near), lowest=True).beside() == "; separated from all others"
    many = Extreme.of(rows_of(near, *[(0.5 + at / 100, 0.4, 0.7) for at in range(1, 6)]), lowest=True)
    assert many.inserted() == " (not separated from layers.1, layers.2, layers.3 and 2 more)"
    # Without an interval of its own nothing is known; another one without any may be as extreme.
    assert Extreme.of(rows_of((0.1, np.nan, np.nan), near), lowest=True).clause() == ""
    assert Extreme.of(rows_of((0.1, 0.09, 0.11), (0.9, np.nan, np.nan)), lowest=True).rivals == ("layers.1",)
    # What has no value is none of them.
    assert Extreme.of(rows_of((0.1, 0.09, 0.11), (np.nan,) * 3), lowest=True).following is None


def test_wider_ends_stay_within_what_a_number_can_be() -> None:
    """κ may be below 0 and never above 1, a share is neither, and a loss has no upper bound."""
    rows = rows_of((0.02, -0.1, 0.14), (0.97, 0.9, 1.0))
    for metric, low, high in (
        ("top1_match_kappa", False, True),
        ("top1_match", True, True),
        ("loss", False, False),
    ):
        wide = widen_intervals(rows.assign(metric=metric))
        assert (wide["ci_low"].min() == 0, wide["ci_high"].max() == 1) == (low, high)
        assert low or wide["ci_low"].min() < -0.1


def test_the_part_that_moves_most_comes_with_those_that_move_as_much() -> None:
    shares = {"router": 0.1, "experts": 0.3, "attention": 0.31, "whole": 0.4}
    table = pd.DataFrame(
        [
            {"view": f"{part} int8", "layer": layer, "value": 1 - share * factor}
            | {"ci_low": 0.97 - share * factor, "ci_high": 1.03 - share * factor}
            for part, share in shares.items()
            for layer, factor in (("blocks.1", 0.5), ("blocks.3", 1.0))
        ]
    ).assign(
        metric="top1_match", null="", tokens="patch", checkpoint="a", severity=np.nan, draw=pd.NA, expert=pd.NA,
        images=200, trials=1000, top_k=1, flag="",
    )  # fmt: skip
    assert Precision.conclusions(table) == [
        "a, int8 (200 images, 1,000 trials): rounding all parts changes the experts of 0.200 [0.170, 0.230] (blocks.1; "
        "separated from all others) to 0.400 [0.370, 0.430] (blocks.3; separated from all others) of the patches. In "
        "blocks.3, the single part that changes most is attention: 0.310 [0.280, 0.340], not separated from experts."
    ]
    nothing = table.assign(value=1.0, ci_low=0.99, ci_high=1.0)
    assert Precision.conclusions(nothing) == [
        "a, int8 (200 images, 1,000 trials): rounding all parts changes the experts of 0.000 [0.000, 0.010] of the "
        "patches in each of 2 layers. No part alone changes any in blocks.1."
    ]
