"""The demonstration: train with and without PRC, on real digits by default, then measure routing stability."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from moeprobe.adapters.open import load_model
from moeprobe.declarations import Probe
from moeprobe.declarations.options import Options
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.models.checkpoints.location import CHECKPOINTS, DEMO
from moeprobe.models.config import load
from moeprobe.models.training.reporting import Report
from moeprobe.probes.confidence import Confidence
from moeprobe.probes.engine import run as engine
from moeprobe.probes.evaluate import Evaluate
from moeprobe.probes.match_ratio import MatchRatio
from moeprobe.probes.noise_sweep import NoiseSweep
from moeprobe.probes.overlay import Overlay
from moeprobe.results.folder import Result
from moeprobe.runtime.progress import Progress
from moeprobe.studies.audit import AuditResult, audit_runs
from moeprobe.studies.report import report as write_report
from moeprobe.studies.train import train

R = TypeVar("R")
BASELINE, PRC = DEMO
NAMES = ("V-MoE", "V-MoE + PRC")  # on the page
NOISE, SPLIT = 0.2, "test"
SHOWN_NOISE = (0.0, 0.05, 0.1, 0.15, NOISE)


@dataclass(frozen=True)
class DemoResult:
    """The results of the demonstration, analysis by analysis, and their folder."""

    training: dict[str, dict[str, Any]]
    match: Result
    match_prc_crops: Result
    confidence: Result
    noise: Result
    evaluation: Result
    audited: AuditResult
    reports: Path


def run(
    *,
    seed: int = 0,
    checkpoints: Path = CHECKPOINTS,
    reports: Path = Path("reports/demo"),
    overrides: tuple[str, ...] = (),
    device: str = "auto",
    command: str = "",
    report: Callable[[str, str], Callable[[Report], None]] = lambda *_: lambda _: None,
    watcher: Progress | None = None,
) -> DemoResult:
    """Train both models (same views, steps and budget; only the objective differs), run the analyses, report and audit.

    Earlier results of the demonstration are replaced.

    Args:
        seed: of the training.
        checkpoints: where the two run folders go.
        reports: where the reports go.
        overrides: applied to both configurations, e.g. ``("epochs=1",)`` or ``("data=folder:photos",)``; the
            training data are probed too.
        device: where to compute.
        command: the command line, for the sidecars.
        report: for the name of a run and of its data, what shows its progress.
        watcher: receives the progress of the probes.
    """
    configs = {
        name: load(config, (f"name={name}", f"seed={seed}", *overrides))
        for name, config in ((BASELINE, "digits-baseline"), (PRC, "digits-prc"))
    }
    data = configs[BASELINE].data.name
    # Before minutes of training: there must be something to probe on.
    open_data(data, split=SPLIT)
    training = {
        name: train(
            config, folder=checkpoints / name, device=device, overwrite=True, report=report(name, data)
        )
        for name, config in configs.items()
    }
    models = [load_model(checkpoints / name, device=device) for name in (BASELINE, PRC)]

    def measure(probe: Probe[R], folder: str, *, names: tuple[str, ...] | None = None) -> R:
        options = Options(
            out=reports / folder, split=SPLIT, device=device, command=command, overwrite=True, names=names
        )
        return engine.run(probe, models, data=data, options=options, watcher=watcher)

    match = measure(MatchRatio(), "match-ratio")
    crops = measure(MatchRatio(view="prc_crops"), "match-ratio-prc-crops")
    confidence = measure(Confidence(), "confidence")
    noise = measure(NoiseSweep(), "noise-sweep")
    # A report draws other figures again from their tables, with its names.
    measure(Overlay(severities=SHOWN_NOISE), "overlay", names=NAMES)
    evaluation = measure(Evaluate(), "eval")
    runs = ("match-ratio", "match-ratio-prc-crops", "confidence", "noise-sweep", "overlay", "eval")
    write_report([reports / run for run in runs], names=NAMES, out=reports / "report", overwrite=True)
    audited = audit_runs(
        {run: reports / run for run in runs},
        models=[str(checkpoints / name) for name in (BASELINE, PRC)],
        out=reports,
        data=data,
        names=NAMES,
        command=command,
    )
    return DemoResult(training, match, crops, confidence, noise, evaluation, audited, reports)
