"""How long commands take that compute nothing, against importing torch."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.race import Contestant, DisagreementError, Race, Target
from moeprobe.models.checkpoints.checkpoint import save
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model

TORCH = "import torch"
_WRONG = 2


class Startup(Part):
    """Help, lists, `inspect` and a mistyped view, each in a process of its own, against `import torch`."""

    def races(self, settings: Settings) -> Iterator[Race]:
        """Yield one race of all of them."""
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / "model.safetensors"
            name = "vmoe_tiny_patch8_32" if settings.quick else "vmoe_small_patch32_224"
            config = ModelConfig(name=name, num_classes=10)
            classes = tuple(f"class {number}" for number in range(10))
            save(checkpoint, build_model(config), config=config, training={}, class_names=classes)
            commands = {
                "moeprobe --help": (["--help"], 0, 0.25),
                "moeprobe list": (["list", "views"], 0, 0.3),
                "moeprobe inspect": (["inspect", str(checkpoint)], 0, 1.3),
                "a mistyped view": (["match-ratio", str(checkpoint), "--view", "random_crp"], _WRONG, 0.3),
            }
            contestants = [Contestant(TORCH, _command([sys.executable, "-c", TORCH], 0))]
            targets = []
            for called, (arguments, code, most) in commands.items():
                line = [sys.executable, "-m", "moeprobe", *arguments]
                contestants.append(Contestant(called, _command(line, code), "ours"))
                targets.append(Target(called, TORCH, at_most=most))
            yield Race("a process of its own", contestants, None, targets, against=TORCH, ratio="time")


def _command(line: list[str], code: int) -> Callable[[], object]:
    """Return what runs a command line to its end, which must be the expected one."""

    def run() -> None:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != code:
            said = " ".join(done.stderr.split()) or "nothing"
            raise DisagreementError(
                f"{' '.join(line[1:])} ended with {done.returncode} instead of {code}, and said: {said}"
            )

    return run
