import io
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.data.readers.images import list_images, open_rgb
from tests.inputs.data.making import encoded, pixels, write


def _decode(image: Image.Image, format: str, **options: object) -> np.ndarray:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    buffer.seek(0)
    decoded = open_rgb(buffer, name="it")
    assert decoded.mode == "RGB"
    return np.asarray(decoded).astype(int)


def test_rgb_pixels_come_back_as_they_were() -> None:
    for format in ("PNG", "BMP", "PPM", "TIFF"):
        assert np.array_equal(_decode(Image.fromarray(pixels(1)), format), pixels(1))


def test_transparency_is_laid_on_white() -> None:
    rgba = np.zeros((1, 3, 4), dtype=np.uint8)
    rgba[0] = [(200, 10, 30, 255), (200, 10, 30, 0), (0, 0, 0, 128)]
    assert _decode(Image.fromarray(rgba), "PNG")[0].tolist() == [
        [200, 10, 30],
        [255, 255, 255],
        [127, 127, 127],
    ]
    gray = Image.fromarray(np.array([[[40, 255], [40, 0]]], dtype=np.uint8), mode=None)
    assert gray.mode == "LA"
    assert _decode(gray, "PNG")[0].tolist() == [[40] * 3, [255] * 3]


def test_palette_and_its_transparent_entry() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([0, 1])
    assert _decode(image, "PNG")[0].tolist() == [[10, 20, 30], [200, 100, 50]]
    assert _decode(image, "PNG", transparency=1)[0].tolist() == [[10, 20, 30], [255, 255, 255]]
    assert _decode(image, "PNG", transparency=b"\xff\x00")[0].tolist() == [[10, 20, 30], [255, 255, 255]]


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_gray_is_scaled_not_clipped(format: str) -> None:
    values = np.array([[0, 128, 129, 257, 32896, 65535]], dtype=np.uint16)
    assert _decode(Image.fromarray(values), format)[0, :, 0].tolist() == [0, 0, 1, 1, 128, 255]


def test_cmyk_jpeg_keeps_its_colors() -> None:
    red = Image.new("RGB", (16, 16), (230, 20, 20)).convert("CMYK")
    assert np.abs(_decode(red, "JPEG", quality=95) - (230, 20, 20)).max() <= 6


def test_exif_rotation_is_applied() -> None:
    stored = np.zeros((8, 16, 3), dtype=np.uint8)
    stored[:, :8] = 255  # bright on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned 90 degrees clockwise: left becomes top
    shown = _decode(Image.fromarray(stored), "JPEG", exif=exif)
    assert shown.shape == (16, 8, 3)
    assert shown[:6].mean() > 240
    assert shown[-6:].mean() < 15


def test_a_broken_exif_header_does_not_cost_the_image() -> None:
    whole = Image.fromarray(pixels(1))
    buffer = io.BytesIO()
    whole.save(
        buffer, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x01\x12\0\x09\xff\xff\xff\xff" * 3
    )
    expected = io.BytesIO()
    whole.save(expected, "JPEG")
    assert open_rgb(buffer, name="it").tobytes() == open_rgb(expected, name="it").tobytes()


def _bomb() -> bytes:
    """Return a PNG of a few bytes whose header promises 20,000 x 20,000 pixels."""
    content = bytearray(encoded(0))
    content[16:24] = (20_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty or not an image"),
        (b"a page of text", "empty or not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "empty or not an image"),
        (encoded(0)[:200], "truncated"),
        (encoded(0, "JPEG")[:-60], "truncated"),
        (_bomb(), "pixels"),
    ],
    ids=["zero-byte", "text", "postscript", "truncated png", "truncated jpeg", "bomb"],
)
def test_what_cannot_be_read_is_one_sentence_with_its_name(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = write(tmp_path / "bad.png", content)
    with pytest.raises(UserError, match=rf"bad\.png.*{reason}") as caught:
        open_rgb(path, name=str(path))
    assert "\n" not in str(caught.value)


def test_pixels_between_the_warning_and_the_error_are_a_bomb_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)  # the image has 192
    with pytest.raises(UserError, match="more than 150 pixels"):
        open_rgb(io.BytesIO(encoded(0)), name="it")


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Cannot read .*gone\.png: No such file"):
        open_rgb(tmp_path / "gone.png", name="gone.png")


def test_listing_is_sorted_and_skips_hidden_and_other_files(tmp_path: Path) -> None:
    for name in ("b/2.JPG", "b/10.png", "a.webp", ".hidden.png", ".cache/x.png", "b/notes.txt", "b/c/d.tiff"):
        write(tmp_path / name, b"")
    assert list_images(tmp_path) == ["a.webp", "b/10.png", "b/2.JPG", "b/c/d.tiff"]


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    write(tmp_path / "real/1.png", b"")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/linked").symlink_to(tmp_path / "real")
    (tmp_path / "set/again").symlink_to(tmp_path / "set")
    (tmp_path / "set/itself").symlink_to(tmp_path / "set/itself")
    assert list_images(tmp_path / "set") == ["linked/1.png"]
