"""A sweep says the same for any batch size, worker count and interruption; severities share one draw."""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.inputs.data.picture_pairs import PicturePairs
from moeprobe.inputs.data.readers.images import Masked
from moeprobe.inputs.data.shapes import Shapes
from moeprobe.inputs.views.gaussian_noise import GaussianNoise
from moeprobe.inputs.views.random_crop import RandomCrop
from moeprobe.judging.summarize import summarize
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.loop import run
from moeprobe.probes.engine.run_spec import RunSpec, choose_images, recipe
from moeprobe.results.stored import SumsStore, write
from moeprobe.results.summaries import About
from moeprobe.routing.record import RoutingTrace
from moeprobe.runtime.catalog import ANALYSES, VIEWS
from moeprobe.runtime.files import write_csv
from tests.adapters.modalities import IMAGE_VIEWS
from tests.inputs.data.making import pairs
from tests.results.stores import cells
from tests.routing.routings import checkpoint, digits, probe

ABOUT = About("r", "digits", "test", 0, aligned=True, train_seeds={}, groups={})
NOISE = ("gaussian_noise", GaussianNoise())


class Damaged(ImageDataset):
    """Digits of which some cannot be read."""

    def __init__(self, *, split: str = "test", location: str | None = None, bad: Sequence[int] = ()) -> None:
        self.image_ids, self.class_names, self.bad = digits().image_ids, digits().class_names, bad

    def example(self, index: int) -> Example:
        if index in self.bad:
            raise UserError(f"Cannot read {self.image_ids[index]}.")
        return digits().example(index)


def noise(**changes: Any) -> RunSpec:
    return probe(*NOISE, severities=(0.0, 0.1, 0.3), **changes)


def kept_whole(images: SumsStore) -> dict[tuple[object, ...], dict[str, NDArray[np.generic]]]:
    """The whole-number columns of each cell, and the names."""
    return {
        cell.key(): {name: column for name, column in columns.items() if column.dtype.kind == "i"}
        | {"names": np.array(names)}
        for _, cell, names, columns in cells(images)
    }


def assert_same(one: SumsStore, two: SumsStore) -> None:
    """Whole numbers exactly, sums of floats to the rounding of a forward pass."""
    assert one.table().schema.equals(two.table().schema) and one.num_rows == two.num_rows
    for (_, cell, names, first), (_, other, also, second) in zip(cells(one), cells(two), strict=True):
        assert (cell.key(), names, first.keys()) == (other.key(), also, second.keys())
        for name, column in first.items():
            if column.dtype.kind == "i":
                assert np.array_equal(column, second[name]), name
            else:
                assert np.allclose(column.astype(float), second[name].astype(float), rtol=1e-5, atol=1e-5), (
                    name
                )


def files(images: SumsStore, asked: RunSpec, folder: Path) -> tuple[bytes, bytes]:
    folder.mkdir()
    table, _ = summarize(images, analyses=asked.analyses, run_info=ABOUT)
    write_csv(folder / "table.csv", table)
    write(folder / "images.parquet", images)
    return (folder / "table.csv").read_bytes(), (folder / "images.parquet").read_bytes()


@pytest.mark.slow
def test_batch_size_and_workers_change_nothing(tmp_path: Path) -> None:
    model = checkpoint()
    whole, _ = run(noise(), model)
    for number, changes in enumerate(({"batch_size": 1}, {"batch_size": 7}, {"workers": 2, "batch_size": 7})):
        again, _ = run(noise(**changes), model)
        assert_same(whole, again)
        # Without float columns the files are the same byte for byte.
        counts = tuple(ANALYSES.get(name)() for name in ("match", "load"))
        one = files(run(noise(analyses=counts), model)[0], noise(analyses=counts), tmp_path / f"{number}-a")
        two = run(noise(analyses=counts, **changes), model)[0]
        assert one == files(two, noise(analyses=counts), tmp_path / f"{number}-b")


def test_the_same_question_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    once, twice = (files(run(noise(), checkpoint())[0], noise(), tmp_path / name) for name in "ab")
    assert once == twice


def test_sums_are_whole_numbers_or_double_precision() -> None:
    images, _ = run(noise(), checkpoint())
    for _, _, names, columns in cells(images):
        assert names == sorted(names) and len(names) == 30
        assert all(column.dtype.kind == "i" or column.dtype == np.float64 for column in columns.values())


