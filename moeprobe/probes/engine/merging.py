"""A run in shards: measure one of them into a folder of its own, and put the shards of all folders together.

What is put together is executed as the run itself, with the shards' sums per image in place of passes over the images:
tables, intervals, figures and what a few images are drawn for are made once, as one process makes them. Several
processes that start together (``run_together``) each measure a shard in the run's folder, and the first merges them.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, model_validator

from moeprobe.adapters.base import Checkpoint, Models
from moeprobe.declarations import Probe, registry
from moeprobe.declarations.fields import fields_of, plain
from moeprobe.declarations.kinds import resolve as resolve_reference
from moeprobe.declarations.options import Options
from moeprobe.declarations.question import Question
from moeprobe.errors import FinishedError, UserError, option
from moeprobe.probes.engine.checks import check_folder, check_some
from moeprobe.probes.engine.run import ShardedWork, check_work, open_models, prepare
from moeprobe.probes.engine.shard import Shard, check_batches, check_splits
from moeprobe.results.folder import OutputFolder, figures_as_asked
from moeprobe.results.own_files import STRICT, validate
from moeprobe.results.showing import one_line
from moeprobe.runtime.catalog import check_plugins
from moeprobe.runtime.characters import quote
from moeprobe.runtime.distributed import Ranks, own_device
from moeprobe.runtime.files import Scratch, display_path, is_file, is_folder, read_json, resolve
from moeprobe.runtime.placement import make_placement
from moeprobe.runtime.progress import Progress, progress_of
from moeprobe.runtime.run_files import PARTS, SHARD, SHARDS
from moeprobe.runtime.spread import ModelGroup, check_device, sharing_models

R = TypeVar("R")
# What the first of several processes says instead of "ready".
_FINISHED = "finished"
# What belongs to a process, and not to what is asked.
_OWN = (
    "device", "device_map", "max_memory", "offload", "parallel", "workers", "retry", "out", "overwrite", "figures",
    "svg", "command",
)  # fmt: skip


@dataclass(frozen=True)
class MeasuredShard:
    """The shard of a run, measured.

    Attributes:
        path: its folder, whose part files hold the sums per image.
        shard: which one it is.
        sidecar: content of its ``shard.json``.
    """

    path: Path
    shard: Shard
    sidecar: dict[str, Any]

    def __repr__(self) -> str:
        facts = {"path": str(self.path), "shard": str(self.shard), "images": self.sidecar["images"]}
        return one_line("MeasuredShard", facts)


class _Asked(BaseModel):
    """The repeatable part of a shard's request."""

    model_config = STRICT

    probe: str
    fields: dict[str, Any]
    checkpoints: list[str] | None
    data: str
    options: dict[str, Any]


class _Request(BaseModel):
    model_config = STRICT

    shard: str
    checkpoints: dict[str, dict[str, Any]]


class _Sidecar(BaseModel):
    model_config = STRICT

    shard: str
    images: int
    request: _Request
    asked: _Asked
    images_per_second: dict[str, float]
    versions: dict[str, str] = {}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        try:
            Shard.read(self.shard)
        except UserError:
            raise ValueError("shard is not NUMBER/OF") from None
        if odd := sorted(set(self.asked.options) & set(_OWN)):
            raise ValueError(f"asked.options.{odd[0]} is no option that shards share")
        if lacking := sorted(set(self.request.checkpoints) - set(self.images_per_second)):
            raise ValueError(f"images_per_second lacks {lacking[0]}")
        return self


@dataclass(frozen=True)
class Shards(Generic[R]):
    """The shards of one run, complete and alike.

    Attributes:
        paths: their folders, in the order of the shards.
        sidecars: each shard's sidecar.
        probe: the probe with its parameters.
        checkpoints: their paths; None where they were no paths.
        data: on which data.
        options: common options, without options of a single process.
    """

    paths: tuple[Path, ...]
    sidecars: tuple[dict[str, Any], ...]
    probe: Question[R]
    checkpoints: list[str] | None
    data: str
    options: dict[str, Any]

    @property
    def images(self) -> int:
        """How many images they hold."""
        return sum(sidecar["images"] for sidecar in self.sidecars)


