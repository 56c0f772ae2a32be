"""Training objectives: terms added to the supervised loss, one objective per file."""
