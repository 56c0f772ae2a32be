"""Five hundred probes in one process, as in a notebook that is open for a week: nothing grows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc"),
]
# In a process of its own, where nothing else comes and goes.
PROGRAM = """
import gc, json, os, sys, tempfile, threading
from pathlib import Path
import torch
from matplotlib import pyplot
from moeprobe import api
from tests.routing.routings import checkpoint

def held(model):
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    hooks = sum(
        len(getattr(module, name))
        for module in model.modules()
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    )
    return {
        "handles": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "figures": len(pyplot.get_fignums()),
        "hooks": hooks,
        "objects": len(gc.get_objects()),
        "tensors": sum(isinstance(one, torch.Tensor) for one in gc.get_objects()),
        "megabytes": resident / 2**20,
    }

one = checkpoint()
ask = (
    lambda out: api.match_ratio(one, data="digits", limit=3, out=out, overwrite=True, figures=False),
    lambda out: api.confidence(one, data="digits", limit=3),
    lambda out: api.noise_sweep(one, data="digits", limit=3, sigmas=(0.0, 0.1)),
    lambda out: api.s_matrix(one, data="digits", limit=3),
)
seen = []
with tempfile.TemporaryDirectory() as folder:
    for call in range(500):
        if call % 50 == 49:
            api.match_ratio(one, data="digits", limit=3, out=Path(folder) / "drawn", overwrite=True)
        else:
            ask[call % len(ask)](Path(folder) / "tables")
        if call % 100 == 99:
            seen.append(held(one.model.model))
print(json.dumps(seen))
"""


def test_nothing_grows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = json.loads(done.stdout)
    print(first, last)
    for name in ("handles", "threads", "figures", "hooks", "tensors"):
        assert last[name] <= first[name], name
    # Caches of libraries fill; what each call leaves behind would be 400 times as much.
    assert last["objects"] <= first["objects"] + 400
    assert last["megabytes"] <= first["megabytes"] + 40
