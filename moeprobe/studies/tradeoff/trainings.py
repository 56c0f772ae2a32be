"""Which trainings are compared, which probes each gets, what the output folder holds of it, and which are left."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import Probe
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.models import grid
from moeprobe.models.checkpoints.location import LAST, STATE
from moeprobe.models.config import NUM_EXPERTS, TrainConfig, load, parse
from moeprobe.models.grid import MeasureConfig
from moeprobe.models.pipeline import Pipeline
from moeprobe.probes.confidence import Confidence
from moeprobe.probes.contagion import Contagion
from moeprobe.probes.engine.run import run
from moeprobe.probes.evaluate import Evaluate
from moeprobe.probes.fewshot import Fewshot
from moeprobe.probes.match_ratio import MatchRatio
from moeprobe.probes.noise_sweep import NoiseSweep
from moeprobe.results import finished
from moeprobe.results.packed import CELLS, find_cell, read_pack
from moeprobe.results.sidecars import read_sidecar
from moeprobe.runtime.arguments import check_arguments, several
from moeprobe.runtime.files import is_file, is_folder, is_there, read_bytes, read_json, resolve
from moeprobe.runtime.progress import Progress
from moeprobe.studies.train import make_trainer, same_training
from moeprobe.studies.training_files import CURVE, LONGEST_CURVE, SUMMARY, read_curve


@dataclass(frozen=True)
class CellProbe:
    """One probe, the name of its folder, and the severities that its run is known by."""

    folder: str
    probe: Probe[Any]
    severities: Sequence[float] = ()

    def ask(self, model: Checkpoint, *, data: str, options: Options, watcher: Progress) -> None:
        """Measure a cell's checkpoint into ``options.out``."""
        options = dataclasses.replace(options, **self.probe.defaults)
        # Loaded once more where the probe has groups of several images, unlike the others.
        grouped = options.group_images != model.model.group_images
        source = model.provenance["path"] if grouped else model
        run(self.probe, [source], data=data, options=options, watcher=watcher)

    def is_answered(self, cell: Path, data: str, measure: MeasureConfig) -> bool:
        """Whether the run in a cell's folder is finished.

        Raises:
            UserError: it is finished, and was asked something else.
        """
        earlier = cell / self.folder
        if not finished.is_finished(earlier):
            return False
        request = read_sidecar(earlier)["request"]
        expected = {
            "kind": self.probe.kind,
            "data": data,
            "split": measure.split,
            "limit": measure.limit,
            "seed": measure.seed,
            "severities": list(self.severities),
        }
        for key, value in expected.items():
            if request.get(key) != value:
                raise UserError(
                    f"{earlier} was measured otherwise: {key} is {json.dumps(request.get(key))} there and "
                    f"{json.dumps(value)} now; choose another {option('out')}, or add {option('overwrite', True)} "
                    "to measure again."
                )
        return True


def questions(measure: MeasureConfig, *, dense: bool = False) -> list[CellProbe]:
    """Return the runs to measure; of a dense model, only runs that need no routing.

    On clean images, between pairs of views, under noise, with few labels, and where the context of tokens is exchanged.
    """
    all_questions = [CellProbe("eval", Evaluate()), CellProbe("confidence", Confidence())]
    all_questions += [CellProbe(f"match-{view}", MatchRatio(view=view)) for view in measure.views]
    if measure.sigmas:
        all_questions.append(CellProbe("noise", NoiseSweep(severities=measure.sigmas), measure.sigmas))
    if measure.shots:
        shots = [float(count) for count in measure.shots]
        all_questions.append(CellProbe("fewshot", Fewshot(shots=measure.shots), shots))
    if measure.contagion:
        all_questions.append(CellProbe("contagion", Contagion()))
    return [question for question in all_questions if not (dense and question.probe.needs_routing)]


