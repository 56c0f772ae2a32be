"""How many images, or pairs of trainings, show a difference: planned from finished runs."""

from moeprobe.studies.plan.run import ImagesPlan, plan_images

__all__ = ["ImagesPlan", "plan_images"]
