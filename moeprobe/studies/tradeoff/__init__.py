"""What a router costs and what it brings: trainings side by side, each measured in the same way.

A cell is one training. Its folder ``OUT/cells/NAME/`` holds all that the tables and figures follow from, without the
weights: ``cell.json`` (configuration, times, size, hash), ``metrics.csv`` of the training, and the runs of the probes.
When all cells are finished, ``packing`` puts their folders into ``OUT/cells.parquet`` and ``OUT/cells.json``.
"""

from moeprobe.studies.tradeoff.run import TradeoffProgress, TradeoffResult, tradeoff
from moeprobe.studies.tradeoff.trainings import TradeoffPlan, plan_tradeoff

__all__ = ["TradeoffPlan", "TradeoffProgress", "TradeoffResult", "plan_tradeoff", "tradeoff"]
