"""What is exchanged beside a token, and what changes: against models whose routing is known in closed form."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.images import Framing
from moeprobe.metrics.analyses.attention_contagion import AttentionContagion
from moeprobe.metrics.analyses.batch_contagion import BatchContagion
from moeprobe.metrics.analyses.token_contagion import TokenContagion
from moeprobe.metrics.stats import divergence
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.base import Router
from moeprobe.models.nn.routers.softmax_expert_choice import SoftmaxExpertChoice
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from moeprobe.probes.contagion import measure as neighbors
from moeprobe.probes.contagion.measure import Exchange
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.engine.shard import BlockSizes
from moeprobe.routing.record import LayerRouting, RoutingTrace, order_choices
from tests.results.stores import cells
from tests.routing.routings import checkpoint, digits, probe

EVERY = (BatchContagion(), TokenContagion(), AttentionContagion())
# Brightness of an image's four patches.
Brightness = Sequence[int]
# What holds each token of a group and what it wished for, from its patches' brightness.
Rule = Callable[[list[int]], tuple[list[set[int]], list[set[int]]]]


class Lit(ImageDataset):
    """Images of two by two patches, each of one brightness."""

    def __init__(self, images: Sequence[Brightness], *, bad: Sequence[int] = ()) -> None:
        self.images, self.bad, self.class_names = images, bad, None
        self.image_ids = [f"{number:03d}" for number in range(len(images))]

    def example(self, index: int) -> Example:
        if index in self.bad:
            raise UserError(f"Cannot read {self.image_ids[index]}.")
        pixels = np.array(self.images[index], dtype=np.uint8).reshape(2, 2).repeat(2, 0).repeat(2, 1)
        return Example(Image.fromarray(pixels).convert("RGB"), self.image_ids[index], label=None)


class Window:
    """A model whose tokens are the brightness of its patches; the brighter, the more for expert 0, else expert 1."""

    layer_names = ("blocks.0",)

    def __init__(self, router: Router, group_images: int = 1) -> None:
        self.router, self.group_images = router.eval(), group_images
        weight = router.get_parameter("gate.weight")
        with torch.no_grad():
            weight.copy_(torch.tensor([[1.0], [-1.0]]))

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        return None, RoutingTrace({"blocks.0": self.decide(self.tokens(images))})

    def tokens(self, images: Tensor) -> Tensor:
        return images[:, 0, ::2, ::2].reshape(len(images), 4, 1) - 0.5

    def decide(self, tokens: Tensor) -> LayerRouting:
        size = min(self.group_images, len(tokens))
        with torch.no_grad():
            found = self.router(tokens.reshape(-1, 4 * size, 1))
        gates = found.gates.reshape(len(tokens), 4, 2)
        shape = (len(tokens), 4, found.selected.shape[-1])
        sides = (found.selected.reshape(shape), found.processed.reshape(shape))
        selected, processed = order_choices(*sides, gates)
        return LayerRouting(
            gates=gates,
            scores=None,
            selected=selected,
            processed=processed,
            valid=torch.ones(len(tokens), 4, dtype=torch.bool),
            grid=PatchGrid(2, 2, 2),
            num_prefix_tokens=0,
            gates_sum_to_one=True,
            token_local=self.router.token_local,
            router="made up",
        )


class Asked(Window):
    """The same, and its router can be asked alone."""

    def router_inputs(self, images: Tensor, *, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
        return {"blocks.0": self.tokens(images)}

    def route(self, layer: str, tokens: Tensor) -> LayerRouting:
        return self.decide(tokens)


def expert_choice(factor: float) -> Router:
    return SoftmaxExpertChoice(1, 2, eval_capacity=CapacityRule(factor, multiple_of=0))


def token_choice(factor: float | None) -> Router:
    return SoftmaxTokenChoice(1, 2, top_k=1, eval_capacity=CapacityRule(factor, multiple_of=0))


def experts_choose(patches: list[int], *, capacity: int) -> tuple[list[set[int]], list[set[int]]]:
    """Expert 0 takes the brightest tokens, expert 1 the darkest, the earlier ones first."""
    held: list[set[int]] = [set() for _ in patches]
    for expert, sign in ((0, -1), (1, 1)):
        for token in sorted(range(len(patches)), key=lambda t: (sign * patches[t], t))[:capacity]:
            held[token].add(expert)
    return held, held


def tokens_choose(patches: list[int], *, capacity: int) -> tuple[list[set[int]], list[set[int]]]:
    """Each token goes to expert 0 above half brightness, else to expert 1, in order, while there is room."""
    wished = [{0} if patch > 127 else {1} for patch in patches]
    served = [
        wish if wished[:place].count(wish) < capacity else set[int]() for place, wish in enumerate(wished)
    ]
    return served, wished


def ask(dataset: ImageDataset, exchange: Exchange, model: Any, **changes: Any) -> dict[str, np.ndarray]:
    """The sums per image of the patches, by name of image."""
    spec = RunSpec(
        dataset=dataset,
        indices=exchange.pool,
        view_name="clean",
        view=None,
        severities=(),
        analyses=EVERY,
        seed=0,
    )
    size = exchange.group_images
    images, _ = loop.run(
        replace(spec, **changes),
        model if isinstance(model, Checkpoint) else Checkpoint("a", model, Framing(4)),
        run_block=partial(neighbors.run_block, exchange=exchange),
        sizes=BlockSizes(4 * size, 64 // size * size),
    )
    return {
        f"{cell.layer} {cell.tokens} {name}".removeprefix("blocks.0 patch "): column
        for _, cell, _, columns in cells(images)
        for name, column in columns.items()
    }


def by_hand(data: Lit, exchange: Exchange, rule: Rule, *, coupled: bool) -> dict[str, list[int]]:
    """Watched, changed and dropped tokens of each image by name, group by group and token by token."""
    names = list(data.image_ids)
    counts: dict[str, dict[str, int]] = {name: {} for name in names}
    of_name = dict(zip(names, data.images, strict=True))
    pool = [names[index] for index in exchange.pool]
    for start in range(0, len(pool), exchange.group_images):
        group = pool[start : start + exchange.group_images]
        lent = {
            name: [
                int(v) for v in np.asarray(exchange.donor(name, skip_bad_images=False))[::2, ::2, 0].ravel()
            ]
            for name in group
        }
        for place, name in enumerate(group):
            mixed = [
                lent[name][patch] if gone else of_name[name][patch]
                for patch, gone in enumerate(exchange.patches([name], 4)[0].tolist())
            ]
            kept = [patch for patch in range(4) if not exchange.patches([name], 4)[0, patch]]
            beside = [other for other in group if coupled or other == name]
            whole = [of_name[other] for other in beside]
            views = {
                "batch": [of_name[other] if other == name else lent[other] for other in beside],
                "token": [mixed if other == name else of_name[other] for other in beside],
            }
            views["attention"] = views["token"]
            for kind, view in views.items():
                watched = kept if kind != "batch" else list(range(4)) if len(group) > 1 else []
                offset = 4 * (place if coupled else 0)
                (was, wish), (now, other_wish) = (
                    rule([patch for image in side for patch in image]) for side in (whole, view)
                )
                changed = [patch for patch in watched if was[offset + patch] != now[offset + patch]]
                dropped = [patch for patch in changed if wish[offset + patch] == other_wish[offset + patch]]
                counts[name] |= {
                    f"{kind}_contagion_watched": len(watched),
                    f"{kind}_contagion_changed": len(changed),
                    f"{kind}_contagion_dropped": len(dropped),
                }
    return {key: [counts[name][key] for name in names] for key in counts[names[0]]}


def lit(count: int, seed: int = 0) -> Lit:
    # All different, so that nothing is a tie.
    values = np.random.default_rng(seed).permutation(250)[: 4 * count]
    return Lit(values.reshape(count, 4).tolist())


def exchanged(dataset: ImageDataset, count: int, *, size: int, share: float = 0.5, seed: int = 0) -> Exchange:
    pool = np.random.default_rng(seed + 1).permutation(count).tolist()
    return Exchange(dataset, pool, size, share, seed)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.99])
@pytest.mark.parametrize(
    ("router", "rule", "room"),
    [(expert_choice, experts_choose, 0.5), (token_choice, tokens_choose, 0.5)],
)
def test_against_a_loop_over_groups_and_tokens(
    size: int, share: float, router: Any, rule: Any, room: float
) -> None:
    """22 images: the last group of four is short."""
    data = lit(22)
    exchange = exchanged(data, 22, size=size, share=share)
    found = ask(data, exchange, Asked(router(room), group_images=size))

    def of_group(patches: list[int]) -> tuple[list[set[int]], list[set[int]]]:
        held: tuple[list[set[int]], list[set[int]]] = rule(
            patches, capacity=math.ceil(len(patches) * room / 2)
        )
        return held

    expected = by_hand(data, exchange, of_group, coupled=True)
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)
    totals = {name: int(column.sum()) for name, column in found.items()}
    assert totals["token_contagion_changed"] > 0
    assert totals["batch_contagion_changed"] > 0 or size == 1
    assert totals["token_contagion_distance"] > 0
    assert totals["token_contagion_watched"] == 22 * {0.25: 3, 0.5: 2, 0.99: 1}[share]
    dropped = totals["token_contagion_dropped"]
    assert dropped == (0 if router is expert_choice else totals["token_contagion_changed"])


def test_a_brighter_token_displaces_exactly_one() -> None:
    """Expert 0 takes the brightest token of its image. A brighter one elsewhere takes the place of patch 3 alone."""
    dim, bright = [40, 80, 120, 160], [250] * 4
    data = Lit([dim] * 12 + [bright] * 12)
    exchange = Exchange(
        data, range(24), 12, 0.25, 0
    )  # dim ones borrow from bright ones, and the other way round
    found = ask(data, exchange, Asked(expert_choice(0.5)))
    gone = exchange.patches(data.image_ids[:12], 4).int().argmax(1).numpy()
    assert set(gone) == {0, 1, 2, 3}
    # Where the darkest patch itself is exchanged, patch 1 is the darkest of the rest, and goes to expert 1.
    expected = {0: 2, 1: 1, 2: 1, 3: 0}
    assert found["token_contagion_changed"][:12].tolist() == [expected[patch] for patch in gone]
    assert found["token_contagion_watched"].tolist() == [3] * 24
    # A token that one expert held and none holds now is at distance 1; the one that expert 1 has taken up likewise.
    assert found["token_contagion_distance"][:12].tolist() == [expected[patch] for patch in gone]


def test_brighter_mates_displace_exactly_one() -> None:
    """One place for each expert in a group of two images: the first image holds both, and keeps the darkest."""
    own = [[40, 80, 120, 160], [100, 101, 102, 103]]
    lent = [[250] * 4] * 2
    data = Lit([*own, *lent])
    found = ask(data, Exchange(data, range(4), 2, 0.5, 0), Asked(expert_choice(0.25), group_images=2))
    # Beside brighter mates the first loses patch 3 alone. The second held nothing; now its patch 0 is the darkest.
    assert found["batch_contagion_changed"][:2].tolist() == [1, 1]
    assert found["batch_contagion_watched"].tolist() == [4, 4, 4, 4]


@pytest.mark.parametrize("size", [2, 4])
def test_tokens_routed_by_themselves_change_nothing_of_each_other(size: int) -> None:
    data = lit(22)
    found = ask(data, exchanged(data, 22, size=size), Asked(token_choice(None)))
    for kind in ("batch", "token", "attention"):  # this model has no attention
        assert found[f"{kind}_contagion_watched"].sum() >= 20 * 2
        for name in ("changed", "dropped", "distance"):
            assert (found[f"{kind}_contagion_{name}"] == 0).all(), (kind, name)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("top_k", [1, 2])
def test_a_token_local_transformer_is_exactly_zero_but_for_attention(size: int, top_k: int) -> None:
    """Other batch-mates are other loads of the experts, and so another rounding: that is no contagion."""
    model = checkpoint(top_k=top_k, group_images=size)
    found = ask(digits(), exchanged(digits(), 26, size=size), model)
    assert {name.split()[0] for name in found} == {"blocks.1", "blocks.3"}
    for name, column in found.items():
        if name.endswith("_watched"):
            continue
        if "attention" not in name or name.endswith("_dropped"):
            assert (column == 0).all(), name
        elif "blocks.3" in name:
            assert column.sum() > 0, name


def test_rounding_is_there_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above could fail."""
    monkeypatch.setattr(neighbors, "ROUNDING", 0.0)
    monkeypatch.setattr(divergence, "ROUNDING", 0.0)
    found = ask(digits(), exchanged(digits(), 26, size=4), checkpoint())
    assert 0 < found["blocks.3 patch batch_contagion_distance"].sum() < 1e-3
    assert (found["blocks.3 patch token_contagion_distance"] == 0).all(), "the tokens are held to the bit"


