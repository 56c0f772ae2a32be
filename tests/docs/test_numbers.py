"""The numbers of the pages are those of the committed reports."""

import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from moeprobe.results.packed import read_pack
from moeprobe.studies.paper.tables import markdown
from tests.docs.pages import PAGES, ROOT, TEXT, name_of, text

FILLED = [page for page in PAGES if "<!-- from " in TEXT[page]]


def found(page: Path) -> list[tuple[str, str, str]]:
    """The blocks of a page that follow from reports: folder, name, text."""
    return re.findall(r"<!-- from ([^:\n]+): ([^\n]+) -->\n(.*?)<!-- end -->", TEXT[page], flags=re.DOTALL)


@pytest.fixture
def regenerating(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return what imports a script of ``reports`` as a module; they import one another."""
    monkeypatch.syspath_prepend(str(ROOT / "reports"))
    return importlib.import_module


@pytest.mark.parametrize("page", FILLED, ids=name_of)
def test_the_tables_of_a_page_are_those_of_the_reports(
    page: Path, regenerating: Callable[[str], Any]
) -> None:
    pages = regenerating("pages")
    assert page in pages.PAGES
    assert all(body.count("\n|") >= 2 for *_, body in found(page))
    assert pages.filled(TEXT[page]) == TEXT[page], "run: python reports/pages.py"


def test_every_table_of_the_reports_is_on_a_page(regenerating: Callable[[str], Any]) -> None:
    pages = regenerating("pages")
    every = [block for page in FILLED for block in found(page)]
    assert {folder for folder, *_ in every} == {
        "reports", "reports/digits", "reports/fashion", "reports/shapes",
        "reports/routers/digits", "reports/routers/shapes", "reports/router-times/digits",
        "reports/routers/digits-patch4", "reports/routers/digits-deep",
        "reports/router-times/digits-patch4", "reports/router-times/digits-deep",
        "reports/router-times/shapes", "reports/margins", "reports/transfer",
        "reports/sweeps/prc-ablation", "reports/sweeps/drops-digits", "reports/sweeps/labels-digits",
        "reports/sweeps/combine-digits", "reports/sweeps/groups-digits",
        "reports/sweeps/groups-alone-digits", "reports/sweeps/experts-digits", "reports/sweeps/dense-digits",
        "reports/sweeps/thesis-digits", "reports/sweeps/manual-digits",
        "reports/sweeps/mixup-digits",
        "reports/thesis", "reports/gate",
        "reports/faults", "reports/bench", "reports/attack",
        "reports/deformations",
    }  # fmt: skip
    assert {name for _, name, _ in every} == set(pages.MAKERS)


def test_a_number_that_is_changed_by_hand_is_put_right(regenerating: Callable[[str], Any]) -> None:
    pages = regenerating("pages")
    right = text("results/prc-digits-shapes.md")
    block = re.search(r"<!-- from reports/digits: the first seed -->.*?<!-- end -->", right, flags=re.DOTALL)
    assert block is not None
    wrong = right.replace(block[0], re.sub(r"0\.\d+", "0.123", block[0]))
    assert wrong != right and pages.filled(wrong) == right


@pytest.mark.parametrize("data", ["digits", "shapes"])
def test_the_papers_tables_are_those_of_the_numbers(data: str, regenerating: Callable[[str], Any]) -> None:
    folder = ROOT / "reports" / data
    table = pd.read_csv(folder / "seeds.csv").fillna({"layer": ""})
    text = markdown(
        table, pd.read_csv(folder / "load.csv"), data=data, remarks=regenerating("regenerate").REMARKS
    )
    assert (folder / "tables.md").read_text(encoding="utf-8") == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", sorted((ROOT / "reports" / "routers").iterdir()), ids=lambda path: path.name
)
def test_the_numbers_of_the_routers_are_those_of_their_reports(
    folder: Path, regenerating: Callable[[str], Any]
) -> None:
    routers = regenerating("regenerate_routers")
    table, differing = regenerating("seeds").read(folder)
    assert (folder / "tables.md").read_text(encoding="utf-8") == routers.tables(table, differing)
    # What the tables follow from is kept: sums per image, training curves, and no weights.
    cells = read_pack(folder)
    assert cells.keys() == set(table["checkpoint"])
    for cell in cells.values():
        assert cell.metrics and "noise" in cell.runs
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert len(files) < 30
    assert not list(folder.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("data", "budgets", "seeds"),
    [("digits", (1, 2), 3), ("shapes", (2,), 3), ("digits-patch4", (1, 2), 3), ("digits-deep", (1, 2), 1)],
)
def test_contrasts_of_routers_are_differences_of_means(
    data: str, budgets: tuple[int, ...], seeds: int, regenerating: Callable[[str], Any]
) -> None:
    """Of the accuracies in the table of all cells, which are over the same images, and of the paper's values.

    The two other layouts are of the paper's routers alone: without sparse token choice.
    """
    folder = ROOT / "reports" / "routers" / data
    contrasts, names = pd.read_csv(folder / "contrasts.csv"), regenerating("contrasts").CONTRASTS
    table = pd.read_csv(folder / "table.csv", low_memory=False)
    budget = table["top_k"].fillna(table["capacity_factor"])
    table = table[table["draw"].isna() & table["layer"].isna() & table["view"].eq("clean")].assign(
        budget=budget
    )
    metrics = {"accuracy": ("accuracy", None), "10-shot accuracy": ("fewshot_accuracy", 10.0)}
    assert set(contrasts["budget"]) == set(budgets)
    own = contrasts[contrasts["source"] == "seed"]
    lacking = set() if data in ("digits", "shapes") else {"token choice: sparse − softmax"}
    assert set(own["contrast"]) == set(names) - lacking
    assert len(own) == own["contrast"].nunique() * len(metrics) * len(budgets) * seeds
    for row in own.itertuples():
        metric, severity = metrics[row.measure]
        here = table[(table["metric"] == metric) & (table["budget"] == row.budget)]
        here = here[
            (here["train_seed"] == int(row.which)) & (severity is None or here["severity"] == severity)
        ]
        values = here.drop_duplicates("router").set_index("router")["value"]
        sides = [values.reindex(side).dropna() for side in names[row.contrast]]
        first, second = (sum(side) / len(side) for side in sides)
        assert row.value == pytest.approx(first - second, abs=1e-8)
        assert row.ci_low <= row.value <= row.ci_high and row.images == here["images"].iloc[0]
    # By hand, of the paper's Table 1: (43.83 + 43.65 + 43.43) / 3 − (41.23 + 41.63) / 2.
    theirs = contrasts[contrasts["source"] == "paper"]
    if 1 in budgets:
        first = theirs[(theirs["contrast"] == "expert choice − token choice") & (theirs["which"] == "B/32")]
        assert first["value"].iloc[0] == pytest.approx(0.022067, abs=1e-6)
        sinkhorn = theirs[theirs["contrast"] == "token choice: Sinkhorn − softmax"]
        assert (len(sinkhorn), (sinkhorn["value"] < 0).sum()) == (12, 3), "as the page says"


def test_folders_are_made_at_once_and_an_error_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regenerating: Callable[[str], Any]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # put back afterwards
    each, names = regenerating("at_once").each, [str(tmp_path / name) for name in "abc"]
    each(os.mkdir, names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    with pytest.raises(FileExistsError):
        each(os.mkdir, names[1:])


def test_a_difference_of_one_training_is_shown_with_its_interval(
    regenerating: Callable[[str], Any],
) -> None:
    spread = regenerating("seeds").spread
    one = pd.DataFrame({"value": [-0.0001], "ci_low": [-0.02], "ci_high": [0.03]})
    assert spread(one) == "+0.000 [-0.020, +0.030]"
    assert spread(one.assign(ci_low=float("nan"), ci_high=float("nan"))) == "+0.000"
    assert spread(pd.concat([one, one])) == "+0.000 to +0.000 (0)"


def test_prc_starves_experts_of_the_first_layer_on_digits_and_none_on_shapes() -> None:
    """As README and page say: in every seed and at either k, beyond doubt, with opposite signs of the load entropy."""
    for data, starved in (("digits", {1, 2}), ("shapes", {0})):
        table = pd.read_csv(ROOT / "reports" / data / "seeds.csv")
        dead = table[(table["number"] == "dead experts") & (table["kind"] == "value")]
        assert len(dead) == 2 * 2 * 2 * 3 and (dead["ci_low"] == dead["ci_high"]).all()
        first = (dead["layer"] == "blocks.1") & (dead["model"] == "V-MoE with PRC")
        assert set(dead[first]["value"]) == starved and not dead[~first]["value"].any()
        load = pd.read_csv(ROOT / "reports" / data / "load.csv")
        counted = (
            (load["share"] < 1 / 80)
            .groupby([load[name] for name in ("layer", "model", "top_k", "seed")])
            .sum()
        )
        found = dead.set_index(["layer", "model", "top_k", "seed"])["value"]
        assert (counted.reindex(found.index) == found).all()
    table = pd.read_csv(ROOT / "reports" / "digits" / "seeds.csv")
    difference = table[(table["number"] == "load entropy") & (table["kind"] == "difference")].set_index(
        "layer"
    )
    assert (difference.loc["blocks.1", "ci_high"] < 0).all() and (
        difference.loc["blocks.3", "value"] >= 0
    ).all()
