"""A run's two tables with means over its views: the means come last, and differ as their members do."""

from functools import partial

import numpy as np
import pytest

from moeprobe.judging.summarize import group_by_layer, summarize
from moeprobe.metrics.analyses.output import Output
from moeprobe.probes.corruptions.measure import Mean, mean_values
from moeprobe.results.stored import of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import concatenate, image_table
from tests.judging.test_differences import ABOUT, answered

SEVERITIES = (0.1, 0.2)
RIGHT = {("a", 0.1): 0.6, ("a", 0.2): 0.5, ("b", 0.1): 0.9, ("b", 0.2): 0.8}


def test_means_over_views_come_last_and_have_differences() -> None:
    parts, shares = [], {}
    for name in "ab":
        accumulator = Accumulator()
        for severity in SEVERITIES:
            columns = answered(round(100 * RIGHT[name, severity]), RIGHT[name, severity])
            shares[name, severity] = columns["accuracy"].mean()
            ids = [f"{image:03d}" for image in range(100)]
            accumulator.add(Cell("", "", 0, "noise", severity, 0, ""), ids, columns)
        parts.append(image_table(accumulator, checkpoint=name))
    sums = of_table(concatenate(parts))
    mean = Mean("mean", np.nan, tuple(("noise", severity) for severity in SEVERITIES))
    combine = partial(mean_values, means=[mean], baseline=None)
    table, comparison = summarize(sums, analyses=(Output(),), run_info=ABOUT, combine=combine)
    assert comparison is not None
    rows, differences = (each[each["metric"] == "accuracy"] for each in (table, comparison))
    assert rows["view"].tolist() == ["noise"] * 4 + ["mean"] * 2
    assert differences["view"].tolist() == ["noise", "noise", "mean"]
    means = {name: np.mean([shares[name, severity] for severity in SEVERITIES]) for name in "ab"}
    assert rows["value"].tolist()[4:] == pytest.approx([means["a"], means["b"]])
    assert differences["value"].iloc[-1] == pytest.approx(means["b"] - means["a"])
    # Two severities are a family; the mean over them is one of its own.
    assert differences["family_cells"].tolist() == [2, 2, 1]
    assert [len(sites) for sites in group_by_layer(sums.sites())] == [2]
