"""What a notebook or a command calls.

Nothing here touches the file system unless an output folder is named. Errors that the user can mend are
``UserError``s with one sentence.

    from moeprobe import api

    model = api.load_model("checkpoints/demo-prc")
    logits, routing = api.trace(model, images)          # images (B, 3, 32, 32) in [0, 1]
    result = api.match_ratio([model], data="digits", limit=100)
    result.table.query("metric == 'top1_match_kappa'")
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from moeprobe.analyzing import analyze_trace
from moeprobe.comparing import Comparison, compare, plan_comparison
from moeprobe.corresponding import CorrespondResult, correspond
from moeprobe.exchange.swin_moe import ImportedSwinMoe, import_swin_moe
from moeprobe.exchange.trace import ImportedTrace, import_trace
from moeprobe.exchange.vmoe import Exported, Imported, export_vmoe, import_vmoe
from moeprobe.fewshot import fewshot, plan_fewshot
from moeprobe.following import DiscontinuityResult, discontinuity, plan_discontinuity
from moeprobe.loading import Model, Options, choose_device, load_model, open_data, open_view, wrap
from moeprobe.overlaying import OverlayResult, overlay, plan_overlay
from moeprobe.probes import Checkpoint
from moeprobe.probing import Plan, plan, probe
from moeprobe.report import Document, report
from moeprobe.routing import RoutingTrace
from moeprobe.runs import Result
from moeprobe.spreading import contagion, plan_contagion
from moeprobe.tracing import Recorded, plan_record, record
from moeprobe.tradeoff import TradeoffPlan, TradeoffResult, plan_tradeoff, tradeoff
from moeprobe.training.loop import Report
from moeprobe.trainings import train

__all__ = [
    "Checkpoint",
    "Comparison",
    "CorrespondResult",
    "DiscontinuityResult",
    "Document",
    "Exported",
    "Imported",
    "ImportedSwinMoe",
    "ImportedTrace",
    "Model",
    "Options",
    "OverlayResult",
    "Plan",
    "Recorded",
    "Report",
    "Result",
    "TradeoffPlan",
    "TradeoffResult",
    "analyze_trace",
    "choose_device",
    "compare",
    "confidence",
    "contagion",
    "correspond",
    "discontinuity",
    "evaluate",
    "export_vmoe",
    "fewshot",
    "import_swin_moe",
    "import_trace",
    "import_vmoe",
    "load_model",
    "match_ratio",
    "noise_sweep",
    "open_data",
    "open_view",
    "overlay",
    "plan",
    "plan_comparison",
    "plan_contagion",
    "plan_discontinuity",
    "plan_fewshot",
    "plan_overlay",
    "plan_record",
    "plan_tradeoff",
    "probe",
    "record",
    "report",
    "s_matrix",
    "sweep",
    "trace",
    "tradeoff",
    "train",
    "wrap",
]


def trace(
    model: Checkpoint, images: Tensor, *, layers: Sequence[str] | None = None
) -> tuple[Tensor, RoutingTrace]:
    """Return class scores ``(B, classes)`` and the routing of images ``(B, 3, H, W)`` in [0, 1].

    Raises:
        UserError: the images do not fit the model, or there is no such layer.
    """
    logits, routing = model.model.trace(images, layers=layers)
    assert logits is not None
    return logits, routing


def match_ratio(
    models: Sequence[Model], *, data: str | None = None, view: str = "random_crop", **more: Any
) -> Result:
    """Measure how often corresponding patches of two random views choose the same experts.

    Args:
        models: checkpoints, loaded or by path; with two or more, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were
            trained on.
        view: a view that makes pairs.
        more: ``options`` (an ``Options``), its fields by name (``limit=100``), ``watcher``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    return probe("match-ratio", models, data=data, view=view, **more)


def s_matrix(
    models: Sequence[Model], *, data: str | None = None, view: str = "random_crop", **more: Any
) -> Result:
    """Measure the correlation matrix S of the gates of corresponding patches, and the terms of the PRC loss.

    Arguments and errors as in ``match_ratio``.
    """
    return probe("s-matrix", models, data=data, view=view, **more)


def confidence(models: Sequence[Model], *, data: str | None = None, **more: Any) -> Result:
    """Measure how sure the routers are on clean images: highest gate, second, rest, and the margin.

    Arguments and errors as in ``match_ratio``.
    """
    return probe("confidence", models, data=data, **more)


def sweep(
    models: Sequence[Model],
    *,
    view: str,
    data: str | None = None,
    severities: Sequence[float] | None = None,
    **more: Any,
) -> Result:
    """Measure match with the clean image, confidence, load, agreement and accuracy along a severity.

    ``severities`` None takes the view's own steps. Other arguments and errors as in ``match_ratio``.
    """
    return probe("sweep", models, data=data, view=view, severities=severities, **more)


def noise_sweep(
    models: Sequence[Model], *, data: str | None = None, sigmas: Sequence[float] | None = None, **more: Any
) -> Result:
    """Sweep over Gaussian noise; ``sigmas`` in units of the [0, 1] pixel range. Otherwise as ``sweep``."""
    return sweep(models, view="gaussian_noise", data=data, severities=sigmas, **more)


def evaluate(models: Sequence[Model], *, data: str | None = None, **more: Any) -> Result:
    """Measure accuracy, top-5 accuracy and cross-entropy on clean images. Arguments as in ``match_ratio``."""
    return probe("eval", models, data=data, **more)
