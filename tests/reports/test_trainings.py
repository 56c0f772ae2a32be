"""Committed claims about trainings, against the committed differences of single seeds and the formulas by scipy."""

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from moeprobe.judging.trainings import compare_trainings
from moeprobe.metrics.analyses.output import Output
from moeprobe.metrics.stats.two_way import TwoWay
from moeprobe.probes.corruptions.measure import Mean
from moeprobe.results.packed import PackedCell
from moeprobe.results.stored import SumsStore, of_table
from moeprobe.results.summaries import About
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import concatenate, image_table
from reports.scripts import regenerate_trainings
from reports.scripts.sweep_list import COMPARED, Compared, Number
from tests.judging.test_differences import ABOUT, answered

REPORTS = Path(__file__).parents[2] / "reports"
WORDS = ("layer", "null", "view", "number", "reference")
LAYERS = ("blocks.1", "blocks.3")
# What the table of seeds calls the numbers of a view: metric of the claim (of the set for k experts), null.
NUMBERS = {
    "κ": ("{match}_kappa", "pooled"),
    "κ within image": ("{match}_kappa", "image"),
    "κ₁": ("top1_match_kappa", "pooled"),
}


def read(name: str) -> pd.DataFrame:
    return pd.read_csv(REPORTS / name, dtype=dict.fromkeys(WORDS, str)).fillna(
        dict.fromkeys(("layer", "null", "view"), "")
    )


@pytest.mark.parametrize("data", ["digits", "shapes"])
def test_a_claim_is_the_mean_of_the_seeds(data: str) -> None:
    claims, seeds = read(f"trainings/{data}.csv"), read(f"{data}/seeds.csv")
    seeds = seeds[seeds["kind"] == "difference"]
    compared = 0
    for row in claims.to_dict("records"):
        match = "top1_match" if row["top_k"] == 1 else f"top{row['top_k']}_set_match"
        names = [
            f"{row['view']}: {name}"
            for name, (metric, null) in NUMBERS.items()
            if (metric.format(match=match), null) == (row["metric"], row["null"])
        ]
        for name in ["accuracy"] if row["metric"] == "accuracy" else names:
            of_seeds = seeds[(seeds["number"] == name) & (seeds["layer"] == row["layer"])]
            of_seeds = of_seeds[of_seeds["top_k"] == row["top_k"]]
            if len(of_seeds):
                assert len(of_seeds) == row["trainings"] == 3
                assert row["value"] == pytest.approx(of_seeds["value"].mean(), abs=1e-6), name
                compared += 1
    assert compared >= 18


def test_claims_of_corruptions_are_the_means_of_the_seeds() -> None:
    claims, seeds = read("trainings/corruptions.csv"), read("corruptions/digits.csv")
    seeds = seeds[seeds["model"] == "difference"]
    means = seeds.groupby(["view", "metric", "layer"])["value"].mean()
    assert len(claims) == 72
    for row in claims.to_dict("records"):
        expected = means[row["view"], row["metric"], row["layer"]]
        assert row["value"] == pytest.approx(expected, abs=1e-6), row


def test_claims_of_attacks_are_the_means_of_the_seeds() -> None:
    claims, seeds = read("trainings/attack.csv"), read("attack/attack.csv")
    seeds = seeds[seeds["reference"].notna() & (seeds["norm"] == "linf") & (seeds["restarts"] == 0)]
    means = seeds.groupby(["view", "severity", "metric", "layer", "null"])["value"].mean()
    compared = 0
    for row in claims.to_dict("records"):
        place = row["view"], row["severity"], row["metric"], row["layer"], ""
        # At the smaller ε not every number of a seed is committed.
        if place in means:
            assert row["value"] == pytest.approx(means[place], abs=1e-4), row
            compared += 1
    assert compared >= 30


def test_claims_of_fashion_mnist_are_the_means_of_the_seeds() -> None:
    claims = read("trainings/fashion.csv")
    folders = {("prc_crops", 2): "match-ratio", ("prc_crops", 1): "match-ratio-k1"}
    for row in claims.to_dict("records"):
        of_output = "eval" if row["metric"] == "accuracy" else "routes"
        folder, values = folders.get((row["view"], row["top_k"]), of_output), []
        for seed in range(3):
            table = read(f"fashion/seed{seed}/{folder}/comparison.csv")
            rows = table[(table["metric"] == row["metric"]) & (table["layer"] == row["layer"])]
            rows = rows[(rows["null"] == row["null"]) & rows["tokens"].isin(["patch", np.nan])]
            rows = rows[rows["checkpoint"] == f"fashion-prc-k{row['top_k']}-seed{seed}"]
            values += rows["value"].tolist()
        # The run of outputs compares k = 1 with V-MoE at k = 2.
        if (row["metric"], row["top_k"]) != ("accuracy", 1):
            assert len(values) == 3 and row["value"] == pytest.approx(np.mean(values), abs=1e-5), row
    assert len(claims) == 26


