"""What to say where loader processes cannot share memory, or ended; asked of every error, so it imports no torch."""

import re

from moeprobe.errors import UserError

WITHOUT_WORKERS = (
    "Loader processes cannot hand over images through shared memory (/dev/shm) here: {}. Load without them, with "
    "--workers 0 (of a training data.workers=0), or give a container more (docker run --shm-size=1g)."
)


def lost_workers(error: RuntimeError) -> UserError | None:
    """Return a message for an error of loader processes that ended, or ran out of shared memory."""
    text = " ".join(str(error).split())
    if match := re.search(r"DataLoader worker \(pid.*|unable to .*(shared memory|/torch_).*", text):
        return UserError(WITHOUT_WORKERS.format(match[0].rstrip(".")))
    return None
