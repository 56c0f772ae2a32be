"""Our networks: their modules and routers, how they are trained, checkpoints of ours and of other programs."""
