"""What tables and figures call the two objectives that reports compare."""

# The part of a checkpoint's name that says how it was trained, and what readers see.
MODELS = {"baseline": "V-MoE", "prc": "V-MoE with PRC"}
