"""``python -m benchmarks.speed``."""

import sys

from benchmarks.speed.command import command

if __name__ == "__main__":
    command(["bench", *sys.argv[1:]], prog_name="python -m benchmarks.speed")
