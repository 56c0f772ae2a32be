"""``regret``: routers that are right, wrong or random by construction, and losses of passes that are made by hand."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.images import Framing
from moeprobe.judging.words import IDENTICAL
from moeprobe.probes.flips.price import price_flips
from moeprobe.probes.regret import measure
from moeprobe.probes.regret.sentences import sentences
from moeprobe.probes.regret.tried import OtherChoices, draw_choices
from moeprobe.routing.record import LayerRouting, RoutingTrace
from tests.commands import Trained, refused, run
from tests.probes.test_flips import by_hand, clean_pass, images, ours
from tests.routing.routings import digits, routing

# Intervals are asserted.
pytestmark = pytest.mark.resamples
PATCHES, GRID = 16, PatchGrid(4, 4, 8)
NAMES = ("one", "two", "three")


class Planted:
    """A model whose class 0 gains by each token's experts what a hash of the patch says; no expert is like another.

    Its router knows these gains (right), believes the opposite (wrong), or has a hash of its own (random).
    """

    group_images = 1

    def __init__(self, kind: str, *, experts: int = 6, top_k: int = 1, layers: int = 1) -> None:
        self.kind, self.experts, self.top_k = kind, experts, top_k
        self.layer_names = tuple(f"blocks.{number}" for number in range(layers))
        self.replayed = 0

    def _hash(self, pixels: Tensor, key: float) -> Tensor:
        means = torch.nn.functional.avg_pool2d(pixels.mean(1, keepdim=True), 8).flatten(1)
        # Places and images differ, too: black patches are all alike.
        base = means + 0.37 * torch.arange(means.shape[1]) + 50 * pixels.mean((1, 2, 3))[:, None]
        frequencies = 100 * (1 + torch.arange(self.experts) / self.experts) + key
        return torch.sin(base[..., None] * frequencies)

    def _layer(self, pixels: Tensor, number: int) -> LayerRouting:
        gains = self._hash(pixels, number)
        score = {"right": gains, "wrong": -gains, "random": self._hash(pixels, number + 31.7)}[self.kind]
        gates = (3 * score).softmax(-1)
        selected = gates.topk(self.top_k).indices.to(torch.int16)
        valid = torch.ones(gates.shape[:2], dtype=torch.bool)
        return LayerRouting(
            gates=gates, scores=None, selected=selected, processed=selected >= 0, valid=valid, grid=GRID,
            num_prefix_tokens=0, gates_sum_to_one=True, token_local=True, router="planted",
        )  # fmt: skip

    def _scores(self, pixels: Tensor, routing: RoutingTrace) -> Tensor:
        total = torch.zeros(len(pixels))
        for number, name in enumerate(self.layer_names):
            layer = routing.layers.get(name) or self._layer(pixels, number)
            total += self._hash(pixels, number).gather(2, layer.selected.long()).sum((1, 2))
        return torch.cat([total[:, None] / 10, torch.zeros(len(pixels), 9)], 1)

    def trace(
        self, pixels: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        trace = RoutingTrace(
            {
                name: self._layer(pixels, number)
                for number, name in enumerate(self.layer_names)
                if layers is None or name in layers
            }
        )
        return (self._scores(pixels, trace) if logits else None), trace

    def replay(self, pixels: Tensor, routing: RoutingTrace, *, gates: str = "recomputed") -> Tensor:
        self.replayed += 1
        return self._scores(pixels, routing)


def planted(kind: str, **sizes: int) -> Checkpoint:
    names, about = digits().class_names or (), {"sha256": kind, "training": {}}
    return Checkpoint(kind, Planted(kind, **sizes), Framing(32), class_names=names, provenance=about)


@pytest.fixture
def all_of_class_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "labels_of", lambda spec, batch: torch.zeros_like(batch.labels))


def numbers(table: pd.DataFrame) -> dict[str, Any]:
    rows = table[table["tokens"] == "patch"]
    return {row["metric"]: row for row in rows.to_dict("records")}


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("kind", ["right", "wrong", "random"])
@pytest.mark.usefixtures("all_of_class_0")
def test_planted_routers_are_told_apart(kind: str, top_k: int) -> None:
    result = api.regret(planted(kind, top_k=top_k), data="digits", limit=120, patches=2)
    found = numbers(result.table)
    value = {name: row["value"] for name, row in found.items()}
    assert value["choice_stakes"] == 1
    (shared, said) = sentences(result.table)
    assert "picked with the losses in sight, so no router avoids all regret" in shared
    if kind == "right":
        # Two of 960 gains may differ by rounding alone.
        assert value["choice_rank"] == pytest.approx(1, abs=0.002) and value["choice_right"] == 1
        assert value["choice_regret"] == 0 < value["choice_lead"] and value["choice_gain"] == 1
        # Of two experts, the sum of gates is not quite in the order of the sum of gains.
        assert value["choice_correlation"] == (
            pytest.approx(1, abs=0.002) if top_k == 1 else pytest.approx(0.9, abs=0.1)
        )
        assert "better than a random one in 1 of 1 layer" in said
    elif kind == "wrong":
        assert value["choice_rank_kappa"] == pytest.approx(-1, abs=0.002)
        assert value["choice_lead"] < 0 and value["choice_regret"] > value["choice_regret_random"] > 0
        assert value["choice_gain"] < -0.5 and value["choice_right_kappa"] < 0
        assert value["choice_correlation"] == (
            pytest.approx(-1, abs=0.002) if top_k == 1 else pytest.approx(-0.9, abs=0.1)
        )
        assert "worse than a random one in 1 of 1 layer" in said
    else:
        for name, none in (
            ("rank_kappa", 0),
            ("right_kappa", 0),
            ("lead", 0),
            ("correlation", 0),
            ("gain", 0),
        ):
            row = found[f"choice_{name}"]
            assert row["ci_low"] < none < row["ci_high"], name
        # The winner's curse: the best of the options is better than the choice, and by as much than any of them.
        assert value["choice_regret"] == pytest.approx(value["choice_regret_random"], rel=0.15)
        assert value["choice_regret"] > 0.02 and value["choice_right"] < 0.5
        assert "in no layer is the router's choice separated from a random one" in said


@pytest.mark.usefixtures("all_of_class_0")
def test_few_images_do_not_say_that_nothing_is_separated() -> None:
    _, line = sentences(api.regret(planted("right"), data="digits", limit=3).table)
    assert "without an interval, nothing says whether the router's choice is better than a random one" in line


@pytest.mark.usefixtures("all_of_class_0")
def test_a_comparison_is_paired_and_judged() -> None:
    result = api.regret([planted("random"), planted("right")], data="digits", limit=60)
    assert result.comparison is not None
    verdicts = result.comparison.set_index("metric")["verdict"]
    assert {verdicts[name] for name in ("choice_rank", "choice_right", "choice_correlation")} == {"higher"}
    assert verdicts["choice_regret"] == "lower"
    shared, *lines = sentences(result.table)
    assert [line.partition(":")[0] for line in lines] == ["random", "right"]
    # What the lines share is said once.
    assert not any(sentence in line for line in lines for sentence in shared.split(". "))
    assert shared.count("losses in sight") == 1


@pytest.mark.usefixtures("all_of_class_0")
def test_an_audit_says_whose_choices_are_better() -> None:
    asked: Any = {"data": "digits", "limit": 60, "probes": ("regret",), "figures": False}

    def audited(*kinds: str) -> tuple[list[str], str]:
        models = [
            dataclasses.replace(planted(kind), name=f"{kind} {number}") for number, kind in enumerate(kinds)
        ]
        verdicts = api.audit(models, **asked).verdicts
        of_pair = verdicts["reference"] != ""
        (judgement,) = verdicts.loc[of_pair, "judgement"]
        return verdicts.loc[~of_pair, "verdict"].tolist(), str(judgement)

    assert audited("wrong", "right") == (["no", "clearly"], "better")
    assert audited("right", "random") == (["clearly", "somewhat to no"], "worse")
    # The same router twice tries the same choices, whose losses are the same.
    assert audited("random", "random") == (["somewhat to no"] * 2, IDENTICAL)


@pytest.mark.usefixtures("all_of_class_0")
def test_many_experts_and_layers_cost_few_passes_a_batch() -> None:
    checkpoint = planted("random", experts=64, top_k=4, layers=12)
    api.regret(checkpoint, data="digits", limit=8, batch_size=8)
    # The router's choice and 8 others; all others would be 60 · 4 for each of 12 layers.
    assert checkpoint.model.replayed == 12 * (1 + 8)  # type: ignore[attr-defined]


def choices(layer: LayerRouting, names: Sequence[str] = NAMES, **changes: Any) -> OtherChoices:
    options: dict[str, Any] = {
        "name": "a",
        "patches": 2,
        "tried": 1000,
        "has_equal_weights": False,
        "seed": 0,
    }
    return draw_choices(layer, names, **(options | changes))


def test_tried_choices_are_all_sets_with_one_expert_exchanged() -> None:
    layer = routing(3, num_experts=5, top_k=2, prefix=1)
    drawn = choices(layer)
    assert drawn.sets.shape == (3 * (2 + 1), 1 + 2 * 3, 2)
    for row, (image, token) in enumerate(zip(drawn.source.tolist(), drawn.token.tolist(), strict=True)):
        own, *others = (frozenset(one) for one in drawn.sets[row].tolist())
        assert own == frozenset(layer.selected[image, token].tolist())
        assert len(set(others)) == len(others) == 6 and all(len(one & own) == 1 for one in others)
        gates = layer.gates[image, token]
        for option, experts in enumerate((own, *others)):
            assert float(drawn.gates[row, option]) == pytest.approx(float(sum(gates[list(experts)])))
    # Tokens stand for all patches of their image, and the prefix token for itself.
    assert drawn.weight.sum(1).tolist() == [7, 7, 7] and (drawn.weight[:, 0] == 1).all()


def test_draws_belong_to_the_image_and_are_even() -> None:
    layer = routing(3, num_experts=9, top_k=2)
    every, few = choices(layer), choices(layer, tried=4)
    assert few.sets.shape[1] == 5 and torch.equal(few.sets, every.sets[:, :5])
    alone = dataclasses.replace(
        layer, **{name: getattr(layer, name)[1:2] for name in ("gates", "selected", "processed", "valid")}
    )
    assert torch.equal(choices(alone, ["two"], tried=4).sets, few.sets[few.source == 1])
    many = routing(1, num_experts=5, top_k=1, grid=(40, 50))
    drawn = choices(many, ["x"], tried=1, patches=2000)
    counts = torch.bincount(drawn.newcomer.flatten(), minlength=5).double()
    chosen = torch.bincount(many.selected.flatten().long(), minlength=5).double()
    expected = (len(drawn.source) - chosen) / 4
    assert float(((counts - expected) ** 2 / expected).sum()) < 20  # χ² with 4 degrees of freedom


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("weights", ["router", "equal"])
@pytest.mark.parametrize("resumes", [True, False])
def test_losses_are_those_of_whole_passes_by_hand(top_k: int, weights: str, resumes: bool) -> None:
    model, name = ours(top_k=top_k), "blocks.1"
    clean = clean_pass(model, images(2), resumes=resumes)
    layer = clean.routing.layers[name]
    drawn = choices(layer, NAMES[:2], patches=1, tried=3, has_equal_weights=weights == "equal")
    before = clean.scores.double().log_softmax(-1)
    for number, forced in enumerate(drawn.forced_sets()):
        flips = price_flips(model, clean, name, forced, batch_size=5, is_later_fixed=False)
        for row, (image, token) in enumerate(zip(drawn.source.tolist(), drawn.token.tolist(), strict=True)):
            if number == 0:
                assert float(flips.price[image, token]) == pytest.approx(0, abs=2e-5)
                continue
            option = drawn.sets[row, number]
            sets, gates = layer.selected[image].long().clone(), layer.gates[image].clone()
            sets[token] = option
            (leaving,) = set(layer.selected[image, token].tolist()) - set(option.tolist())
            (newcomer,) = set(option.tolist()) - set(layer.selected[image, token].tolist())
            if weights == "equal":
                gates[token, newcomer] = gates[token, leaving]
            with by_hand(model, {name: sets}, {name: gates}):
                scores = model.trace(clean.images[image : image + 1])[0]
            assert scores is not None
            label = int(clean.labels[image])
            rise = float(before[image, label] - scores[0].double().log_softmax(-1)[label])
            assert float(flips.price[image, token]) == pytest.approx(rise, abs=2e-5)


def test_a_text_is_priced_by_all_tokens_that_follow(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.adapters import tiny_texts

    folder = tiny_texts.olmoe(tmp_path / "olmoe")
    (folder / "texts.txt").write_text("\n".join(tiny_texts.texts(24)), encoding="utf-8")
    for weights in ("router", "equal"):
        result = api.regret(
            f"hf:{folder}", data=f"text:{folder / 'texts.txt'}", limit=20, tried=2, weights=weights
        )
        rows = result.table[(result.table["metric"] == "choice_lead") & (result.table["tokens"] != "prefix")]
        assert list(rows["layer"]) == ["layers.0", "layers.1"] and rows["value"].notna().all()
        # An untrained model's choices are as good as others, up to noise.
        kappas = result.table[result.table["metric"] == "choice_rank_kappa"]
        assert (kappas["value"].abs() < 0.5).all()


@pytest.mark.parametrize("weights", ["router", "equal"])
def test_what_all_forced_passes_share_moves_no_number(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced passes get an offset for each following token, as those of another batch or resumed ones do."""
    pytest.importorskip("transformers")
    from tests.adapters import tiny_texts

    folder = tiny_texts.olmoe(tmp_path / "olmoe")
    (folder / "texts.txt").write_text("\n".join(tiny_texts.texts(6)), encoding="utf-8")

    def table() -> pd.DataFrame:
        data = f"text:{folder / 'texts.txt'}"
        return api.regret(f"hf:{folder}", data=data, limit=6, tried=2, weights=weights, figures=False).table

    plain, priced = table(), measure.price_text_flips

    def with_offset(*arguments: Any, **options: Any) -> Any:
        flips = priced(*arguments, **options)
        return dataclasses.replace(flips, following_fall=flips.following_fall + 0.05)

    monkeypatch.setattr(measure, "price_text_flips", with_offset)
    pd.testing.assert_frame_equal(table(), plain, atol=1e-9, rtol=0)


