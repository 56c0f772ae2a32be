"""The next router applied a layer earlier: against loops and the library's own matrices, and planted knowledge."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError
from moeprobe.metrics.analyses.router_ahead import AheadHits, RouterAhead
from moeprobe.metrics.declaration import Estimator
from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.metrics.stats.busiest import NUM_FOLDS, BusiestElsewhere
from moeprobe.probes.engine.batch_sums import load_batches
from moeprobe.probes.engine.run import prepare
from moeprobe.probes.router_prefetch import RouterPrefetch
from moeprobe.probes.router_prefetch.sentences import sentences
from moeprobe.results.stored import of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table
from moeprobe.results.values import Evaluator
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.progress import Progress
from tests.metrics.test_sequences import value
from tests.routing.routings import checkpoint

IMAGES = 12


def found(model: Checkpoint, **fields: Any) -> Any:
    options = Options(limit=IMAGES, batch_size=5)
    return prepare(RouterPrefetch(**fields), [model], data="digits", options=options)


def images_of(work: Any) -> torch.Tensor:
    """All images of a run, as its model reads them."""
    return torch.cat(
        [batch.views[0] for batch in load_batches(work.spec, work.models[0], work.spec.indices, masks=False)]
    )


def recall_of_loops(chosen: LayerRouting, scores: torch.Tensor, size: int) -> float:
    """Share of the chosen experts of patches among those with the highest scores, token by token."""
    hits, choices = 0, 0
    for row in range(len(scores)):
        for token in range(chosen.num_prefix_tokens, scores.shape[1]):
            ranked = sorted(range(scores.shape[2]), key=lambda e: (-float(scores[row, token, e]), e))
            experts = [int(e) for e in chosen.selected[row, token] if e >= 0]
            hits, choices = hits + len(set(ranked[:size]) & set(experts)), choices + len(experts)
    return hits / choices


def test_a_router_is_applied_to_the_input_of_the_one_before() -> None:
    """Against the matrix of the second router, times what a hook of the test says the first layer sees."""
    one = checkpoint()
    model, images = one.model, images_of(found(one))
    assert isinstance(model, Vmoe)
    first, second = (model.model.get_submodule(f"blocks.{number}.mlp") for number in (1, 3))
    seen: list[torch.Tensor] = []
    hook = first.register_forward_pre_hook(lambda layer, args: seen.append(args[0].detach()))
    own = model.trace(images, logits=False)[1].layers["blocks.3"]
    hook.remove()
    routing, ahead = model.trace_ahead(images)
    assert list(ahead) == ["blocks.3"]
    alone, ahead_alone = model.trace_ahead(images, layers=["blocks.3"])
    assert list(alone.layers) == ["blocks.3"]
    torch.testing.assert_close(ahead_alone, ahead)
    [weight] = [part for part in second.router.parameters() if part.ndim == 2]
    logits = seen[0] @ (weight if len(weight) == seen[0].shape[-1] else weight.T)
    torch.testing.assert_close(ahead["blocks.3"], logits.softmax(-1), atol=1e-6, rtol=1e-4)
    assert torch.equal(own.selected, routing.layers["blocks.3"].selected)
    assert not torch.equal(own.selected.long(), ahead["blocks.3"].topk(own.top_k).indices)


def test_the_table_has_the_recall_of_loops() -> None:
    one = checkpoint()
    work = found(one, loaded=(1, 3))
    routing, ahead = one.model.trace_ahead(images_of(work))  # type: ignore[attr-defined]
    result = work.execute(Progress())
    # Uses of 128 experts in each of 48 layers would fill megabytes of few texts.
    assert all(cell.load_all()[1]["ahead_uses"].itemsize == 4 for cell in result.sums)
    for size in (1, 3):
        rows = result.table[
            (result.table["severity"] == size) & (result.table["metric"] == "prefetch_router")
        ]
        [row] = rows.to_dict("records")
        expected = recall_of_loops(routing.layers["blocks.3"], ahead["blocks.3"], size)
        assert row["value"] == pytest.approx(expected) and row["layer"] == "blocks.3"
        assert row["images"] == IMAGES


def test_of_a_model_without_blocks_between_its_routers_all_is_known(tmp_path: Path) -> None:
    """An OLMoE whose blocks add nothing, and whose routers are alike: the next one chooses what it is said to."""
    pytest.importorskip("transformers")
    from moeprobe.adapters.huggingface import HuggingfaceAdapter
    from tests.adapters.tiny_texts import olmoe, texts

    folder = olmoe(tmp_path / "model", num_hidden_layers=3, num_experts_per_tok=3)
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(texts(24)), encoding="utf-8")
    result = api.prefetch(f"hf:{folder}", data=f"text:{lines}", figures=False)
    table = result.table[result.table["metric"] == "prefetch_router"]
    assert set(table["layer"]) == {"layers.1", "layers.2", ""} and set(table["severity"]) == {3, 6, 7}
    opened = api.load_model(f"hf:{folder}").model
    assert isinstance(opened, HuggingfaceAdapter)
    batch = opened._trial(2, 9)
    gates = [layer.mlp.gate for layer in opened.model.model.layers]
    seen: list[list[torch.Tensor]] = [[] for _ in gates]
    for gate, inputs in zip(gates, seen, strict=True):
        gate.register_forward_pre_hook(lambda gate, args, inputs=inputs: inputs.append(args[0].clone()))
    _, ahead = opened.trace_ahead(batch)
    for number in (1, 2):
        expected = seen[number - 1][0].reshape(2, 9, -1) @ gates[number].weight.T
        torch.testing.assert_close(ahead[f"layers.{number}"], expected)
    # The layer before is the model's, chosen or not.
    for chosen in (["layers.0", "layers.2"], ["layers.2"]):
        routing, of_chosen = opened.trace_ahead(batch, layers=chosen)
        assert list(routing.layers) == chosen and list(of_chosen) == ["layers.2"]
        torch.testing.assert_close(of_chosen["layers.2"], ahead["layers.2"])
    with torch.no_grad():
        for layer in opened.model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.experts.down_proj.zero_()
            layer.mlp.gate.weight.copy_(opened.model.model.layers[0].mlp.gate.weight)
    routing, ahead = opened.trace_ahead(batch)
    for name, scores in ahead.items():
        top = scores.topk(3).indices.sort(-1).values
        assert torch.equal(top, routing.layers[name].selected.long().sort(-1).values)


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"loaded": (9,)}, {}, "so no more can be loaded ahead"),
        ({}, {"layers": ["blocks.1"]}, "has none before blocks.1; choose others with"),
    ],
)
def test_what_predicts_nothing_is_refused(fields: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare(RouterPrefetch(**fields), [checkpoint()], data="digits", options=Options(limit=3, **options))
    chosen = checkpoint(router="softmax_expert_choice")
    with pytest.raises(UserError, match="tokens do not choose some of several experts"):
        prepare(RouterPrefetch(), [chosen], data="digits", options=Options(limit=3))


@pytest.mark.parametrize("has_units", [False, True])
def test_the_busiest_experts_are_those_of_other_folds(has_units: bool) -> None:
    random = np.random.default_rng(0)
    uses = random.integers(0, 9, (13, 2, 6)).astype(float)
    weights = random.integers(0, 3, (13, 4)).astype(float)
    unit = random.integers(0, 7, 13) if has_units else np.arange(13)
    computed = BusiestElsewhere(uses, 2, unit if has_units else None).evaluate(weights)
    for column, drawn in enumerate(weights.T):
        hits = 0.0
        for row in range(13):
            others = [other for other in range(13) if unit[other] % NUM_FOLDS != unit[row] % NUM_FOLDS]
            for layer in range(2):
                loads = sum(drawn[other] * uses[other, layer] for other in others)
                best = sorted(range(6), key=lambda e: (-loads[e], e))[:2]
                hits += drawn[row] * uses[row, layer, best].sum()
        assert computed[column] == pytest.approx(hits / (drawn @ uses.sum((1, 2))))


@pytest.mark.parametrize("largest", [2000, 30])
def test_inputs_of_one_unit_are_no_other_inputs(largest: int) -> None:
    """Five units of eight inputs choose an expert of their own, so the busiest ones of other units find nothing."""
    names = np.random.default_rng(0).permutation([f"{row:02d}" for row in range(40)]).tolist()
    unit_of = {name: f"video {int(name) // 8}" for name in names}
    uses = torch.zeros(40, 1, 5, dtype=torch.long)
    uses[torch.arange(40), 0, torch.tensor([int(name) // 8 for name in names])] = 3
    accumulator = Accumulator()
    sums = RouterAhead().sums(AheadHits(uses.sum((1, 2)), uses, 1))
    accumulator.add(Cell("layers.1", "r", 1), names, {name: column.numpy() for name, column in sums.items()})
    (stored,) = of_table(image_table(accumulator, checkpoint="a"))

    def busiest(unit_of: dict[str, str] | None) -> float:
        evaluate = Evaluator((RouterAhead(),), aligned=True, seed=0, largest=largest, unit_of=unit_of)
        numbers = evaluate(stored).numbers
        (key,) = (key for key in numbers if key.metric == "prefetch_router_chance" and key.null == "busiest")
        return numbers[key].point

    assert busiest(unit_of) == 0 < busiest(None)
    # Where there is one unit, nothing is busiest in others.
    assert np.isnan(busiest(dict.fromkeys(names, "video")))


def test_nothing_is_said_of_other_inputs_where_there_are_none() -> None:
    for limit, is_said in ((1, False), (8, True)):
        [sentence] = sentences(api.prefetch(checkpoint(), data="digits", limit=limit).table)
        assert ("busiest experts of other inputs" in sentence) == is_said and "even router" in sentence


CASES = (("prefetch_router", ""), ("prefetch_router_chance", "busiest"), ("prefetch_router_kappa", "busiest"))


def sampled(random: np.random.Generator, inputs: int) -> dict[tuple[str, str], Estimator]:
    """Inputs with experts of their own, some busy in all; a router that knows more of some inputs than of others."""
    number, tokens = 12, 20
    logits = np.linspace(0, 2, number) + random.gumbel(size=(inputs, 1, number))
    order = np.argsort(-(logits + random.gumbel(size=(inputs, tokens, number))), axis=2)[..., :2]
    uses = (order[..., None] == np.arange(number)).sum((1, 2))
    hits = random.binomial(2 * tokens, random.beta(6, 2, inputs))
    subject = AheadHits(torch.from_numpy(hits), torch.from_numpy(uses)[:, None], 4)
    columns = {name: column.numpy() for name, column in RouterAhead().sums(subject).items()}
    every = {(one.name, one.null): one for one in RouterAhead().estimators(columns, aligned=True)}
    return {case: every[case] for case in CASES}


@pytest.mark.parametrize(("inputs", "runs"), [(40, 60), pytest.param(200, 100, marks=pytest.mark.slow)])
def test_intervals_cover(inputs: int, runs: int) -> None:
    """The truth is the mean over samples of as many inputs, since more of them know the busiest experts better."""
    random = np.random.default_rng(inputs)
    many = [{case: value(sampled(random, inputs), *case) for case in CASES} for _ in range(4 * runs)]
    truth = {case: np.mean([one[case] for one in many]) for case in CASES}
    covered, bootstrap = dict.fromkeys(CASES, 0), Bootstrap(inputs, seed=0)
    for _ in range(runs):
        one = sampled(random, inputs)
        asked = [(number.statistic, number.used_trials) for number in one.values()]
        for case, replicates in zip(one, bootstrap.replicate(asked, paired=False), strict=True):
            interval = replicates.interval()
            covered[case] += int(interval.low <= truth[case] <= interval.high)
    print(inputs, {case: round(count / runs, 3) for case, count in covered.items()})
    for case, count in covered.items():
        assert count / runs >= 0.93 - 3 * np.sqrt(0.93 * 0.07 / runs), case
