"""Metrics of served traffic that is watched batch by batch; ``recorded/trace_balance`` computes them."""

from moeprobe.metrics.declaration import Metric

# What the column ``severity`` is of numbers after each batch.
BATCH = "batch"
USUAL_SHARE = Metric(
    "usual_share",
    about="share of a batch's choices that go to the usual hot experts: the mean over batches of the second half of "
    "the baseline, each of which counts the same; usual are the eighth of the experts with the most choices in its "
    "first half",
    label="choices of the usual hot experts, baseline",
    unit="share",
)
USUAL_CHANGE = Metric(
    "usual_share_change",
    about="by how much more of a batch's choices go to the usual hot experts since: the mean over the batches since "
    "minus usual_share; the interval holds after every batch at once",
    label="change since the baseline",
    unit="share",
    below=USUAL_SHARE.name,
    severity=BATCH,
)
FIRST_CHANGED = Metric(
    "usual_share_changed_at",
    about="the batch since the baseline after which a change is first shown, in all batches or in those since any "
    "tenth one; empty where none is",
    label="batch that shows a change",
    unit="whole",
    below=USUAL_SHARE.name,
)
CHANGED_SINCE = Metric(
    "usual_share_changed_since",
    about="the first of the batches that show it: 1, or one after any tenth batch; empty where none do",
    label="first of the batches that show it",
    unit="whole",
    below=USUAL_SHARE.name,
)
RECENT_CHANGE = Metric(
    "usual_share_change_recent",
    about="usual_share_change from the batch of usual_share_changed_since to the last one; the interval holds after "
    "every batch at once",
    label="change in the batches that show it",
    unit="share",
    below=USUAL_SHARE.name,
)
BATCH_CORRELATION = Metric(
    "batch_correlation",
    about="correlation of the share of the usual hot experts in a batch with that in the next, in the batches that "
    "show a change or else in all; intervals of the change are wider for it, and hold up to about 0.3",
    label="correlation of batches",
    unit="other",
    below=USUAL_SHARE.name,
)
measures = (USUAL_SHARE, USUAL_CHANGE, FIRST_CHANGED, CHANGED_SINCE, RECENT_CHANGE, BATCH_CORRELATION)
