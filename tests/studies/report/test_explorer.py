"""The patches of an overlay on a page: what its script reads, and when there is nothing to explore."""

import json
from pathlib import Path

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.studies.report import pictures
from moeprobe.studies.report.pictures import Explorer
from moeprobe.studies.report.reading import read_runs
from moeprobe.studies.report.render import sections
from tests.commands import Trained
from tests.studies.report.making import HOSTILE, write_frames, write_overlay
from tests.studies.report.page import Page


def explorer_of(folder: Path) -> Explorer | None:
    return sections(read_runs([folder]))[0].explorer


def test_every_patch_has_its_choice_and_that_of_the_clean_image(tmp_path: Path) -> None:
    explored = explorer_of(write_overlay(tmp_path / "run"))
    assert explored is not None and (explored.steps, explored.unit) == (2, "noise σ")
    routing = json.loads(explored.routing)
    assert routing["layer"] == ["blocks.1", "blocks.3"] and routing["severity"] == ["0.0", "0.2"]
    grid = routing["grids"][1][1][0][1]  # blocks.3, b, digits/7, severity 0.2
    assert grid["columns"] == 2 and len(grid["patches"]) == 4
    assert grid["patches"][3] == ["2", "1", 1, 1, "2 0", "0.500 0.250", "0.125", "1 3", "0.625 0.125", "0.25"]
    assert grid["patches"][0][:4] == ["1", "1", 1, 0]
    assert set(routing["colors"]) == {"1", "2"}


def test_sets_that_changed_are_told_from_their_order(tmp_path: Path) -> None:
    folder = write_overlay(tmp_path / "run")
    assert not explorer_of(folder).has_sets, "an older run, without a column of sets"  # type: ignore[union-attr]
    sets = {("b", 3): ("True", "True"), ("b", 0): ("False", "True"), ("a", 1): ("True", "False")}
    table = pd.read_csv(folder / "patches.csv", dtype=str)
    for number, row in table.iterrows():
        patch = 2 * int(row["row"]) + int(row["column"])
        is_strong = row["severity"] == "0.2"
        flags = sets.get((row["checkpoint"], patch)) if is_strong else None
        table.loc[number, ["changed", "changed_set"]] = flags or ("False", "False")
    table.to_csv(folder / "patches.csv", index=False)
    explored = explorer_of(folder)
    assert explored is not None and explored.has_sets
    of_a, of_b = (json.loads(explored.routing)["grids"][0][number][0] for number in (0, 1))
    assert [[patch[3] for patch in grids[1]["patches"]] for grids in (of_a, of_b)] == [
        [0, 2, 0, 0],
        [1, 0, 0, 1],
    ]
    page = api.report([folder]).html
    assert "Outlined: another set of experts than in the clean image. Dashed: the same set" in page


def test_a_checkpoint_without_a_layer_has_no_tile(tmp_path: Path) -> None:
    folder = write_overlay(tmp_path / "run")
    table = pd.read_csv(folder / "patches.csv", dtype=str)
    table[(table["checkpoint"] != "b") | (table["layer"] != "blocks.3")].to_csv(
        folder / "patches.csv", index=False
    )
    explored = explorer_of(folder)
    assert explored is not None
    grids = json.loads(explored.routing)["grids"]
    assert grids[1][1] == [[None, None], [None, None]] and None not in grids[0][1][0]


def test_without_pixels_or_with_too_many_patches_the_figure_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert explorer_of(write_frames(tmp_path / "earlier")) is None
    folder = write_overlay(tmp_path / "run")
    assert 'class="explorer"' in api.report([folder]).html
    monkeypatch.setattr(pictures, "MOST_PATCHES", 63)
    html = api.report([folder]).html
    assert 'class="explorer"' not in html and "Figure overlay-blocks.1" in html


def test_names_are_text_and_damage_is_one_sentence(tmp_path: Path) -> None:
    folder = write_overlay(tmp_path / "run", layers=(f"</pre>{HOSTILE}",))
    html = api.report([folder]).html
    assert len(Page(html).all("script")) == 1 and "</pre><script>" not in html
    text = (folder / "patches.csv").read_text(encoding="utf-8")
    (folder / "patches.csv").write_text(text.replace(",0.2,", ",much,"), encoding="utf-8")
    with pytest.raises(UserError, match="severity holds something else than numbers"):
        api.report([folder])


@pytest.mark.pictures
def test_an_overlay_has_what_its_page_needs(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "run"
    severities = (0.0, 0.1, 0.3)
    found = api.overlay(list(trained.values()), count=2, severities=severities, layers=("blocks.3",), out=out)
    assert [path.name for path in found.files] == ["overlay-blocks.3.png", "patches.csv", "pixels.png"]
    explored = explorer_of(out)
    assert explored is not None and explored.steps == 3
    from PIL import Image

    with Image.open(out / "pixels.png") as pixels:
        assert pixels.size == (4 * 32, 2 * 32) and pixels.mode == "L"
        clean, same, noisy = (pixels.crop((32 * i, 0, 32 * i + 32, 32)).tobytes() for i in (0, 1, 3))
    assert clean == same != noisy
    table = found.table
    # With two experts per token: the drawn one first, and gates that fall.
    assert (table["perturbed_set"].str.split().str[0] == table["perturbed_expert"].astype(str)).all()
    gates = table["perturbed_gates"].str.split(expand=True).astype(float)
    assert (gates[0] >= gates[1]).all() and table["perturbed_margin"].ge(0).all()
    still = table[table["severity"] == 0]
    for name in ("set", "gates", "margin"):
        assert (still[f"perturbed_{name}"] == still[f"clean_{name}"]).all()
