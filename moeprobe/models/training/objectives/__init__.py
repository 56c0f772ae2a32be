"""Training objectives: what is asked of the routers beside the supervised loss, one objective per file."""
