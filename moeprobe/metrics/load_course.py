"""Metrics of whether experts' loads change with time; ``recorded/trace_balance`` computes them."""

from moeprobe.metrics.declaration import Metric

COURSE_P = Metric(
    "load_course_p",
    about="p of loads that do not change from window to window, of all experts of the layer or of all layers at once "
    "(no layer): share of 200 shuffles of the requests in which they differ as much",
    label="p of no change of the load with time",
    unit="probability",
    margin=False,
)
COURSE_RATE = Metric(
    "load_course_rate",
    about="least false discovery rate, among all experts of all layers, at which the load of an expert (column expert) "
    "is named as changing with time (F test; Benjamini and Hochberg)",
    label="false discovery rate of a changing load",
    unit="probability",
    margin=False,
)
COURSE_SPREAD = Metric(
    "load_course_spread",
    about="standard deviation of the share of an expert (column expert) from window to window, without what requests "
    "that differ explain",
    label="spread of an expert's load over windows",
    unit="share",
)
measures = (COURSE_P, COURSE_RATE, COURSE_SPREAD)