@pytest.mark.pictures
def test_the_command_writes_and_refuses(trained: Trained, tmp_path: Path) -> None:
    done = run("regret", trained["prc"], "--limit", "24", "--tried", "3", "--out", tmp_path / "regret")
    assert done.exit_code == 0 and "losses in sight" in " ".join(done.stdout.split())
    assert (tmp_path / "regret/figures/regret.png").exists()
    table = pd.read_csv(tmp_path / "regret/table.csv", keep_default_na=False)
    # The class is read off the class token, so patches of the last block reach nothing.
    last = table[(table["layer"] == "blocks.3") & (table["tokens"] == "patch")].set_index("metric")["value"]
    assert float(last["choice_stakes"]) == 0 and "choice_rank" not in last
    gains = table[table["metric"] == "choice_gain"].set_index(["layer", "tokens"])
    # What a random option loses in each image, where every image has as many tokens; t errors as in a book.
    sums = pd.read_parquet(tmp_path / "regret/images.parquet")
    losses = sums.assign(lost=sums["choice_regret_random"] / sums["choice_tokens_weight"])
    for key, lost in losses.groupby(["layer", "tokens"])["lost"]:
        is_beyond_rounding = lost.mean() - stats.t.isf(0.025, len(lost) - 1) * lost.sem() > 1e-5
        assert (gains.loc[key, "flag"] == "no_stakes") == (not is_beyond_rounding), key
    assert (gains["flag"] == "no_stakes")["blocks.3", "patch"]
    assert not (gains["flag"] == "no_stakes").all()
    assert "--tried takes a whole number from 1" in refused("regret", trained["prc"], "--tried", "0")
    assert "--weights is router or equal" in refused("regret", trained["prc"], "--weights", "no")
    assert "--delta takes" in refused("regret", trained["prc"], "--delta", "-1")
