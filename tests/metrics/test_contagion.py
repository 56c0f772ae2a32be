"""What is counted of watched tokens: by loops over them."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from moeprobe.metrics.contagion import ContagionAnalysis
from moeprobe.routing.record import LayerPair, LayerRouting
from moeprobe.runtime import catalog
from tests.routing.routings import routing

KINDS = ("batch", "token", "attention")


def analysis(kind: str) -> ContagionAnalysis:
    made: ContagionAnalysis = catalog.ANALYSES.get(f"{kind}_contagion")()
    return made


def pair(reference: LayerRouting, view: LayerRouting, *, watched: list[list[int]]) -> LayerPair:
    patches = torch.full((len(watched), 6), -1)
    for row, own in enumerate(watched):
        patches[row, own] = torch.tensor(own, dtype=torch.int64)
    return LayerPair(reference, view, patches, patches, aligned=True)


def values(kind: str, asked: LayerPair) -> dict[str, dict[str, float]]:
    found = {}
    for tokens, columns in analysis(kind).sums(asked).items():
        arrays = {name: column.numpy() for name, column in columns.items()}
        metrics = analysis(kind).estimators(arrays, aligned=True)
        found[tokens] = {metric.name: metric.statistic.evaluate(np.ones((3, 1)))[0] for metric in metrics}
        assert all((metric.trials == arrays[f"{kind}_contagion_watched"]).all() for metric in metrics)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_against_a_loop_over_tokens(kind: str, prefix: int) -> None:
    valid = torch.ones(3, prefix + 6, dtype=torch.bool)
    valid[2, -2:] = False
    one = routing(3, prefix=prefix, seed=1, num_experts=3, absent=0.3)
    two = routing(3, prefix=prefix, seed=1, num_experts=3, absent=0.3, valid=valid)
    other = routing(3, prefix=prefix, seed=2, num_experts=3, absent=0.3)
    random = torch.Generator().manual_seed(3)
    moved = (
        torch.rand(3, prefix + 6, generator=random) < 0.5
    )  # these choose otherwise, the rest may be dropped
    for name in ("gates", "selected"):
        value = getattr(two, name)
        value[moved] = getattr(other, name)[moved]
    for layer in (one, two):
        layer.processed[:] = (layer.selected >= 0) & (
            torch.rand(layer.selected.shape, generator=random) < 0.7
        )
    watched = [[0, 2, 5], [], [1, 3, 4, 5]]
    found = values(kind, pair(one, two, watched=watched))
    assert set(found) == ({"patch", "prefix"} if prefix else {"patch"})
    for tokens, metrics in found.items():
        changed, dropped, distances = [], [], []
        for image in range(3):
            own = range(prefix) if tokens == "prefix" else [prefix + patch for patch in watched[image]]
            for token in own:
                if not valid[image, token]:
                    continue
                wish, held, weights = [], [], []
                for layer in (one, two):
                    choices = layer.selected[image, token].tolist()
                    served = layer.processed[image, token].tolist()
                    wish.append({e for e in choices if e >= 0})
                    held.append({e for e, room in zip(choices, served, strict=True) if e >= 0 and room})
                    gates = layer.gates[image, token].double().numpy()
                    weights.append(np.array([gates[e] if e in held[-1] else 0 for e in range(3)]))
                changed.append(held[0] != held[1])
                dropped.append(held[0] != held[1] and wish[0] == wish[1])
                if held[0] and held[1]:
                    distances.append(jensenshannon(*weights, base=2))
                else:
                    distances.append(float(bool(held[0]) != bool(held[1])))
        assert tokens == "prefix" or (0 < sum(dropped) < sum(changed) < len(changed))
        assert metrics == {
            f"{kind}_contagion": pytest.approx(np.mean(changed)),
            f"{kind}_contagion_dropped": pytest.approx(np.mean(dropped)),
            f"{kind}_contagion_distance": pytest.approx(np.mean(distances), abs=1e-6),
        }


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_is_chosen_the_distance_stands_alone(kind: str) -> None:
    layers = [routing(3, seed=seed, selected=torch.zeros(3, 7, 0, dtype=torch.int16)) for seed in (1, 2)]
    for layer in layers:
        layer.processed.resize_(3, 7, 0)
    assert analysis(kind).applies(layers[0])
    found = values(kind, pair(layers[0], layers[1], watched=[[0, 1], [2], []]))
    rows = [(0, 1), (0, 2), (1, 3)]
    expected = np.mean([jensenshannon(*[layer.gates[row] for layer in layers], base=2) for row in rows])
    assert found["patch"] == {f"{kind}_contagion_distance": pytest.approx(expected, rel=1e-5)}


def test_padding_may_hold_anything() -> None:
    valid = torch.ones(3, 7, dtype=torch.bool)
    valid[:, 4] = False
    layers = [routing(3, seed=seed, valid=valid) for seed in (1, 2)]
    clean = values("token", pair(*layers, watched=[[0, 3, 4]] * 3))
    for layer in layers:
        layer.gates[~valid] = float("nan")
    assert values("token", pair(*layers, watched=[[0, 3, 4]] * 3)) == clean
