"""``moeprobe routes``: planted routers from the command line, key routes against loops, files and sentences."""

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from moeprobe import api
from moeprobe.declarations.options import Options
from moeprobe.inputs.data.checkerboard import Checkerboard
from moeprobe.inputs.images import Framing
from moeprobe.metrics.stats.permutations import compare_with
from moeprobe.probes.engine.run import run as run_probe
from moeprobe.probes.routes import Routes
from moeprobe.probes.routes import key_routes as module
from moeprobe.probes.routes.key_routes import _count_routes, _distances
from moeprobe.probes.routes.tables import class_table, tables_of
from moeprobe.results.stored import of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table
from tests.commands import Trained, pictures, refused, run

# Intervals are asserted.
pytestmark = pytest.mark.resamples


PLANTED = """
import torch
from torch import nn
from moeprobe.adapters.base import Checkpoint, wanted_layers
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.images import Framing
from moeprobe.routing.record import LayerRouting, RoutingTrace


class Planted(nn.Module):
    layer_names = ("first", "last")
    group_images = 1

    def __init__(self, by):
        super().__init__()
        self.by = by

    def trace(self, images, *, layers=None, logits=True):
        patches = nn.functional.unfold(images, 8, stride=8).transpose(1, 2).unflatten(2, (3, 64))
        place = torch.arange(16).expand(len(images), 16)
        if self.by == "place":
            experts = place % 4
        elif self.by == "color":
            levels = (patches.mean(3) >= 0.5).long()
            experts = (levels * torch.tensor([1, 2, 3])).sum(2) % 4
        else:  # of the whole image and the place, to no system
            mixed = images.flatten(1).double() @ torch.arange(3072).double().sin()
            experts = ((mixed[:, None] + 12.9898 * place).sin() * 43758.5453 % 1 * 4).long().clamp(0, 3)
        selected = experts[..., None].to(torch.int16)
        routing = LayerRouting(
            gates=nn.functional.one_hot(experts, 4).float(), scores=None, selected=selected,
            processed=selected >= 0, valid=torch.ones(len(images), 16, dtype=torch.bool), grid=PatchGrid(4, 4, 8),
            num_prefix_tokens=0, gates_sum_to_one=True, token_local=True, router="planted",
        )
        return None, RoutingTrace({name: routing for name in wanted_layers(layers, self.layer_names)})


def planted(by):
    return Checkpoint(name=by, model=Planted(by), framing=Framing(32))


def place():
    return planted("place")


def color():
    return planted("color")


def hashed():
    return planted("hashed")
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.py").write_text(PLANTED)
    return folder


def probed(planted: Path, *arguments: object) -> pd.DataFrame:
    """The table of a run on the command line."""
    names = [f"py:planted:{name}" for name in ("place", "color", "hashed")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(planted)
        result = run("routes", *names, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return pd.DataFrame(json.loads(result.stdout)["table"])


def one(table: pd.DataFrame, **wanted: str) -> pd.Series:
    rows = table
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    assert len(rows) == 1
    return rows.iloc[0]


def test_planted_routers_on_digits(planted: Path) -> None:
    table = probed(planted, "--data", "digits", "--limit", 200)
    for checkpoint in ("place", "color", "hashed"):
        for layer in ("first", "last"):
            found = {
                kind: one(table, checkpoint=checkpoint, layer=layer, metric=f"{kind}_information")
                for kind in ("class", "position", "color")
            }
            if checkpoint == "place":
                assert found["position"]["value"] > 0.98
                assert found["class"]["value"] == pytest.approx(0, abs=1e-12)
                assert found["color"]["value"] == pytest.approx(0, abs=1e-12)
            elif checkpoint == "hashed":
                # Nothing of anything: intervals hold 0, and the plain information is above it all the same.
                for row in found.values():
                    assert row["ci_low"] <= 0 <= row["ci_high"] and abs(row["value"]) < 0.01
                plain = one(table, checkpoint=checkpoint, layer=layer, metric="class_information_plain")
                assert plain["value"] > 0
            else:
                assert found["color"]["ci_low"] > 0.1
    routes = table[table["metric"].str.contains("rout")]
    assert set(routes["layer"]) == {"all"} and set(routes["trials"]) == {10}
    # Every class has every place alike: one route, with permuted labels too.
    for metric, value in (("distinct_routes", 1), ("largest_route_group", 10), ("distinct_routes_p", 1)):
        assert one(routes, checkpoint="place", metric=metric)["value"] == value
    hashed = one(routes, checkpoint="hashed", metric="distinct_routes")["value"]
    permuted = one(routes, checkpoint="hashed", metric="distinct_routes_permuted")
    assert permuted["ci_low"] <= hashed <= permuted["ci_high"] and permuted["interval"] == "permutations"


@pytest.mark.slow
def test_planted_routers_on_checkerboards(planted: Path) -> None:
    table = probed(planted, "--data", "checkerboard")
    wanted = {("place", "same_place"): 1.0, ("color", "same_color"): 1.0}
    for (checkpoint, metric), value in wanted.items():
        row = one(table, checkpoint=checkpoint, layer="first", metric=metric)
        assert row["value"] == value and row["images"] == 28
        assert one(table, checkpoint=checkpoint, layer="first", metric=f"{metric}_kappa")["value"] == 1
    for metric in ("same_place_kappa", "same_color_kappa"):
        row = one(table, checkpoint="hashed", layer="first", metric=metric)
        assert row["ci_low"] <= 0 <= row["ci_high"]
    row = one(table, checkpoint="place", layer="first", metric="same_color_kappa")
    assert abs(row["value"]) < 0.2
    # Boards are no images drawn at random.
    assert not table["metric"].str.contains("information|route").any()


def test_colors_of_boards_have_the_experts_that_they_have(trained: Trained, tmp_path: Path) -> None:
    model = api.load_model(trained["prc"])
    result = api.routes([model], data="checkerboard", count=0, out=tmp_path / "r")
    assert (tmp_path / "r" / "colors.csv").exists() and "colors-prc" in result.plot()
    assert not result.routes and not (tmp_path / "r" / "key_routes.csv").exists()
    assert result.colors["ci_low"].isna().all()  # 14 boards have a color
    data, counted = Checkerboard(split="test"), dict[tuple[str, str], Counter[int]]()
    for index, name in enumerate(data.image_ids):
        pixels = Framing(32).clean(data.example(index).image).pixels[None]
        routing = api.trace(model, pixels)[1]
        pair = name.removeprefix("test/").split("-")
        for layer, decided in routing.layers.items():
            for place, expert in enumerate(decided.selected[0, 1:, 0].tolist()):
                color = pair[(place // 4 + place % 4) % 2]
                counted.setdefault((layer, color), Counter())[expert] += 1
    for row in result.colors.to_dict("records"):
        own = counted[row["layer"], row["color"]]
        assert row["trials"] == own.total() == 14 * 8 and row["images"] == 14
        assert row["value"] == pytest.approx(own[row["expert"]] / own.total())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            "checkerboard:4x8",
            "8 x 8 of 4 pixels) are not the patches of baseline (4 x 4 of 8 pixels); use --data ",
        ),
        ("checkerboard:8x8", "checkerboard:8x4"),
        ("checkerboard:", None),
        ("checkerboard:0x4", "'checkerboard' takes the side of a cell"),
    ],
)
def test_cells_that_are_no_patches_are_refused(trained: Trained, data: str, words: str | None) -> None:
    if words is None:
        assert run("routes", trained["baseline"], "--data", data).exit_code == 0
    else:
        assert words in " ".join(refused("routes", trained["baseline"], "--data", data).split())


LIMITS = ("--limit", 60, "--count", 1)


@pytest.fixture(scope="module")
def written(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run of two checkpoints, with its figures, and what it printed."""
    out = tmp_path_factory.mktemp("one") / "r"
    with pictures():
        result = run("routes", *trained.values(), *LIMITS, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.output


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
def test_it_writes_what_it_says(trained: Trained, written: tuple[Path, str], tmp_path: Path) -> None:
    folder, output = written
    words = " ".join(output.split())
    for name in trained:
        assert f"{name}: the 10 classes have " in words
        assert f"{name}, blocks.1: a token's expert says most about " in words
    classes = pd.read_csv(folder / "classes.csv", dtype={"class": str}, keep_default_na=False)
    for _, rows in classes.groupby(["checkpoint", "layer", "class"]):
        assert len(rows) == 8 and rows["value"].sum() == pytest.approx(1)
    pooled = classes[classes["class"] == ""]
    place = ["checkpoint", "layer", "expert"]
    whole = pooled.set_index(place)["value"]
    for key, rows in classes[classes["class"] != ""].groupby(place):
        together = (rows["value"] * rows["trials"]).sum() / rows["trials"].sum()
        assert together == pytest.approx(whole[key])
    places = pd.read_csv(folder / "places.csv")
    assert set(places["place"]) == set(range(16)) and (places["trials"] == 60).all()
    routes = pd.read_csv(folder / "key_routes.csv", dtype={"class": str})
    by_class = classes[classes["class"] != ""].copy()
    by_class["value"] = pd.to_numeric(by_class["value"])
    for row in routes.to_dict("records"):
        own = by_class[
            (by_class["checkpoint"] == row["checkpoint"])
            & (by_class["layer"] == row["layer"])
            & (by_class["class"] == row["class"])
        ]
        assert row["expert"] == own["value"].to_numpy().argmax() and row["share"] == own["value"].max()
    table = pd.read_csv(folder / "table.csv")
    for name, rows in routes.groupby("checkpoint"):
        known = Counter(tuple(own["expert"]) for _, own in rows.groupby("class"))
        numbers = table[table["checkpoint"] == name].set_index("metric")["value"]
        assert numbers["distinct_routes"] == len(known)
        assert numbers["largest_route_group"] == max(known.values())
    run("routes", *trained.values(), *LIMITS, "--out", tmp_path / "two" / "r")
    figures = {path.name for path in (folder / "figures").iterdir()}
    expected = {"information", "experts", "coactivation"} | {
        f"{kind}-{name}" for kind in ("classes", "class-distances", "places", "sheet-1") for name in trained
    }
    assert figures == {f"{name}.png" for name in expected}
    for path in (folder).rglob("*"):
        if path.suffix in (".csv", ".parquet", ".png"):
            again = tmp_path / "two" / "r" / path.relative_to(folder)
            assert again.read_bytes() == path.read_bytes(), path


@pytest.mark.slow
@pytest.mark.promise
def test_a_report_says_what_the_screen_says(written: tuple[Path, str]) -> None:
    document = api.report(written[0])
    assert "prc: the 10 classes have " in document.markdown
    assert "What the experts specialize in" in document.markdown and "classes-prc" in document.markdown


def test_images_of_sheets_are_named(trained: Trained) -> None:
    result = run_probe(Routes(images=("digits/0010",)), [trained["prc"]], options=Options(limit=20))
    (sheet,) = result.sheets
    assert sheet.image_id == "digits/0010" and sheet.pixels.shape == (32, 32, 3)
    for marks in sheet.marks.values():
        assert marks.shape == (8, 4, 4) and (marks.sum(0) == 1).all()
    assert "digits/9999" in refused("routes", trained["prc"], "--images", "digits/9999")
    assert "from 0 up" in refused("routes", trained["prc"], "--count", "-1")


def test_data_without_labels_have_no_classes(trained: Trained, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(25):
        pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    result = run_probe(Routes(count=0), [trained["prc"]], data=f"folder:{tmp_path}")
    metrics = set(result.table["metric"])
    assert "position_information" in metrics and "color_information" in metrics
    assert not any("class" in name or "route" in name for name in metrics)
    assert set(result.classes["class"]) == {""} and not result.routes
    assert not any("class" in name for name in result.plot())


def stored(choices: list[np.ndarray], labels: np.ndarray) -> list:
    """Cells of several layers in which image i has the experts ``choices[layer][i]`` ``(J,)``."""
    accumulator = Accumulator()
    names = [f"{number:03d}" for number in range(len(labels))]
    for layer, chosen in enumerate(choices):
        columns = {
            "label": labels,
            "experts": np.full(len(labels), 3),
            "informed_expert": chosen.astype(np.int64),
            "informed_tokens": np.full(len(labels), chosen.shape[1]),
        }
        accumulator.add(Cell(layer=f"l{layer}", top_k=1, tokens="patch"), names, columns)
    return list(of_table(image_table(accumulator, checkpoint="a")))


def routes_by_hand(choices: list[np.ndarray], labels: np.ndarray) -> list[tuple[int, ...]]:
    found = []
    for label in sorted(set(labels.tolist())):
        route = []
        for chosen in choices:
            counts = Counter({0: 0, 1: 0, 2: 0})
            for image in np.flatnonzero(labels == label):
                counts.update(chosen[image].tolist())
            route.append(min(e for e in counts if counts[e] == max(counts.values())))
        found.append(tuple(route))
    return found


def test_key_routes_and_their_permutations_against_all_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(4)
    labels = np.array([0, 1, 1, 2, 2, 0])
    choices = [random.integers(0, 3, (6, 3)) for _ in range(2)]
    cells = stored(choices, labels)
    found = module.key_routes(
        cells, [tables_of(cell, num_classes=3) for cell in cells], names=("x", "y", "z"), seed=0
    )
    assert found is not None
    by_hand = routes_by_hand(choices, labels)
    assert [tuple(route) for route in found.routes.tolist()] == by_hand
    assert (found.distinct, found.largest) == (len(set(by_hand)), max(Counter(by_hand).values()))
    every = []
    for order in itertools.permutations(range(6)):
        permuted = routes_by_hand(choices, labels[list(order)])
        every.append((len(set(permuted)), max(Counter(permuted).values())))
    truth = np.array(every)
    assert found.permuted.shape == (1000, 2)
    for column in range(2):
        error = truth[:, column].std() / math.sqrt(1000)
        assert abs(found.permuted[:, column].mean() - truth[:, column].mean()) < 4 * error
        for number in set(truth[:, column].tolist()):
            share = (truth[:, column] == number).mean()
            error = math.sqrt(share * (1 - share) / 1000)
            assert abs((found.permuted[:, column] == number).mean() - share) <= 4 * error
    # However the permutations are cut, they are the same.
    monkeypatch.setattr(module, "NUMBERS_AT_ONCE", 60)
    again = module.key_routes(
        cells, [tables_of(cell, num_classes=3) for cell in cells], names=("x", "y", "z"), seed=0
    )
    assert again is not None and (again.permuted == found.permuted).all()


def test_intervals_of_shares_are_those_of_the_ratio() -> None:
    from moeprobe.metrics.stats.linearized import linearize_all
    from moeprobe.metrics.stats.statistic import Share

    random = np.random.default_rng(0)
    labels, chosen = random.integers(0, 2, 80), random.integers(0, 3, (80, 5))
    (cell,) = stored([chosen], labels)
    table = class_table([tables_of(cell, num_classes=2)], ["x", "y"])
    for number, name in enumerate(("x", "y")):
        for expert in range(3):
            own = chosen[labels == number]
            share = Share((own == expert).sum(1).astype(float), np.full(len(own), 5.0))
            interval = linearize_all(share, np.full(len(own), 5)).interval()
            row = table[(table["class"] == name) & (table["expert"] == expert)].iloc[0]
            assert row["value"] == pytest.approx(interval.value)
            assert (row["ci_low"], row["ci_high"]) == pytest.approx((interval.low, interval.high))
            assert row["images"] == len(own)


def test_the_majority_of_an_image_is_one_expert() -> None:
    random = np.random.default_rng(1)
    labels, chosen = random.integers(0, 2, 40), random.integers(0, 3, (40, 4))
    (cell,) = stored([chosen], labels)
    table = class_table([tables_of(cell, num_classes=2)], ["x", "y"]).set_index(["class", "expert"])[
        "majority"
    ]
    most = [
        min(e for e in range(3) if list(one).count(e) == max(map(list(one).count, range(3))))
        for one in chosen
    ]
    for number, name in enumerate(("x", "y")):
        own = [expert for expert, label in zip(most, labels, strict=True) if label == number]
        for expert in range(3):
            assert table[name, expert] == pytest.approx(own.count(expert) / len(own))


@pytest.mark.parametrize("classes", [5, 80])
def test_routes_are_counted(classes: int) -> None:
    routes = np.random.default_rng(0).integers(0, 2, (3, classes, 3))
    for drawn, distinct, largest in zip(routes, *_count_routes(routes), strict=True):
        known = Counter(map(tuple, drawn.tolist()))
        assert (distinct, largest) == (len(known), max(known.values()))


def test_distances_are_those_of_scipy() -> None:
    from scipy.spatial.distance import jensenshannon

    shares = np.random.default_rng(0).dirichlet([0.3] * 6, size=5)
    shares[1] = shares[0]
    found = _distances(shares)
    for i, j in np.ndindex(found.shape):
        assert found[i, j] == pytest.approx(jensenshannon(shares[i], shares[j], base=2), abs=1e-6)
    assert found[0, 1] == 0


def test_p_counts_the_observed_one() -> None:
    values = np.array([1, 2, 2, 3] * 25)
    assert compare_with(values, 3, fewer=False) == (2.0, 1.0, 3.0, 26 / 101)
    assert compare_with(values, 1, fewer=True)[3] == 26 / 101
    assert compare_with(values, 9, fewer=False)[3] == 1 / 101


def test_finished_runs_are_compared(written: tuple[Path, str], tmp_path: Path) -> None:
    result = run("compare", written[0], "--out", tmp_path / "c")
    assert result.exit_code == 0, result.output
    found = pd.read_csv(tmp_path / "c" / "comparison.csv")
    rows = found[found["metric"] == "class_information"]
    assert set(rows["layer"]) == {"blocks.1", "blocks.3"} and rows["sim_low"].notna().all()


@pytest.mark.slow
@pytest.mark.promise
def test_a_run_goes_on_where_it_stopped(trained: Trained, tmp_path: Path) -> None:
    """Part files hold the sums; what follows from all layers is computed from them again."""
    arguments = ("routes", trained["prc"], "--limit", 40, "--count", 0, "--out", tmp_path / "r")
    assert run(*arguments).exit_code == 0
    before = (tmp_path / "r" / "table.csv").read_bytes()
    (tmp_path / "r" / "table.json").unlink()
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "r" / "table.csv").read_bytes() == before
