"""Shares of a mismatch that is rounding have no value."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from moeprobe.metrics.analyses.mismatch import MismatchAnalysis, Scores
from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.metrics.stats.linearized import linearize, linearize_all
from moeprobe.recorded.mismatch import Mismatch


@pytest.mark.parametrize(
    ("own", "flag"),
    [(0.0, "no_mismatch"), (5e-6, "no_mismatch"), (2e-5, ""), (0.1, ""), (None, "no_mismatch")],
)
def test_a_share_of_rounding_has_no_value(own: float | None, flag: str) -> None:
    """Of no mismatch, of one below its floor, and of one of a single request among many, nothing is a share."""
    random = np.random.default_rng(0)
    moved = np.full((40, 8), own or 0.0) * random.uniform(0.5, 1.5, (40, 8))
    if own is None:
        moved[0, 0] = 1.0
    server = torch.zeros(40, 8)
    scored = Scores(server, torch.from_numpy(moved).float(), torch.full((40, 8), 0.03))
    columns = {name: values.numpy() for name, values in MismatchAnalysis().sums(scored).items()}
    shares = [
        one for one in MismatchAnalysis().estimators(columns, aligned=True) if one.key[0].endswith("_share")
    ]
    resampled = Bootstrap(40, seed=0).replicate([(one.statistic, one.trials) for one in shares])
    blocks = [
        (slice(0, 20), {n: v[:20] for n, v in columns.items()}),
        (slice(20, 40), {n: v[20:] for n, v in columns.items()}),
    ]
    added, _ = linearize(lambda: blocks, 40, lambda some: MismatchAnalysis().estimators(some, aligned=True))
    for share, replicates in zip(shares, resampled, strict=True):
        for found in (replicates, added[share.key], linearize_all(share.statistic, share.trials)):
            estimate = found.interval()
            assert estimate.flag == flag and np.isnan(estimate.value) == bool(flag), share.key
    if not flag:
        assert resampled[0].interval().value == pytest.approx(1 - 0.03 / np.abs(moved).mean(), rel=1e-3)


@pytest.mark.parametrize(
    ("mismatch", "words"),
    [
        (5e-6, "This is rounding, so no share of it is routing."),
        (0.5, "This may be rounding, so its share of routing is left out."),
    ],
)
def test_a_large_mismatch_is_not_called_rounding(mismatch: float, words: str) -> None:
    """There is no share either where few requests differ so much that the interval reaches the floor."""
    parts = {
        "mismatch": mismatch,
        "mismatch_rest": 0.1,
        "mismatch_routing": 0.4,
        "mismatch_routing_share": np.nan,
    }
    row: dict[str, Any] = {"checkpoint": "a", "tokens": "", "ci_low": np.nan, "ci_high": np.nan, "images": 5}
    table = pd.DataFrame(
        [
            row | {"metric": name, "value": value, "flag": "no_mismatch" if np.isnan(value) else "few_images"}
            for name, value in parts.items()
        ]
    )
    (said,) = Mismatch.conclusions(table)
    assert said.endswith(words)
