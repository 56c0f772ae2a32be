"""Tables 3 to 6 of the thesis, from small trainings: numbers are those of the runs; what is not trained is left out."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from moeprobe import api
from moeprobe.models import grid
from moeprobe.results import finished
from reports.scripts import regenerate_thesis, thesis_tables

ROOT = Path(__file__).parents[2]
SMALL = """
data: digits
model: {image_size: 16, depth: 1, num_experts: 5, layers: every-1, top_k: 1, noise_std: 0.0, capacity_factor: none}
views_per_image: 1
objective: {name: balanced, importance_weight: 0.0, load_weight: 0.0}
schedule: {warmup_steps: 1}
batch_size: 8
evaluate_every: 2
pipeline:
  experts: {steps: 2, route_by_class: [[1, 7], [2, 5], [3, 4], [6, 9], [8, 0]]}
  gate: {steps: 2, initialise: {keep_head: true}, freeze: ["*.experts.*"]}
"""
SWEEP = """
name: few
base: small.yaml
cells:
  - {label: manual}
  - {label: moe, stages: [experts], fixed: {pipeline.experts.route_by_class: []}}
  - {label: dense, stages: [experts], fixed: {model.layers: none, pipeline.experts.route_by_class: []}}
  - {label: priority, stages: [experts], fixed: {pipeline.experts.route_by_class: []}}
"""


@pytest.fixture(autouse=True)
def sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    (tmp_path / "few.yaml").write_text(SWEEP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def test_numbers_are_those_of_the_runs(tmp_path: Path) -> None:
    pipelines = grid.load("few.yaml").pipelines
    for name in ("manual-seed0", "moe-seed0", "dense-seed0"):
        api.train_pipeline(pipelines[name], folder=pipelines[name].folder, device="cpu")
    cells = regenerate_thesis.finished("few.yaml")
    assert [one.name for one in cells] == ["manual-seed0", "moe-seed0", "dense-seed0"]
    models = regenerate_thesis.measured(cells, regenerate_thesis.THEIRS, limit=24)
    by_group = {group: rows.set_index("number")["value"] for group, rows in models.groupby("group")}
    assert set(by_group) == {"moe", "dense"}
    where = "checkpoints/few/moe-seed0/experts"
    for number, source in (("accuracy", where), ("accuracy, experts off", f"{where},experts=off")):
        table = api.evaluate(source, limit=24, device="cpu").table
        assert by_group["moe"][number] == table.loc[table["metric"] == "accuracy", "value"].iloc[0]
    assert 0 < by_group["moe"]["variation, share"] < 1
    assert "variation" not in by_group["dense"] and "accuracy, experts off" not in by_group["dense"]
    assert by_group["dense"]["parameters"] < by_group["moe"]["parameters"]
    manual = regenerate_thesis.measured(cells, regenerate_thesis.MANUAL, limit=24)
    assert set(manual["group"]) == {"manual"}
    assert "validation accuracy with the labels" in set(manual["number"])

    for name, table in (("models", models), ("manual", manual)):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    row = models[(models["group"] == "moe") & (models["number"] == "accuracy")].iloc[0]
    own = f"{row['value']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
    found = thesis_tables.accuracy_and_variation(tmp_path)
    assert any(line.startswith(f"| MoE, dense to sparse | {own} | 0.751 |") for line in found)
    assert "| priority routing | – | 0.728 | – | 10.2 | – |" in found
    assert "| token choice | – | 0.887 | – |" in thesis_tables.manual_routing(tmp_path)


def test_without_any_training_there_are_their_values_alone(tmp_path: Path) -> None:
    assert regenerate_thesis.finished("few.yaml") == []
    made = (
        thesis_tables.accuracy_and_variation,
        thesis_tables.sizes,
        thesis_tables.without_experts,
        thesis_tables.manual_routing,
    )
    assert "0.751" in "".join(made[0](tmp_path))
    assert all(len(make(tmp_path)) > 3 for make in made)


def variation(sums: np.ndarray, weights: np.ndarray) -> float:
    """Mean over experts of variance over mean, of the sums ``(n, E)`` of images with weights: the thesis' formula."""
    share = weights / weights.sum()
    mean = share @ sums
    return float(((share @ (sums - mean) ** 2) / (mean + 1e-6)).mean())


def test_a_factor_has_the_interval_of_logarithms_over_trainings_and_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against NumPy alone: variation of the sums per image, and an image's influence by a small weight more."""
    read: list[finished.Measured] = []
    original = finished.read

    def remembered(run: Path) -> finished.Measured:
        read.append(original(run))
        return read[-1]

    monkeypatch.setattr(regenerate_thesis.finished_runs, "read", remembered)
    monkeypatch.setattr(regenerate_thesis, "REFERENCES", {"prc": "baseline"})
    cells: Any = [
        SimpleNamespace(
            folder=ROOT / "checkpoints/reference",
            stages={
                f"digits-{group}-k1-seed{seed}": SimpleNamespace(
                    group=group, seed=seed, data=SimpleNamespace(source="digits")
                )
            },
        )
        for group in ("prc", "baseline")
        for seed in range(3)
    ]
    [row] = regenerate_thesis.factors(cells, limit=24).to_dict("records")

    logarithms = []
    for measured in read:
        parts = [stored.load_all()[1] for stored in measured.sums if stored.cell.tokens == "patch"]
        layers = [columns["variation_gates"].astype(float) for columns in parts]
        assert len(layers) == 2

        def logarithm(weights: np.ndarray, layers: list[np.ndarray] = layers) -> float:
            return float(np.log(np.mean([variation(sums, weights) for sums in layers])))

        ones, step = np.ones(24), 1e-5
        slopes = [
            (logarithm(ones + step * one) - logarithm(ones - step * one)) / (2 * step) for one in np.eye(24)
        ]
        logarithms.append(logarithm(ones) + 24 * np.array(slopes))
    of_pairs = np.array(logarithms[:3]) - np.array(logarithms[3:])
    rest = of_pairs - of_pairs.mean(1, keepdims=True) - of_pairs.mean(0) + of_pairs.mean()
    left = (rest**2).sum() / (2 * 23) / (3 * 24)
    parts_of_error = of_pairs.mean(1).var(ddof=1) / 3, of_pairs.mean(0).var(ddof=1) / 24
    variance = max(sum(parts_of_error) - left, *parts_of_error)
    freedom = variance**2 / (parts_of_error[0] ** 2 / 2 + parts_of_error[1] ** 2 / 23)
    reach = stats.t.isf(0.025, freedom) * np.sqrt(variance)
    ends = np.exp(of_pairs.mean() + np.array([0, -reach, reach]))
    assert (row["value"], row["ci_low"], row["ci_high"]) == pytest.approx(tuple(ends), rel=1e-5)
    assert (row["trainings"], row["images"]) == (3, 24)
    assert row["error"] == pytest.approx(np.sqrt(variance), rel=1e-5)
