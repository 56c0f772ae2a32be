"""Sparse vision transformers; importing this package registers its models with timm."""

import moeprobe.models.nn.vit  # noqa: F401  (registers the models)