def test_severity_zero_is_the_clean_image() -> None:
    model = checkpoint()
    found = kept_whole(run(noise(), model)[0])
    for key, columns in found.items():
        severity = key[4]
        if key[6] and severity == 0:
            assert np.array_equal(columns["top2_match"], columns["trials"])
            assert np.array_equal(columns["reference_selected"], columns["view_selected"])
        if key[6] == "patch" and severity == 0.3:
            assert columns["top2_match"].sum() < columns["trials"].sum()
    # A pass over noise of strength zero, not taken from the clean one, says the same.
    forced = dataclasses.replace(noise(), severities=(1e-12, 0.1, 0.3))
    for (_, _, _, one), (_, _, _, two) in zip(
        cells(run(noise(), model)[0]), cells(run(forced, model)[0]), strict=True
    ):
        assert all(np.array_equal(one[name], two[name]) for name in one if one[name].dtype.kind == "i")


def test_one_clean_pass_serves_all_severities() -> None:
    model = checkpoint()
    passes: list[int] = []
    inner = model.model.trace

    def counted(images: torch.Tensor, **options: Any) -> tuple[torch.Tensor | None, RoutingTrace]:
        passes.append(len(images))
        return inner(images, **options)

    model.model.trace = counted  # type: ignore[method-assign]
    asked = noise(indices=range(6), batch_size=6)
    run(asked, model)
    assert passes == [6] * 3 and asked.num_passes == 3
    assert dataclasses.replace(asked, severities=(0.1, 0.3)).num_passes == 3
    assert probe("clean", None).num_passes == 1
    assert probe("random_crop", RandomCrop()).num_passes == 2


def test_a_severity_is_the_same_alone_and_in_a_sweep() -> None:
    model = checkpoint()
    sweep = kept_whole(run(noise(), model)[0])
    for key, columns in kept_whole(run(dataclasses.replace(noise(), severities=(0.3,)), model)[0]).items():
        assert all(np.array_equal(sweep[key][name], column) for name, column in columns.items())


def test_noise_is_nested_along_a_sweep_and_the_same_for_every_checkpoint() -> None:
    unclipped = probe("gaussian_noise", GaussianNoise(clip=False), severities=(0.1, 0.3))
    image = digits().example(0)
    made = [recipe(unclipped, checkpoint(name, seed=seed).framing) for name, seed in (("a", 0), ("b", 1))]
    clean, weak, strong = (sample.pixels for sample in made[0](image.image, image.image_id))
    torch.testing.assert_close(3 * (weak - clean), strong - clean, rtol=1e-4, atol=1e-5)
    assert torch.equal(made[1](image.image, image.image_id)[2].pixels, strong)
    other = digits().example(1)
    assert not torch.equal(made[0](image.image, other.image_id)[2].pixels, strong)


