"""Signals that ask a process to end: what they do while it works.

``ending`` has them end a command as Ctrl-C does, ``postponed`` puts them off until a block is left, and ``wishes``
notes them for several processes that must all end at the same point.
"""

import signal

# SIGTERM is what schedulers, containers and `kill` send; SIGHUP, where there is one, says that the terminal is gone.
FROM_OUTSIDE = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
ALL = (signal.SIGINT, *FROM_OUTSIDE)
