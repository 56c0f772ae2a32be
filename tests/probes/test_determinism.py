"""The same inputs run in other ways: nothing moves where nothing should, and what a batch does is found."""

from pathlib import Path
from typing import Any

import pytest
import torch

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.inputs.texts import TokenBatch
from moeprobe.probes.determinism.measure import add_padding, run, ways
from moeprobe.routing.record import RoutingTrace
from tests.commands import refused
from tests.commands import run as command
from tests.routing.routings import checkpoint


def test_ways_are_a_product() -> None:
    names = [way.name for way in ways(sizes=[1, 3], padding=4, repeats=2)]
    assert names == [
        "again 1", "again 2", "batch as run padding 4", "batch as run reversed", "batch as run reversed padding 4",
        "batch 1", "batch 1 padding 4", "batch 3", "batch 3 padding 4", "batch 3 reversed",
        "batch 3 reversed padding 4",
    ]  # fmt: skip
    assert [way.name for way in ways(sizes=[], padding=0, repeats=0)] == ["batch as run reversed"]


class Recorder:
    """A model that notes what it is run on; its routing and scores are those of the inputs alone."""

    def __init__(self, model: Any) -> None:
        self.model, self.seen = model, list[list[float]]()

    def trace(self, images: torch.Tensor, **more: Any) -> tuple[torch.Tensor | None, RoutingTrace]:
        self.seen.append(images.mean((1, 2, 3)).tolist())
        return self.model.trace(images, **more)


def test_what_comes_back_is_in_the_order_of_the_batch() -> None:
    model = checkpoint().model
    images = torch.rand(7, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    scores, routing = model.trace(images)
    means = images.mean((1, 2, 3)).tolist()
    for way in ways(sizes=[1, 3], padding=0, repeats=1):
        recorder = Recorder(model)
        again, found = run(recorder, images, way, layers=None, logits=True)  # type: ignore[arg-type]
        assert scores is not None and again is not None
        torch.testing.assert_close(again, scores)
        for name, layer in routing.layers.items():
            torch.testing.assert_close(found.layers[name].gates, layer.gates)
        order = [one for batch in recorder.seen for one in batch]
        assert order == pytest.approx(means[::-1] if way.reversed else means)
        assert max(map(len, recorder.seen)) == (way.size or 7)


def test_padding_is_no_token() -> None:
    ids = torch.tensor([[5, 6, 7], [5, 0, 0]])
    marks = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
    more = add_padding(TokenBatch(ids, marks, marks, 0), 2)
    assert more.ids.tolist() == [[5, 6, 7, 0, 0], [5, 0, 0, 0, 0]]
    assert more.present.sum() == more.ordinary.sum() == 4


def test_a_model_that_looks_at_its_batch_is_found_out() -> None:
    """A planted fault: the first image of every batch has the gates of its second expert for those of the first."""
    model = checkpoint("planted")
    trace = model.model.trace

    def faulty(images: torch.Tensor, **more: Any) -> tuple[torch.Tensor | None, RoutingTrace]:
        scores, routing = trace(images, **more)
        for layer in routing.layers.values():
            layer.selected[0] = layer.selected[0].flip(-1)
        return scores, routing

    model.model.trace = faulty  # type: ignore[method-assign]
    found = api.determinism(model, data="digits", limit=24, batch_size=24, batches=[6]).table
    match = found[(found["metric"] == "top1_match") & (found["tokens"] == "patch")]
    share = match.groupby("view")["value"].mean().to_dict()
    assert share["again 1"] == 1
    # The first and the last image, then each first of four batches but the one that it is already.
    assert share["batch as run reversed"] == pytest.approx(1 - 2 / 24)
    assert share["batch 6"] == pytest.approx(1 - 3 / 24)
    assert share["batch 6 reversed"] == pytest.approx(1 - 5 / 24)


@pytest.mark.pictures
def test_the_command(tmp_path: Path) -> None:
    where = "checkpoints/reference/digits-prc-k2-seed0"
    result = command("determinism", where, "--limit", "24", "--batches", "5", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "batch 5 reversed" in said and "padding" not in said
    assert "--batches takes different positive numbers" in refused("determinism", where, "--batches", "0")
    assert "--repeats takes a whole number" in refused("determinism", where, "--repeats", "-1")


def test_groups_are_not_cut() -> None:
    model = checkpoint("grouped", group_images=4, trained_capacity=True, eval_capacity_factor=1.0)
    assert model.model.group_images == 4
    with pytest.raises(UserError, match="batches takes multiples of 4, and got 6"):
        api.determinism(model, data="digits", limit=24, batches=[6], group_images=4)


@pytest.mark.slow
@pytest.mark.promise
def test_texts_are_padded(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.adapters.tiny_texts import olmoe, texts

    folder = olmoe(tmp_path / "one")
    (tmp_path / "lines.txt").write_text("\n".join(texts(22)), encoding="utf-8")
    result = api.determinism(
        f"hf:{folder}", data=f"text:{tmp_path / 'lines.txt'}", batches=[1, 5], batch_size=8
    )
    match = result.table[result.table["metric"] == "top1_match"]
    assert set(match["view"]) >= {"batch as run padding 16", "batch 5 reversed padding 16", "again 1"}
    assert (match["value"] == 1).all(), "sums of 32 numbers leave these gates apart"