def test_a_tie_that_falls_the_other_way_by_rounding_is_no_change() -> None:
    gates = torch.tensor([[[0.4, 0.3, 0.3], [0.5, 0.3, 0.2], [0.5, 0.4, 0.1]]])
    moved = gates + torch.tensor([[[0, -1e-6, 1e-6], [0, 0.1, -0.1], [1e-6, 0, 0]]])
    fields: dict[str, Any] = {"grid": PatchGrid(1, 3, 8), "num_prefix_tokens": 0, "gates_sum_to_one": True}
    one, two = (
        LayerRouting(
            gates=values,
            scores=None,
            selected=torch.tensor(choices, dtype=torch.int16),
            processed=torch.ones(1, 3, 2, dtype=torch.bool),
            valid=torch.ones(1, 3, dtype=torch.bool),
            token_local=True,
            router="made up",
            **fields,
        )
        for values, choices in ((gates, [[[0, 1], [0, 1], [0, 1]]]), (moved, [[[0, 2], [0, 2], [0, 1]]]))
    )
    settled = neighbors._settle(one, two)
    assert settled.selected.tolist() == [[[0, 1], [0, 2], [0, 1]]]
    assert torch.equal(settled.gates[0, [0, 2]], gates[0, [0, 2]]) and not torch.equal(settled.gates, gates)
    # Where other tokens have a say, another choice is what is looked for.
    assert neighbors._settle(one, replace(two, token_local=False)).selected[0, 0].tolist() == [0, 2]
    # Scores that decide are what must stand still.
    near, far = (gates.log(), moved.log() + torch.tensor([[[0, 0, 1.0], [0, 0, 0], [0, 0, 0]]]))
    scored = neighbors._settle(replace(one, scores=near), replace(two, scores=far))
    assert scored.selected[0, 0].tolist() == [0, 2]


