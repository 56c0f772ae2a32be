"""Do classes with one key route share a superclass: against all orders, and in a run."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from moeprobe.inputs.data.digits import Digits
from moeprobe.probes.routes.key_routes import superclass_information
from moeprobe.probes.routes.tables import sentences
from tests.commands import Trained


@pytest.fixture(autouse=True)
def _each_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few classes, permutations are the same few orders again and again."""
    from sklearn import metrics

    score = metrics.adjusted_mutual_info_score

    @functools.cache
    def known(one: tuple[int, ...], other: tuple[int, ...]) -> float:
        return float(score(one, other))

    monkeypatch.setattr(
        metrics, "adjusted_mutual_info_score", lambda one, other: known(tuple(one), tuple(other))
    )


def entropy(one: Sequence[object]) -> float:
    return -sum(count / len(one) * math.log(count / len(one)) for count in Counter(one).values())


def information(one: Sequence[int], other: Sequence[int]) -> float:
    return entropy(one) + entropy(other) - entropy(list(zip(one, other, strict=True)))


def by_hand(one: Sequence[int], other: Sequence[int]) -> float:
    """Adjusted by the mean over every order, not by a formula."""
    chance = np.mean([information(order, other) for order in itertools.permutations(one)])
    return float((information(one, other) - chance) / ((entropy(one) + entropy(other)) / 2 - chance))


@pytest.mark.parametrize(
    "routes", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 2], [0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 0, 1]]
)
def test_information_against_all_orders(routes: list[int]) -> None:
    superclasses = [0, 0, 0, 1, 1, 1]
    found = superclass_information(np.array(routes), superclasses, seed=0)
    assert found is not None
    value, permuted = found
    assert value == pytest.approx(by_hand(superclasses, routes), abs=1e-9)
    assert permuted.shape == (1000,)
    every = [by_hand(order, routes) for order in set(itertools.permutations(superclasses))]
    assert abs(permuted.mean() - np.mean(every)) < 4 * np.std(every) / math.sqrt(1000) + 1e-9
    assert set(np.round(permuted, 9)) <= set(np.round(every, 9))


@pytest.mark.slow
@pytest.mark.promise
def test_routes_that_are_superclasses_have_all_information() -> None:
    superclasses = np.repeat(np.arange(20), 5)
    found = superclass_information(superclasses[::-1].copy(), superclasses[::-1].tolist(), seed=1)
    assert found is not None and found[0] == pytest.approx(1)
    assert found[1].max() < 0.5


@pytest.mark.parametrize("superclasses", [None, [0, 0, 0], [0, 1, 2]], ids=["none", "one", "each its own"])
def test_superclasses_that_group_nothing_are_left_out(superclasses: list[int] | None) -> None:
    assert superclass_information(np.array([1, 1, 2]), superclasses, seed=0) is None


def test_a_run_says_it(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.metrics import adjusted_mutual_info_score

    monkeypatch.setattr(Digits, "superclasses", (0, 1) * 5)
    result = api.routes([trained["baseline"]], limit=60, count=0, out=tmp_path / "r")
    routes = pd.read_csv(tmp_path / "r" / "key_routes.csv").drop_duplicates("class").sort_values("class")
    rows = result.table.set_index("metric")
    wanted = adjusted_mutual_info_score(routes["class"] % 2, routes["route"])
    assert rows.loc["route_superclass_information", "value"] == pytest.approx(wanted)
    assert rows.loc["route_superclass_information", "layer"] == "all"
    assert 0 < rows.loc["route_superclass_information_p", "value"] <= 1
    permuted = rows.loc["route_superclass_information_permuted"]
    assert permuted["ci_low"] <= 0 <= permuted["ci_high"] and abs(permuted["value"]) < 0.1
    (said,) = [sentence for sentence in sentences(result.table) if "superclasses" in sentence]
    assert said.startswith(
        "baseline: key routes follow the superclasses by an adjusted mutual information of "
    )
