"""The report on attacks: which rows of a run its table keeps, and that norms and restarts are kept apart."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moeprobe.results.folder import Result
from moeprobe.runtime.files import write_csv
from reports.scripts import attack_figure, attack_tables, regenerate_attack

MODELS = ("digits-baseline-k2-seed0", "digits-prc-k2-seed0")
# Run, view, severity, accuracy of V-MoE; that of PRC is 0.1 more.
MEASURED = [
    ("answer", "attack", 0, 0.9),
    ("answer", "random_signs", 0, 0.9),
    ("answer", "attack", 4, 0.5),
    ("answer", "attack", 8, 0.1),
    ("answer", "random_signs", 8, 0.8),
    ("restarts", "attack", 4, 0.4),
    ("restarts", "random_signs", 4, 0.85),
    ("l2", "attack", 256, 0.2),
    ("l2", "random_direction", 256, 0.7),
]


def row(
    checkpoint: str, view: str, severity: float, metric: str, value: float, **where: object
) -> dict[str, object]:
    shared = {"checkpoint": checkpoint, "view": view, "severity": severity, "metric": metric, "value": value}
    shared |= {"ci_low": value, "ci_high": value, "images": 360, "trials": 360, "expert": None, "null": ""}
    return shared | {"layer": "", "tokens": ""} | where


def result(run: str) -> Result:
    values, differences = [], []
    for name, view, severity, accuracy in MEASURED:
        if name != run:
            continue
        for checkpoint, more in zip(MODELS, (0, 0.1), strict=True):
            values.append(row(checkpoint, view, severity, "accuracy", accuracy + more))
            for layer in ("blocks.1", "blocks.3"):
                patches = {"layer": layer, "tokens": "patch"}
                values.append(row(checkpoint, view, severity, "busiest_expert", 0.25, **patches))
                values.append(row(checkpoint, view, severity, "top2_set_match", 0.75, **patches))
                values += [
                    row(
                        checkpoint,
                        view,
                        severity,
                        "expert_share",
                        expert / 10,
                        **patches | {"expert": expert},
                    )
                    for expert in (0, 1)
                ]
        differences.append(row(MODELS[1], view, severity, "accuracy", 0.1) | {"reference": MODELS[0]})
    run_result = Result.__new__(Result)
    object.__setattr__(run_result, "table", pd.DataFrame(values))
    object.__setattr__(run_result, "comparison", pd.DataFrame(differences))
    return run_result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("attack")
    tables = [regenerate_attack.numbers(result(run), 0, run) for run in ("answer", "restarts", "l2")]
    write_csv(out / "attack.csv", regenerate_attack.joined(tables))
    return out


def test_clean_images_stand_there_once_and_one_expert_alone(folder: Path) -> None:
    table = attack_tables.read(folder)
    clean = table[table["view"] == "clean"]
    assert len(clean[clean["metric"] == "accuracy"]) == 3 and not (clean["metric"] == "top2_set_match").any()
    assert (table.loc[table["metric"] == "expert_share", "value"] == 0).all()


def test_single_ascents_several_and_norms_are_kept_apart(folder: Path) -> None:
    assert attack_tables.restarts(folder)[2:] == [
        "| 1 | 0.500 to 0.500 | 0.600 to 0.600 | +0.100 [+0.100, +0.100] |",
        "| 4 | 0.400 to 0.400 | 0.500 to 0.500 | +0.100 [+0.100, +0.100] |",
    ]
    linf, l2 = attack_tables.lines(folder), attack_tables.lines(folder, norm="l2")
    assert [line.split(" | ")[:3] for line in linf[2:]] == [
        ["| answer", "4", "0.500 to 0.500"],
        ["| answer", "8", "0.100 to 0.100"],
        ["| random", "4", "0.850 to 0.850"],
        ["| random", "8", "0.800 to 0.800"],
    ]
    assert [line.split(" | ")[:3] for line in l2[2:]] == [
        ["| answer", "256", "0.200 to 0.200"],
        ["| random", "256", "0.700 to 0.700"],
    ]
    for lines in (
        linf,
        l2,
        attack_tables.answers(folder),
        attack_tables.sets(folder),
        attack_tables.loads(folder),
    ):
        assert {line.count(" | ") for line in (lines[0], *lines[2:])} == {lines[1].count("---|") - 1}


def test_the_figure_has_a_point_per_model_and_attack(folder: Path) -> None:
    figure = attack_figure.draw(folder)
    places = [np.asarray(line.get_xdata()) for line in figure.axes[0].lines]
    accuracy = sorted(float(place[0]) for place in places if place.size)
    assert accuracy == pytest.approx([0.1, 0.2, 0.8, 0.9, 0.9, 1.0])
