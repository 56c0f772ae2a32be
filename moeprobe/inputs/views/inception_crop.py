"""The crop that V-MoE trains on, twice."""

from dataclasses import dataclass

from moeprobe.inputs.views.crops import CropPair, Range


@dataclass(frozen=True)
class InceptionCrop(CropPair):
    """Two crops of 5-100 % of the area, each mirrored half the time: V-MoE's training crop."""

    first_area: Range = (0.05, 1.0)
    second_area: Range = (0.05, 1.0)
    flip: bool = True
