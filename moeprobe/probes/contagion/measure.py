"""How far a token's routing depends on what stands beside it: what is asked, and the tables."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import pyarrow as pa

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.open import Models
from moeprobe.errors import UserError
from moeprobe.metrics.batch_contagion import BatchContagion
from moeprobe.metrics.contagion import Contagion
from moeprobe.probes.contagion import exchange as neighbours
from moeprobe.probes.contagion.exchange import Exchange
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.applicability import check_images
from moeprobe.probes.engine.checks import make_probe, make_request
from moeprobe.probes.engine.models import load_models
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.origins import choose_data
from moeprobe.probes.engine.question import CLEAN, Probe
from moeprobe.probes.engine.run import Plan, measure, save_figures, time_sample
from moeprobe.results.folder import Result, output_folder
from moeprobe.routing.capabilities import Routable
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Watcher

KIND = "contagion"
SHARE, GROUP_IMAGES = 0.25, 4


@with_options
def contagion(
    models: Models,
    *,
    data: str | None = None,
    share: float = SHARE,
    options: Options | None = None,
    watcher: Watcher | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure how many tokens change experts when batch-mates, other tokens or other patches are exchanged.

    Args:
        models: checkpoints, loaded or by path; with two or more, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = as in ``engine.run.probe``.
        share: how much of an image's patches is exchanged, in the last two of these.
        options: common options, None = the usual ones with groups of four images; ``changes`` are applied to them by
            name. In groups of one image there are no batch-mates.
        watcher: told how the run advances.

    Raises:
        UserError: something named does not exist or does not fit, or there are fewer than two groups of images.
    """
    options = _options(options, changes)
    loaded, data, question, exchange = _ask(models, data=data, share=share, options=options)
    request = make_request(KIND, data, question, options, loaded) | {
        "analyses": [analysis.metric for analysis in question.analyses if isinstance(analysis, Contagion)],
        "group_images": exchange.group_images,
        "share": share,
    }
    with output_folder(options.out, request, overwrite=options.overwrite) as folder:
        result = measure(
            KIND,
            question,
            loaded,
            data=data,
            request=request,
            options=options,
            folder=folder,
            watcher=watcher,
            run=_runner(exchange),
        )
        result.sidecar["notes"] = _notes(loaded, exchange)
        if folder is not None:
            folder.write(result)
            if options.figures:
                save_figures(result, folder.path / "figures")
            folder.finish(result.sidecar)
    return result


@checked
def plan_contagion(
    models: Models,
    *,
    data: str | None = None,
    share: float = SHARE,
    options: Options | None = None,
) -> Plan:
    """Say what ``contagion`` would take, by running two batches of each checkpoint and writing nothing.

    ``passes`` are those of the checkpoint that takes most.
    """
    options = _options(options, {})
    loaded, data, question, exchange = _ask(models, data=data, share=share, options=options)
    passes = max(neighbours.num_passes(question, model.model, exchange) for model in loaded)
    return time_sample(question, loaded, images=2 * options.batch_size, passes=passes, run=_runner(exchange))


def _options(options: Options | None, changes: Keywords) -> Options:
    return combine(options or Options(group_images=GROUP_IMAGES), changes)


def _runner(exchange: Exchange) -> Any:
    """Return what runs one checkpoint; every checkpoint's blocks are cut at the same groups."""
    size = exchange.group_images

    def run(question: Probe, model: Checkpoint, **more: Any) -> tuple[pa.Table, list[str]]:
        return loop.run(
            question,
            model,
            run_block=partial(neighbours.run_block, exchange=exchange),
            block_images=max(neighbours.BLOCK_IMAGES // size, 1) * size,
            **more,
        )

    return run


def _ask(
    models: Models, *, data: str | None, share: float, options: Options
) -> tuple[list[Checkpoint], str, Probe, Exchange]:
    """Return the checkpoints, what is asked of them, and what is exchanged."""
    if not 0 < share < 1:
        raise UserError(f"--share takes a share of the patches, between 0 and 1; got {share:g}.")
    size = options.group_images
    loaded = load_models(models, options)
    check_images(loaded, "there is nothing to exchange")
    for model in loaded:
        if model.model.group_images not in (1, size):
            raise UserError(
                f"{model.name} was loaded with groups of {model.model.group_images} images and is to be probed with "
                f"groups of {size}; load it with as many."
            )
    data = choose_data(data, loaded)
    question = make_probe(KIND, loaded, data=data, view_name=CLEAN, severities=None, options=options)
    if len(question.indices) < 2 * size:
        raise UserError(
            f"What is exchanged comes from another group, so at least {2 * size} images are needed for groups of "
            f"{size}; there are {len(question.indices)}. Take more images, or a smaller --group-images."
        )
    if size == 1:
        analyses = tuple(one for one in question.analyses if not isinstance(one, BatchContagion))
        question = dataclasses.replace(question, analyses=analyses)
    return loaded, data, question, Exchange(question.dataset, question.indices, size, share, options.seed)


def _notes(models: Sequence[Checkpoint], exchange: Exchange) -> list[str]:
    """Return a sentence for each number that is missing."""
    notes = [
        f"no token contagion of {model.name}: its routers cannot be asked one by one"
        for model in models
        if not isinstance(model.model, Routable)
    ]
    if exchange.group_images == 1:
        notes.append("no batch contagion: in groups of one image there are no batch-mates")
    return notes
