"""Ask checkpoints: a function for each probe, with its parameters written out."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, Unpack

from moeprobe.adapters.base import Models
from moeprobe.api.asking import ask, attribution, choose_probe
from moeprobe.probes.align import Align
from moeprobe.probes.base import Probe
from moeprobe.probes.confidence import Confidence
from moeprobe.probes.contagion import Contagion
from moeprobe.probes.discontinuity import Discontinuity
from moeprobe.probes.discontinuity.measure import DiscontinuityResult
from moeprobe.probes.engine.options import Keywords, Options, with_options
from moeprobe.probes.evaluate import Evaluate
from moeprobe.probes.fewshot import Fewshot
from moeprobe.probes.match_ratio import MatchRatio
from moeprobe.probes.noise_sweep import NoiseSweep
from moeprobe.probes.overlay import Overlay
from moeprobe.probes.overlay.measure import OverlayResult
from moeprobe.probes.routes import Routes
from moeprobe.probes.routes.measure import RoutesResult
from moeprobe.probes.s_matrix import SMatrix
from moeprobe.probes.sweep import Sweep
from moeprobe.probes.trace import Trace
from moeprobe.probes.trace.measure import Recorded
from moeprobe.results.folder import Result
from moeprobe.runtime.progress import Progress

R = TypeVar("R")


@with_options
def match_ratio(
    models: Models,
    *,
    data: str | None = None,
    view: str = MatchRatio.view,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure how often corresponding patches of two random views choose the same experts.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        view: a view that makes pairs.
        options: what all probes have in common; ``changes`` are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    return ask(MatchRatio(view=view), models, data, options, watcher, changes)


@with_options
def s_matrix(
    models: Models,
    *,
    data: str | None = None,
    view: str = SMatrix.view,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure the correlation matrix S of the gates of corresponding patches, and the terms of the PRC loss.

    Arguments and errors as in ``match_ratio``.
    """
    return ask(SMatrix(view=view), models, data, options, watcher, changes)


@with_options
def confidence(
    models: Models,
    *,
    data: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure how confident the routers are on clean images: highest gate, second, rest, and the margin.

    Arguments and errors as in ``match_ratio``.
    """
    return ask(Confidence(), models, data, options, watcher, changes)


@with_options
def routes(
    models: Models,
    *,
    data: str | None = None,
    images: Sequence[str] = Routes.images,
    count: int = Routes.count,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> RoutesResult:
    """Measure what the experts specialize in: tokens, and information, by class, position and color; key routes; load.

    Args:
        models: as in ``match_ratio``.
        data: as in ``match_ratio``; on ``checkerboard``, whether experts go by color or by place.
        images: names of images that a sheet is drawn of.
        count: how many images have a sheet, if none is named.
        options: as in ``match_ratio``, with ``changes``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    return ask(Routes(images=images, count=count), models, data, options, watcher, changes)


@with_options
def sweep(
    models: Models,
    *,
    view: str,
    data: str | None = None,
    severities: Sequence[float] | None = None,
    attribute: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure match with the clean image, confidence, load, agreement and accuracy along a severity.

    Args:
        models: as in ``match_ratio``.
        view: a view with a severity.
        data: as in ``match_ratio``.
        severities: None = the view's own steps.
        attribute: exchange pixels and routing too, with "recomputed" or "replayed" gates; None = not.
        options: as in ``match_ratio``, with ``changes``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    probe = Sweep(view=view, severities=severities, **attribution(attribute))
    return ask(probe, models, data, options, watcher, changes)


@with_options
def noise_sweep(
    models: Models,
    *,
    data: str | None = None,
    sigmas: Sequence[float] | None = None,
    attribute: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Sweep over Gaussian noise; ``sigmas`` in units of the [0, 1] pixel range. Otherwise as ``sweep``."""
    probe = NoiseSweep(severities=sigmas, **attribution(attribute))
    return ask(probe, models, data, options, watcher, changes)


@with_options
def evaluate(
    models: Models,
    *,
    data: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure accuracy, top-5 accuracy and cross-entropy on clean images. Arguments as in ``match_ratio``."""
    return ask(Evaluate(), models, data, options, watcher, changes)


@with_options
def contagion(
    models: Models,
    *,
    data: str | None = None,
    share: float = Contagion.share,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure how many tokens change experts when batch-mates, other tokens or other patches are exchanged.

    Args:
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        share: share of an image's patches that are exchanged, for other tokens and for other patches.
        options: as in ``match_ratio``; None = the usual ones with groups of four images. In groups of one image there
            are no batch-mates.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit, or there are fewer than two groups of images.
    """
    return ask(Contagion(share=share), models, data, options, watcher, changes)


@with_options
def fewshot(
    models: Models,
    *,
    data: str | None = None,
    shots: Sequence[int] = (10,),
    draws: int = Fewshot.draws,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure the accuracy of ridge regressions on frozen features of a few training images per class.

    Args:
        models: as in ``match_ratio``.
        data: data set with labels and a train split; ``options.split`` is judged.
        shots: training images per class; several are nested.
        draws: independent draws of the training images, the same for every checkpoint.
        options: as in ``match_ratio``, with ``changes``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit, or a class has too few training images.
    """
    return ask(Fewshot(shots=shots, draws=draws), models, data, options, watcher, changes)


@with_options
def discontinuity(
    models: Models,
    *,
    data: str | None = None,
    view: str = Discontinuity.view,
    steps: int = Discontinuity.steps,
    until: float | None = None,
    images: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    count: int = Discontinuity.count,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> DiscontinuityResult:
    """Follow the output while a severity grows, find every switch of experts and measure its jump by replay.

    Args:
        models: as in ``match_ratio``.
        data: data set, used unless ``files`` are given.
        view: a view with a severity.
        steps: equal steps from no perturbation to the largest, at least 200; switches between them are bisected.
        until: largest severity; None = the last of the view's own steps.
        images: names of images; the tables are then about these alone.
        files: image files of the user's own.
        count: how many of the images are drawn.
        options: as in ``match_ratio``, with ``changes``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    probe = Discontinuity(view=view, steps=steps, until=until, images=images, files=files, count=count)
    return ask(probe, models, data, options, watcher, changes)


@with_options
def probe(
    kind: str | Probe[R],
    models: Models,
    *,
    data: str | None = None,
    view: str | None = None,
    severities: Sequence[float] | None = None,
    attribute: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> R:
    """Ask checkpoints what a probe asks, e.g. ``"match-ratio"`` or ``MatchRatio(view="prc_crops")``.

    Args:
        kind: the probe, or its command; its other fields are then as the command has them.
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        view: of a command that has a choice of view.
        severities: of a command that has severities.
        attribute: of a sweep, as there.
        options: as in ``match_ratio``, with ``changes``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    return ask(choose_probe(kind, view, severities, attribute), models, data, options, watcher, changes)


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
        severities: several of them, all from one draw: the steps of ``animate`` (None = the view's own) and of the
            slider in a report.
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


@with_options
def align(
    models: Models,
    *,
    data: str | None = None,
    permutations: int = Align.permutations,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Align the experts of trainings by the tokens that they have in common, and measure how far they agree.

    Args:
        models: two trainings or more, loaded or by path.
        data: as in ``match_ratio``.
        permutations: random orders of the images, which show how well unrelated routing can be aligned.
        options: as in ``match_ratio``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: there is one training, experts get shares of every token, or layers differ.
    """
    return ask(Align(permutations=permutations), models, data, options, watcher, changes)