@pytest.mark.parametrize(
    "arguments",
    [{"router": "softmax_expert_choice"}, {"eval_capacity_factor": 0.7, "trained_capacity": True}],
)
def test_routers_that_couple_tokens_are_found_out(arguments: dict[str, Any]) -> None:
    model = checkpoint(group_images=4, **arguments)
    found = ask(digits(), exchanged(digits(), 24, size=4), model)
    for layer in ("blocks.1", "blocks.3"):
        for kind in ("batch", "token", "attention"):
            assert found[f"{layer} patch {kind}_contagion_changed"].sum() > 0, (layer, kind)
            for tokens in ("patch", "prefix"):
                assert found[f"{layer} {tokens} {kind}_contagion_watched"].sum() == 24 * (
                    1 if tokens == "prefix" else 16 if kind == "batch" else 8
                )


def test_a_later_layer_is_held_to_the_pass_by_hand() -> None:
    """Of one image of a group of two: each number against the model run on batches put together here."""
    model = checkpoint(router="softmax_expert_choice", group_images=2)
    framing = model.framing
    assert isinstance(framing, Framing)
    exchange = exchanged(digits(), 10, size=2)
    found = ask(digits(), exchange, model)
    names = [digits().image_ids[index] for index in exchange.pool]
    pair = names[4:6]
    own, lent = (
        torch.stack([framing.clean(picture).pixels for picture in pictures])
        for pictures in (
            [digits().example(index).image for index in exchange.pool[4:6]],
            [exchange.donor(name, skip_bad_images=False) for name in pair],
        )
    )
    gone = exchange.patches(pair, 16)
    mixed = own.clone()
    for patch in gone[1].nonzero().flatten().tolist():
        rows, columns = (slice(8 * at, 8 * at + 8) for at in divmod(patch, 4))
        mixed[1, :, rows, columns] = lent[1, :, rows, columns]

    def held(images: Tensor) -> list[set[int]]:
        layer = model.model.trace(images)[1].layers["blocks.3"]
        return [{e for e in row if e >= 0} for row in layer.selected[1, 1:].tolist()]

    def changed(images: Tensor, watched: Sequence[int]) -> int:
        before, after = held(own), held(images)
        return sum(before[patch] != after[patch] for patch in watched)

    row = sorted(names).index(pair[1])
    kept = (~gone[1]).nonzero().flatten().tolist()
    batch = torch.stack([lent[0], own[1]])
    attention = torch.stack([own[0], mixed[1]])
    assert found["blocks.3 patch batch_contagion_changed"][row] == changed(batch, range(16))
    assert found["blocks.3 patch attention_contagion_changed"][row] == changed(attention, kept)


