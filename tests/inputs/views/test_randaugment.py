"""RandAugment's operations: nothing at 0, the released operation at 10, drawn evenly, done in order."""

import numpy as np
import pytest
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.views.randaugment import COLOR, GEOMETRIC, OPERATIONS, Randaugment, cutout
from moeprobe.runtime.seeds import generator

SIZE = 56
FRAMING = Framing(SIZE)


def noise(low: int = 0, high: int = 256) -> Image.Image:
    values = np.random.default_rng(0).integers(low, high, (SIZE, SIZE, 3), dtype=np.uint8)
    return Image.fromarray(values)


def array(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=np.float64)


def at(view: Randaugment, severity: float, image: Image.Image, draw: int = 0) -> Sample:
    return view.perturb(
        image, framing=FRAMING, severities=[severity], rng=generator(0, "randaugment", draw=draw)
    )[0]


# --- The color operations at full strength, against their formulas.


def blend(degenerate: np.ndarray, image: np.ndarray, factor: float) -> np.ndarray:
    return np.clip(degenerate + factor * (image - degenerate), 0, 255)


def gray(image: np.ndarray) -> np.ndarray:
    return image @ [0.299, 0.587, 0.114]


def slow_equalize(channel: np.ndarray) -> np.ndarray:
    """TensorFlow's table: cumulative counts below a value, over the step that spreads all but the brightest."""
    counts = np.bincount(channel.astype(int).ravel(), minlength=256)
    step = (counts.sum() - counts[np.nonzero(counts)[0][-1]]) // 255
    table = np.clip((np.concatenate([[0], np.cumsum(counts)[:-1]]) + step // 2) // step, 0, 255)
    return table[channel.astype(int)]


def smooth(image: np.ndarray) -> np.ndarray:
    """The weights 1 1 1 / 1 5 1 / 1 1 1 over 13; the border stays as it is."""
    result = image.copy()
    total = sum(image[1 + j : SIZE - 1 + j, 1 + i : SIZE - 1 + i] for i in (-1, 0, 1) for j in (-1, 0, 1))
    result[1:-1, 1:-1] = (total + 4 * image[1:-1, 1:-1]) / 13
    return result


def formulas(v: np.ndarray) -> dict[str, np.ndarray]:
    low, high = v.min((0, 1)), v.max((0, 1))
    return {
        "auto_contrast": (v - low) * 255 / (high - low),
        "brightness": np.clip(1.9 * v, 0, 255),
        "color": blend(gray(v)[..., None], v, 1.9),
        "contrast": blend(np.full_like(v, round(gray(v).mean())), v, 1.9),
        "equalize": np.stack([slow_equalize(v[..., c]) for c in range(3)], axis=-1),
        "invert": 255 - v,
        "posterize": v - v % 16,
        "sharpness": blend(smooth(v), v, 1.9),
        "solarize": 255 - v,
        "solarize_add": np.where(v < 128, v + 110, v),
    }


@pytest.mark.parametrize("name", COLOR)
def test_a_color_operation_at_full_strength_is_the_released_one(name: str) -> None:
    image = noise(20, 230)
    np.testing.assert_allclose(array(COLOR[name](image, 1.0)), formulas(array(image))[name], atol=2.01)


def test_every_color_operation_has_a_formula_and_sixteen_operations_are_there() -> None:
    assert set(formulas(array(noise()))) == set(COLOR)
    assert len(OPERATIONS) == len(set(OPERATIONS)) == 16


@pytest.mark.parametrize("name", OPERATIONS)
def test_magnitude_0_changes_nothing_and_more_changes_more(name: str) -> None:
    image = noise(20, 230)
    view = Randaugment(num_layers=1, operations=(name,))
    clean = FRAMING.clean(image)
    unmoved = at(view, 0, image)
    assert (unmoved.pixels == clean.pixels).all()
    np.testing.assert_array_equal(unmoved.to_source, clean.to_source)
    if name in GEOMETRIC:
        sizes = [np.abs(at(view, m, image).to_source - clean.to_source).max() for m in (2, 5, 10)]
    else:
        sizes = [float((at(view, m, image).pixels - clean.pixels).abs().mean()) for m in (2, 5, 10)]
    assert 0 <= sizes[0] < sizes[1] < sizes[2]


def test_solarize_inverts_from_a_threshold_that_falls() -> None:
    image = noise()
    v = array(image)
    np.testing.assert_array_equal(array(COLOR["solarize"](image, 0.25)), np.where(v >= 192, 255 - v, v))


def test_posterize_takes_bits_away_one_by_one() -> None:
    image = noise()
    for strength, step in ((0.0, 1), (0.25, 2), (0.5, 4), (0.75, 8), (1.0, 16)):
        np.testing.assert_array_equal(array(COLOR["posterize"](image, strength)), array(image) // step * step)


# --- The geometric operations at full strength.


@pytest.mark.parametrize(
    ("name", "point", "shown"),
    [
        ("rotate", (224, 112), (112 + 112 * np.cos(np.pi / 6), 112 + 56)),
        ("shear_x", (0, 224), (0.3 * 224, 224)),
        ("shear_y", (224, 0), (224, 0.3 * 224)),
        ("translate_x", (0, 0), (100, 0)),
        ("translate_y", (0, 0), (0, 100)),
    ],
)
def test_a_geometric_operation_at_full_strength_is_the_released_one(
    name: str, point: tuple[float, float], shown: tuple[float, float]
) -> None:
    found = GEOMETRIC[name](1.0, 224) @ [*point, 1]
    np.testing.assert_allclose(found, [*shown, 1])
    # The same share of a smaller frame.
    smaller = GEOMETRIC[name](1.0, 32) @ [point[0] / 7, point[1] / 7, 1]
    np.testing.assert_allclose(smaller[:2] * 7, shown, atol=1e-9)


def test_movements_go_either_way() -> None:
    view = Randaugment(num_layers=1, operations=("translate_x",))
    shifts = [at(view, 10, noise(), draw).to_source[0, 2] for draw in range(100)]
    assert set(np.round(shifts, 6)) == {25.0, -25.0}  # 100 / 224 of 56
    assert 30 < sum(shift > 0 for shift in shifts) < 70


# --- Cutout.


def test_cutout_is_a_gray_square_and_nothing_else() -> None:
    image = Image.new("RGB", (224, 224), (200, 10, 90))
    hole = array(cutout(image, 1.0, center=(0.5, 0.25))) == 128
    assert hole.all(-1).sum() == 80 * 80 and hole.any(-1).sum() == 80 * 80
    rows, columns = np.nonzero(hole.all(-1))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (16, 95, 72, 151)
    corner = array(cutout(image, 1.0, center=(0.0, 1.0))) == 128
    assert corner.all(-1).sum() == 40 * 40 and corner[-1, 0].all()
    assert cutout(image, 0.5, center=(0.5, 0.5)).getpixel((112 + 19, 112)) == (128, 128, 128)
    assert cutout(image, 0.5, center=(0.5, 0.5)).getpixel((112 + 20, 112)) == (200, 10, 90)
    assert array(image).std() > 0 and (array(image) == array(cutout(image, 0.0, center=(0.5, 0.5)))).all()


def test_cutout_moves_nothing_and_goes_anywhere() -> None:
    view = Randaugment(num_layers=1, operations=("cutout",))
    image = Image.new("RGB", (SIZE, SIZE), (255, 255, 255))
    holes = []
    for draw in range(200):
        sample = at(view, 10, image, draw)
        np.testing.assert_array_equal(sample.to_source, FRAMING.to_source(image))
        holes.append((sample.pixels[0] < 1).numpy())
    assert np.mean(holes, axis=0).min() > 0.01


# --- Drawing.


def test_operations_are_drawn_evenly_with_replacement() -> None:
    view = Randaugment(num_layers=2)
    drawn = [[step.operation for step in view._draw(generator(0, "draw", draw=i))] for i in range(3200)]
    counts = {name: sum(pair.count(name) for pair in drawn) for name in OPERATIONS}
    assert min(counts.values()) > 320 and max(counts.values()) < 480  # 400 each, standard deviation 19
    twice = sum(a == b for a, b in drawn)
    assert 140 < twice < 260  # 200


def test_color_operations_are_done_in_the_order_drawn() -> None:
    image, orders = noise(), set()
    view = Randaugment(operations=("invert", "solarize_add"))
    for draw in range(20):
        names = [step.operation for step in view._draw(generator(0, "randaugment", draw=draw))]
        expected = image
        for name in names:
            expected = COLOR[name](expected, 1.0)
        np.testing.assert_allclose(
            at(view, 10, image, draw).pixels.permute(1, 2, 0).numpy() * 255, array(expected), atol=1e-3
        )
        orders.add(tuple(names))
    assert len(orders) == 4


def test_no_layers_is_a_crop() -> None:
    image = noise()
    view = Randaugment(num_layers=0, area=(1.0, 1.0), aspect=(1.0, 1.0), flip=False)
    for sample in view.pair(image, framing=FRAMING, rng=generator(0, "x")):
        assert (sample.pixels == FRAMING.clean(image).pixels).all()


def test_the_pair_at_magnitude_0_is_a_pair_of_crops() -> None:
    image = noise()
    for draw in range(10):
        still, bare = (
            Randaugment(num_layers=layers, magnitude=0.0).pair(
                image, framing=FRAMING, rng=generator(0, "pair", draw=draw)
            )[0]
            for layers in (2, 0)
        )
        assert (still.pixels == bare.pixels).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"magnitude": 11.0}, r"between 0 and 10; got 11\.0"),
        ({"num_layers": -1}, "got -1"),
        ({"operations": ()}, "operations is empty"),
        ({"operations": ("shear",)}, "Did you mean 'shear_"),
        ({"area": (0.5, 0.1)}, r"area must be .* got 0\.5 and 0\.1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Randaugment(**options)  # type: ignore[arg-type]


def test_a_magnitude_out_of_range_is_refused() -> None:
    with pytest.raises(UserError, match="between 0 and 10; got 12"):
        at(Randaugment(), 12, noise())