def measure_shard(
    probe: Question[Any],
    models: Models | None,
    shard: Shard,
    *,
    data: str | None,
    options: Options,
    watcher: Progress | None = None,
) -> MeasuredShard:
    """Measure one shard of what ``run`` measures, into the folder of ``options``.

    ``models`` are of a probe; a question to recordings names its files, and has none.

    Raises:
        UserError: no folder is named, the probe is not measured in shards, or what ``run`` raises.
    """
    # Checked first, since loading models takes long.
    check_splits(probe)
    check_batches(options)
    if options.out is None:
        example = f"reports/{probe.kind}-{shard.number}-of-{shard.of}"
        raise UserError(f"A shard is written to a folder of its own; name it, e.g. {option('out', example)}.")
    sources = () if models is None else check_some(models)
    if any(isinstance(getattr(probe, name), Checkpoint) for name in probe.models):
        raise UserError("A shard says where its model is; name the model by its path or as hf:MODEL.")
    work = _prepare(probe, models, data=data, options=options)
    work.set_shard(shard)
    from moeprobe.results.folder import output_folder
    from moeprobe.results.sidecars import provenance

    request = work.request | {"shard": str(shard), "batch_size": options.batch_size}
    # Models in memory have no path; whoever merges the shards has to name them.
    paths = (
        None
        if any(isinstance(source, Checkpoint) for source in sources)
        else [str(source) for source in sources]
    )
    with output_folder(options.out, request, overwrite=options.overwrite) as folder:
        assert folder is not None
        sidecar = {
            "shard": str(shard),
            "request": request,
            "asked": {
                "probe": probe.name,
                "fields": {name: plain(getattr(probe, name)) for name in fields_of(type(probe))},
                "checkpoints": paths,
                "data": getattr(work, "data", ""),
                "options": _common_options(options),
            },
            **work.measure_parts(folder.parts, progress_of(watcher)),
            "batch_size": options.batch_size,
            "workers": work.workers,
            "command": options.command,
        } | provenance()
        folder.finish_shard(sidecar)
    return MeasuredShard(options.out, shard, sidecar)


def _prepare(
    probe: Question[Any], models: Models | None, *, data: str | None, options: Options
) -> ShardedWork[Any]:
    """Return the checked work of a probe on models, or of a question that names its files itself."""
    if not isinstance(probe, Probe):
        probe.check_options(options)
        work: ShardedWork[Any] = resolve_reference(probe.work)(probe, options)
        return work
    if models is None:
        raise UserError("The shards are of models that were in memory; name them: models=[...].")
    return prepare(probe, check_some(models), data=data, options=options)


def _common_options(options: Options) -> dict[str, Any]:
    """Return the options that all shards have in common."""
    return {name: plain(getattr(options, name)) for name in fields_of(Options) if name not in _OWN}


def read_shards(runs: Sequence[Path]) -> Shards[Any]:
    """Return the shards in some folders, which may be named in any order.

    Raises:
        UserError: one is no shard or not finished, two are the same, they were not asked alike, or one is missing.
    """
    if not runs:
        raise UserError("Name the folders of the shards.")
    sidecars = {path: _read(path) for path in runs}
    first = runs[0]
    by_shard: dict[Shard, Path] = {}
    for path in runs:
        # All shards are compared with the first, so a stray one is named in the message.
        check_alike(first, sidecars[first], path, sidecars[path])
        shard = Shard.read(sidecars[path]["shard"])
        if shard in by_shard:
            raise UserError(
                f"{display_path(by_shard[shard])} and {display_path(path)} both hold shard {shard}; "
                "name one of them, once."
            )
        by_shard[shard] = path
    # All shards agree by now, so any of them says how many there are.
    of = next(iter(by_shard)).of
    missing = [
        str(shard) for shard in (Shard(of=of, number=n) for n in range(1, of + 1)) if shard not in by_shard
    ]
    if missing:
        shards = "Shard" if len(missing) == 1 else "Shards"
        verb = "is" if len(missing) == 1 else "are"
        raise UserError(
            f"{shards} {', '.join(missing)} {verb} missing; measure {'it' if len(missing) == 1 else 'them'} with "
            f"{option('shard', missing[0])}{' and so on' if len(missing) > 1 else ''}, and name all folders."
        )
    paths = tuple(by_shard[shard] for shard in sorted(by_shard))
    request = sidecars[first]["asked"]
    # Plug-ins may define the probe or its data, so they are checked before the probe is looked up.
    check_plugins(first, sidecars[first]["request"].get("plugins"))
    return Shards(
        paths,
        tuple(sidecars[path] for path in paths),
        registry.divided_named(request["probe"])(**request["fields"]),
        request["checkpoints"],
        request["data"],
        request["options"],
    )


def check_destination(shards: Shards[Any], out: Path) -> None:
    """Raise ``UserError`` if a folder belongs to a shard, which ``--overwrite`` would remove before it is read."""
    for path in shards.paths:
        if resolve(path) == resolve(out):
            raise UserError(f"{display_path(path)} is one of the shards; choose another {option('out')}.")