@pytest.mark.parametrize(
    ("report", "seeds", "keys", "least"),
    [
        ("margins", "margins/digits-critical.csv", ["layer", "view", "severity", "metric"], 70),
        ("flips", "flips/prices.csv", ["layer", "metric"], 8),
        ("transfer", "transfer", ["group", "top_k"], 4),
        ("deformations", "deformations/digits.csv", ["top_k", "view", "metric"], 14),
    ],
)
def test_claims_of_pairs_are_the_means_of_their_seeds(
    report: str, seeds: str, keys: list[str], least: int
) -> None:
    claims = read(f"trainings/{report}.csv")
    if report == "transfer":
        parts = [read(f"transfer/{data}.csv").assign(group=data) for data in ("digits", "shapes")]
        table = pd.concat(parts)
        table = table[(table["kind"] == "difference") & (table["number"] == "accuracy")]
    else:
        table = read(seeds)
    if report == "deformations":
        # The page has the first layer, and switches of the whole model.
        claims = claims[claims["layer"].isin(["", LAYERS[0]])]
        table = table.assign(value=table["difference"])
    if report in ("margins", "flips"):
        table = table[(table["kind"] == "difference") & (table["tokens"] == "patch")]
    if "severity" in keys:  # a missing one equals nothing
        claims, table = (one.fillna({"severity": -1.0}) for one in (claims, table))
    found = table.groupby(keys)["value"].agg(["mean", "size"])
    assert len(claims) >= least
    for row in claims.to_dict("records"):
        expected = found.loc[tuple(row[key] for key in keys)]
        assert expected["size"] == row["trainings"] == 3, row
        # Another processor rounds other products to bfloat16, and a few sets of thousands change.
        tolerance = 3e-4 if row["view"] == "bfloat16" else 2e-6
        assert row["value"] == pytest.approx(expected["mean"], abs=tolerance), row


@pytest.mark.parametrize("name", list(COMPARED))
def test_claims_of_sweeps_are_the_means_of_the_seeds(name: str) -> None:
    claims, sweep = read(f"trainings/{name}.csv"), COMPARED[name]
    seeds = read(f"{REPORTS.parent / regenerate_trainings.committed(name)}/differences.csv")
    assert set(claims["group"]) == set(sweep.pairs())
    committed = {number.heading for number in sweep.numbers}
    compared = 0
    for row in claims.to_dict("records"):
        pairs = sweep.pairs()[row["group"]]
        # Differences of seeds from other references, or of what is compared over trainings alone, are not committed.
        if row["number"] in committed and all(sweep.references.get(one) == other for one, other in pairs):
            of_row = seeds[seeds["group"].isin([group for group, _ in pairs])]
            of_row = of_row[(of_row["number"] == row["number"]) & (of_row["layer"] == row["layer"])]
            assert len(of_row) == 3 * len(pairs), row
            assert row["value"] == pytest.approx(of_row["value"].mean(), abs=1e-6), row
            compared += 1
    assert compared >= min(20, len(claims)) > 0


def test_claims_of_what_measurement_changes_are_the_means_of_the_tables() -> None:
    """The same models in groups of eight images and alone, by the committed table of each."""
    claims = read("trainings/groups-digits.csv")
    own = claims[claims["group"] == "all − groups-alone-digits"].set_index(["number", "layer"])["value"]
    means = []
    for name in ("groups-digits", "groups-alone-digits"):
        table = read(f"sweeps/{name}/table.csv.gz")
        kappa = table[(table["metric"] == "weight_cosine_kappa") & (table["view"] == "random_crop")]
        kappa = kappa[(kappa["null"] == "pooled") & kappa["draw"].isna() & (kappa["tokens"] == "patch")]
        unserved = table[(table["metric"] == "unserved") & (table["view"] == "clean") & table["draw"].isna()]
        found = [rows.groupby("layer")["value"].mean() for rows in (kappa, unserved)]
        assert [len(rows) for rows in (kappa, unserved)] == [36, 36]
        means.append(found)
    for place, number in enumerate(("κ, random_crop", "patches without an expert")):
        for layer in LAYERS:
            expected = means[0][place][layer] - means[1][place][layer]
            assert own[number, layer] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("data", [*regenerate_trainings.REPORTS, *COMPARED])
