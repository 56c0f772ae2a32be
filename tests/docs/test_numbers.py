"""The numbers of the pages are those of the committed reports."""

import os
import re
from pathlib import Path

import pandas as pd
import pytest

from moeprobe.studies.paper.tables import markdown
from reports.scripts import at_once, pages, regenerate, regenerate_routers
from reports.scripts.contrasts import CONTRASTS
from reports.scripts.seeds import read, spread
from tests.docs.pages import PAGES, ROOT, TEXT, name_of, text


def found(page: Path) -> list[tuple[str, str, str]]:
    """The blocks of a page that follow from reports: folder, name, text."""
    return re.findall(r"<!-- from ([^:\n]+): ([^\n]+) -->\n(.*?)<!-- end -->", TEXT[page], flags=re.DOTALL)


FILLED = [page for page in PAGES if found(page)]


@pytest.mark.parametrize("page", FILLED, ids=name_of)
def test_the_tables_of_a_page_are_those_of_the_reports(page: Path) -> None:
    assert page in pages.PAGES
    assert all(body.count("\n|") >= 2 for *_, body in found(page))
    assert pages.filled(TEXT[page]) == TEXT[page], "run: python -m reports.scripts.pages"


def test_every_table_of_the_reports_is_on_a_page() -> None:
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


def test_a_number_that_is_changed_by_hand_is_put_right() -> None:
    right = text("results/prc-digits-shapes.md")
    block = re.search(r"<!-- from reports/digits: the first seed -->.*?<!-- end -->", right, flags=re.DOTALL)
    assert block is not None
    wrong = right.replace(block[0], re.sub(r"0\.\d+", "0.123", block[0]))
    assert wrong != right and pages.filled(wrong) == right


