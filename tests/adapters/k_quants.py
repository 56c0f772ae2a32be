"""Blocks of ggml's K-quants, made up, and what they stand for by loops over their numbers.

Each loop follows the description of its block in llama.cpp (``ggml-common.h``) and its reference function
(``dequantize_row_q*_K`` in ``ggml-quants.c``), one number after the other, in float64.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

# Numbers of a block.
BLOCK = 256
Bytes = NDArray[np.uint8]
# By kind: bytes of a block, and where its scales of float16 stand.
_SIZES = {
    "Q2_K": (84, (80, 82)),
    "Q3_K": (110, (108,)),
    "Q4_K": (144, (0, 2)),
    "Q5_K": (176, (0, 2)),
    "Q6_K": (210, (208,)),
}


def made_up(shape: Sequence[int], kind: str, *, seed: int) -> Bytes:
    """Return blocks of random bytes for numbers of a shape, with scales of about 0.01."""
    size, places = _SIZES[kind]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (int(np.prod(shape)) // BLOCK, size), dtype=np.uint8)
    for place in places:
        scales = random.uniform(0.005, 0.02, (len(blocks), 1)).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8)
    return blocks.reshape(*shape[:-1], shape[-1] // BLOCK * size)


def dequantized(raw: Bytes, kind: str) -> NDArray[np.float32]:
    """Return the numbers that rows of blocks stand for."""
    size, _ = _SIZES[kind]
    numbers = [number for block in raw.reshape(-1, size) for number in _LOOPS[kind](block)]
    return np.array(numbers, dtype=np.float32).reshape(*raw.shape[:-1], -1)


def _half(block: Bytes, place: int) -> float:
    return float(block[place : place + 2].copy().view(np.float16)[0])


def _q2(block: Bytes) -> list[float]:
    """16 bytes of scales and minima of 4 bits, 64 bytes of 2 bits, scale, minimum."""
    scale, minimum, numbers = _half(block, 80), _half(block, 82), []
    for number in range(BLOCK):
        # Of 128 numbers, 32 bytes hold four times 32, two bits each.
        half, within = divmod(number, 128)
        shift, byte = divmod(within, 32)
        bits = int(block[16 + 32 * half + byte]) >> 2 * shift & 3
        of_group = int(block[number // 16])
        numbers.append(scale * (of_group & 15) * bits - minimum * (of_group >> 4))
    return numbers


def _q3(block: Bytes) -> list[float]:
    """32 bytes of high bits, 64 bytes of 2 low bits, 12 bytes of scales of 6 bits, scale."""
    scale, numbers = _half(block, 108), []
    for number in range(BLOCK):
        half, within = divmod(number, 128)
        shift, byte = divmod(within, 32)
        low = int(block[32 + 32 * half + byte]) >> 2 * shift & 3
        # A bit that is not set takes four off.
        high = int(block[byte]) >> (4 * half + shift) & 1
        group = number // 16
        four = int(block[96 + group % 8]) >> 4 * (group // 8) & 15
        two = int(block[104 + group % 4]) >> 2 * (group // 4) & 3
        numbers.append(scale * ((four | two << 4) - 32) * (low - 4 * (1 - high)))
    return numbers


def _scale_and_minimum(packed: Bytes, group: int) -> tuple[int, int]:
    """Return the scale and the minimum of a group of 32, of 6 bits each, out of 12 bytes."""
    if group < 4:
        return int(packed[group]) & 63, int(packed[group + 4]) & 63
    low, first, second = int(packed[group + 4]), int(packed[group - 4]), int(packed[group])
    return low & 15 | first >> 6 << 4, low >> 4 | second >> 6 << 4


def _q4(block: Bytes) -> list[float]:
    """Scale, minimum, 12 bytes of scales and minima, 128 bytes of 4 bits."""
    return _q4_or_q5(block, lambda byte, group: 0, start=16)


def _q5(block: Bytes) -> list[float]:
    """Scale, minimum, 12 bytes of scales and minima, 32 bytes of fifth bits, 128 bytes of 4 bits."""
    return _q4_or_q5(block, lambda byte, group: int(block[16 + byte]) >> group & 1, start=48)


def _q4_or_q5(block: Bytes, fifth: Callable[[int, int], int], *, start: int) -> list[float]:
    scale, minimum, numbers = _half(block, 0), _half(block, 2), []
    for number in range(BLOCK):
        group, byte = divmod(number, 32)
        # 32 bytes hold two groups: the first in their low halves.
        four = int(block[start + 32 * (group // 2) + byte]) >> 4 * (group % 2) & 15
        of_group, least = _scale_and_minimum(block[4:16], group)
        numbers.append(scale * of_group * (four + 16 * fifth(byte, group)) - minimum * least)
    return numbers


def _q6(block: Bytes) -> list[float]:
    """128 bytes of 4 low bits, 64 bytes of 2 high bits, 16 signed scales, scale."""
    scale, scales, numbers = _half(block, 208), block[192:208].view(np.int8), []
    for number in range(BLOCK):
        half, within = divmod(number, 128)
        quarter, byte = divmod(within, 32)
        low = int(block[64 * half + 32 * (quarter % 2) + byte]) >> 4 * (quarter // 2) & 15
        high = int(block[128 + 32 * half + byte]) >> 2 * quarter & 3
        numbers.append(scale * int(scales[number // 16]) * ((low | high << 4) - 32))
    return numbers


_LOOPS = {"Q2_K": _q2, "Q3_K": _q3, "Q4_K": _q4, "Q5_K": _q5, "Q6_K": _q6}