def test_intervals_follow_from_the_components(data: str) -> None:
    """Variances of both samples, Satterthwaite's degrees of freedom, t, and Šidák's rule over the layers."""
    table = read(f"trainings/{data}.csv")
    family = table.columns.intersection(["top_k", "group", "view", "severity", "metric", "null"])
    table["layers"] = table.groupby(list(family), dropna=False)["value"].transform("size")
    for row in table.to_dict("records"):
        pairs, images = row["trainings"], row["images"]
        rest = row["residual_spread"] ** 2 / (pairs * images)
        of_pairs, of_images = row["spread"] ** 2 / pairs + rest, row["image_spread"] ** 2 / images + rest
        # A component below 0 is 0, and then the larger variance stands.
        variance = max(of_pairs + of_images - rest, of_pairs, of_images)
        assert row["error"] >= np.sqrt(variance) * (1 - 1e-3) or row["spread"] * row["image_spread"] == 0
        if row["spread"] > 0 and row["image_spread"] > 0:
            assert row["error"] == pytest.approx(np.sqrt(variance), rel=1e-3)
            freedom = variance**2 / (of_pairs**2 / (pairs - 1) + of_images**2 / (images - 1))
            assert row["freedom"] == pytest.approx(freedom, rel=3e-3)
        reach = stats.t.isf((1 - 0.95 ** (1 / row["layers"])) / 2, row["freedom"]) * row["error"]
        ends = row["value"] - reach, row["value"] + reach
        assert (row["sim_low"], row["sim_high"]) == pytest.approx(ends, rel=1e-3, abs=1e-5)


@pytest.mark.slow
def test_they_are_made_from_the_checkpoints() -> None:
    claims = pd.concat(regenerate_trainings.of_crops("digits", top_ks=(1,), limit=24))
    committed = read("trainings/digits.csv").query("top_k == 1")
    keys = ["layer", "view", "metric", "null"]
    assert set(map(tuple, claims[keys].values)) == set(map(tuple, committed[keys].values))


def test_a_mean_over_corruptions_has_the_influence_of_each_image_on_all_of_them() -> None:
    """A mean of accuracies is linear, so that an image's difference is the mean of those under each corruption."""
    rng = np.random.default_rng(0)
    names = [f"{kind}{seed}" for kind in "ab" for seed in range(3)]
    answers = {name: rng.random((2, 40)) < rng.uniform(0.3, 0.9) for name in names}
    parts = []
    for name, of_views in answers.items():
        sums = Accumulator()
        for view, right in zip(("fog", "snow"), of_views, strict=True):
            cell = Cell("", "", 0, view, 1.0, 0, "")
            columns = answered(0, 0.5, 40) | {"accuracy": right.astype(np.int64)}
            sums.add(cell, [f"{image:02d}" for image in range(40)], columns)
        parts.append(image_table(sums, checkpoint=name))
    mean = Mean("mean", float("nan"), (("fog", 1.0), ("snow", 1.0)))
    pairs = [(f"b{seed}", f"a{seed}") for seed in range(3)]
    table = compare_trainings(
        of_table(concatenate(parts)),
        analyses=(Output(),),
        run_info=ABOUT,
        pairs={("b", "a"): pairs},
        combine=partial(regenerate_trainings._means, means=[mean]),
    )
    table = table[table["metric"] == "accuracy"]
    assert list(table["view"]) == ["fog", "snow", "mean"]
    row = table.iloc[-1]
    expected = TwoWay.of(np.array([answers[one].mean(0) - answers[other].mean(0) for one, other in pairs]))
    found = row["value"], row["error"], row["freedom"]
    assert found == pytest.approx((expected.value, expected.error, expected.freedom), rel=1e-6)
    # A mean is a family of its own, so its simultaneous interval is its own; the two views share one.
    assert (row["sim_low"], row["sim_high"]) == pytest.approx((row["ci_low"], row["ci_high"]))
    assert table.iloc[0]["sim_high"] > table.iloc[0]["ci_high"]


