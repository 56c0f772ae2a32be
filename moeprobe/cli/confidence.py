"""``moeprobe confidence``."""

from moeprobe.cli.options import Checkpoints, Common, Data, Full, probe


@probe
def confidence(checkpoints: Checkpoints, data: Data = None, full: Full = False, *, common: Common) -> None:
    """How sure are the routers on clean images?

    Mean highest gate, second gate, sum of the rest, and the margin between the first two.

    Example: `moeprobe confidence checkpoints/demo-baseline checkpoints/demo-prc --data digits --out reports/confidence`
    """
    from moeprobe.cli.run import run
    from moeprobe.cli.short import side_by_side

    run(
        "confidence",
        checkpoints,
        common,
        show=lambda result: side_by_side(result, title="Router confidence, clean images", full=full),
        data=data,
    )
