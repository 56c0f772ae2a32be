"""The two crops that PRC's released fine-tuning trains on."""

from dataclasses import dataclass

from moeprobe.inputs.views.crops import CropPair, Range


@dataclass(frozen=True)
class PrcCrops(CropPair):
    """A crop of 5-70 % of the area and one of 60-100 %, each mirrored half the time: PRC's released fine-tuning."""

    first_area: Range = (0.05, 0.7)
    second_area: Range = (0.6, 1.0)
    flip: bool = True
