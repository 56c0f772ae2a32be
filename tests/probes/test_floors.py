"""The noise floor: nothing for a router that repeats itself, and what it is for one that does not."""

import json
from collections.abc import Sequence

import pandas as pd
import pytest
import torch
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.cli.front.screen import footing
from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing
from moeprobe.inputs.views.gaussian_noise import GaussianNoise
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses.match import Match
from moeprobe.probes.engine.floors import AGAIN, OTHER_BATCH, repeats
from moeprobe.probes.engine.loop import run
from moeprobe.probes.sweep import figure as sweep_figure
from moeprobe.results.folder import Result
from moeprobe.results.sidecars import Sidecar
from moeprobe.results.stored import SumsStore
from moeprobe.results.summaries import About
from moeprobe.results.tables import FLOORS
from moeprobe.routing import other_dtype
from moeprobe.routing.record import RoutingTrace
from tests.adapters import zoo
from tests.commands import Trained
from tests.commands import run as command
from tests.results.drawn import words
from tests.routing.routings import checkpoint, probe, tiny

CPU = torch.device("cpu")
ABOUT = About("run", "digits", "test", 0, True, {}, {})


class Fickle(Vmoe):
    """A router that gives every tenth token to expert 0 whenever it is asked again."""

    asked = 0

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        scores, routing = super().trace(images, layers=layers, logits=logits)
        self.asked += 1
        for layer in routing.layers.values():
            layer.selected[:, self.asked % 10 :: 10, 0] = 0
        return scores, routing


def named(model: object) -> Checkpoint:
    return Checkpoint("a", model, Framing(32), provenance={})  # type: ignore[arg-type]


def table(model: object, **changes: object) -> pd.DataFrame:
    asked = probe("noise", GaussianNoise(), severities=(0.0, 0.1), analyses=(Match(),), **changes)
    return summarize(run(asked, named(model))[0], analyses=asked.analyses, run_info=ABOUT)[0]


def floor(found: pd.DataFrame) -> pd.DataFrame:
    rows = found[
        found["view"].isin(FLOORS) & (found["metric"] == "top1_match") & (found["tokens"] == "patch")
    ]
    return rows.set_index(["view", "layer"])


def test_a_router_that_repeats_itself() -> None:
    rows = floor(table(checkpoint().model, floor_images=20))
    assert set(rows.index) == {(view, layer) for view in FLOORS for layer in ("blocks.1", "blocks.3")}
    assert (rows["images"] == 20).all() and rows["severity"].isna().all()
    assert (rows.loc["clean_again", "value"] == 1).all() and (
        rows.loc["clean_other_batch", "value"] > 0.99
    ).all()
    # Eight bits of mantissa: some of the close decisions fall otherwise, in one layer at least, most do not.
    rounded = rows.loc["clean_other_dtype", "value"]
    assert rounded.between(0.8, 1).all() and rounded.min() < 1


@pytest.mark.parametrize("batch_size", [7, 30])
def test_only_the_first_images_are_run_again(batch_size: int) -> None:
    class Counting(Vmoe):
        runs = 0

        def trace(self, images: Tensor, **more: object) -> tuple[Tensor | None, RoutingTrace]:
            self.runs += len(images)
            return super().trace(images, **more)  # type: ignore[arg-type]

    model = Counting(tiny(), mean=(0.5,) * 3, std=(0.5,) * 3)
    rows = floor(table(model, floor_images=10, batch_size=batch_size))
    assert (rows["images"] == 10).all()
    # Clean and noisy, and three times those batches that hold one of the ten.
    assert model.runs == 2 * 30 + 3 * {7: 14, 30: 30}[batch_size]
    assert floor(table(model, floor_images=0)).empty


def test_a_router_that_is_random_at_evaluation_is_said_to_be_so() -> None:
    found = table(Fickle(tiny(), mean=(0.5,) * 3, std=(0.5,) * 3), floor_images=30)
    assert (floor(found).loc["clean_again", "value"] < 1).all()
    request = {
        "kind": "noise-sweep",
        "data": "digits", "split": "test", "seed": 0, "trained_capacity": False, "checkpoints": {}, "labels_used": True,
        "view": {"name": "noise"},
    }  # fmt: skip
    sidecar = Sidecar({"request": request, "skipped_images": [], "checkpoints": {}})
    result = Result(found, None, SumsStore(()), sidecar)
    assert "a is random at evaluation: run again unchanged, only 0." in footing(result)
    steady = Result(table(checkpoint().model, floor_images=30), None, SumsStore(()), result.sidecar)
    assert "random" not in footing(steady)


def test_groups_are_not_cut() -> None:
    model = Vmoe(
        tiny(eval_capacity_factor=1.0), mean=(0.5,) * 3, std=(0.5,) * 3, trained_capacity=True, group_images=5
    )
    pixels = torch.rand(20, 3, 32, 32)
    reference = model.trace(pixels)[1]
    found = dict(repeats(named(model), pixels, layers=None, device=CPU))
    for name in ("clean_again", "clean_other_batch"):
        for layer, routing in found[name].layers.items():
            assert torch.equal(routing.processed, reference.layers[layer].processed)
    assert "clean_other_batch" not in dict(repeats(named(model), pixels[:5], layers=None, device=CPU))