@pytest.mark.parametrize("data", ["digits", "shapes"])
def test_the_papers_tables_are_those_of_the_numbers(data: str) -> None:
    folder = ROOT / "reports" / data
    table = pd.read_csv(folder / "seeds.csv").fillna({"layer": ""})
    text = markdown(table, pd.read_csv(folder / "load.csv"), data=data, remarks=regenerate.REMARKS)
    assert (folder / "tables.md").read_text(encoding="utf-8") == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", sorted((ROOT / "reports" / "routers").iterdir()), ids=lambda path: path.name
)
def test_the_numbers_of_the_routers_are_those_of_their_reports(folder: Path) -> None:
    table, differing = read(folder)
    assert (folder / "tables.md").read_text(encoding="utf-8") == regenerate_routers.tables(table, differing)
    assert not list(folder.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("data", "budgets", "seeds"),
    [("digits", (1, 2), 3), ("shapes", (2,), 3), ("digits-patch4", (1, 2), 3), ("digits-deep", (1, 2), 1)],
)
def test_contrasts_of_routers_are_differences_of_means(
    data: str, budgets: tuple[int, ...], seeds: int
) -> None:
    """Of the accuracies in the table of all cells, which are over the same images, and of the paper's values.

    The two other layouts are of the paper's routers alone: without sparse token choice.
    """
    folder = ROOT / "reports" / "routers" / data
    contrasts, names = pd.read_csv(folder / "contrasts.csv"), CONTRASTS
    table = pd.read_csv(folder / "table.csv.gz", low_memory=False)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # put back afterwards
    each, names = at_once.each, [str(tmp_path / name) for name in "abc"]
    each(os.mkdir, names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    with pytest.raises(FileExistsError):
        each(os.mkdir, names[1:])


def test_a_difference_of_one_training_is_shown_with_its_interval() -> None:
    one = pd.DataFrame({"value": [-0.0001], "ci_low": [-0.02], "ci_high": [0.03]})
    assert spread(one) == "+0.000 [-0.020, +0.030]"
    assert spread(one.assign(ci_low=float("nan"), ci_high=float("nan"))) == "+0.000"
    assert spread(pd.concat([one, one])) == "+0.000 to +0.000 (0)"


@pytest.mark.parametrize(
    ("data", "choices", "name", "starved"),
    [
        # With k = 1 the first choice is the only one; with k = 2 the third seed alone has dead experts.
        ("digits", "all", "dead experts", {2: [0, 0, 2], 1: [1, 1, 2]}),
        ("digits", "first", "dead as first choice", {2: [1, 1, 2]}),
        ("shapes", "all", "dead experts", {2: [0, 0, 0], 1: [0, 0, 0]}),
        ("shapes", "first", "dead as first choice", {2: [0, 0, 0]}),
    ],
)
def test_with_prc_experts_of_the_first_layer_are_hardly_ever_first_on_digits(
    data: str, choices: str, name: str, starved: dict[int, list[int]]
) -> None:
    """As the page says: in every seed and at either k, beyond doubt; dead are only some of them."""
    table = pd.read_csv(ROOT / "reports" / data / "seeds.csv")
    dead = table[(table["number"] == name) & (table["kind"] == "value")]
    assert len(dead) == 2 * 2 * 3 * len(starved) and (dead["ci_low"] == dead["ci_high"]).all()
    first = (dead["layer"] == "blocks.1") & (dead["model"] == "V-MoE with PRC")
    assert {k: rows["value"].tolist() for k, rows in dead[first].groupby("top_k")} == starved
    assert not dead[~first]["value"].any()
    load = pd.read_csv(ROOT / "reports" / data / "load.csv")
    load = load[load["choices"] == choices]
    counted = (
        (load["share"] < 1 / 80).groupby([load[key] for key in ("layer", "model", "top_k", "seed")]).sum()
    )
    found = dead.set_index(["layer", "model", "top_k", "seed"])["value"]
    assert (counted.reindex(found.index) == found).all()


def test_experts_that_are_hardly_ever_first_process_what_the_page_says() -> None:
    load = pd.read_csv(ROOT / "reports/digits/load.csv")
    load = load[(load["layer"] == "blocks.1") & (load["top_k"] == 2) & (load["model"] == "V-MoE with PRC")]
    share = load.pivot_table(index=["seed", "expert"], columns="choices", values="share")
    never_first = share[share["first"] < 1 / 80]["all"]
    assert never_first.round(3).to_dict() == {(0, 3): 0.035, (1, 5): 0.023, (2, 3): 0.009, (2, 5): 0.008}
    assert "processes 3.5 and 2.3 % of all choices" in " ".join(text("results/prc-digits-shapes.md").split())


def test_the_foreground_becomes_steadier_but_the_background_most() -> None:
    table = pd.read_csv(ROOT / "reports/shapes/seeds.csv")
    kappa = table[table["number"].str.contains("κ, ") & (table["kind"] == "difference")]
    kappa = kappa.assign(region=kappa["number"].str.rpartition(", ")[2])
    front = kappa[kappa["region"] == "foreground"]
    assert (len(front), (front["value"] > 0).sum(), (front["ci_low"] > 0).sum()) == (24, 24, 21)
    kappa = kappa.assign(view=kappa["number"].str.partition(":")[0])
    gains = kappa.pivot_table(index=["top_k", "layer", "seed", "view"], columns="region", values="value")
    assert len(gains) == 24 and (gains.idxmax(axis=1) == "background").all()
    assert set(gains.idxmin(axis=1)) == {"foreground", "boundary"}
    said = " ".join(text("results/prc-digits-shapes.md").split())
    assert "On the foreground κ rises in 24 of 24 cells" in said and "21 intervals are above zero" in said


def test_the_load_is_less_even_with_prc_in_the_first_layer_alone() -> None:
    table = pd.read_csv(ROOT / "reports" / "digits" / "seeds.csv")
    difference = table[(table["number"] == "load entropy") & (table["kind"] == "difference")].set_index(
        "layer"
    )
    assert (difference.loc["blocks.1", "ci_high"] < 0).all() and (
        difference.loc["blocks.3", "value"] >= 0
    ).all()
