"""Metrics of how far layers drift, all layers at once; ``recorded/drift`` computes them."""

from moeprobe.metrics.declaration import Metric

LAYERS_DIFFER = Metric(
    "drift_layers_differ_p",
    about="p of layers that all moved as far from the first checkpoint to the last (layer all): share of resamples of "
    "the inputs in which their κ would differ as much",
    label="p of layers that moved as far",
    unit="probability",
    margin=False,
)
LAYER_AMONG = Metric(
    "drift_kappa_among",
    about="κ of the last checkpoint with the first in a layer among all layers: shrunk towards their mean, by as much "
    "as its noise is of what they vary by",
    label="κ among all layers",
    unit="share",
)
LAYER_RATE = Metric(
    "drift_layer_rate",
    about="least false discovery rate, among all layers, at which a layer is named as moving more or less than the "
    "mean of the layers (t test; Benjamini and Hochberg)",
    label="false discovery rate of a layer apart",
    unit="probability",
    margin=False,
)
measures = (LAYERS_DIFFER, LAYER_AMONG, LAYER_RATE)
