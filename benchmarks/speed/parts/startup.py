"""How long commands take that compute little or nothing, against importing torch."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.race import Contestant, DisagreementError, Race, Target
from moeprobe import api
from moeprobe.models.checkpoints.checkpoint import save
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model

TORCH = "import torch"
_WRONG = 2
# The first use of a function: naming moeprobe.api alone imports nothing.
_LOAD = "from moeprobe import api; api.load_model({!r})"
_ASK = "from moeprobe import api; api.match_ratio({!r}, data='digits', limit=2)"


class Startup(Part):
    """Help, `inspect`, first use from Python, small files, finished runs: a process each, against `import torch`."""

    rounds = 7

    def races(self, settings: Settings) -> Iterator[Race]:
        """Yield one race of all of them."""
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / "model.safetensors"
            name = "vmoe_tiny_patch8_32" if settings.quick else "vmoe_small_patch32_224"
            config = ModelConfig(name=name, num_classes=10)
            classes = tuple(f"class {number}" for number in range(10))
            save(checkpoint, build_model(config), config=config, training={}, class_names=classes)
            run, trace = _small_files(Path(folder))
            moeprobe = [sys.executable, "-m", "moeprobe"]
            commands = {
                "moeprobe --help": ([*moeprobe, "--help"], 0, 0.2),
                "moeprobe list": ([*moeprobe, "list", "views"], 0, 0.3),
                "moeprobe inspect": ([*moeprobe, "inspect", str(checkpoint)], 0, 1.3),
                "a mistyped view": (
                    [*moeprobe, "match-ratio", str(checkpoint), "--view", "random_crp"],
                    _WRONG,
                    0.2,
                ),
                "api.load_model": ([sys.executable, "-c", _LOAD.format(str(checkpoint))], 0, 1.6),
                "api.match_ratio, two images": ([sys.executable, "-c", _ASK.format(str(checkpoint))], 0, 2.5),
                "trace analyze, a small file": ([*moeprobe, "trace", "analyze", str(trace)], 0, 1.0),
                "compare, a finished run": ([*moeprobe, "compare", str(run)], 0, 0.5),
                "report, a finished run": (
                    [*moeprobe, "report", str(run), "--out", f"{folder}/report", "--overwrite"],
                    0,
                    0.95,
                ),
            }
            contestants = [Contestant(TORCH, _command([sys.executable, "-c", TORCH], 0))]
            targets = []
            for called, (line, code, most) in commands.items():
                contestants.append(Contestant(called, _command(line, code), "ours"))
                targets.append(Target(called, TORCH, at_most=most))
            yield Race("a process of its own", contestants, None, targets, against=TORCH, ratio="time")


def _small_files(folder: Path) -> tuple[Path, Path]:
    """Return a finished run of two models, and recorded routing."""
    models = []
    for seed, name in enumerate(("a", "b")):
        torch.manual_seed(seed)
        config = ModelConfig(name="vmoe_tiny_patch8_32", num_classes=10)
        classes = tuple(f"class {number}" for number in range(10))
        save(
            folder / f"{name}.safetensors",
            build_model(config),
            config=config,
            training={},
            class_names=classes,
        )
        models.append(folder / f"{name}.safetensors")
    api.match_ratio(models, data="digits", limit=60, out=folder / "run")
    api.record(models[0], data="digits", limit=60, out=folder / "trace")
    return folder / "run", next((folder / "trace").rglob("*.parquet"))


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
