"""Switches along a severity and the jumps at them: against models whose answers are known in closed form."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.geometry import identity
from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.views.base import SeverityView
from moeprobe.inputs.views.gaussian_noise import GaussianNoise
from moeprobe.metrics.analyses.discontinuity import DiscontinuityAnalysis
from moeprobe.metrics.analyses.discontinuity import Path as OutputPath
from moeprobe.probes.discontinuity import follow as paths
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.routing.record import RoutingTrace
from tests.commands import Trained, names_in, refused, run
from tests.routing.routings import checkpoint, probe, routing

SLOPE = 1.0


@dataclass(frozen=True)
class Gray(SeverityView):
    """An image that is nothing but its severity."""

    aligned: ClassVar[bool] = True
    severities: ClassVar[tuple[float, ...]] = (0.0, 1.0)
    unit: ClassVar[str] = "brightness"

    def perturb(
        self, image: Image.Image, *, framing: Framing, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Sample]:
        return [
            Sample(torch.full((3, 4, 4), severity, dtype=torch.float64), identity())
            for severity in severities
        ]


class Stairs:
    """A token of each layer counts how many of its thresholds the brightness has passed; each expert adds its step.

    The scores are (SLOPE · brightness + the steps, 0). There are two choices; the second is always expert 9 and adds
    nothing, and which of the two comes first changes at ``swap``.
    """

    group_images = 1

    def __init__(self, thresholds: list[list[float]], steps: list[list[float]], swap: float = 2.0) -> None:
        self.thresholds, self.steps, self.swap = thresholds, steps, swap
        self.layer_names = tuple(f"blocks.{number}" for number in range(len(thresholds)))
        self.passes = 0

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        self.passes += len(images)
        brightness = images.mean((1, 2, 3))
        found = {}
        for name, thresholds in zip(self.layer_names, self.thresholds, strict=True):
            if layers is not None and name not in layers:
                continue
            expert = sum(
                ((brightness > threshold).long() for threshold in thresholds),
                torch.zeros_like(brightness).long(),
            )
            other = torch.full_like(brightness, 9, dtype=torch.int64)
            pair = torch.stack([expert, other], dim=1)
            swapped = pair.flip(1).where((brightness > self.swap)[:, None], pair)
            selected = swapped[:, None].to(torch.int16)
            gates = torch.full((len(images), 1, 10), 0.1)
            found[name] = routing(
                len(images), grid=(1, 1), prefix=0, gates=gates, selected=selected, processed=selected >= 0
            )
        trace = RoutingTrace(found)
        return self.replay(images, trace), trace

    def replay(self, images: Tensor, routing: RoutingTrace, *, gates: str = "recomputed") -> Tensor:
        first = SLOPE * images.mean((1, 2, 3))
        for name, steps in zip(self.layer_names, self.steps, strict=True):
            if name in routing.layers:
                chosen = routing.layers[name].selected[:, 0].long()
                table = torch.zeros(10, dtype=torch.float64)
                table[: len(steps)] = torch.tensor(steps, dtype=torch.float64)
                first = first + table[chosen].sum(1)
        return torch.stack([first, torch.zeros_like(first)], dim=1)


def follow(model: Any, *, steps: int = 200, **changes: Any) -> OutputPath:
    asked = probe(
        "gray",
        Gray(),
        severities=tuple(np.linspace(0, 1, steps + 1)),
        analyses=(DiscontinuityAnalysis(),),
        **changes,
    )
    return paths.follow(asked, Checkpoint("a", model, Framing(4)), asked.dataset.example(0))


def sigmoid(score: float) -> float:
    return 1 / (1 + np.exp(-score))


@pytest.mark.parametrize("steps", [200, 331])
def test_a_planted_switch_is_found_and_its_jump_is_the_closed_form(steps: int) -> None:
    path = follow(Stairs([[0.3, 0.3012, 0.7]], [[0.0, 0.5, 0.4, 1.4]]), steps=steps)
    assert path.target == 0
    np.testing.assert_allclose(path.switch, [0.3, 0.3012, 0.7], atol=paths.TOLERANCE)
    assert (path.switch >= [0.3, 0.3012, 0.7]).all(), "measured where the new routing holds"
    expected = [
        sigmoid(at + after) - sigmoid(at + before)
        for at, before, after in ((0.3, 0, 0.5), (0.3012, 0.5, 0.4), (0.7, 0.4, 1.4))
    ]
    np.testing.assert_allclose(path.jump, expected, atol=1e-4)
    assert path.tokens.tolist() == [[1], [1], [1]]
    levels = np.select(
        [path.severity > 0.7, path.severity > 0.3012, path.severity > 0.3], [1.4, 0.4, 0.5], 0.0
    )
    np.testing.assert_allclose(path.probability, sigmoid(path.severity + levels), atol=1e-6)


def test_two_layers_that_switch_together_are_one_moment() -> None:
    path = follow(Stairs([[0.3], [0.3, 0.6]], [[0, 1.0], [0, 0.5, 0.2]]))
    np.testing.assert_allclose(path.switch, [0.3, 0.6], atol=paths.TOLERANCE)
    assert path.tokens.tolist() == [[1, 1], [0, 1]]
    np.testing.assert_allclose(path.jump[0], sigmoid(1.8) - sigmoid(0.3), atol=1e-4)


def test_some_layers_alone() -> None:
    path = follow(Stairs([[0.3], [0.3, 0.6]], [[0, 1.0], [0, 0.5, 0.2]]), layers=("blocks.1",))
    assert path.tokens.tolist() == [[1], [1]] and len(path.switch) == 2


def test_the_order_of_the_choices_is_no_switch() -> None:
    path = follow(Stairs([[0.9]], [[0.0, 0.0]], swap=0.5))
    np.testing.assert_allclose(path.switch, [0.9], atol=paths.TOLERANCE)


def test_no_switch_takes_no_pass_more_than_the_steps() -> None:
    model = Stairs([[]], [[0.0]])
    path = follow(model)
    assert len(path.switch) == len(path.jump) == 0 and path.tokens.shape == (0, 1)
    assert model.passes == 201


@pytest.mark.slow
def test_against_a_walk_in_small_steps() -> None:
    """A V-MoE under noise: every switch lies where 8,000 small steps see one, and the output jumps there by as much."""
    asked = probe(
        "noise",
        GaussianNoise(),
        severities=tuple(np.linspace(0, 0.4, 201)),
        analyses=(DiscontinuityAnalysis(),),
    )
    one = checkpoint()
    path = paths.follow(asked, one, asked.dataset.example(3))
    assert len(path.switch) > 5 and (np.diff(path.switch) > 0).all()
    fine = np.linspace(0, 0.4, 8001)
    image = asked.dataset.example(3)
    scores, chosen = [], []
    for piece in np.split(fine, [2000, 4000, 6000]):
        pixels = paths._perturb(image.image, image.image_id, piece.tolist(), spec=asked, checkpoint=one)
        logits, routing = one.model.trace(pixels)
        assert logits is not None
        scores.append(logits.double().softmax(1)[:, path.target].numpy())
        chosen.append(
            np.concatenate(
                [np.sort(x.selected, -1).reshape(len(piece), -1) for x in routing.layers.values()], 1
            )
        )
    probability, experts = np.concatenate(scores), np.concatenate(chosen)
    seen = np.flatnonzero((experts[1:] != experts[:-1]).any(1))
    # Tokens that switch there and back within one of the 200 steps are seen in the small ones alone.
    step = np.searchsorted(fine, path.switch - 1e-12) - 1
    assert all(np.abs(seen - where).min() <= 1 for where in step)
    assert len(path.switch) >= 0.9 * len(seen)
    # A small step is so short that what the pixels change in it is little beside a jump.
    change = np.abs(np.diff(probability))
    for where, jump in zip(step, path.jump, strict=True):
        if (np.abs(seen - where) <= 2).sum() == 1:
            nearby = np.concatenate(
                [change[max(where - 6, 0) : where - 1], change[where + 2 : where + 7]]
            ).max()
            across = probability[where + 2] - probability[where - 1]
            assert across == pytest.approx(jump, abs=4 * nearby + 1e-6)


def test_sums_and_metrics_by_hand() -> None:
    random = np.random.default_rng(0)

    def path(name: str, jumps: list[float]) -> OutputPath:
        severity = np.linspace(0, 1, 5)
        probability = random.random(5)
        tokens = np.arange(2 * len(jumps)).reshape(-1, 2)
        return OutputPath(
            name, "a", 0, severity, probability, np.sort(random.random(len(jumps))), np.array(jumps), tokens
        )

    # The last two jumps are nothing, and the rounding of nothing.
    made = [path("x", [0.02, -0.2, 0.0005]), path("y", []), path("z", [0.0, 1e-8])]
    switched = sum(one.tokens.sum() for one in made)
    columns = {name: column.numpy() for name, column in DiscontinuityAnalysis().sums(made).items()}
    found = {
        m.name: m.statistic.evaluate(np.ones((3, 1)))[0]
        for m in DiscontinuityAnalysis().estimators(columns, aligned=True)
    }
    variation = sum(np.abs(np.diff(one.probability)).sum() for one in made) / 3
    assert found.pop("total_variation_4_steps") == pytest.approx(variation)
    assert found == {
        "switches": pytest.approx(5 / 3), "switched_tokens": pytest.approx(switched / 3),
        "jump_sum": pytest.approx(0.2205 / 3), "jump_largest": pytest.approx(0.2 / 3),
        "jump_mean": pytest.approx(0.2205 / 5),
        "switches_above_1e-06": 1.0, "switches_above_0.0001": 1.0, "switches_above_0.001": pytest.approx(2 / 3),
        "switches_above_0.003": pytest.approx(2 / 3), "switches_above_0.01": pytest.approx(2 / 3),
        "switches_above_0.03": pytest.approx(1 / 3), "switches_above_0.1": pytest.approx(1 / 3),
    }  # fmt: skip


def test_counts_of_runs_from_before_the_first_threshold_was_rounding_are_called_as_they_were() -> None:
    counts = np.arange(14).reshape(2, 7)
    rest = ("steps", "switches", "switched_tokens", "jump_sum", "jump_largest", "total_variation")
    columns = dict.fromkeys(("followed", *rest), np.ones(2, dtype=np.int64)) | {"switches_above": counts}
    names = {metric.name for metric in DiscontinuityAnalysis().estimators(columns, aligned=True)}
    assert "switches_above_0" in names and "switches_above_1e-06" not in names


@pytest.mark.pictures
@pytest.mark.slow
def test_discontinuity_writes_what_it_says(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "jumps"
    arguments = ("discontinuity", *trained.values(), "--limit", 6, "--count", 2, "--until", 0.2, "--svg")
    result = run(*arguments, "--out", out)
    assert result.exit_code == 0, result.output
    assert "Switches and jumps along gaussian_noise up to 0.2 (noise σ" in result.output
    # The words without the tags that lines of a caption are in.
    drawn = re.sub(r"<[^>]*>", " ", (out / "figures" / "jumps.svg").read_text(encoding="utf-8"))
    jumps = " ".join(drawn.split())
    assert "Up to 0.2 (noise σ" in jumps
    # Six images have no interval, so the figure claims none.
    assert "6 images; no intervals: they need at least 20" in jumps and "95 %" not in jumps
    assert "severities: 0 to 0.2 in 200 steps (noise σ" in api.report([out]).markdown
    assert names_in(out) == {
        "run.json", "table.csv", "table.json", "comparison.csv", "images.parquet", "figures", "paths.csv",
        "switches.csv",
    }  # fmt: skip
    assert {path.name for path in (out / "figures").iterdir()} == {
        "jumps.png",
        "jumps.svg",
        "paths.png",
        "paths.svg",
    }
    drawn = pd.read_csv(out / "paths.csv")
    assert len(drawn) == 2 * 2 * 201 and drawn["severity"].max() == pytest.approx(0.2)
    assert drawn.groupby(["checkpoint", "image_id"])["probability"].first().gt(0.1).all()
    table = pd.read_csv(out / "table.csv").set_index(["checkpoint", "metric"])
    assert (table["images"].drop(index="jump_mean", level=1) == 6).all()
    comparison = pd.read_csv(out / "comparison.csv").set_index("metric")
    assert comparison.loc["switches", "value"] == pytest.approx(
        table.loc[("prc", "switches"), "value"] - table.loc[("baseline", "switches"), "value"]
    )
    again = tmp_path / "again" / "jumps"
    run(*arguments, "--out", again)
    for name in (
        "table.csv",
        "images.parquet",
        "paths.csv",
        "switches.csv",
        "figures/paths.png",
        "figures/jumps.svg",
    ):
        assert (again / name).read_bytes() == (out / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.promise
def test_own_files_and_named_images(trained: Trained, tmp_path: Path) -> None:
    picture = tmp_path / "mine.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(picture)
    found = json.loads(run("discontinuity", trained["prc"], "--file", picture, "--json").stdout)
    assert {row["dataset"] for row in found["table"]} == {"files"}
    assert {row["images"] for row in found["table"] if row["metric"] == "switches"} == {1}
    result = run(
        "discontinuity", trained["prc"], "--images", "digits/1091", "--view", "affine", "--until", 0.1
    )
    assert "1 image of digits test; no intervals" in result.output


@pytest.mark.slow
@pytest.mark.promise
def test_nothing_is_said_of_accuracy_where_it_is_not_measured(trained: Trained, tmp_path: Path) -> None:
    picture = tmp_path / "mine.png"
    Image.new("RGB", (32, 32), "gray").save(picture)
    assert "no accuracy" not in run("discontinuity", trained["prc"], "--file", picture).output
    assert "no accuracy" not in run("match-ratio", trained["prc"], "--data", f"folder:{tmp_path}").output
    swept = run("noise-sweep", trained["prc"], "--data", f"folder:{tmp_path}", "--sigmas", "0,0.1")
    assert "no accuracy: the data have no labels" in swept.output


def test_a_dry_run_writes_nothing(trained: Trained, tmp_path: Path) -> None:
    result = run("discontinuity", *trained.values(), "--limit", 9, "--dry-run", "--out", tmp_path / "never")
    assert "2 checkpoints x 9 images x 201 forward passes = 3,618 passes at least" in result.output
    assert "judging by 2 images" in result.output and not (tmp_path / "never").exists()


@pytest.mark.pictures
def test_no_figure_is_drawn_that_is_not_asked_for(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "run"
    api.discontinuity([trained["prc"]], images=["digits/1091"], until=0.02, out=out, figures=False)
    assert (out / "paths.csv").is_file() and not (out / "figures").exists()


def test_what_cannot_be_followed(trained: Trained) -> None:
    prc = trained["prc"]
    assert "takes a whole number from 200 up; got 20" in refused("discontinuity", prc, "--steps", 20)
    assert "has no severity" in refused("discontinuity", prc, "--view", "random_crop")
    assert "must be above 0; got 0" in refused("discontinuity", prc, "--until", 0)
    assert "no image 'nobody'" in refused("discontinuity", prc, "--images", "nobody")
    assert "a number of images from 1 up" in refused("discontinuity", prc, "--count", 0)


@pytest.mark.slow
@pytest.mark.promise
def test_an_interrupted_walk_goes_on(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "BLOCK_IMAGES", 3)
    arguments = ("discontinuity", trained["prc"], "--limit", 7, "--until", 0.1)
    assert run(*arguments, "--out", tmp_path / "whole" / "run").exit_code == 0
    real, calls = paths.run_block, []

    def interrupted(*block: Any) -> Any:
        calls.append(block)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*block)

    monkeypatch.setattr(paths, "run_block", interrupted)
    out = tmp_path / "cut" / "run"
    assert run(*arguments, "--out", out).exit_code == 130
    assert run(*arguments, "--out", out).exit_code == 0
    assert len(calls) == 4, "three blocks, one of them begun twice"
    assert (out / "table.csv").read_bytes() == (tmp_path / "whole" / "run" / "table.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
def test_a_bad_image_costs_neither_the_tables_nor_the_figure(trained: Trained, tmp_path: Path) -> None:
    for number in range(3):
        Image.fromarray(np.full((32, 32, 3), 80 * number, dtype=np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    out = tmp_path / "out"
    arguments = (
        "discontinuity",
        trained["prc"],
        "--data",
        f"folder:{tmp_path}",
        "--until",
        0.1,
        "--count",
        4,
    )
    assert "bad.png" in refused(*arguments)
    result = run(*arguments, "--skip-bad-images", "--out", out)
    assert result.exit_code == 0, result.output
    assert "1 unreadable image skipped: bad.png" in result.output
    assert pd.read_csv(out / "paths.csv")["image_id"].nunique() == 3


def test_bad_images_are_named_or_skipped() -> None:
    asked: RunSpec = probe(
        "gray", Gray(), severities=(0.0, 1.0), analyses=(DiscontinuityAnalysis(),), indices=range(4)
    )

    class Broken(type(asked.dataset)):  # type: ignore[misc]
        def example(self, index: int) -> Any:
            if index == 2:
                from moeprobe.errors import UserError

                raise UserError("bad")
            return super().example(index)

    asked = replace(asked, dataset=Broken(split="test"), skip_bad_images=True)
    done: list[int] = []
    sums, skipped = paths.run_block(
        asked, Checkpoint("a", Stairs([[0.5]], [[0, 1]]), Framing(4)), range(4), done.append
    )
    assert skipped == [asked.dataset.image_ids[2]] and sum(done) == 4
    assert len(sums.cells()[0].image_ids) == 3
