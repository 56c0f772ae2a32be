"""The error under corruptions relative to a baseline: it follows from two checkpoints, and from no analysis."""

from moeprobe.metrics.declaration import Metric

CORRUPTION_ERROR = Metric(
    "corruption_error",
    about="errors at all severities of a corruption divided by the errors of the baseline; of several corruptions the "
    "mean. ImageNet-C's mCE is 100 times this for AlexNet as the baseline and severities 1 to 5",
    label="corruption error",
    better="less",
    unit="other",
    rank=11,
    of_labels=True,
)

measures = (CORRUPTION_ERROR,)
