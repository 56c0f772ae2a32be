"""Sparse vision transformers; importing this package registers its models with timm."""

from moeprobe.models.nn import vit as _vit  # noqa: F401  (registers the models)