def merge(
    shards: Shards[R],
    options: Options,
    *,
    models: Models | None = None,
    trust: bool = False,
    watcher: Progress | None = None,
) -> R:
    """Put shards together in the folder of ``options``, as the run of one process leaves it.

    Args:
        shards: all of one run.
        options: where to, and how; what the numbers depend on is as the shards have it.
        models: the checkpoints, where the shards do not say where they are.
        trust: run the Python code that the shards name for their models; what ``models`` names is run anyway.
        watcher: receives how it advances.

    Raises:
        UserError: the checkpoints are other ones, not named or not trusted, or the folder holds something else.
    """
    # Before anything else: opening the output folder with --overwrite would delete the shard.
    if options.out is not None:
        check_destination(shards, options.out)
    process_options = {name: getattr(options, name) for name in _OWN}
    if models is None and not trust:
        _check_no_code(shards)
    models = shards.checkpoints if models is None else models
    merged = Options(**shards.options, **process_options)
    work = _prepare(shards.probe, models, data=shards.data, options=merged)
    # Plug-ins are compared by ``read_shards`` already, by their content.
    was = {key: value for key, value in shards.sidecars[0]["request"].items() if key != "plugins"}
    # Through JSON, as the shard's request was: tuples become lists, and keys become strings.
    now = json.loads(json.dumps(work.request | {"shard": was["shard"], "batch_size": merged.batch_size}))
    check_same(str(display_path(shards.paths[0])), was, "the same run now", now)
    parts = zip(shards.paths, shards.sidecars, strict=True)
    work.use_shard_parts(
        {path / PARTS: {**sidecar, "run": str(display_path(path))} for path, sidecar in parts}
    )
    return work.execute(progress_of(watcher))


def _check_no_code(shards: Shards[Any]) -> None:
    """Raise ``UserError`` where shards name code for their models: a folder may come from somebody else."""
    models = [getattr(shards.probe, name) for name in shards.probe.models]
    for source in (*(shards.checkpoints or ()), *map(str, models)):
        if source.startswith("py:"):
            raise UserError(
                f"The shards in {display_path(shards.paths[0])} are of {quote(source)}, Python code that would be "
                f"run; add {option('trust', True)} if they are yours."
            )


def _read(path: Path) -> dict[str, Any]:
    """Return what a shard says of itself."""
    if not is_file(path / SHARD):
        from moeprobe.results.finished import is_finished, is_run

        if is_finished(path):
            raise UserError(
                f"{display_path(path)} holds a whole run and no shard of one; there is nothing to put together."
            )
        if is_run(path):
            raise UserError(
                f"{display_path(path)} holds an unfinished shard; give its command again to finish it."
            )
        raise UserError(
            f"{display_path(path)} holds no shard; name folders that were measured with {option('shard')}."
        )
    content = read_json(path / SHARD)
    validate(_Sidecar, content, path / SHARD, mend=f"measure the shard again with {option('overwrite')}")
    assert isinstance(content, dict)
    return content


def check_alike(
    first_path: Path, first: Mapping[str, Any], second_path: Path, second: Mapping[str, Any]
) -> None:
    """Raise ``UserError`` unless two shards are of one run."""
    of = [Shard.read(sidecar["shard"]).of for sidecar in (first, second)]
    if of[0] != of[1]:
        raise UserError(
            f"{display_path(first_path)} is one of {of[0]} shards and {display_path(second_path)} one of {of[1]}; "
            "merge the shards of one run."
        )
    requests = [
        sidecar["request"] | {"shard": "", **sidecar["asked"]["options"]}
        for sidecar in (first, second)
        # The shard's number is what they must differ in.
    ]
    check_same(str(display_path(first_path)), requests[0], str(display_path(second_path)), requests[1])
    versions = [sidecar.get("versions", {}).get("moeprobe") for sidecar in (first, second)]
    if versions[0] != versions[1]:
        raise UserError(
            f"{display_path(first_path)} was measured with moeprobe {versions[0]} and {display_path(second_path)} with "
            f"{versions[1]}; measure all shards with one version."
        )


def check_same(
    first_name: str, first: Mapping[str, Any], second_name: str, second: Mapping[str, Any]
) -> None:
    """Raise ``UserError`` where two requests differ; the names are what the sentence calls them."""
    first_values, second_values = _flat(first), _flat(second)
    for key in dict.fromkeys([*first_values, *second_values]):
        if first_values.get(key) != second_values.get(key):
            raise UserError(
                f"{first_name} and {second_name} do not ask the same: {key} is "
                f"{json.dumps(first_values.get(key))} in the first and "
                f"{json.dumps(second_values.get(key))} in the second; put together the shards of one run."
            )


