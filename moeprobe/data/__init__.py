"""Data sets: one file per data set, each a subclass of ``base.ImageDataset``."""

from moeprobe._torchvision import mend as _mend

_mend()
