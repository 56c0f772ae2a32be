"""When an accuracy is taken for chance: against counts made up by hand."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from moeprobe.results.caveats import ENOUGH_IMAGES, warnings
from moeprobe.results.stored import of_table


def said(
    labels: list[int],
    *,
    low: float,
    severity: float | None = None,
    clean: float | None = None,
    classes: int = 10,
) -> str:
    """What is said of a model "a" with an accuracy from ``low`` to ``low`` + 0.2 on these labels."""
    view = "clean" if severity is None else "gaussian_noise"
    row = {
        "checkpoint": "a", "metric": "accuracy", "view": view, "severity": severity, "value": low + 0.1,
        "ci_low": low, "ci_high": low + 0.2, "images": len(labels), "flag": "",
    }  # fmt: skip
    # A layer's sums and those of another checkpoint stand in the same table, and are not counted.
    places = [("a", ""), ("a", "blocks.1"), ("b", "")]
    images = pa.table(
        {
            "checkpoint": [name for name, _ in places for _ in labels],
            "layer": [layer for _, layer in places for _ in labels],
            "router": [""] * 3 * len(labels),
            "top_k": [0] * 3 * len(labels),
            "view": [view] * 3 * len(labels),
            "draw": [0] * 3 * len(labels),
            "tokens": [""] * 3 * len(labels),
            "image_id": [f"{number:04d}" for number in range(len(labels))] * 3,
            "severity": pa.array([np.nan if severity is None else severity] * 3 * len(labels)),
            "label": labels + [0] * 2 * len(labels),
        }
    )
    return dict(warnings(pd.DataFrame([row]), of_table(images), num_classes=classes, clean=clean)).get(
        "a", ""
    )


EVEN = [image % 10 for image in range(100)]


@pytest.mark.parametrize(
    ("labels", "low", "chance"),
    [
        (EVEN, 0.1, "0.100"),
        (EVEN, 0.11, None),
        (EVEN[:ENOUGH_IMAGES], 0.1, "0.100"),
        (EVEN[: ENOUGH_IMAGES - 1], 0.0, None),
        # 60 of 100 images are of one class: always naming it is right that often.
        ([3] * 60 + [4] * 40, 0.59, "0.600"),
        ([3] * 60 + [4] * 40, 0.61, None),
        # Unlabeled images count for nothing: 30 of 60.
        ([3] * 30 + [4] * 30 + [-1] * 40, 0.5, "0.500"),
    ],
)
def test_chance_is_guessing_or_the_commonest_class(labels: list[int], low: float, chance: str | None) -> None:
    text = said(labels, low=low)
    if chance is None:
        assert text == ""
    else:
        assert (
            f"accuracy {low + 0.1:.3f} [{low:.3f}, {low + 0.2:.3f}] over {len(labels)} clean images" in text
        )
        assert f"naming one class always reaches {chance}" in text


def test_guessing_counts_where_the_images_show_few_classes() -> None:
    assert "reaches 0.500" in said([0, 1] * 50, low=0.5, classes=2)


def test_only_clean_images_tell() -> None:
    assert said(EVEN, low=0.0, severity=0.0, clean=0.0)
    assert not said(EVEN, low=0.0, severity=0.2, clean=0.0)
    assert not said(EVEN, low=0.0, clean=0.0)
