"""What every view of images must keep, whichever it is: the list of tests is the catalog."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.picture_partners import PARTNER, PicturePartner
from moeprobe.inputs.regions import MASK
from moeprobe.inputs.views.base import PairView, SeverityView, View
from moeprobe.runtime import catalog
from moeprobe.runtime.seeds import generator
from tests.adapters.modalities import IMAGE_VIEWS

SIZE = 32
FRAMINGS = [Framing(SIZE), Framing(SIZE, crop_fraction=0.875)]
# As large as the frame, smaller, larger, elongated, and hardly an image at all (width, height).
SOURCES = [(32, 32), (20, 11), (120, 90), (300, 40), (9, 200), (1, 1), (1, 5)]

VIEWS: dict[str, View] = {name: catalog.VIEWS.get(name)() for name in IMAGE_VIEWS}
SWEEPS = {name: view for name, view in VIEWS.items() if isinstance(view, SeverityView)}
EVERY = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
EVERY_SWEEP = pytest.mark.parametrize("view", SWEEPS.values(), ids=SWEEPS)


def picture(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(values)
    # Some views go by the mask.
    image.info[MASK] = values[..., 0] > 127
    image.info[PARTNER] = PicturePartner(
        Image.fromarray(values[::-1].copy()), np.ones((height, width, 2), dtype=np.float32)
    )
    return image


def samples(view: View, image: Image.Image, framing: Framing, draw: int = 0) -> list[Sample]:
    """Everything the view makes of an image in one draw: the pair and the default sweep."""
    made: list[Sample] = []
    if isinstance(view, PairView):
        made += view.pair(image, framing=framing, rng=generator(0, "contract", draw=draw))
    if isinstance(view, SeverityView):
        made += view.perturb(
            image, framing=framing, severities=view.severities, rng=generator(0, "contract", draw=draw)
        )
    return made


def same(one: Sample, two: Sample) -> bool:
    return torch.equal(one.pixels, two.pixels) and np.array_equal(one.to_source, two.to_source)


@EVERY
def test_a_view_is_a_frozen_described_dataclass_of_a_known_kind(view: View) -> None:
    assert isinstance(view, PairView | SeverityView)
    assert dataclasses.is_dataclass(view) and type(view).__dataclass_params__.frozen
    assert type(view).__doc__


@EVERY
@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("source", SOURCES)
def test_pixels_and_maps(view: View, framing: Framing, source: tuple[int, int]) -> None:
    image = picture(*source)
    before = image.tobytes()
    made = samples(view, image, framing)
    assert made
    for sample in made:
        assert sample.pixels.shape == (3, SIZE, SIZE) and sample.pixels.dtype == torch.float32
        assert sample.pixels.is_contiguous()
        assert float(sample.pixels.min()) >= 0 and float(sample.pixels.max()) <= 1
        assert sample.to_source.shape == (3, 3) and sample.to_source.dtype == np.float64
        assert np.isfinite(sample.to_source).all() and abs(np.linalg.det(sample.to_source)) > 1e-9
        np.testing.assert_array_equal(sample.to_source[2], [0, 0, 1])
    assert image.tobytes() == before  # the source is left as it was


@EVERY
def test_a_draw_is_its_generators_and_nothing_elses(view: View) -> None:
    image = picture(50, 40)
    torch.manual_seed(1)
    np.random.seed(1)
    once = samples(view, image, FRAMINGS[0])
    samples(view, picture(33, 44), FRAMINGS[1], draw=5)
    torch.manual_seed(2)
    np.random.seed(2)
    again = samples(view, image, FRAMINGS[0])
    assert all(same(a, b) for a, b in zip(once, again, strict=True))
    others = [samples(view, image, FRAMINGS[0], draw=draw) for draw in range(1, 5)]
    assert any(not same(a, b) for other in others for a, b in zip(once, other, strict=True)) == view.random


@EVERY_SWEEP
def test_a_sweep_is_nested_and_knows_only_its_own_severity(view: SeverityView) -> None:
    for draw, source in enumerate(SOURCES):
        image = picture(*source)

        def sweep(severities: list[float], image: Image.Image = image, draw: int = draw) -> list[Sample]:
            return view.perturb(
                image, framing=FRAMINGS[1], severities=severities, rng=generator(0, "sweep", draw=draw)
            )

        whole = sweep(list(view.severities))
        assert len(whole) == len(view.severities)
        for severity, sample in zip(view.severities, whole, strict=True):
            assert same(sweep([severity])[0], sample)
        backwards = sweep(list(view.severities)[::-1])
        assert all(same(a, b) for a, b in zip(backwards[::-1], whole, strict=True))
        assert sweep([]) == []


@EVERY_SWEEP
def test_a_sweep_starts_at_the_clean_view_bit_for_bit(view: SeverityView) -> None:
    assert list(view.severities) == sorted(set(view.severities)) and view.unit
    for framing in FRAMINGS:
        for source in SOURCES:
            image = picture(*source)
            for draw in range(5):
                first = view.perturb(
                    image,
                    framing=framing,
                    severities=view.severities[:1],
                    rng=generator(0, "clean", draw=draw),
                )[0]
                assert same(first, framing.clean(image))


@EVERY_SWEEP
def test_severities_that_are_no_amounts_are_refused(view: SeverityView) -> None:
    for wrong in (-1.0, float("nan")):
        with pytest.raises(UserError, match="got"):
            view.perturb(
                picture(9, 9), framing=FRAMINGS[0], severities=[0.0, wrong], rng=generator(0, "wrong")
            )


@EVERY
def test_an_aligned_view_never_moves(view: View) -> None:
    for source in SOURCES:
        clean = FRAMINGS[1].to_source(picture(*source))
        moved = [
            sample.displacement is not None or not np.array_equal(sample.to_source, clean)
            for draw in range(5)
            for sample in samples(view, picture(*source), FRAMINGS[1], draw)
        ]
        assert any(moved) != view.aligned


@EVERY
def test_without_flip_nothing_is_mirrored(view: View) -> None:
    """Digits are never mirrored: a view either never does it, or can be told not to."""
    fields = {field.name for field in dataclasses.fields(view)}  # type: ignore[arg-type]
    told = dataclasses.replace(view, flip=False) if "flip" in fields else view  # type: ignore[type-var]
    for draw in range(60):
        assert all(
            np.linalg.det(sample.to_source) > 0
            for sample in samples(told, picture(40, 40), FRAMINGS[0], draw)
        )
    if "flip" in fields and getattr(view, "flip"):  # noqa: B009 — not every view has the field
        assert any(
            np.linalg.det(sample.to_source) < 0
            for draw in range(60)
            for sample in samples(view, picture(40, 40), FRAMINGS[0], draw)
        )


@EVERY
def test_a_view_travels_to_another_process(view: View) -> None:
    copy = pickle.loads(pickle.dumps(view))
    assert copy == view
    image = picture(30, 40)
    assert all(
        same(a, b)
        for a, b in zip(samples(copy, image, FRAMINGS[0]), samples(view, image, FRAMINGS[0]), strict=True)
    )