# Two groups that are compared with references of their own, three seeds each.
SWEEP = Compared(
    references={"plan-a": "softmax-a", "plan-b": "softmax-b"},
    numbers=(
        Number("accuracy", "eval", "output", "accuracy"),
        Number("highest gate", "confidence", "confidence", "gate_highest", layered=True),
    ),
    means={"both": ("plan-a", "plan-b")},
    more={"plan-b": "plan-a"},
)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Sums per image of a sweep's cells, which ``of_sweep`` reads in place of packed ones."""
    rng = np.random.default_rng(3)
    groups = [*SWEEP.references, *SWEEP.references.values()]
    places = [(group, seed) for group in groups for seed in range(3)]
    sums: dict[str, dict[str, Any]] = {}
    for group, seed in places:
        tokens = rng.integers(5, 15, 40)
        shares = {layer: rng.uniform(0.3, 0.6, 40) + 0.1 * rng.random() for layer in LAYERS}
        sums[f"{group}-seed{seed}"] = {
            "accuracy": rng.random(40) < rng.uniform(0.5, 0.9),
            "tokens": tokens,
            **{layer: tokens * share for layer, share in shares.items()},
        }
    packed = {
        f"{group}-seed{seed}": PackedCell(
            about={"config": {"group": group, "seed": seed}, "router": "r"}, runs={}
        )
        for group, seed in places
    }

    def stored(out: Path, cells: list[str], folder: str, **_: Any) -> tuple[SumsStore, About]:
        tables = []
        for name in cells:
            found, sums_of_name = Accumulator(), sums[name]
            images = [f"{image:02d}" for image in range(40)]
            if folder == "eval":
                columns = answered(0, 0.5, 40) | {"accuracy": sums_of_name["accuracy"].astype(np.int64)}
                found.add(Cell("", "", 0, "clean", float("nan"), 0, ""), images, columns)
            for layer in LAYERS if folder == "confidence" else ():
                columns = {"tokens_counted": sums_of_name["tokens"], "gate_highest": sums_of_name[layer]}
                found.add(Cell(layer, "r", 1, "clean", float("nan"), 0, "patch"), images, columns)
            tables.append(image_table(found, checkpoint=name))
        return of_table(concatenate(tables)), ABOUT

    monkeypatch.setattr(regenerate_trainings, "read_pack", lambda out: packed)
    monkeypatch.setattr(regenerate_trainings, "sums_of_cells", stored)
    return sums


def crossed(of_pairs: np.ndarray) -> tuple[float, float, float]:
    """Mean of (G, n), its error over both samples and degrees of freedom, by the formulas of the page on intervals."""
    pairs, images = of_pairs.shape
    rest = of_pairs - of_pairs.mean(1, keepdims=True) - of_pairs.mean(0) + of_pairs.mean()
    left = (rest**2).sum() / ((pairs - 1) * (images - 1)) / (images * pairs)
    parts = of_pairs.mean(1).var(ddof=1) / pairs, of_pairs.mean(0).var(ddof=1) / images
    variance = max(sum(parts) - left, *parts)
    freedom = variance**2 / (parts[0] ** 2 / (pairs - 1) + parts[1] ** 2 / (images - 1))
    return of_pairs.mean(), np.sqrt(variance), freedom


def test_claims_of_a_sweep_follow_from_its_sums_per_image(made_up: dict[str, dict[str, Any]]) -> None:
    """Means over groups, an image's influence on a ratio, two variances and Šidák's rule, in a few lines of NumPy."""
    claims = pd.concat(regenerate_trainings.of_sweep(SWEEP, Path("made-up")), ignore_index=True)
    keys = claims.fillna({"layer": ""}).set_index(["group", "number", "layer"])
    places = [("accuracy", ""), *(("highest gate", layer) for layer in LAYERS)]
    groups = {
        "plan-a": [("plan-a", "softmax-a")],
        "plan-b": [("plan-b", "softmax-b")],
        "plan-b − plan-a": [("plan-b", "plan-a")],
        "both": [("plan-a", "softmax-a"), ("plan-b", "softmax-b")],
    }
    assert set(keys.index) == {(group, *place) for group in groups for place in places}

    def of_images(name: str, layer: str) -> np.ndarray:
        if not layer:
            return made_up[name]["accuracy"].astype(float)
        tokens, highest = made_up[name]["tokens"], made_up[name][layer]
        ratio = highest.sum() / tokens.sum()
        return ratio + (highest - ratio * tokens) / tokens.mean()

    for (group, pairs), (number, layer) in itertools.product(groups.items(), places):
        differences = [
            [of_images(f"{one}-seed{seed}", layer) - of_images(f"{other}-seed{seed}", layer) for one, other in pairs]
            for seed in range(3)
        ]  # fmt: skip
        value, error, freedom = crossed(np.mean(differences, axis=1))
        row = keys.loc[group, number, layer]
        assert tuple(row[["value", "error", "freedom"]]) == pytest.approx((value, error, freedom), rel=1e-6)
        confidence = 0.95 ** (1 / (1 if number == "accuracy" else len(LAYERS)))
        reach = stats.t.isf((1 - confidence) / 2, freedom) * error
        assert tuple(row[["sim_low", "sim_high"]]) == pytest.approx((value - reach, value + reach), rel=1e-6)


def test_a_sweep_without_its_sums_per_image_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(regenerate_trainings, "OUT", tmp_path)
    regenerate_trainings.main(["combine-digits"], sweeps=tmp_path / "nothing")
    assert "combine-digits stays as it is" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
