"""How several processes share a model that they train: its experts, or every parameter (``fully_shard``)."""
