"""``flips`` of language models: against whole passes with a forced set, one at a time, and against planted truths."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.texts import TokenBatch
from moeprobe.metrics.analyses.flips import FORCED
from moeprobe.metrics.analyses.text_flips import ForcedTextFlips, TextFlipsAnalysis
from moeprobe.probes.flips.price import forced_sets
from moeprobe.probes.flips.texts import CleanTexts, price_text_flips, resumable_layers
from tests.adapters import tiny_texts
from tests.commands import refused

# Intervals are asserted.
pytestmark = pytest.mark.resamples


LAYERS = ("layers.0", "layers.1")
VIEW = "embedding_noise"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny_texts.olmoe(tmp_path_factory.mktemp("flips") / "olmoe")
    (path / "texts.txt").write_text("\n".join(tiny_texts.texts(24)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Checkpoint:
    return api.load_model(f"hf:{folder}")


def run(model: Any, folder: Path, **options: Any) -> api.Result:
    options = {"patches": 4, "view": VIEW, "limit": 20, **options}
    return api.flips(model, data=f"text:{folder / 'texts.txt'}", **options)


def batch(model: Checkpoint, count: int = 3) -> TokenBatch:
    """Texts of different lengths, padded to one."""
    lengths = [9, 6, 8][:count]
    present = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(3, 320, present.shape, generator=torch.Generator().manual_seed(0))
    ids = torch.where(present, ids, 0)
    ids[:, 0] = 1
    ordinary = present.clone()
    ordinary[:, 0] = False
    return TokenBatch(ids, present, ordinary, 1)


def clean_texts(model: Checkpoint, tokens: TokenBatch, *, resumed: bool = True) -> CleanTexts:
    adapter: Any = model.model
    hidden = adapter.text_trunks(tokens) if resumed else {}
    return CleanTexts(
        tokens, adapter.log_probabilities(tokens), adapter.trace(tokens, logits=False)[1], hidden
    )


@contextmanager
def forcing(network: Any, sets: dict[int, Tensor]) -> Iterator[None]:
    """Let tokens ``(T,)`` of a text have the sets ``(T, K)`` of each block, weighted by a softmax taken here."""
    handles = []
    for number, chosen in sets.items():
        block = network.model.layers[number].mlp
        seen: list[Tensor] = []

        def keep(gate: Any, args: tuple[Tensor, ...], output: Any, seen: list[Tensor] = seen) -> None:
            seen[:] = [torch.nn.functional.linear(args[0], gate.weight).float().softmax(-1)]

        def force(
            experts: Any, args: tuple[Any, ...], chosen: Tensor = chosen, seen: list[Tensor] = seen
        ) -> tuple[Any, ...]:
            hidden, _, weights = args
            return hidden, chosen, seen[0].gather(1, chosen).to(weights.dtype)

        handles += [block.gate.register_forward_hook(keep), block.experts.register_forward_pre_hook(force)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def by_hand(network: Any, ids: Tensor, sets: dict[int, Tensor]) -> Tensor:
    """The log-probability of each token after the first ``(T - 1,)``, of one text alone, in a whole pass."""
    with torch.no_grad(), forcing(network, sets):
        logits = network(input_ids=ids[None]).logits[0]
    return logits[:-1].double().log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("later", ["fixed", "free"])
@pytest.mark.parametrize("resumed", [True, False])
def test_a_flip_costs_what_a_whole_pass_with_the_forced_set_says(
    model: Checkpoint, later: str, resumed: bool
) -> None:
    tokens = batch(model)
    clean = clean_texts(model, tokens, resumed=resumed)
    network = model.model.model  # type: ignore[attr-defined]
    perturbed = clean.routing.layers
    checked = 0
    for number, name in enumerate(LAYERS):
        sets = forced_sets(
            clean.flippable(name), perturbed[name], ["a", "b", "c"], name=name, patches=3, seed=0
        )["random"]
        flips = price_text_flips(
            model.model, clean, name, sets, batch_size=4, is_later_fixed=later == "fixed"
        )
        for text, token in sets.weight.nonzero().tolist():
            length = int(tokens.present[text].sum())
            ids = tokens.ids[text, :length]
            chosen = {
                block: clean.routing.layers[each].selected[text, :length].long()
                for block, each in enumerate(LAYERS)
                if block == number or later == "fixed"
            }
            before = by_hand(network, ids, {})
            chosen[number][token] = sets.selected[text, token].long()
            fall = before - by_hand(network, ids, chosen)
            assert token == 0 or fall[:token].abs().max() < 1e-6, "nothing changes before the flip"
            assert flips.next_fall[text, token] == pytest.approx(float(fall[token]), abs=2e-6)
            assert flips.following_fall[text, token] == pytest.approx(float(fall[token:].sum()), abs=4e-6)
            checked += abs(float(fall[token])) > 1e-4
    assert checked > 5, "flips that do nothing show nothing"


def test_sets_are_forced_where_something_follows(model: Checkpoint) -> None:
    tokens = batch(model)
    clean = clean_texts(model, tokens)
    layer = clean.routing.layers["layers.0"]
    sets = forced_sets(
        clean.flippable("layers.0"), layer, ["a", "b", "c"], name="layers.0", patches=100, seed=0
    )
    follows = torch.zeros_like(tokens.present)
    follows[:, :-1] = tokens.present[:, 1:]
    assert ((sets["runner_up"].weight > 0) == follows).all() and not (sets["view"].weight > 0).any()


def test_passes_begin_at_their_layer(
    folder: Path, model: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What whole passes give, with the first block run for clean texts alone."""
    assert resumable_layers(model, LAYERS) == list(LAYERS)
    first = model.model.model.model.layers[0].self_attn  # type: ignore[attr-defined]
    calls = [0]
    handle = first.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    try:
        resumed = run(model, folder, layers="layers.1", batch_size=20).table
        of_resumed, calls[0] = calls[0], 0
        monkeypatch.setattr("moeprobe.probes.flips.measure.resumable_layers", lambda *_: [])
        whole = run(model, folder, layers="layers.1", batch_size=20).table
    finally:
        handle.remove()
    assert of_resumed <= 12
    assert calls[0] > 20
    pd.testing.assert_frame_equal(resumed, whole, atol=2e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.promise
def test_batches_change_nothing(folder: Path, model: Checkpoint) -> None:
    tables = [run(model, folder, batch_size=size).table for size in (20, 7)]
    # Margins differ in their last bits, by which a token at the edge of a tenth may be in the next one.
    is_tenth = tables[0]["tokens"].str.startswith("margin")
    values, others = (table.loc[~is_tenth, "value"] for table in tables)
    np.testing.assert_allclose(values, others, atol=2e-6)
    trials, others = (table.loc[is_tenth, "trials"].astype(float) for table in tables)
    np.testing.assert_allclose(trials, others, atol=1)
    assert {"token", "prefix", "margin 1/10"} <= set(tables[0]["tokens"])
    row = tables[0][(tables[0]["metric"] == "flip_next_random") & (tables[0]["tokens"] == "prefix")].iloc[0]
    assert (row["images"], row["trials"]) == (20, 20)
    assert row["flag"] == "few_carriers" or row["ci_low"] < row["ci_high"]
    beyond = tables[0][tables[0]["metric"] == "flip_next_beyond_random"]
    assert beyond["value"].between(0, 1).all() and beyond["ci_high"].notna().any()


def test_experts_that_give_nothing_have_no_price(folder: Path) -> None:
    model = api.load_model(f"hf:{folder}")
    network = model.model.model  # type: ignore[attr-defined]
    network.model.layers[0].mlp.experts.down_proj.data.zero_()
    table = run(model, folder).table
    sizes = table[table["metric"].str.contains("_size_")].groupby("layer")["value"].max()
    assert sizes["layers.0"] < 2e-6 and sizes["layers.1"] > 1e-4


def test_sums_are_weighted() -> None:
    weight = torch.tensor([[3.0, 0.0, 1.0]], dtype=torch.float64)
    fall = torch.tensor([[1.0, 9.0, -1.0]], dtype=torch.float64)
    sums = TextFlipsAnalysis().sums({"runner_up": ForcedTextFlips(weight, fall, 2 * fall)})
    columns = {name: column.numpy() for name, column in sums.items()}
    assert columns["flip_next_runner_up"] == 2 and columns["flip_next_size_runner_up"] == 4
    assert columns["flip_following_runner_up"] == 4 and columns["text_flips_runner_up"] == 2


def test_what_is_drawn_and_refused(folder: Path, model: Checkpoint) -> None:
    [figure] = run(model, folder).plot().values()
    assert len(figure.axes) == len(LAYERS) * len(FORCED)
    assert "texts" in " ".join(text.get_text() for text in figure.texts)
    options = ("flips", f"hf:{folder}", "--data", f"text:{folder / 'texts.txt'}")
    assert "leave it out" in refused(*options, "--view", VIEW, "--predict", "typos")
    moved = refused(*options, "--view", "typos")
    assert "moves tokens" in moved and f"--view {VIEW}" in moved
    assert VIEW in refused(*options), "its usual view is one of images"
