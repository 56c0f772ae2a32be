"""``moeprobe overlay --animate``: frames, GIF and strip of one draw that grows."""

import dataclasses
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from moeprobe import api
from moeprobe.inputs.views.affine import Affine
from moeprobe.inputs.views.gaussian_noise import GaussianNoise
from moeprobe.probes.overlay.figure import draw, patches, strip
from moeprobe.probes.overlay.figure import frame as frame_figure
from moeprobe.probes.overlay.measure import overlay_table
from moeprobe.probes.overlay.record import ImageOverlay, TokenChoices
from moeprobe.results.figures import save
from moeprobe.results.palette import expert_color
from tests.commands import Trained, pictures, refused, run
from tests.results.drawn import words
from tests.routing.routings import checkpoint, probe

KEYS = ["checkpoint", "layer", "image_id", "row", "column"]


@pytest.fixture(scope="module")
def animated(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("animated") / "one"
    with pictures():
        result = run("overlay", *trained.values(), *ARGUMENTS, "--out", out)
    assert result.exit_code == 0, result.output
    assert "figures/overlay-blocks.3.gif" in result.output and "0 of 16" in result.output
    return out


ARGUMENTS = ("--animate", "--severities", "0.3,0,0.1", "--count", 2, "--layers", "blocks.3", "--seed", 4)


def test_it_writes_frames_in_growing_order(animated: Path) -> None:
    frames = json.loads((animated / "table.json").read_text())["frames"]
    assert frames == {
        "blocks.3": [
            {"severity": severity, "file": f"figures/overlay-blocks.3-{number:03d}.png"}
            for number, severity in enumerate((0.0, 0.1, 0.3))
        ]
    }
    names = {entry["file"] for entry in frames["blocks.3"]}
    others = {f"figures/overlay-blocks.3{end}" for end in (".gif", "-strip.png")}
    assert {
        path.relative_to(animated).as_posix() for path in (animated / "figures").iterdir()
    } == names | others


def test_the_gif_is_its_frames(animated: Path) -> None:
    frames = [
        np.asarray(
            Image.open(animated / "figures" / f"overlay-blocks.3-00{number}.png").convert("RGB"), float
        )
        for number in range(3)
    ]
    with Image.open(animated / "figures" / "overlay-blocks.3.gif") as gif:
        assert (gif.n_frames, gif.info["loop"]) == (3, 0)  # type: ignore[attr-defined]
        for number, frame in enumerate(frames):
            gif.seek(number)
            shown = np.asarray(gif.convert("RGB"), float)
            assert shown.shape == frame.shape
            distances = [np.abs(shown - other).mean() for other in frames]
            assert int(np.argmin(distances)) == number and distances[number] < 8
            assert (shown[(frame == 255).all(-1)] == 255).all(), "white is no longer white"


@pytest.mark.pictures
def test_all_severities_are_one_draw(animated: Path, trained: Trained, tmp_path: Path) -> None:
    table = pd.read_csv(animated / "patches.csv")
    assert sorted(table["severity"].unique()) == [0, 0.1, 0.3]
    assert len(table) == 2 * 3 * 2 * 16
    assert not table[table["severity"] == 0]["changed"].any()
    assert (table["changed"] == (table["clean_expert"] != table["perturbed_expert"])).all()
    # A picture at one severity shows what the animation shows there.
    single = ("--severity", 0.3, *ARGUMENTS[3:])
    assert run("overlay", *trained.values(), *single, "--out", tmp_path / "single").exit_code == 0
    one = pd.read_csv(tmp_path / "single" / "patches.csv").set_index(KEYS)
    same = table[table["severity"] == 0.3].set_index(KEYS)
    pd.testing.assert_frame_equal(one.sort_index(), same.sort_index())
    assert same["changed"].any()


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
def test_the_same_command_twice_gives_the_same_bytes(
    animated: Path, trained: Trained, tmp_path: Path
) -> None:
    run("overlay", *trained.values(), *ARGUMENTS, "--out", tmp_path / "two")
    files = [path.relative_to(animated) for path in animated.rglob("*") if path.name != "table.json"]
    assert len(files) > 6
    for name in files:
        if (animated / name).is_file():
            assert (animated / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_the_default_steps_are_those_of_the_view(trained: Trained) -> None:
    found = api.overlay([trained["prc"]], animate=True, count=1, layers=("blocks.1",), view="affine")
    assert tuple(item.severity for item in found.overlays) == Affine.severities


def test_a_moving_grid_names_the_clean_patch_it_is_compared_with(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "turned"
    arguments = ("--view", "rotation", "--severity", 30, "--count", 2, "--layers", "blocks.3", "--out", out)
    assert run("overlay", trained["prc"], *arguments).exit_code == 0
    table = pd.read_csv(out / "patches.csv")
    assert 0 < table["compared"].sum() < len(table)
    # Where there is no partner, nothing is named, and nothing changed.
    apart = table[~table["compared"]]
    assert apart[["clean_patch", "clean_patch_expert"]].isna().all(axis=None) and not apart["changed"].any()
    for _, here in table.groupby("image_id"):
        of_place = here["clean_expert"].to_numpy()
        # By a loop over the clean patches' centers, turned about the middle of 32 pixels in either direction.
        partners: dict[tuple[int, int], int] = {}
        turn = np.deg2rad(30)
        for patch in range(16):
            x, y = 8 * (patch % 4) + 4 - 16, 8 * (patch // 4) + 4 - 16
            for sign in (1, -1):
                u = x * np.cos(turn) - sign * y * np.sin(turn) + 16
                v = sign * x * np.sin(turn) + y * np.cos(turn) + 16
                if 0 <= u < 32 and 0 <= v < 32:
                    partners.setdefault((sign, int(v // 8) * 4 + int(u // 8)), patch)
        found = {
            int(row["row"] * 4 + row["column"]): int(row["clean_patch"])
            for _, row in here[here["compared"]].iterrows()
        }
        expected = [{there: one for (s, there), one in partners.items() if s == sign} for sign in (1, -1)]
        assert found in expected
        moved = here[here["compared"]]
        assert (moved["clean_patch_expert"] == of_place[moved["clean_patch"].astype(int)]).all()
        assert (moved["changed"] == (moved["clean_patch_expert"] != moved["perturbed_expert"])).all()


@pytest.mark.parametrize(("more", "passes"), [((), 2), (("--animate", "--severities", "0,0.1,0.3"), 3)])
def test_a_dry_run_says_how_many_passes_and_writes_nothing(
    more: tuple[str, ...], passes: int, trained: Trained, tmp_path: Path
) -> None:
    asked = ("overlay", *trained.values(), "--count", 3, *more, "--dry-run")
    result = run(*asked, "--out", tmp_path / "never")
    assert f"2 checkpoints x 3 images x {passes} forward passes = {6 * passes} passes" in result.output
    assert "before drawing, judging by 2 images. Nothing was written." in result.output
    assert not (tmp_path / "never").exists()
    # No folder is needed to ask, and what is wrong is refused as it would be.
    assert json.loads(run(*asked, "--json").stdout)["passes"] == passes
    assert "There is no image 'x'" in refused(*asked, "--images", "x")


@pytest.mark.parametrize("command", ["overlay", "correspond"])
def test_help_says_that_a_folder_is_required(command: str) -> None:
    said = " ".join(run(command, "--help").output.replace("│", " ").split())
    assert "Folder for the figures and their table; required unless --json." in said
    assert "default: print only" not in said
    assert "default: print only" in " ".join(run("eval", "--help").output.replace("│", " ").split())


def test_what_does_not_fit_is_refused(trained: Trained) -> None:
    def sentence(*more: object) -> str:
        return refused("overlay", trained["prc"], "--json", *more)

    assert "--severities instead of --severity" in sentence("--animate", "--severity", 0.2)
    assert "--severity is one alone" in sentence("--severities", "0,0.2", "--severity", 0.2)
    assert "named twice" in sentence("--animate", "--severities", "0.2,0.2")
    assert "has no severity" in sentence("--animate", "--view", "random_crop")
    own = ("--file", "own.png")
    assert "give one of the two" in sentence(*own, "--images", "digits/0000")
    assert "omit --data digits" in sentence(*own, "--data", "digits")
    assert "Give --split for another" in sentence("--images", "digits/0001")


def test_one_clean_pass_serves_all_severities(monkeypatch: pytest.MonkeyPatch) -> None:
    from moeprobe.probes.overlay import measure

    model = checkpoint()
    seen: list[Tensor] = []
    trace = model.model.trace

    def counted(images: Tensor, **arguments: Any) -> Any:
        seen.append(images)
        return trace(images, **arguments)

    monkeypatch.setattr(model.model, "trace", counted)
    asked = probe("gaussian_noise", GaussianNoise(), severities=(0.0, 0.1, 0.3), indices=[0, 5])
    found = [item for item in measure.record_overlays(asked, [model]) if isinstance(item, ImageOverlay)]
    assert len(seen) == 3
    assert len(found) == 3 * 2 * 2
    assert all((item.perturbed == item.clean).all() for item in found if item.severity == 0)
    # Noise that grows is the same noise: away from the clipped ends it is three times that of a third.
    small, large = (
        next(item for item in found if item.severity == severity).perturbed - found[0].clean
        for severity in (0.1, 0.3)
    )
    inside = (found[0].clean + large > 0.01) & (found[0].clean + large < 0.99)
    assert inside.sum() > 100
    np.testing.assert_allclose(large[inside], 3 * small[inside], atol=1e-5)


def made(
    checkpoint: str, severity: float, *, changed: int, compared: int = 16, image: str = "i"
) -> ImageOverlay:
    flags = np.arange(16).reshape(4, 4)
    assert changed <= compared
    return ImageOverlay(
        image_id=image,
        checkpoint=checkpoint,
        layer="blocks.1",
        severity=severity,
        clean=np.zeros((8, 8, 3), np.float32),
        perturbed=np.full((8, 8, 3), severity, np.float32),
        clean_expert=flags,
        perturbed_expert=flags + 20 * (flags < changed),
        clean_patch=np.where(flags < compared, flags, -1),
        meeting=0,
    )


def choices(*sets: tuple[int, ...]) -> TokenChoices:
    """Sets of the first tokens of sixteen; the rest have experts 0 and 1."""
    experts = np.array([*sets, *[(0, 1)] * (16 - len(sets))])
    return TokenChoices(experts, np.full(experts.shape, 0.5), np.full(16, np.nan))


def with_sets() -> ImageOverlay:
    """Four tokens: as before, other second expert, other order, another set; and one without a clean partner."""
    before, after = choices(*[(0, 1)] * 4), choices((0, 1), (0, 2), (1, 0), (3, 2), (5, 6))
    return dataclasses.replace(
        made("a", 0.1, changed=0),
        clean_expert=before.experts[:, 0].reshape(4, 4),
        perturbed_expert=after.experts[:, 0].reshape(4, 4),
        clean_patch=np.where(np.arange(16) == 4, -1, np.arange(16)).reshape(4, 4),
        clean_choices=before,
        perturbed_choices=after,
    )


def test_sets_are_outlined_whatever_their_order_and_the_first_alone_is_dashed() -> None:
    item = with_sets()
    assert np.flatnonzero(item.changed).tolist() == [2, 3]
    assert np.flatnonzero(item.changed_set).tolist() == [1, 3]
    assert np.flatnonzero(item.changed_order).tolist() == [2]
    table = overlay_table([item])
    assert table.index[table["changed_set"]].tolist() == [1, 3]
    assert table.index[table["changed"]].tolist() == [2, 3]
    figure = draw([item], title="t")
    outlines = figure.axes[1].collections[1:]
    assert [len(part.get_paths()) for part in outlines] == [2, 2, 1, 1]
    assert "2 of 15 sets changed, 1 only the first" in " ".join(figure.axes[1].get_xlabel().split())
    said = " ".join(words(figure).split())
    assert (
        "Outlined: set of experts changed from the clean image; dashed: only which of the set is first"
        in said
    )
    film = strip([item], title="t", unit="u", colors={"a": "red"})
    assert film.axes[1].get_xlabel() == "2 (+1) of 15"


def test_without_sets_the_drawn_expert_is_outlined() -> None:
    item = made("a", 0.1, changed=3)
    assert not item.has_sets and (item.changed_set == item.changed).all() and not item.changed_order.any()
    one = dataclasses.replace(item, clean_choices=None, perturbed_choices=choices())
    assert (one.changed_set == one.changed).all(), "nothing is known of the clean sets"
    assert "dashed" not in words(draw([item], title="t"))


def strip_of(names: Sequence[str]) -> Figure:
    shown = [made(name, 0.1 * step, changed=step + place, compared=8)
             for place, name in enumerate(names) for step in range(3)]  # fmt: skip
    return strip(shown, title="t", unit="noise σ", colors={"z": "red", "a": "blue", "b": "green"})


def test_the_strip_says_severity_and_how_many_changed() -> None:
    figure = strip_of(["a", "b"])
    panels = np.array(figure.axes).reshape(2, 4)
    assert [axes.get_title() for axes in panels[0]] == ["clean", "0", "0.1", "0.2"]
    assert [[axes.get_xlabel() for axes in row] for row in panels] == [
        ["", "0 of 8", "1 of 8", "2 of 8"],
        ["", "1 of 8", "2 of 8", "3 of 8"],
    ]
    assert [row[0].get_ylabel() for row in panels] == ["a", "b"]
    assert [row[0].yaxis.label.get_color() for row in panels] == ["blue", "green"]
    assert "noise σ" in words(figure)
    # A patch without a partner bears no number.
    assert [text.get_text() for text in panels[0, 1].texts] == [*map(str, range(8)), *"·" * 8]


def test_the_clean_image_stands_beside_in_its_own_colors() -> None:
    clean = np.random.default_rng(0).random((8, 8, 3), dtype=np.float32)
    shown = [
        dataclasses.replace(
            made(name, 0.3, changed=1, image=image), clean=clean * np.float32(1 if image == "i" else 0.5)
        )
        for image in "ij"
        for name in "ab"
    ]
    framed = frame_figure(shown, title="t")
    first = np.array(framed.axes).reshape(2, 3)[:, 0]
    film = strip(shown[:2], title="t", unit="u", colors={"a": "red", "b": "blue"})
    for axes, pixels in ((first[0], clean), (first[1], clean / 2), (film.axes[0], clean)):
        (picture,) = axes.get_images()
        np.testing.assert_array_equal(np.asarray(picture.get_array()), pixels)
        assert not axes.texts and not axes.collections, "no numbers, no outlines"
    assert [axes.get_ylabel() for axes in first] == ["i", "j"] and first[0].get_title() == "clean image"


def test_legends_say_where_clean_patches_meet() -> None:
    apart = [made("a", 0.1 * step, changed=step) for step in range(2)]
    met = [apart[0], dataclasses.replace(apart[1], meeting=3)]
    for items, expected in ((apart, False), (met, True)):
        figures = [
            words(strip(items, title="t", unit="u", colors={"a": "red"})),
            words(draw(items[1:], title="t")),
        ]
        assert ["clean patches meet" in " ".join(text.split()) for text in figures] == [expected] * 2
        assert not any("no clean patch" in " ".join(text.split()) for text in figures)
    lone = draw([made("a", 0.1, changed=1, compared=8)], title="t")
    assert "Pale (·): no clean patch corresponds" in words(lone)


def test_nothing_compared() -> None:
    figure = strip([made("a", 0.5, changed=0, compared=0)], title="t", unit="u", colors={"a": "red"})
    assert figure.axes[1].get_xlabel() == "0 of 0"


@pytest.mark.slow
@pytest.mark.promise
def test_frames_are_of_one_size_and_hold_still(tmp_path: Path) -> None:
    files = []
    for number, severity in enumerate((0.0, 0.05, 0.125)):
        shown = [made(name, severity, changed=5 * number, image=image) for image in "ij" for name in "ab"]
        files += save(frame_figure(shown, title="t"), tmp_path / f"{number}")
    assert len(files) == 3
    pictures = [np.asarray(Image.open(file).convert("RGB"), float) for file in files]
    assert len({picture.shape for picture in pictures}) == 1
    # Each image covers the same pixels in every frame: under one tint, that of 0.125 is lighter than the black one.
    middle = [picture[: picture.shape[0] // 2] for picture in pictures]
    lighter = (middle[2] > middle[0]).all(-1)
    step = np.median((middle[2] - middle[0])[lighter])
    assert lighter.mean() > 0.2 and step == pytest.approx(0.125 * 255 * 0.45, abs=2)


def panel_of(side: int, inches: float, *, changed: int = 0, reordered: int = 0, missing: int = 0) -> Any:
    axes = Figure().subplots()
    place = np.arange(side * side).reshape(side, side)
    experts = np.where(place < missing, -1, place % 8)
    dashed = (place >= changed) & (place < changed + reordered)
    patches(
        axes, np.zeros((32, 32, 3)), experts, place >= 0, outlined=place < changed, dashed=dashed, inches=inches
    )  # fmt: skip
    return axes


def test_numbers_stand_in_grids_of_up_to_eight_alone() -> None:
    for side, inches, expected in ((7, 2.0, 49), (8, 1.0, 64), (8, 0.5, 0), (14, 3.0, 0), (24, 3.0, 0)):
        assert len(panel_of(side, inches).texts) == expected


@pytest.mark.parametrize("side", [4, 7, 14, 24])
def test_every_patch_has_the_color_of_its_expert(side: int) -> None:
    tints = panel_of(side, 2.0, missing=3).get_images()[1].get_array()
    place = np.arange(side * side).reshape(side, side)
    shown = {to_hex(tint[:3]) for tint in tints.reshape(-1, 4)[3:]}
    assert shown == {expert_color(expert).lower() for expert in range(8)}
    for expert in range(8):
        here = tints[(place % 8 == expert) & (place >= 3)]
        assert {to_hex(tint[:3]) for tint in here} == {expert_color(expert).lower()}
    assert {to_hex(tint[:3]) for tint in tints[place < 3]} == {"#808080"}
    assert (tints[..., 3] > 0).all() and (tints[..., 3] < 1).all()


@pytest.mark.parametrize("side", [4, 7, 14, 24])
def test_changed_patches_are_outlined(side: int) -> None:
    outlines = panel_of(side, 2.0, changed=5, reordered=3).collections[1:]
    assert [len(part.get_paths()) for part in outlines] == [5, 5, 3, 3]
    dashes = [part.get_linestyle()[0][1] for part in outlines]
    assert dashes[:3] == [None] * 3 and dashes[3] is not None
    # Each inside its patch.
    for number, path in enumerate(outlines[0].get_paths()):
        low, high = path.get_extents().get_points() + 0.5
        patch = np.array([number % side, number // side]) * 32 / side
        assert (patch < low).all() and (high < patch + 32 / side).all()


@pytest.mark.parametrize("side", [4, 7, 14, 24])
def test_heads_and_caption_of_an_overlay_are_apart_and_whole(side: int) -> None:
    place = np.arange(side * side).reshape(side, side)
    shown = [
        dataclasses.replace(
            made(name, 0.3, changed=1, image="/a/rather/long/path/" * 3),
            clean_expert=place % 8, perturbed_expert=place % 7, clean_patch=place,
        )
        for name in ("fashion-baseline-k2-seed0-again", "b")
    ]  # fmt: skip
    figure = draw(shown, title="blocks.1: gaussian_noise at severity 0.3")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    heading = figure._suptitle.get_window_extent()  # type: ignore[attr-defined]
    heads = [axes.title.get_window_extent() for axes in figure.axes]
    assert all(head.y1 <= heading.y0 for head in heads)
    assert all(left.x1 <= right.x0 for left, right in pairwise(heads))
    caption = figure.texts[-1]
    assert caption.get_window_extent().y0 >= 0
    below = min(axes.xaxis.label.get_window_extent().y0 for axes in figure.axes)
    assert caption.get_window_extent().y1 < figure.legends[0].get_window_extent().y0 < below
