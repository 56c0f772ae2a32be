"""Pictures that are drawn from a committed table: they show what the table says today."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from moeprobe.results.figures import save, tradeoff
from reports.scripts import claims, guide_figures, sweep_figures, trainings_figure
from reports.scripts.printed import in_256_colors
from reports.scripts.seeds import read_table
from tests.releases import is_pinned

pytestmark = pytest.mark.skipif(
    not is_pinned("matplotlib"), reason="committed pictures are of the pinned matplotlib"
)
PAGE = Path("docs/guide/long-inputs.md")
# A share of the pixels: no line is this thin, and edges of letters may differ from one machine to another.
FEW = 0.002


def drawn(figure: Figure, folder: Path) -> NDArray[np.int64]:
    [path] = save(figure, folder / "drawn")
    with Image.open(path) as image:
        return pixels(in_256_colors(image))


def pixels(image: Image.Image) -> NDArray[np.int64]:
    return np.asarray(image.convert("RGB"), np.int64)


def changed(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """The share of pixels that differ visibly."""
    return float((np.abs(first - second).max(-1) > 40).mean())


@pytest.mark.pictures
def test_the_picture_of_long_inputs_shows_the_table_of_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Image.open(guide_figures.IMAGES / "long-inputs.png") as image:
        committed = pixels(image)
    assert changed(drawn(guide_figures.long_inputs(), tmp_path), committed) < FEW, (
        "run python -m reports.scripts.guide_figures long-inputs"
    )
    # Another number in one cell would be seen.
    text = (guide_figures.ROOT / PAGE).read_text(encoding="utf-8")
    (tmp_path / PAGE).parent.mkdir(parents=True)
    (tmp_path / PAGE).write_text(text.replace("| 666 MiB |", "| 766 MiB |"), encoding="utf-8")
    monkeypatch.setattr(guide_figures, "ROOT", tmp_path)
    assert changed(drawn(guide_figures.long_inputs(), tmp_path), committed) > FEW


@pytest.mark.pictures
def test_the_picture_of_routers_shows_the_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Image.open(guide_figures.IMAGES / "routers-differences.png") as image:
        committed = pixels(image)
    assert changed(drawn(trainings_figure.routers(), tmp_path), committed) < FEW, (
        "run python -m reports.scripts.trainings_figure"
    )

    def other(folder: Path) -> pd.DataFrame:
        table = claims.read(folder)
        table.loc[table["group"] == "hash-k2", ["value", "sim_low", "sim_high"]] += 0.3
        return table

    monkeypatch.setattr(trainings_figure, "read", other)
    assert changed(drawn(trainings_figure.routers(), tmp_path), committed) > FEW


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("picture", "sweep", "name"),
    [
        ("prc-ablation", "prc-ablation", "first-layer"),
        ("labels", "labels-digits", "first-layer"),
        ("combine", "combine-digits", "first-layer"),
        ("combine-curves", "combine-digits", "curves-sinkhorn_token_choice"),
        ("groups", "groups-digits", "first-layer"),
        ("thesis", "thesis-digits", "first-layer"),
        ("experts", "experts-digits", "experts"),
    ],
)
def test_pictures_of_sweeps_show_their_tables(picture: str, sweep: str, name: str, tmp_path: Path) -> None:
    folder = guide_figures.ROOT / "reports" / "sweeps" / sweep
    check_picture(picture, sweep_figures.figures(folder)[name], tmp_path)


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("data", "names"),
    [
        # Labels of routers that are equally accurate take turns in their figure of times.
        ("digits", {"tradeoff": "", "steadiness": "-steadiness"}),
        ("shapes", {"tradeoff": "", "steadiness": "-steadiness"}),
        ("digits-patch4", {"time": "-time"}),
        ("digits-deep", {"time": "-time"}),
    ],
)
def test_pictures_of_routers_show_their_tables(data: str, names: dict[str, str], tmp_path: Path) -> None:
    figures = tradeoff.draw(read_table(guide_figures.ROOT / "reports" / "routers" / data))
    for name, end in names.items():
        check_picture(f"routers-{data}{end}", figures[name], tmp_path)


def check_picture(picture: str, figure: Figure, folder: Path) -> None:
    """Hold that a picture of pages is what its table gives."""
    [path] = save(figure, folder / picture)
    with Image.open(path) as again, Image.open(guide_figures.IMAGES / f"{picture}.png") as committed:
        assert changed(pixels(again), pixels(committed)) < FEW, "make reports, then docs/generate.py"