def _flat(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with a key for each checkpoint, so that a sentence need not show them all."""
    checkpoints = request.get("checkpoints") or {}
    settings = {key: value for key, value in request.items() if key != "checkpoints"}
    return settings | {f"checkpoint {name}": provenance for name, provenance in checkpoints.items()}


def run_together(
    probe: Question[R],
    models: Models | None,
    *,
    data: str | None,
    options: Options,
    ranks: Ranks,
    watcher: Progress,
) -> R | None:
    """Ask checkpoints what a probe asks, as one of several processes; returns None but in the first.

    What is no loop over images is done by the first alone. Where a group of processes holds a model, its first process
    does the work, and the others run their part of each pass.

    Raises:
        UserError: what ``run`` raises, in any of the processes; or one of them is gone.
    """
    if isinstance(probe, Probe):
        check_folder(probe, options)
    check_batches(options)
    # A map of devices says itself where a model is.
    if make_placement(options.device, options.device_map, options.max_memory, options.offload) is None:
        options = dataclasses.replace(options, device=own_device(options.device))
    group = ModelGroup.of(ranks, options.parallel)
    # Only the first process, or group, does work that has no loop over images; the others must not repeat it.
    if (ranks.rank if group is None else group.number) and not probe.splits:
        return None
    if group is None:
        work = _prepare(probe, models, data=data, options=options)
        return _run_shards(probe, work, options, ranks, watcher)
    if not isinstance(probe, Probe):
        raise UserError(
            f"{option('parallel')} is for models, and {probe.kind} reads recordings; leave it out."
        )
    check_device(options.device)
    # Here, since it imports torch.
    from moeprobe.adapters.huggingface.shared_passes import follow, guarding, leading

    with sharing_models(group):
        with guarding(group.members):
            loaded = open_models(probe, check_some(models or []), data=data, options=options)
        if group.leaders is None:
            follow(loaded, group.members)
            return None
        with leading(loaded, group.members):
            work = check_work(probe, probe.prepare(loaded, data, options), options)
            return _run_shards(probe, work, options, group.leaders, watcher)


def _run_shards(
    probe: Question[R], work: ShardedWork[R], options: Options, ranks: Ranks, watcher: Progress
) -> R | None:
    """Measure the shard of this process, and put all shards together in the first."""
    if not probe.splits:
        return work.execute(watcher)
    # Without an output folder, the processes still need files to exchange sums.
    scratch = Scratch() if options.out is None and ranks.rank == 0 else None
    out = Path(ranks.exchange(str(options.out if scratch is None else scratch.path))[0])
    # The other processes wait: the first one opens the folder and says whether the run is finished already.
    if ranks.rank:
        if ranks.exchange("ready")[0] == _FINISHED:
            return None
        if not is_folder(out):
            raise UserError(
                "The processes do not see the same files; name a folder that all machines share, with "
                f"{option('out', 'FOLDER')}."
            )
        _measure(work, out, options, ranks, watcher)
        ranks.exchange("measured")
        return None
    try:
        with figures_as_asked(svg=options.svg):
            opened = OutputFolder(out, work.request, overwrite=options.overwrite)
    except FinishedError:
        ranks.exchange(_FINISHED)
        raise
    with opened as folder:
        names = [f"{SHARDS}/{number}-of-{ranks.size}" for number in range(1, ranks.size + 1)]
        # Announced first, since other processes write these folders inside this one.
        folder.expect(names)
        ranks.exchange("ready")
        _measure(work, out, options, ranks, watcher)
        # A barrier: part files are complete only when every process has passed it.
        ranks.exchange("measured")
        shards = {out / name / PARTS: read_json(out / name / SHARD) for name in names}
        work.use_shard_parts(shards)
        return work.execute_in(None if scratch else folder, watcher)


def _measure(work: ShardedWork[Any], out: Path, options: Options, ranks: Ranks, watcher: Progress) -> None:
    """Measure the shard of this process, unless that was done before an interruption."""
    shard = Shard(of=ranks.size, number=ranks.rank + 1)
    work.set_shard(shard)
    request = work.request | {"shard": str(shard), "batch_size": options.batch_size}
    shard_folder = out / SHARDS / f"{shard.number}-of-{shard.of}"
    try:
        with OutputFolder(shard_folder, request, overwrite=options.overwrite) as folder:
            sidecar = work.measure_parts(folder.parts, watcher)
            folder.finish_shard(
                {"shard": str(shard), "request": request} | sidecar | {"workers": work.workers}
            )
    except FinishedError:
        pass
