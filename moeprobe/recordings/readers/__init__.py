"""Readers of the routed experts in responses of inference servers: one file each, known by keys and shapes."""
