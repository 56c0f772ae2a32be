"""What a notebook or a command calls.

Nothing here touches the file system unless an output folder is named. What a caller can correct, mistyped keywords
too, is a ``UserError`` with one sentence. Results show themselves in a notebook; ``result.plot()`` draws them.

    from moeprobe import api

    model = api.load_model("checkpoints/demo-prc")
    logits, routing = api.trace(model, images)          # images (B, 3, 32, 32) in [0, 1]
    result = api.match_ratio(model, data="digits", limit=100)
    result.table.query("metric == 'top1_match_kappa'")
"""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprobe.runtime.torchvision_compat import repeat_failed_import

# Whoever imports timm after any name of this module, though that name may need neither.
repeat_failed_import()

if TYPE_CHECKING:
    from moeprobe.adapters.base import Checkpoint, Model, Models
    from moeprobe.adapters.hooks import Hooks
    from moeprobe.adapters.open import load_model, wrap
    from moeprobe.api import questions
    from moeprobe.api.asking import measure_shard, merge, plan, probe, trace, use_plugins
    from moeprobe.api.questions import *  # noqa: F403
    from moeprobe.declarations.options import Options
    from moeprobe.errors import UserError
    from moeprobe.inputs.data.readers.naming import open_data
    from moeprobe.inputs.open import open_view
    from moeprobe.models.checkpoints.swin_moe import ImportedSwinMoe, import_swin_moe
    from moeprobe.models.checkpoints.vmoe import Imported, import_vmoe
    from moeprobe.models.checkpoints.vmoe_export import Exported, export_vmoe
    from moeprobe.models.training.reporting import Report
    from moeprobe.models.training.upcycling import Upcycled, upcycle
    from moeprobe.probes.correspond.measure import CorrespondResult
    from moeprobe.probes.discontinuity.measure import DiscontinuityResult
    from moeprobe.probes.engine.merging import MeasuredShard
    from moeprobe.probes.engine.run import Plan
    from moeprobe.probes.overlay.measure import OverlayResult
    from moeprobe.probes.routes.measure import RoutesResult
    from moeprobe.probes.trace.measure import Recorded
    from moeprobe.recordings.check_trace import CheckedTrace, Overlap, check_trace
    from moeprobe.recordings.faults import Finding
    from moeprobe.recordings.import_experts import ImportedExperts, import_routed_experts
    from moeprobe.recordings.import_log import ImportedTrace, import_trace
    from moeprobe.recordings.rows import recorded_routing
    from moeprobe.results.folder import Result
    from moeprobe.runtime.device import choose_device
    from moeprobe.runtime.hub import downloads
    from moeprobe.runtime.progress import Progress
    from moeprobe.studies.audit import AuditPlan, AuditResult, audit, plan_audit, read_audit
    from moeprobe.studies.compare import Comparison, compare, plan_comparison
    from moeprobe.studies.curves import Curves, curves
    from moeprobe.studies.paper import PaperPlan, PaperResult, paper, plan_paper
    from moeprobe.studies.plan import ImagesPlan, plan_images
    from moeprobe.studies.report import Document, report
    from moeprobe.studies.server.result import ServerResult
    from moeprobe.studies.tails import Tails, tails
    from moeprobe.studies.tradeoff.run import TradeoffResult, tradeoff
    from moeprobe.studies.tradeoff.trainings import TradeoffPlan, plan_tradeoff
    from moeprobe.studies.train import train, train_pipeline

__all__ = [
    "AuditPlan",
    "AuditResult",
    "CheckedTrace",
    "Checkpoint",
    "Comparison",
    "CorrespondResult",
    "Curves",
    "DiscontinuityResult",
    "Document",
    "Exported",
    "Finding",
    "Hooks",
    "ImagesPlan",
    "Imported",
    "ImportedExperts",
    "ImportedSwinMoe",
    "ImportedTrace",
    "MeasuredShard",
    "Model",
    "Models",
    "Options",
    "Overlap",
    "OverlayResult",
    "PaperPlan",
    "PaperResult",
    "Plan",
    "Progress",
    "Recorded",
    "Report",
    "Result",
    "RoutesResult",
    "ServerResult",
    "Tails",
    "TradeoffPlan",
    "TradeoffResult",
    "Upcycled",
    "UserError",
    "audit",
    "check_trace",
    "choose_device",
    "compare",
    "curves",
    "downloads",
    "export_vmoe",
    "import_routed_experts",
    "import_swin_moe",
    "import_trace",
    "import_vmoe",
    "load_model",
    "measure_shard",
    "merge",
    "open_data",
    "open_view",
    "paper",
    "plan",
    "plan_audit",
    "plan_comparison",
    "plan_images",
    "plan_paper",
    "plan_tradeoff",
    "probe",
    "read_audit",
    "recorded_routing",
    "report",
    "tails",
    "trace",
    "tradeoff",
    "train",
    "train_pipeline",
    "upcycle",
    "use_plugins",
    "wrap",
]
if TYPE_CHECKING:
    __all__ += questions.__all__
_NAMES = tuple(__all__)
# Asked of ``__getattr__`` from here on, so that ``import *`` finds the functions of questions, too.
del __all__


@cache
def _read_imports() -> dict[str, tuple[str, str]]:
    """Return for each public name the module of it and its name there, as the imports above say."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("moeprobe.")
        for alias in node.names
        if alias.name in _NAMES or alias.asname in _NAMES
    }


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: reading a table needs neither torch nor timm."""
    if name in _NAMES:
        module, original = _read_imports()[name]
        globals()[name] = getattr(import_module(module), original)
        return globals()[name]
    if name == "__all__":
        return __dir__()
    # Last, since it reads all declarations. Not kept: plug-ins may join later.
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # What the module itself imports is none of its functions.
    return import_module("moeprobe.api.questions").__getattr__(name)


def __dir__() -> list[str]:
    return sorted([*_NAMES, *dir(import_module("moeprobe.api.questions"))])
