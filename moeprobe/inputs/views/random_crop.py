"""A small and a large crop of one image, never mirrored."""

from dataclasses import dataclass

from moeprobe.inputs.views.crops import CropPair, Range


@dataclass(frozen=True)
class RandomCrop(CropPair):
    """A crop of 30-70 % of the area and one of 60-100 %, never mirrored: safe for digits and text."""

    first_area: Range = (0.3, 0.7)
    second_area: Range = (0.6, 1.0)
