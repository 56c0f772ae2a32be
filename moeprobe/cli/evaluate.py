"""``moeprobe eval``."""

from moeprobe.cli.options import Checkpoints, Common, Data, probe


@probe
def evaluate(checkpoints: Checkpoints, data: Data = None, *, common: Common) -> None:
    """Accuracy, top-5 accuracy and cross-entropy on clean images, and images per second.

    Example: `moeprobe eval checkpoints/demo-baseline checkpoints/demo-prc --data digits`
    """
    from moeprobe.cli.run import run
    from moeprobe.cli.tables import side_by_side

    run(
        "eval",
        checkpoints,
        common,
        show=lambda result: side_by_side(result, title="Clean images"),
        data=data,
        timed=True,
    )