@pytest.mark.slow
@pytest.mark.promise
def test_batch_size_and_workers_change_nothing() -> None:
    for model in (checkpoint(), checkpoint(router="softmax_expert_choice", group_images=4)):
        exchange = exchanged(digits(), 26, size=4)
        whole = ask(digits(), exchange, model)
        for changes in ({"batch_size": 1}, {"batch_size": 12}, {"batch_size": 10, "workers": 1}):
            again = ask(digits(), exchange, model, **changes)
            assert again.keys() == whole.keys()
            for name, column in whole.items():
                np.testing.assert_allclose(again[name], column, rtol=1e-4, atol=1e-4, err_msg=name)


def test_donors_and_patches_belong_to_the_seed_and_the_image() -> None:
    pool = list(range(40))
    one, two, other = (Exchange(digits(), pool, 4, 0.25, seed) for seed in (0, 0, 1))
    names = [digits().image_ids[index] for index in pool]
    pictures = {digits().example(index).image.tobytes(): place for place, index in enumerate(pool)}

    def donors(exchange: Exchange) -> list[int]:
        return [pictures[exchange.donor(name, skip_bad_images=False).tobytes()] for name in names]

    assert donors(one) == donors(two) != donors(other)
    assert all(lent // 4 != place // 4 for place, lent in enumerate(donors(one)))
    assert len(set(donors(one))) > 20
    assert torch.equal(one.patches(names, 16), two.patches(names, 16))
    assert torch.equal(one.patches(names[::-1], 16).flip(0), one.patches(names, 16))
    assert not torch.equal(one.patches(names, 16), other.patches(names, 16))
    assert (one.patches(names, 16).sum(1) == 4).all() and (one.patches(names, 2).sum(1) == 1).all()
    assert one.patches(names, 16).sum(0).min() > 0
    with pytest.raises(UserError, match="single patch"):
        one.patches(names, 1)


def test_images_that_cannot_be_read_lend_nothing() -> None:
    data = lit(22)
    exchange = exchanged(data, 22, size=4)
    bad = exchange.pool[5]
    damaged = Lit(data.images, bad=[bad])
    exchange = replace(exchange, dataset=damaged)
    with pytest.raises(UserError, match="Cannot read"):
        ask(damaged, exchange, Asked(token_choice(0.5), group_images=4))
    found = ask(damaged, exchange, Asked(token_choice(0.5), group_images=4), skip_bad_images=True)
    assert len(found["batch_contagion_watched"]) == 21
    alone = Lit(data.images, bad=[index for index in range(22) if index != bad])
    with pytest.raises(UserError, match="None of the images drawn"):
        replace(exchange, dataset=alone).donor(data.image_ids[bad], skip_bad_images=True)


def test_an_image_without_mates_is_not_watched() -> None:
    data = lit(9)
    exchange = Exchange(data, range(9), 4, 0.5, 0)
    found = ask(data, exchange, Asked(expert_choice(0.5), group_images=4))
    assert found["batch_contagion_watched"].tolist() == [4] * 8 + [0]
    assert found["token_contagion_watched"].tolist() == [2] * 9


def test_a_model_whose_router_cannot_be_asked_has_no_token_contagion() -> None:
    data = lit(12)
    exchange = exchanged(data, 12, size=2)
    plain, asked = (ask(data, exchange, kind(expert_choice(0.5), group_images=2)) for kind in (Window, Asked))
    assert not any(name.startswith("token") for name in plain)
    assert all(np.array_equal(column, asked[name]) for name, column in plain.items()) and plain


def test_the_passes_that_are_announced_are_run() -> None:
    spec = probe("clean", None, analyses=EVERY)
    for model in (checkpoint(), checkpoint(router="softmax_expert_choice", group_images=4)):
        exchange = exchanged(digits(), 8, size=4)
        ran: list[int] = []
        first = model.model.model.patch_embed  # type: ignore[attr-defined]
        handle = first.register_forward_hook(lambda _, inputs, __, ran=ran: ran.append(len(inputs[0])))
        ask(digits(), exchange, model)
        handle.remove()
        assert sum(ran) == 8 * neighbors.num_passes(spec, model.model, exchange)
