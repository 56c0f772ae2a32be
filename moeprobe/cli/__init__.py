"""The command line: one file per command; each parses, calls the library once, prints what matters and where it lies.

Nothing heavy is imported here: ``moeprobe --help`` must not wait for torch.
"""

import os
import sys

# Two small models on a few cores: threads that spin while they wait for one another stop each other whenever another
# process wants a core (measured: 13 times slower). It must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from moeprobe.cli.app import USER_ERROR, app
from moeprobe.cli.environment import prepare


def main() -> None:
    """Run the command line and exit.

    0 done, 1 a bug, 2 the user's input is wrong, 3 what --fail-if-worse names is worse, 130 interrupted.
    """
    wrong = prepare(sys.argv[1:])
    if wrong is not None:
        sys.stderr.write(f"Error: {wrong}\n")
        sys.exit(USER_ERROR)
    app()