def test_pairs_of_crops_by_brute_force() -> None:
    """Each patch center of the smaller view looked up in the other, choices compared one by one."""
    model, asked = checkpoint(), probe("random_crop", RandomCrop(), indices=range(12))
    found = kept_whole(run(asked, model)[0])
    make = recipe(asked, model.framing)
    for index in range(12):
        example = digits().example(index)
        samples = make(example.image, example.image_id)
        routings = [model.model.trace(sample.pixels[None])[1].layers for sample in samples]
        areas = [abs(np.linalg.det(sample.to_source[:2, :2])) for sample in samples]
        first = 1 if areas[1] < areas[0] else 0
        for layer in ("blocks.1", "blocks.3"):
            choices = [routing[layer].selected[0, 1:].tolist() for routing in routings]
            trials = top1 = top2 = both = 0
            for row, column in itertools.product(range(4), range(4)):
                center = np.array([column * 8 + 4, row * 8 + 4, 1.0])
                source = samples[first].to_source @ center
                x, y, _ = np.linalg.solve(samples[1 - first].to_source, source)
                inside = 0 <= source[0] < 32 and 0 <= source[1] < 32 and 0 <= x < 32 and 0 <= y < 32
                if inside:
                    one, two = (
                        choices[first][row * 4 + column],
                        choices[1 - first][int(y // 8) * 4 + int(x // 8)],
                    )
                    trials, top1, top2 = trials + 1, top1 + (one[0] == two[0]), top2 + (one == two)
                    both += set(one) == set(two)
            key = next(key for key in found if key[0] == layer and key[6] == "patch")
            row = found[key]["names"].tolist().index(example.image_id)
            counted = [found[key][n][row] for n in ("trials", "top1_match", "top2_match", "top2_set_match")]
            assert counted == [trials, top1, top2, both]
    assert sum(columns["trials"].sum() for key, columns in found.items() if key[6] == "patch") > 100


def test_prefix_and_patches_stand_apart() -> None:
    found = kept_whole(run(noise(), checkpoint())[0])
    tokens = {(key[0], key[6]): columns["trials"] for key, columns in found.items() if key[6]}
    assert all((count == (16 if kind == "patch" else 1)).all() for (_, kind), count in tokens.items())
    assert set(tokens) == {
        (layer, kind) for layer in ("blocks.1", "blocks.3") for kind in ("patch", "prefix")
    }


def test_only_the_layers_asked_for() -> None:
    found = kept_whole(run(noise(layers=("blocks.1",)), checkpoint())[0])
    assert {key[0] for key in found} == {"", "blocks.1"}


def test_labels_that_are_not_the_models_are_left_out() -> None:
    asked = noise(labeled=False)
    table, _ = summarize(run(asked, checkpoint())[0], analyses=asked.analyses, run_info=ABOUT)
    assert "accuracy" not in set(table["metric"]) and "prediction_agreement" in set(table["metric"])


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("bad", [(), (3, 11, 12, 13, 14)])
def test_a_resumed_run_is_an_uninterrupted_one(
    bad: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of four; one of them holds bad images alone. Some part files are lost, and computed again."""
    monkeypatch.setattr(loop, "BLOCK_IMAGES", 4)
    asked = noise(dataset=Damaged(bad=[10, *bad]), skip_bad_images=True, indices=[*range(2, 22), 25])
    whole, skipped = run(asked, checkpoint())
    assert skipped == [digits().image_ids[index] for index in sorted([10, *bad])]
    parts = tmp_path / "parts"
    run(asked, checkpoint(), parts=parts)
    expected = files(whole, asked, tmp_path / "whole")
    for number, lost in enumerate(([], [0], [1, 3], range(6))):
        names = sorted(parts.glob("*.parquet"))
        assert len(names) == 6
        for part in lost:
            names[part].unlink()
        done: list[int] = []
        again, also_skipped = run(asked, checkpoint(), parts=parts, progress=done.append)
        assert also_skipped == skipped and sum(done) == 21
        assert files(again, asked, tmp_path / f"again-{number}") == expected


@pytest.mark.parametrize("damage", [b"", b"PAR1", None])
def test_a_damaged_part_file_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    monkeypatch.setattr(loop, "BLOCK_IMAGES", 8)
    asked, model = noise(indices=range(16)), dataclasses.replace(checkpoint(), provenance={"sha256": "a"})
    before = run(asked, model, parts=tmp_path)[0].table()
    part = sorted(tmp_path.glob("*.parquet"))[0]
    part.write_bytes(part.read_bytes()[:-40] if damage is None else damage)
    with pytest.warns(UserWarning, match="is damaged; its images are probed again"):
        assert run(asked, model, parts=tmp_path)[0].table().equals(before)


def test_part_files_of_something_else_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "BLOCK_IMAGES", 8)
    asked = noise(indices=range(16))
    run(asked, checkpoint(seed=1), parts=tmp_path)
    other = dataclasses.replace(checkpoint(), provenance={"sha256": "another file"})
    assert run(asked, other, parts=tmp_path)[0].table().equals(run(asked, other)[0].table())
    shifted = noise(indices=range(1, 17))
    assert run(shifted, other, parts=tmp_path)[0].table().equals(run(shifted, other)[0].table())


def test_part_files_of_other_masks_or_another_version_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        path = tmp_path / "masks" / f"{digits().image_ids[number]}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.eye(32, dtype=np.uint8) * 255).save(path)
    asked = noise(dataset=Masked(digits(), tmp_path / "masks"), indices=range(4))
    begun: list[int] = []
    run_block = loop.measure_block

    def counted(*arguments: Any) -> Any:
        begun.append(1)
        return run_block(*arguments)

    monkeypatch.setattr(loop, "measure_block", counted)
    before = run(asked, checkpoint(), parts=tmp_path / "parts")[0]
    assert (
        run(asked, checkpoint(), parts=tmp_path / "parts")[0].table().equals(before.table())
        and len(begun) == 1
    )
    # A mask of the same name and time.
    stat = path.stat()
    content = path.read_bytes()
    Image.fromarray(255 - np.eye(32, dtype=np.uint8) * 255).save(path)
    assert path.read_bytes() != content
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = run(asked, checkpoint(), parts=tmp_path / "parts")[0]
    assert (
        len(begun) == 2
        and after.table().equals(run(asked, checkpoint())[0].table())
        and not after.table().equals(before.table())
    )
    assert len(begun) == 3
    for number, name in enumerate(("__version__", "FORMAT"), start=4):
        monkeypatch.setattr(loop, name, "another")
        assert (
            run(asked, checkpoint(), parts=tmp_path / "parts")[0].table().equals(after.table())
            and len(begun) == number
        )


def test_part_files_that_fit_are_not_computed_again(tmp_path: Path) -> None:
    run(noise(), checkpoint(), parts=tmp_path)
    model = checkpoint()
    model.model.trace = None  # type: ignore[method-assign, assignment]
    assert run(noise(), model, parts=tmp_path)[0].num_rows > 0


def limited(group_images: int) -> Checkpoint:
    return checkpoint(
        trained_capacity=True, group_images=group_images, eval_capacity_factor=0.5, capacity_factor=0.5
    )


@pytest.mark.parametrize("group_images", [pytest.param(1, marks=[pytest.mark.slow, pytest.mark.promise]), 4])
def test_a_limited_capacity_depends_on_groups_and_not_on_batches(
    group_images: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = noise(dataset=Damaged(bad=[5]), skip_bad_images=True)
    whole, _ = run(asked, limited(group_images))
    monkeypatch.setattr(loop, "BLOCK_IMAGES", 10)
    for batch_size in (1, 7, 10):
        assert_same(whole, run(dataclasses.replace(asked, batch_size=batch_size), limited(group_images))[0])
    # The limit is felt: without it, and with other groups, the deeper layer chooses otherwise.
    key = ("blocks.3", "softmax_token_choice", 2, "gaussian_noise", 0.3, 0, "patch")
    chosen = kept_whole(whole)[key]["view_selected"]
    for other in (checkpoint(), limited(5 - group_images)):
        assert not np.array_equal(chosen, kept_whole(run(asked, other)[0])[key]["view_selected"])


def test_the_chosen_images_are_nested_seeded_and_named() -> None:
    data = digits()
    everything = choose_images(data, limit=None, seed=0)
    assert sorted(everything) == list(range(len(data)))
    assert choose_images(data, limit=10, seed=0) == everything[:10]
    assert choose_images(data, limit=10, seed=1) != everything[:10]

    backwards = Damaged()
    backwards.image_ids = list(reversed(data.image_ids))
    names = [backwards.image_ids[index] for index in choose_images(backwards, limit=10, seed=0)]
    assert names == [data.image_ids[index] for index in everything[:10]]


@pytest.mark.parametrize("name", IMAGE_VIEWS)
def test_every_view_can_be_probed(name: str, tmp_path: Path) -> None:
    view = VIEWS.get(name)()
    steps = getattr(view, "severities", None)
    for severities in [()] if steps is None else [steps[:2]]:
        asked = probe(name, view, severities=severities, indices=range(4))
        # Digits have no masks, and are no pairs.
        data = asked.dataset
        if name == "ground":
            data = Shapes(split="test", location="32")
        elif name == "second_picture":
            data = PicturePairs(split="test", location=str(pairs(tmp_path)))
        images, _ = run(dataclasses.replace(asked, dataset=data), checkpoint())
        assert images.num_rows and {cell.view for _, cell, _, _ in cells(images)} == {name}


def test_correspondence_of_moving_views_reaches_the_match() -> None:
    """A view that moves is compared by where its patches lie, at every severity but the first."""
    names = [n for n in IMAGE_VIEWS if hasattr(VIEWS.get(n), "severities") and not VIEWS.get(n).aligned]
    for name in names:
        view = VIEWS.get(name)()
        step = view.severities[-1]
        asked = probe(name, view, severities=(view.severities[0], step), indices=range(6))
        found = kept_whole(run(asked, checkpoint())[0])
        make = recipe(asked, checkpoint().framing)
        grid = geometry.PatchGrid(4, 4, 8)
        for index in range(6):
            example = digits().example(index)
            samples = make(example.image, example.image_id)
            pairs = geometry.correspond(
                samples[0].to_source[None],
                samples[2].to_source[None],
                grid=grid,
                source_size=np.array([[32.0, 32.0]]),
            )
            key = next(key for key in found if key[4] == step and key[6] == "patch")
            row = found[key]["names"].tolist().index(example.image_id)
            assert found[key]["trials"][row] == pairs.valid.sum()
