"""Checkpoints of other programs, in and out; one module per format."""