@pytest.mark.slow
@pytest.mark.promise
def test_the_floor_is_drawn_and_shown(trained: Trained) -> None:
    arguments = ("noise-sweep", trained["prc"], "--sigmas", "0,0.1", "--limit", 25)
    found = json.loads(command(*arguments, "--json").stdout)
    assert found["sidecar"]["floor_dtype"].startswith("bfloat16")
    figure = sweep_figure.draw(pd.DataFrame(found["table"]), colors=found["sidecar"]["colours"], unit="σ")[
        "routing"
    ]
    assert "noise floor (arithmetic)" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert "25 images" in words(figure)
    shown = command(*arguments, "--full").output
    assert "Noise floor: top-1 match of 25 clean images with themselves" in shown and "bfloat16" in shown


def test_parts_of_a_batch_are_joined_field_by_field() -> None:
    """Slots and scores too, where there are some."""
    model = Vmoe(tiny(router="soft_moe", head="gap"), mean=(0.5,) * 3, std=(0.5,) * 3, router_name="soft_moe")
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = dict(repeats(named(model), images, layers=None, device=CPU))
    whole, joined = (found[name].layers["blocks.3"] for name in (AGAIN, OTHER_BATCH))
    assert whole.slot is not None and joined.slot is not None
    assert torch.equal(whole.slot, joined.slot)
    assert joined.scores is None


class StrictMoe(zoo.TokenMoe):
    """Adds outputs of experts, which autocast narrows, to a tensor of float32, as most code does."""

    def combine(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        output = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token = torch.where(chosen[:, 0] == number)[0]
            output.index_add_(0, token, expert(flat[token]))
        return output


def test_a_model_that_runs_in_float32_alone_has_no_other_format() -> None:
    """Its error in bfloat16 ended the run; the rest of the floor, and of the run, needs no such pass."""
    strict = api.wrap(api.Hooks(zoo.vit(StrictMoe), **zoo.VIT), name="strict")
    plain = api.wrap(api.Hooks(zoo.vit(), **zoo.VIT), name="plain")
    result = api.noise_sweep([strict, plain], data="digits", sigmas=[0, 0.2], limit=6)
    assert len(result.sidecar.notes) == 1
    (note,) = result.sidecar.notes
    assert note.startswith("the noise floor of strict in bfloat16") and "index_add_" in note
    assert "test_floors.py:" in note and "not measured: the noise floor of strict" in footing(result)
    views = result.table[result.table["view"].isin(FLOORS)].groupby("checkpoint")["view"].unique()
    assert set(views["strict"]) == set(FLOORS[:2]) and set(views["plain"]) == set(FLOORS)
    without = api.noise_sweep([strict], data="digits", sigmas=[0, 0.2], limit=6, floor_images=0)
    assert not without.table["view"].isin(FLOORS).any() and not without.sidecar.notes
    assert without.sidecar.request["floor_images"] == 0


def test_precision_needs_images_for_its_floor() -> None:
    with pytest.raises(UserError, match="floor_images takes a positive number of images"):
        api.match_ratio(
            [api.wrap(api.Hooks(zoo.vit(), **zoo.VIT), name="a")],
            data="digits",
            precision="bfloat16",
            floor_images=0,
            limit=4,
        )


def test_emulated_products_are_those_of_rounded_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_dtype, "is_emulated", lambda _device: True)
    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(shape, generator=generator) for shape in ((64, 300), (40, 300)))
    with other_dtype.in_dtype(CPU):
        product = torch.nn.functional.linear(rows, weight)
        untouched = (rows * 3).exp()
    assert product.dtype == torch.bfloat16 and untouched.dtype == torch.float32
    exact = rows.bfloat16().double() @ weight.bfloat16().double().T
    # Half a step of eight bits, and what float32 loses on the way.
    assert ((product.double() - exact).abs() <= exact.abs() * 2.0**-8 + 1e-4).all()
    assert ((product.double() - rows.double() @ weight.double().T).abs() > 1e-3).any()
    assert other_dtype.other_dtype_name(CPU) == "bfloat16, emulated"


@pytest.mark.parametrize("emulated", [False, True])
def test_products_in_float64_stay_as_they_are(emulated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast leaves them alone, e.g. of a router in float64."""
    monkeypatch.setattr(other_dtype, "is_emulated", lambda _device: emulated)
    rows, weight = torch.rand(4, 8, dtype=torch.float64), torch.rand(3, 8, dtype=torch.float64)
    with other_dtype.in_dtype(CPU):
        products = torch.nn.functional.linear(rows, weight), torch.einsum("bi,oi->bo", rows, weight)
    for product in products:
        assert product.dtype == torch.float64 and torch.allclose(product, rows @ weight.T, atol=1e-12)


def test_an_emulated_floor_is_of_the_size_of_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = named(checkpoint().model)
    pixels = torch.rand(40, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    changed = []
    for emulated in (False, True):
        monkeypatch.setattr(other_dtype, "is_emulated", lambda _device, emulated=emulated: emulated)
        passes = dict(repeats(model, pixels, layers=None, device=CPU))
        plain, narrow = (
            torch.cat([layer.gates for layer in passes[name].layers.values()])
            for name in (AGAIN, "clean_other_dtype")
        )
        changed.append(float((plain - narrow).abs().mean()))
    assert changed[0] > 1e-5 and 0.5 < changed[1] / changed[0] < 2
