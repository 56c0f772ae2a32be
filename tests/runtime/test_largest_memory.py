"""How much memory a process has had is its own, whoever started it."""

import subprocess
import sys

from moeprobe.runtime.processes import largest_resident

_MIB = 2**20


def test_memory_is_not_that_of_the_process_that_started_it() -> None:
    held = b"x" * (300 * _MIB)
    assert largest_resident() > 300
    script = "from moeprobe.runtime.processes import largest_resident\nprint(largest_resident())\n"
    found = [
        float(subprocess.run([sys.executable, "-c", more + script], check=True, capture_output=True).stdout)
        for more in ("", "held = b'x' * (200 * 2**20)\n")
    ]
    assert 1 < found[0] < 200 < found[1] < len(held) / _MIB
