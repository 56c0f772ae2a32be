"""Stress checkpoints: a function for each probe that perturbs more than the input, or in many ways."""

from collections.abc import Sequence
from typing import Unpack

from moeprobe.adapters.base import Models
from moeprobe.api.asking import ask, attribution
from moeprobe.probes.attack import Attack
from moeprobe.probes.corruptions import Corruptions
from moeprobe.probes.determinism import Determinism
from moeprobe.probes.engine.options import Keywords, Options, with_options
from moeprobe.probes.experts import Experts
from moeprobe.probes.flips import Flips
from moeprobe.probes.frame_flips import FrameFlips
from moeprobe.probes.margins import Margins
from moeprobe.probes.precision import Precision
from moeprobe.results.folder import Result
from moeprobe.runtime.progress import Progress


@with_options
def attack(
    models: Models,
    *,
    data: str | None = None,
    epsilons: Sequence[float] | None = Attack.epsilons,
    norm: str = Attack.norm,
    steps: int = Attack.steps,
    restarts: int = Attack.restarts,
    direction: str = Attack.direction,
    on: str = Attack.on,
    expert: int | None = Attack.expert,
    transfer: bool = Attack.transfer,
    attribute: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure how the routing changes under a small change of the pixels that harms the answer.

    Args:
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        epsilons: largest norms of the change, in 255ths of the range of a pixel; None = the defaults of the norm.
        norm: "linf", the largest change of a value, or "l2", the norm of the change of the whole image.
        steps: of the ascent.
        restarts: ascents from random points, beside that from the image; the worst of each image counts.
        direction: "gradient", with random changes of the same norm beside it, or "random", these alone.
        on: the target: "answer", "routes" (the tokens' sets of experts), "routes-keeping-answer", "one-expert",
            "overload" (the busiest expert of each image), or "joint" (answer and routes).
        expert: the expert of "one-expert".
        transfer: judge each model on the images that were crafted on every other one, too.
        attribute: exchange pixels and routing too, with "recomputed" or "replayed" gates; None = not.
        options: as in ``match_ratio``, with ``changes``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit, or a model has no gradient to follow.
    """
    probe = Attack(
        epsilons=epsilons,
        norm=norm,
        steps=steps,
        restarts=restarts,
        direction=direction,
        on=on,
        expert=expert,
        transfer=transfer,
        **attribution(attribute),
    )
    return ask(probe, models, data, options, watcher, changes)


@with_options
def corruptions(
    models: Models,
    *,
    data: str | None = None,
    corruptions: Sequence[str] = Corruptions.corruptions,
    severities: Sequence[float] = Corruptions.severities,
    baseline: str | None = None,
    controls: bool = Corruptions.controls,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure accuracy and κ of routing under the corruptions of ImageNet-C, for each, each family and on average.

    Args:
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        corruptions: names of corruptions.
        severities: whole numbers from 1 to 5.
        baseline: name of one of the models, whose errors divide the others' errors; None = nothing is divided.
        controls: run those that move content between patches without movement, too.
        options: as in ``match_ratio``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    probe = Corruptions(corruptions=corruptions, severities=severities, baseline=baseline, controls=controls)
    return ask(probe, models, data, options, watcher, changes)


@with_options
def determinism(
    models: Models,
    *,
    data: str | None = None,
    batches: Sequence[int] = Determinism.batches,
    padding: int = Determinism.padding,
    repeats: int = Determinism.repeats,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure how many tokens change experts when the same inputs are run in other ways.

    Args:
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        batches: sizes of batches beside ``batch_size``.
        padding: tokens of padding that are added to texts.
        repeats: how often a batch is run again as it was.
        options: as in ``match_ratio``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    probe = Determinism(batches=batches, padding=padding, repeats=repeats)
    return ask(probe, models, data, options, watcher, changes)


@with_options
def experts(
    models: Models,
    *,
    data: str | None = None,
    loss: float | None = Experts.loss,
    draws: int = Experts.draws,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure what a layer loses without each expert, with each expert on every token, and with wrong sets.

    Args:
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        loss: list the experts whose ban alone raises the loss by less than this, in nats; None = no list.
        draws: random choices, and permutations, of experts that are drawn for each input.
        options: as in ``match_ratio``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit, or no expert can be banned or forced.
    """
    return ask(Experts(loss=loss, draws=draws), models, data, options, watcher, changes)


@with_options
def flips(
    models: Models,
    *,
    data: str | None = None,
    view: str = Flips.view,
    severities: Sequence[float] | None = Flips.severities,
    patches: int = Flips.patches,
    later: str = Flips.later,
    predict: Sequence[str] = Flips.predict,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure what it costs when one token of one layer gets another set of experts.

    Args:
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        view: a view with a severity that leaves patches in place; the sets chosen under it are forced, too.
        severities: the one severity of the view; None = its strongest.
        patches: patches of an image that are flipped, in each layer to each kind of set.
        later: "fixed": later layers choose as in the clean pass; "free": as their routers choose after the flip.
        predict: other views, each at all its severities, whose cost of flips is predicted by prices.
        options: as in ``match_ratio``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit, or no token can get another set alone.
    """
    probe = Flips(view=view, severities=severities, patches=patches, later=later, predict=predict)
    return ask(probe, models, data, options, watcher, changes)


@with_options
def frames(
    models: Models,
    *,
    data: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure how often routing flips along the frames of clips.

    Args:
        models: as in ``match_ratio``.
        data: clips, such as "frames:PATH".
        options: as in ``match_ratio``; a limit counts clips.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    return ask(FrameFlips(), models, data, options, watcher, changes)


@with_options
def margins(
    models: Models,
    *,
    data: str | None = None,
    view: str = Margins.view,
    sigmas: Sequence[float] | None = Margins.severities,
    draws: int = Margins.draws,
    small: float = Margins.small,
    transfer: str | None = Margins.transfer,
    transfer_severity: float | None = Margins.transfer_severity,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure how much noise changes the sets of tokens, and how well their margins predict it.

    Args:
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        view: gaussian_noise of images, or embedding_noise of texts.
        sigmas: levels of the nested noise, its standard deviations; None = the view's own.
        draws: draws of small noise, from which the sensitivity of each margin is estimated.
        small: standard deviation of the small noise.
        transfer: another perturbation whose flips margins are to predict: a view (of a pair of views its second), or
            bfloat16; None = there is none.
        transfer_severity: of that view; None = its strongest.
        options: as in ``match_ratio``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit, or no token's set has a margin.
    """
    probe = Margins(
        view=view,
        severities=sigmas,
        draws=draws,
        small=small,
        transfer=transfer,
        transfer_severity=transfer_severity,
    )
    return ask(probe, models, data, options, watcher, changes)


@with_options
def precision(
    models: Models,
    *,
    data: str | None = None,
    parts: Sequence[str] = Precision.parts,
    formats: Sequence[str] = Precision.formats,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure how many tokens change experts when the weights of one part of a model are rounded to a format.

    Args:
        models: as in ``match_ratio``.
        data: as in ``match_ratio``.
        parts: of ``router``, ``experts``, ``attention`` and ``rest``; several are rounded together too.
        formats: of ``bf16``, ``fp16``, ``fp8_e4m3``, ``int8`` and ``int4_g128``.
        options: as in ``match_ratio``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    return ask(Precision(parts=parts, formats=formats), models, data, options, watcher, changes)
