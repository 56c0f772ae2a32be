"""The cost of a run, as ``--dry-run`` prints it."""

import dataclasses

from moeprobe.cli.front.json_output import print_json
from moeprobe.cli.front.screen import console
from moeprobe.inputs.modality import IMAGE
from moeprobe.probes.engine.work import Plan


def print_plan(plan: Plan, *, as_json: bool, least: bool = False, before: str = "the statistics") -> None:
    """Print the cost of a run ``before`` its last step; ``least``: the number of passes is a lower bound."""
    if as_json:
        print_json(dataclasses.asdict(plan))
        return
    bound = " at least" if least else ""
    total = plan.checkpoints * plan.images * plan.passes
    console().print(
        f"{plan.checkpoints} checkpoint{'s' if plan.checkpoints != 1 else ''} x {IMAGE.format_count(plan.images)} "
        f"x {plan.passes} forward passes = {total:,} passes{bound}, about {plan.seconds:,.1f} s before {before}, "
        f"judging by {IMAGE.format_count(plan.timed_images)}. Nothing was written."
    )
