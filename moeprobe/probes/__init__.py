"""Probes: one folder per question that can be asked of checkpoints; `engine` runs them."""
