"""The tables and figures of the PRC paper (Kada et al. 2025) for any two checkpoints and any data set of images."""

from moeprobe.studies.paper.run import PaperPlan, PaperResult, paper, plan_paper

__all__ = ["PaperPlan", "PaperResult", "paper", "plan_paper"]
