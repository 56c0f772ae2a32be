"""What every map promises: a dot of the source is found in the view where the map says.

Planted and caught: maps or pixels half a pixel off, a transposed matrix, a forgotten mirroring, maps composed in the
wrong order, a reduction of the source that the map is not told of.
"""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from moeprobe.inputs import geometry
from moeprobe.inputs.images import Framing, Sample, render, to_tensor
from moeprobe.inputs.views.base import PairView, SeverityView, View
from moeprobe.inputs.views.randaugment import GEOMETRIC, OPERATIONS, Randaugment
from moeprobe.runtime import catalog
from tests.adapters.modalities import IMAGE_VIEWS
from tests.inputs.views.dots import SIZE, Count, centroid, follow, picture, redness

# A cutout may hide half a dot, whose center is then elsewhere; it is looked at in test_randaugment.
OPTIONS = {"randaugment": {"operations": tuple(name for name in OPERATIONS if name != "cutout")}}
FRAMINGS = [Framing(SIZE), Framing(SIZE, crop_fraction=0.875)]


def one_of_pair(
    image: Image.Image, rng: np.random.Generator, *, view: PairView, framing: Framing, which: int
) -> Sample:
    return view.pair(image, framing=framing, rng=rng)[which]


def at_severity(
    image: Image.Image, rng: np.random.Generator, *, view: SeverityView, framing: Framing, severity: float
) -> Sample:
    return view.perturb(image, framing=framing, severities=[severity], rng=rng)[0]


def follow_view(view: View, *, draws: int) -> Count:
    count = Count()
    for framing in FRAMINGS:
        if isinstance(view, PairView):
            for which in (0, 1):
                make = partial(one_of_pair, view=view, framing=framing, which=which)
                follow(make, draws=draws, count=count)
        if isinstance(view, SeverityView):
            for severity in view.severities:
                sweep = partial(at_severity, view=view, framing=framing, severity=severity)
                follow(sweep, draws=draws, count=count)
    return count


# A view that needs a mask or a second picture takes it from its own data, and is tested there.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in IMAGE_VIEWS if not catalog.VIEWS.get(name).needs])
def test_dots_of_every_view(name: str) -> None:
    count = follow_view(catalog.VIEWS.get(name)(**OPTIONS.get(name, {})), draws=40)
    count.check(at_least=80)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "cutout"])
def test_dots_of_every_operation(name: str) -> None:
    view = Randaugment(num_layers=1, area=(0.5, 1), operations=(name,))
    count = Count()
    # What changes colors alone takes one path, whichever numbers are drawn.
    draws = 20 if name in GEOMETRIC else 5
    for framing in FRAMINGS:
        follow(partial(one_of_pair, view=view, framing=framing, which=0), draws=draws, count=count)
        for severity in (5.0, 10.0):
            make = partial(at_severity, view=view, framing=framing, severity=severity)
            follow(make, draws=draws, count=count)
    count.check(at_least=4 * draws)
    clean = FRAMINGS[0].to_source(picture(96, 72))
    moved = at_severity(
        picture(96, 72), np.random.default_rng(0), view=view, framing=FRAMINGS[0], severity=10
    )
    assert (name in GEOMETRIC) == (np.abs(moved.to_source - clean).max() > 0.01)


@pytest.mark.parametrize("first", GEOMETRIC)
@pytest.mark.parametrize("second", GEOMETRIC)
def test_one_resampling_shows_what_two_in_order_would(first: str, second: str) -> None:
    """The composed map is that of the operations carried out one after the other, each on the other's pixels."""
    dot, base = (40.0, 30.0), geometry.crop(10, 0, 70, 66, SIZE)
    one, two = GEOMETRIC[first](0.4, SIZE), GEOMETRIC[second](-0.4, SIZE)
    after_one = render(render(picture(96, 72, dot), base, SIZE), one, SIZE)
    found = centroid(redness(to_tensor(render(after_one, two, SIZE))))
    expected = geometry.apply(geometry.inverse(base @ one @ two), np.array([[*dot, 1.0]]))[0]
    np.testing.assert_allclose(found, expected, atol=0.25)


def test_randaugment_composes_its_operations_in_the_order_drawn() -> None:
    view = Randaugment(num_layers=3, operations=tuple(GEOMETRIC))
    clean = FRAMINGS[0].to_source(picture(96, 72))
    for seed in range(30):
        steps = view._draw(np.random.default_rng(seed))
        expected = clean
        for step in steps:
            expected = expected @ GEOMETRIC[step.operation](0.7 * step.sign, SIZE)
        (found,) = view.perturb(
            picture(96, 72), framing=FRAMINGS[0], severities=[7], rng=np.random.default_rng(seed)
        )
        np.testing.assert_allclose(found.to_source, expected)
