"""Sparse vision transformers; importing this package registers its models with timm."""

from moeprobe._torchvision import mend as _mend

_mend()

from moeprobe.nn import vit as _vit  # noqa: E402, F401  (registers the models)
