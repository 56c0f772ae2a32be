"""The formulas of docs/results/scale.md."""

import json

import pytest

from reports.scripts import scale
from tests.commands import run
from tests.security.slots import CHECKPOINT


def test_parameters_are_those_of_the_model() -> None:
    assert scale.Sizes().parameters == 56_999_400
    assert scale.Sizes(experts=16).parameters - scale.Sizes(experts=8).parameters == 2 * 8 * (
        2 * 512 * 2048 + 2048 + 512 + 512
    )


def test_flops_are_those_that_inspect_counts() -> None:
    about = json.loads(run("inspect", CHECKPOINT, "--json").stdout)
    sizes = scale.Sizes(tokens=17, width=64, hidden=128, blocks=4, sparse=2, patch=8, classes=10)
    assert sizes.parameters == pytest.approx(about["parameters"], rel=0.02)
    assert sizes.flops == pytest.approx(about["flops_per_image"], rel=0.02)


def test_messages_and_time() -> None:
    assert scale.bytes_averaged(1000, 8) == 7000
    assert scale.bytes_averaged(1000, 1) == 0
    sizes = scale.Sizes()
    one, two = (scale.seconds_of_step(sizes, share=share, images=512) for share in (0.1, 0.2))
    assert one == pytest.approx(2 * two) and one * 0.1 * scale.PEAK == pytest.approx(3 * 512 * sizes.flops)
    assert scale.gigabytes_trained(sizes) == pytest.approx(16 * 0.0569994)
