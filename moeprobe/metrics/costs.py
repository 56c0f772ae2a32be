"""What trainings and models cost: numbers of a trade-off that no analysis computes."""

from moeprobe.metrics.declaration import Metric

TRAINING_STEPS = Metric("training_steps", about="optimizer steps of the training", unit="count")
STEP_SECONDS = Metric(
    "step_seconds",
    about="median time of a training step; trials are the timed steps",
    better="less",
    unit="seconds",
)
STEP_SECONDS_IN_TURN = Metric(
    "step_seconds_in_turn",
    about="median time of a training step without the update, timed by `benchmarks.speed models` in rounds with "
    "the other routers; trials are its rounds",
    better="less",
    unit="seconds",
)
TRAINING_SECONDS = Metric(
    "training_seconds",
    about="time of the whole training, with evaluations and checkpoints",
    better="less",
    unit="seconds",
)
TRAINING_SPIKES = Metric(
    "training_spikes",
    about="number of training losses, each the mean between two evaluations, above twice the median of the earlier "
    "ones; trials are those with at least three earlier ones",
    better="less",
    unit="whole",
)
TRAINING_DIVERGED = Metric(
    "training_diverged",
    about="step by which the loss of a training was not finite any more; only for trainings that diverged, which have "
    "no other numbers than costs",
    unit="whole",
)
FLOPS_PER_IMAGE = Metric(
    "flops_per_image",
    about="floating-point operations of a forward pass, per image",
    better="less",
    unit="count",
)
ACTIVE_PARAMETERS = Metric(
    "active_parameters",
    about="parameters that take part in the forward pass of a token",
    better="less",
    unit="count",
)
PARAMETERS = Metric(
    "parameters", about="parameters of the model, all experts included", better="less", unit="count"
)

measures = (
    TRAINING_STEPS,
    STEP_SECONDS,
    STEP_SECONDS_IN_TURN,
    TRAINING_SECONDS,
    TRAINING_SPIKES,
    TRAINING_DIVERGED,
    FLOPS_PER_IMAGE,
    ACTIVE_PARAMETERS,
    PARAMETERS,
)
