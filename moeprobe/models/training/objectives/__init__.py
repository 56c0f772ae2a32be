"""Training objectives: what is added to the supervised loss, one objective per file."""