ABOUT = "cell.json"


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        name: what tables call it.
        config: how it is, or is to be, trained.
        checkpoint: its run folder.
        folder: where its measurements are, until they are packed.
        measure: the runs to measure.
        of_sweep: it is trained where it is missing.
        pipeline: of which it is the last stage, which starts from the others; None of a training of its own.
    """

    name: str
    config: TrainConfig
    checkpoint: Path
    folder: Path
    measure: MeasureConfig
    of_sweep: bool = False
    pipeline: Pipeline | None = None

    @property
    def data(self) -> str:
        """The data set that it is trained on and measured on."""
        return self.config.data.source

    @property
    def num_experts(self) -> int | None:
        """Experts of an MoE layer; None of a dense model."""
        model = self.config.model
        return None if model.dense else model.num_experts or NUM_EXPERTS

    @property
    def training_folder(self) -> Path:
        """The folder that is the training's alone; a pipeline's holds all stages."""
        return self.checkpoint if self.pipeline is None else self.pipeline.folder

    @property
    def stages(self) -> list[TrainConfig]:
        """What is trained one after the other."""
        return [self.config] if self.pipeline is None else list(self.pipeline.stages.values())

    @property
    def stage_folders(self) -> list[Path]:
        """The run folders of the stages."""
        return (
            [self.checkpoint]
            if self.pipeline is None
            else [self.pipeline.folder / stage for stage in self.pipeline.stages]
        )

    def is_trained(self) -> bool:
        """Whether its checkpoint is there and finished.

        Raises:
            UserError: a finished training of this name is of another configuration.
        """
        if not self.of_sweep:
            return is_file(self.checkpoint / LAST)
        if not is_file(self.checkpoint / SUMMARY):
            return False
        if not same_training(load(str(self.checkpoint / "config.yaml")), self.config):
            raise UserError(
                f"{self.checkpoint} holds a finished run of another configuration; give the sweep another name "
                "(name=NAME), or remove the folder to train it again."
            )
        return True

    def info(self) -> dict[str, Any] | None:
        """Return the facts about the trained cell; None where they were not written yet.

        Raises:
            UserError: it cannot be read, or is about another configuration.
        """
        info = read_about(self.folder)
        if info is not None and parse(info["config"]) != self.config:
            raise UserError(
                f"{self.folder} is about another configuration than {self.name} has now; choose another "
                f"{option('out')}."
            )
        earlier = info["measure"].get("group_images", 1) if info is not None else self.measure.group_images
        if earlier != self.measure.group_images:
            raise UserError(
                f"{self.folder} was measured with {earlier} images to a group, and measure.group_images is "
                f"{self.measure.group_images} now; choose another {option('out')}, or add "
                f"{option('overwrite', True)} to measure again."
            )
        return info

    def curve(self) -> str | None:
        """Return the curve of the training as CSV, from its folder or as it was packed; None where there is none."""
        path = self.folder / CURVE
        if is_file(path):
            return read_bytes(path, limit=LONGEST_CURVE).decode("utf-8")
        packed = find_cell(self.folder)
        return None if packed is None else packed.metrics

    def questions(self) -> list[CellProbe]:
        """Return the runs to measure: none where the training diverged."""
        info = self.info()
        if info is not None and "diverged" in info["training"]:
            return []
        return questions(self.measure, dense=self.config.model.dense)

    def missing(self) -> list[CellProbe]:
        """Return the runs still to measure.

        Raises:
            UserError: something was measured otherwise than is asked now.
        """
        return [
            question
            for question in self.questions()
            if not question.is_answered(self.folder, self.data, self.measure)
        ]

    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.info() is not None and not self.missing()


def read_about(folder: Path) -> dict[str, Any] | None:
    """Return what ``cell.json`` of a cell's folder says, or of a packed cell; None where there is neither.

    Raises:
        UserError: it cannot be read.
    """
    path = folder / ABOUT
    packed = find_cell(folder)
    if not is_there(path) and packed is None:
        return None
    try:
        # First the file: it may say what is to be measured as well by now.
        info = read_json(path) if packed is None or is_there(path) else packed.about
        if not all(isinstance(info[key], dict) for key in ("config", "measure", "model", "training")):
            raise TypeError("its parts are no tables")
        return info | {"place": int(info["place"]), "checkpoint": str(info["checkpoint"])}
    except (UserError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); remove {folder} to measure the cell again."
        ) from None


def find_cells(
    folders_or_sweeps: Sequence[str | Path], *, out: Path, checkpoints: Path, overrides: Sequence[str] = ()
) -> list[Training]:
    """Return the cells of sweeps and of run folders, in the order given; of no source, those in ``out``.

    Raises:
        UserError: something is neither, two cells have one name, or an override fits nothing.
    """
    if is_there(out) and not is_folder(out):
        raise UserError(f"{out} is a file; give a folder for {option('out')}.")
    folders = {folder.name: folder for folder in _kept_folders(out)}
    sources = [str(source) for source in folders_or_sweeps]
    cells: list[Training] = []
    sweeps = [source for source in sources if grid.is_sweep(source)]
    measure = grid.load_measure([] if sweeps else overrides)
    if sweeps and len(sweeps) < len(sources):
        raise UserError(
            "Give sweeps or folders of trainings, not both; their cells can be drawn together from one "
            f"{option('out')}."
        )
    for source in sweeps:
        cells += _of_sweep(grid.load(source, overrides, checkpoints=checkpoints), out, checkpoints)
    if not sweeps:
        cells += [_of_folder(Path(source), folders, out, measure) for source in sources]
    if not sources:
        cells = [_read_cell(folder) for folder in folders.values()]
    if not cells:
        raise UserError(
            f"There are no cells in {out}; name a sweep (moeprobe list sweeps) or folders of finished trainings."
        )
    for name, number in Counter(cell.name for cell in cells).items():
        if number > 1:
            raise UserError(f"{number} trainings are called {name}; tables could not tell them apart.")
    return cells


def _of_sweep(sweep: grid.TrainingGrid, out: Path, checkpoints: Path) -> list[Training]:
    """Return the cells of a sweep; one that is a pipeline has the pipeline's name, and its last stage's folder."""
    pipelines = {list(pipeline.stages.values())[-1].name: pipeline for pipeline in sweep.pipelines.values()}
    cells = []
    for config in sweep.cells:
        pipeline = pipelines.get(config.name)
        name = config.name if pipeline is None else pipeline.name
        folder = checkpoints / sweep.name / name
        last = folder if pipeline is None else folder / list(pipeline.stages)[-1]
        cells.append(
            Training(name, config, last, out / CELLS / name, sweep.measure, of_sweep=True, pipeline=pipeline)
        )
    return cells


def _of_folder(path: Path, folders: dict[str, Path], out: Path, measure: MeasureConfig) -> Training:
    """Return the cell of a run folder; its measurements are enough where the folder is gone."""
    name = resolve(path).name
    if is_file(path / STATE) and not is_file(path / SUMMARY):
        raise UserError(f"{path} is an unfinished training; give its command again to finish it.")
    if is_file(path / LAST) and is_file(path / "config.yaml"):
        config = load(str(path / "config.yaml"))
        return Training(name, config, path, out / CELLS / name, measure)
    if name in folders and not is_folder(path):
        return _read_cell(folders[name])
    raise grid.no_training(path)


def _read_cell(folder: Path) -> Training:
    info = read_about(folder)
    assert info is not None
    config = parse(info["config"])
    measure = MeasureConfig.model_validate(info["measure"])
    return Training(folder.name, config, Path(info["checkpoint"]), folder, measure)


def _kept_folders(out: Path) -> list[Path]:
    """Return the folders of the cells that were measured, packed or not, in the order in which they were named."""
    names = {path.parent.name for path in (out / CELLS).glob(f"*/{ABOUT}")} | read_pack(out).keys()
    return sorted((out / CELLS / name for name in names), key=_order_key)


def _order_key(folder: Path) -> tuple[int, str]:
    """Return where a cell stood among the others when it was measured."""
    info = read_about(folder)
    assert info is not None
    return info["place"], folder.name


# The plan: which cells are done, and how long training the others takes.

# Steps that are timed of a kind of training, after a first one.
_STEPS = 3


@dataclass(frozen=True)
class PlannedCell:
    """A cell and its remaining work: done, to measure, to train, or interrupted; ``steps`` left and their seconds."""

    name: str
    state: str
    steps: int
    seconds: float


@dataclass(frozen=True)
class TradeoffPlan:
    """The cells, and the seconds that training takes, without evaluations and measurements, one after the other."""

    cells: tuple[PlannedCell, ...]
    seconds: float


@check_arguments
def plan_tradeoff(
    given: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    overrides: Sequence[str] = (),
    checkpoints: str | Path = "checkpoints",
    device: str = "auto",
) -> TradeoffPlan:
    """Say what ``tradeoff`` would do, by making a few steps of each kind of training; nothing is written.

    Raises:
        UserError: as ``tradeoff``.
    """
    planned = []
    timed: dict[str, list[tuple[int, float]]] = {}
    for cell in find_cells(several(given), out=Path(out), checkpoints=Path(checkpoints), overrides=overrides):
        if cell.is_done() or cell.is_trained():
            planned.append(PlannedCell(cell.name, "done" if cell.is_done() else "to measure", 0, 0.0))
            continue
        # Trainings that differ in their seed alone take the same time.
        if cell.config.group not in timed:
            timed[cell.config.group] = [_time_steps(stage, cell.checkpoint, device) for stage in cell.stages]
        folders = cell.stage_folders
        begun = any(is_file(folder / name) for folder in folders for name in (STATE, SUMMARY))
        remaining = [
            (max(total - _steps_made(folder), 0), per_step)
            for folder, (total, per_step) in zip(folders, timed[cell.config.group], strict=True)
        ]
        state = "interrupted" if begun else "to train"
        seconds = sum(steps * per_step for steps, per_step in remaining)
        planned.append(PlannedCell(cell.name, state, sum(steps for steps, _ in remaining), seconds))
    return TradeoffPlan(tuple(planned), sum(cell.seconds for cell in planned))


def _time_steps(config: TrainConfig, folder: Path, device: str) -> tuple[int, float]:
    """Return the steps of a training and the seconds of each, with weights of any kind: a stage's are not there yet."""
    fresh = config.model_copy(update={"initialise": None, "kl_weight": 0.0})
    trainer = make_trainer(fresh, folder=folder, device=device)
    return trainer.total_steps, trainer.time_steps(_STEPS)


def _steps_made(folder: Path) -> int:
    """Return the steps of a training up to its last evaluation."""
    metrics = folder / CURVE
    if not is_file(metrics):
        return 0
    steps = read_curve(metrics.read_text(encoding="utf-8"), folder)["step"]
    # None yet of a training that was ended before its first evaluation.
    return int(steps.max()) if len(steps) else 0
