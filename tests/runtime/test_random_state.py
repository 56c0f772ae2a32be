"""What is measured draws from its own seeds: the caller's random state stays as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from moeprobe import api
from tests.commands import Trained

CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "load_model": lambda model, out: api.load_model(model),
    "match_ratio": lambda model, out: api.match_ratio([model], limit=4),
    "s_matrix": lambda model, out: api.s_matrix([model], limit=4),
    "confidence": lambda model, out: api.confidence([model], limit=4),
    "sweep": lambda model, out: api.sweep(
        [model], view="gaussian_noise", severities=[0.1], attribute=True, limit=4
    ),
    "evaluate": lambda model, out: api.evaluate([model], limit=4),
    "contagion": lambda model, out: api.contagion([model], limit=8),
    "discontinuity": lambda model, out: api.discontinuity([model], limit=1, until=0.05, count=1),
    "fewshot": lambda model, out: api.fewshot([model], shots=[1], draws=1, limit=4),
    "overlay": lambda model, out: api.overlay([model], count=1),
    "correspond": lambda model, out: api.correspond(model, count=1),
    "record": lambda model, out: api.record([model], limit=2, out=out),
    "plan": lambda model, out: api.plan("confidence", [model], options=api.Options(limit=4)),
}


@pytest.mark.parametrize("name", [*CALLS, "compare"])
def test_a_probe_leaves_the_random_state_as_it_was(name: str, trained: Trained, tmp_path: Path) -> None:
    torch.manual_seed(17)
    before = torch.get_rng_state()
    if name == "compare":
        api.compare(list(trained.values()), probe="eval", limit=4)
    else:
        CALLS[name](trained["prc"], tmp_path / "out")
    assert torch.equal(torch.get_rng_state(), before)
