"""What yields pictures, or files: overlays and recorded routing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from moeprobe.adapters.base import Models
from moeprobe.api.asking import ask
from moeprobe.probes.engine.options import Keywords, Options, with_options
from moeprobe.probes.overlay import Overlay
from moeprobe.probes.overlay.measure import OverlayResult
from moeprobe.probes.trace import Trace
from moeprobe.probes.trace.measure import Recorded
from moeprobe.runtime.progress import Progress


@with_options
def overlay(
    models: Models,
    *,
    data: str | None = None,
    images: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    count: int = Overlay.count,
    view: str = Overlay.view,
    severity: float | None = None,
    severities: Sequence[float] | None = None,
    animate: bool = False,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> OverlayResult:
    """Show which expert each patch chooses on the clean and on the perturbed image.

    Args:
        models: checkpoints, side by side.
        data: data set, used unless ``files`` are given.
        images: names of images of the data set; none = ``count`` seeded random ones.
        files: image files of the user's own.
        count: how many random images.
        view: a view with a severity.
        severity: its severity; None = 0.2.
        severities: with ``animate``, its severities, all from one draw; None = the view's own steps.
        animate: show the routing as the severity grows: frames, a GIF, and a strip of the first image.
        options: as in ``match_ratio``, with ``changes``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    probe = Overlay(
        images=images, files=files, count=count, view=view, severity=severity, severities=severities, animate=animate
    )  # fmt: skip
    return ask(probe, models, data, options, watcher, changes)


@with_options
def record(
    models: Models,
    *,
    data: str | None = None,
    view: str = Trace.view,
    severities: Sequence[float] | None = None,
    all_gates: bool = False,
    tokens: str | Path | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Recorded:
    """Write what the routers decide for each token to ``out``: CHECKPOINT/VIEW.parquet.

    Args:
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        view: perturbation; the reference that it is compared with (the clean image, or the first of two random
            views) is recorded too.
        severities: of the view; None = its own steps.
        all_gates: keep the gates of all experts.
        tokens: file of a server's responses with token ids, which a language model reads instead of data.
        options: as in ``match_ratio``, with ``changes``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit, or no output folder is named.
    """
    probe = Trace(
        view=view, severities=severities, all_gates=all_gates, tokens=None if tokens is None else Path(tokens)
    )
    return ask(probe, models, data, options, watcher, changes)
