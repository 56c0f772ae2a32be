"""RandAugment's operations on colors, and its cutout.

Each takes an RGB image and a strength in [0, 1]: 1 is the operation at magnitude 10 as V-MoE and PRC train with
it, 0 returns the image unchanged, bit for bit. In between, the released programs are followed where their scale
starts at the identity (solarize-add, cutout). Where it does not (their magnitude 0 makes a black image of posterize
and a factor 0.1 of the enhancements) ours runs straight from the identity to the released operation; where there is
no scale (auto-contrast, equalize, invert) the result is blended with the original.

Source: the AutoAugment reference program of TensorFlow's TPU models.
"""

from collections.abc import Callable

from PIL import Image, ImageEnhance, ImageOps

from moeprobe.inputs.resample import FILL

_ENHANCEMENT = 0.9  # factor 1.9
_POSTERIZED_BITS = 4  # taken away from 8
_SOLARIZE_ADDITION = 110
_SOLARIZE_ADD_THRESHOLD = 128
# Half the side of the hole: 40 pixels in the released programs, which use it at 224 pixels.
_CUTOUT = 40 / 224

Operation = Callable[[Image.Image, float], Image.Image]


def _auto_contrast(image: Image.Image, strength: float) -> Image.Image:
    return Image.blend(image, ImageOps.autocontrast(image), strength)


def _equalize(image: Image.Image, strength: float) -> Image.Image:
    return Image.blend(image, ImageOps.equalize(image), strength)


def _invert(image: Image.Image, strength: float) -> Image.Image:
    return Image.blend(image, ImageOps.invert(image), strength)


def _posterize(image: Image.Image, strength: float) -> Image.Image:
    return ImageOps.posterize(image, 8 - round(_POSTERIZED_BITS * strength))


def _solarize(image: Image.Image, strength: float) -> Image.Image:
    """Invert pixels at least as bright as a threshold, which falls from 256 to 0.

    At magnitude 10 the released threshold of 256 wraps around to 0 in 8 bits and the whole image is inverted; so it is
    here, at full strength.
    """
    return ImageOps.solarize(image, round(256 * (1 - strength)))


def _solarize_add(image: Image.Image, strength: float) -> Image.Image:
    addition = round(_SOLARIZE_ADDITION * strength)
    table = [min(255, v + addition) if v < _SOLARIZE_ADD_THRESHOLD else v for v in range(256)]
    return image.point(table * 3)


def _color(image: Image.Image, strength: float) -> Image.Image:
    return ImageEnhance.Color(image).enhance(1 + _ENHANCEMENT * strength)


def _contrast(image: Image.Image, strength: float) -> Image.Image:
    """Move away from the mean gray (the released program takes a constant, 196 at 224 pixels, for the mean)."""
    return ImageEnhance.Contrast(image).enhance(1 + _ENHANCEMENT * strength)


def _brightness(image: Image.Image, strength: float) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(1 + _ENHANCEMENT * strength)


def _sharpness(image: Image.Image, strength: float) -> Image.Image:
    return ImageEnhance.Sharpness(image).enhance(1 + _ENHANCEMENT * strength)


COLOR: dict[str, Operation] = {
    "auto_contrast": _auto_contrast,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "equalize": _equalize,
    "invert": _invert,
    "posterize": _posterize,
    "sharpness": _sharpness,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
}


def cutout(image: Image.Image, strength: float, *, center: tuple[float, float]) -> Image.Image:
    """Return ``image`` with a gray square about ``center`` (shares of the width and of the height).

    The square is cut off at the border of the image. It moves nothing: the patches under it keep their partners.
    """
    half = _CUTOUT * image.width * strength
    x, y = center[0] * image.width, center[1] * image.height
    box = round(x - half), round(y - half), round(x + half), round(y + half)
    if half == 0:
        return image
    result = image.copy()
    result.paste(FILL, box)
    return result
