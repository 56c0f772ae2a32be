"""Training: the loop, checkpoints, and one objective per file."""
