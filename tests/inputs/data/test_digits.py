"""The bundled digits are those of scikit-learn, row by row."""

import subprocess
import sys

import numpy as np
import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import SPLITS
from moeprobe.inputs.data.digits import Digits


def test_rows_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    rows = []
    for split in SPLITS:
        data = Digits(split=split)
        numbers = [int(name.removeprefix("digits/")) for name in data.image_ids]
        np.testing.assert_array_equal(data.labels(), bundle.target[numbers])
        # Levels from 0 to 16 become pixels from 0 to 255.
        np.testing.assert_allclose(data._pixels, bundle.images[numbers] * 255 / 16, atol=0.5)
        rows += numbers
    assert sorted(rows) == list(range(1797))
    assert Digits(split="test").class_names == tuple(str(name) for name in bundle.target_names)


def test_they_lie_nowhere_else() -> None:
    with pytest.raises(UserError, match="'digits' comes with moeprobe"):
        Digits(split="test", location="photos")


def test_they_need_no_scikit_learn() -> None:
    code = (
        "import sys; from moeprobe import api; api.open_data('digits'); "
        "assert not {'sklearn', 'torch'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
