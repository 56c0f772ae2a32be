"""What the scripts of the reports do to pictures and folders before they are committed."""

from pathlib import Path

import numpy as np
from PIL import Image

from reports.scripts.regenerate import LARGE, replace


def test_a_large_picture_gets_a_palette_and_looks_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tiles = np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((100, 100, 1)))
    tiles += rng.integers(-8, 9, tiles.shape)
    pixels = np.clip(tiles, 0, 255).astype(np.uint8)
    for name, part in (("large", pixels), ("small", pixels[:50])):
        (tmp_path / "new").mkdir(exist_ok=True)
        Image.fromarray(part).save(tmp_path / "new" / f"{name}.png", dpi=(100, 100))
    small = (tmp_path / "new" / "small.png").read_bytes()
    size = (tmp_path / "new" / "large.png").stat().st_size
    assert size > LARGE
    replace(tmp_path / "new", tmp_path / "report")
    assert (tmp_path / "report" / "small.png").read_bytes() == small
    assert (tmp_path / "report" / "large.png").stat().st_size < size / 2
    with Image.open(tmp_path / "report" / "large.png") as picture:
        assert round(picture.info["dpi"][0]) == 100
        difference = np.abs(np.asarray(picture.convert("RGB"), dtype=float) - pixels)
    assert difference.mean() < 10
