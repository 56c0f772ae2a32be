"""Monitor the routing of a model while it is trained: κ, load and drift on a fixed probe set, every so many steps.

    monitor = RoutingMonitor(hooks, "digits", every=200, sinks=JsonLines("routing.jsonl"))
    for step, batch in enumerate(loader, start=1):
        ...
        optimizer.step()
        monitor.step(step)

The training is not disturbed: weights, gradients, random numbers and modes are as they would be without a monitor.
Nor is it ended or held up: from the first record on, errors of the model in evaluation and of sinks are warnings.
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.hooks import Hooks
from moeprobe.adapters.hooks.detection import unwrap
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.declarations import CLEAN
from moeprobe.declarations.fields import read_field
from moeprobe.declarations.options import Options
from moeprobe.errors import RunWarning, UserError, option
from moeprobe.inputs.images import Framing
from moeprobe.integrations import measure
from moeprobe.integrations.arguments import check_class
from moeprobe.integrations.choices import RecordedChoices, choices_of, state_of
from moeprobe.integrations.delivery import Deliveries
from moeprobe.integrations.guard import TrainingGuard
from moeprobe.integrations.probe_set import Data, make_probe_set
from moeprobe.integrations.sinks import RoutingRecord, Sink, sinks_of
from moeprobe.integrations.undisturbed import ProbedModel
from moeprobe.metrics.analyses.load import DEAD_EXPERTS, LOAD_ENTROPY
from moeprobe.metrics.analyses.selection import SELECTION_MARGIN
from moeprobe.metrics.stats.bootstrap import Estimate
from moeprobe.models.nn.capture import moe_layers
from moeprobe.runtime.arguments import read
from moeprobe.runtime.distributed import process_rank
from moeprobe.runtime.seeds import random_state_kept

# The largest part of a training's time that a monitor takes, and measurements after which that is judged.
MOST_OF_TIME, JUDGED_AFTER = 0.02, 3
PREFIX = "routing/"
REMEDY = (
    "Run the model in evaluation mode to find out why; if memory ran out, give a smaller limit or batch_size."
)
SINCE_FIRST, SINCE_LAST = "since_first", "since_last"

# Mean and standard deviation of each channel.
Normalization = tuple[Sequence[float], Sequence[float]]


@check_class
class RoutingMonitor:
    """Measures the routing of a model on a fixed probe set, every so many steps of its training.

    With k comparisons (the views, and the first and the last recorded step) there are 2 k + 5 keys, whatever the
    model's size: for each comparison the mean of κ over layers and the least; the mean of the load entropy over layers
    and the least; dead experts in all layers together; the mean selection margin; the share of time that the monitor
    takes. Each layer's numbers, with intervals, are in the records of ``JsonLines``.

    The first one of several processes measures; models whose parameters are divided among processes are refused.

    Args:
        model: ``api.Hooks`` around the model in training; a model of ``transformers``, with its ``tokenizer``; a V-MoE
            of moeprobe; or a checkpoint whose model is trained.
        data: the probe set: name of a data set (``digits``, ``text:FILE``), or a list of texts or of PIL images.
        every: steps from one measurement to the next.
        tokenizer: of a model of ``transformers``; a fast one.
        normalization: of a V-MoE of moeprobe, mean and standard deviation per channel in units of [0, 1].
        sinks: where records go.
        views: what κ is measured under: view -> severity, or None for random pairs; by default noise and crops of
            images, typos of texts.
        split: of the data set.
        limit: inputs of the probe set, a seeded random subset.
        seed: of the subset and of the views.
        batch_size: inputs of a forward pass.

    Raises:
        UserError: something named does not exist or does not fit, or the model cannot be probed.
    """

    def __init__(
        self,
        model: Hooks | Checkpoint | nn.Module,
        data: Data,
        *,
        every: int = 200,
        tokenizer: Any = None,
        normalization: Normalization = ((0.5,) * 3, (0.5,) * 3),
        sinks: Sink | Sequence[Sink] = (),
        views: Mapping[str, float | None] | None = None,
        split: str = "val",
        limit: int = 64,
        seed: int = 0,
        batch_size: int = 64,
    ) -> None:
        for name, value in {"every": every, "limit": limit, "batch_size": batch_size}.items():
            if not isinstance(value, int) or value < 1:
                raise UserError(f"{option(name)} takes a positive whole number; got {value!r}.")
        seed = read_field(Options, "seed", seed)
        self.every = every
        self.sinks = sinks_of(sinks)
        self._writes = process_rank() == 0
        self._first: RecordedChoices | None = None
        self._last: RecordedChoices | None = None
        self._clock, self._guard, self._deliveries = _Clock(), TrainingGuard(), Deliveries(self.sinks)
        if not self._writes:
            return
        self._probed = _probed_model(model, tokenizer, normalization, seed=seed)
        with random_state_kept(), self._probed.probing() as checkpoint:
            self._probe_set = make_probe_set(
                checkpoint, data, views=views, split=split, limit=limit, seed=seed, batch_size=batch_size
            )

    @property
    def keys(self) -> list[str]:
        """The keys of a record; which of them has a value depends on the model and on the step."""
        compared = [*self._probe_set.views, SINCE_FIRST, SINCE_LAST]
        kappas = [f"{kind}/{name}" for name in compared for kind in ("kappa", "kappa_least")]
        loads = [LOAD_ENTROPY.name, f"{LOAD_ENTROPY.name}_least", DEAD_EXPERTS.name]
        return [f"{PREFIX}{name}" for name in (*kappas, *loads, SELECTION_MARGIN.name, "time_share")]

    def step(self, step: int) -> RoutingRecord | None:
        """Measure if ``step``, the steps done, is a multiple of ``every``; call it after each step of the optimizer.

        A step that is recorded is not measured again.
        """
        self._clock.start()
        return self.record(step) if read("step", int, step) % self.every == 0 else None

    def record(self, step: int) -> RoutingRecord | None:
        """Measure now, whatever the step; None where it is recorded already, on another process, or after an error."""
        self._clock.start()
        step = read("step", int, step)
        if not self._writes or (self._last is not None and self._last.step >= step):
            return None
        started, record = time.perf_counter(), None
        with (
            self._guard.errors_warned("The routing was not measured", REMEDY, at=f" at step {step}"),
            self._probed.probing() as checkpoint,
        ):
            record = self._measure(checkpoint, step, started)
        if record is not None:
            self._deliveries.send(record)
        self._clock.add(time.perf_counter() - started)
        self._clock.judge(self.every)
        return record

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a resumed training needs to measure its drift on: the choices of the first and last record.

        They are tensors by name, for ``torch.save`` or a safetensors file; none before the first record, and on other
        processes.
        """
        if self._first is None or self._last is None:
            return {}
        return state_of(self._first, self._last, self._probe_set.batches[CLEAN])

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Measure the drift on from the records of an earlier process; an empty state changes nothing.

        The model runs once, since its choices must have the shapes of those in the state.

        Raises:
            UserError: the state is of another probe set or model, or something else.
        """
        if not self._writes or state == {}:
            return
        with self._probed.probing() as checkpoint:
            clean = measure.trace_all(checkpoint, self._probe_set, CLEAN)
        present = RecordedChoices.of(0, clean)
        self._first, self._last = choices_of(state, self._probe_set.batches[CLEAN], present)

    def close(self) -> None:
        """Close the sinks; those that are late are waited for a few seconds."""
        if self._writes:
            self._deliveries.close()

    def _measure(self, checkpoint: Checkpoint, step: int, started: float) -> RoutingRecord:
        probe_set = self._probe_set
        clean = measure.trace_all(checkpoint, probe_set, CLEAN)
        of_views: dict[str, dict[str, measure.LayerAgreement]] = {}
        for name, spec in probe_set.views.items():
            reference = measure.trace_all(checkpoint, probe_set, name) if spec.is_pair else clean
            view = measure.trace_all(checkpoint, probe_set, name, view_index=1)
            of_views[name] = measure.agreements(checkpoint, spec, probe_set.batches[name], (reference, view))
        choices = RecordedChoices.of(step, clean)
        for name, earlier in ((SINCE_FIRST, self._first), (SINCE_LAST, self._last)):
            if earlier is not None:
                sides = earlier.traces(clean), choices.traces(clean)
                of_views[name] = measure.agreements(
                    checkpoint, probe_set.clean, probe_set.batches[CLEAN], sides
                )
        of_layers = measure.of_one_pass(checkpoint, probe_set.clean, probe_set.batches[CLEAN], clean)
        values, intervals = _summary(of_views, of_layers)
        layers = {
            name: {
                **numbers,
                "kappa": {view: of[name].plain() for view, of in of_views.items() if name in of},
            }
            for name, numbers in of_layers.items()
        }
        seconds = time.perf_counter() - started
        share = self._clock.share(seconds)
        values = {f"{PREFIX}{name}": value for name, value in values.items() if np.isfinite(value)}
        self._first, self._last = self._first or choices, choices
        return RoutingRecord(
            step,
            values if share is None else {**values, f"{PREFIX}time_share": share},
            {f"{PREFIX}{name}": (interval.low, interval.high) for name, interval in intervals.items()},
            layers,
            len(probe_set.clean.indices),
            seconds,
        )


def _summary(
    of_views: Mapping[str, Mapping[str, measure.LayerAgreement]], of_layers: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, float], dict[str, Estimate]]:
    """Return the few numbers of all layers together, and the intervals of those that have one."""
    values, intervals = {}, {}
    for view, of in of_views.items():
        mean = measure.mean_kappa(of.values())
        values[f"kappa/{view}"] = mean.value
        values[f"kappa_least/{view}"] = _least([agreement.kappa.point for agreement in of.values()])
        if np.isfinite(mean.low):
            intervals[f"kappa/{view}"] = mean
    entropies, dead, margins = (
        [numbers[metric.name] for numbers in of_layers.values() if metric.name in numbers]
        for metric in (LOAD_ENTROPY, DEAD_EXPERTS, SELECTION_MARGIN)
    )
    if entropies:
        values[LOAD_ENTROPY.name] = float(np.mean(entropies))
        values[f"{LOAD_ENTROPY.name}_least"] = min(entropies)
        values[DEAD_EXPERTS.name] = float(sum(dead))
    if margins:
        values[SELECTION_MARGIN.name] = float(np.mean(margins))
    return values, intervals


def _least(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return min(finite) if finite else np.nan


class _Clock:
    """How much of the time of a training its monitor takes."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._measured, self._number = 0.0, 0

    def start(self) -> None:
        """Begin to count, with the first step that is seen."""
        if self._started is None:
            self._started = time.perf_counter()

    def add(self, seconds: float) -> None:
        """Add a measurement. The first, which loads and compiles what the others use, begins the count anew."""
        self._number += 1
        if self._number == 1:
            self._started = time.perf_counter()
        else:
            self._measured += seconds

    def share(self, seconds: float = 0.0) -> float | None:
        """Return the share of time of all measurements and one of ``seconds``; None at the first."""
        if self._number == 0 or self._started is None:
            return None
        return (self._measured + seconds) / (time.perf_counter() - self._started)

    def judge(self, every: int) -> None:
        """Warn, once, of a monitor that takes more than its share."""
        share = self.share()
        if self._number == JUDGED_AFTER + 1 and share is not None and share > MOST_OF_TIME:
            steps = -(-every * share * (1 - MOST_OF_TIME) // (MOST_OF_TIME * (1 - share)))
            warnings.warn(
                RunWarning(
                    f"The monitor takes {share:.1%} of the time of the training; with every={int(steps)} it takes "
                    f"{MOST_OF_TIME:.0%}. A smaller limit makes each measurement shorter."
                ),
                stacklevel=3,
            )


def _probed_model(
    model: Any, tokenizer: Any, normalization: Normalization, *, seed: int
) -> ProbedModel[Checkpoint]:
    """Return a model in training with its adapter; raises ``UserError`` where it cannot be."""
    if isinstance(model, Hooks):
        checkpoint = Checkpoint("monitor", model, model.framing, model.class_names)
        return ProbedModel(_check_undivided(model.model), lambda: checkpoint, seed=seed)
    if isinstance(model, Checkpoint):
        return ProbedModel(_check_undivided(model.model.model), lambda: model, seed=seed)  # type: ignore[attr-defined]
    net = unwrap(model) if isinstance(model, nn.Module) else model
    if isinstance(net, nn.Module) and moe_layers(net):
        return ProbedModel(_check_undivided(net), lambda: _of_ours(net, normalization), seed=seed)
    if not isinstance(net, nn.Module):
        raise UserError(f"The model is a torch module, api.Hooks or a checkpoint; got {model!r:.80}.")
    if not hasattr(net, "get_input_embeddings"):
        raise UserError(
            f"A {type(net).__name__} does not say how it is read; wrap it in api.Hooks(net, image_size=…), or give a "
            "model of transformers."
        )
    if not getattr(tokenizer, "is_fast", False):
        raise UserError("Name the fast tokenizer of the model: tokenizer=….")
    return ProbedModel(_check_undivided(net), lambda: _of_transformers(net, tokenizer), seed=seed)


def _of_transformers(net: Any, tokenizer: Any) -> Checkpoint:
    """Return a model of ``transformers`` as probes take it, with the capacity that it evaluates with."""
    from moeprobe.adapters.huggingface import HuggingfaceAdapter
    from moeprobe.adapters.huggingface.files import FastTokenizer

    adapter = HuggingfaceAdapter(net)
    return Checkpoint("monitor", adapter, adapter.framing(FastTokenizer(tokenizer)))


def _of_ours(net: Any, normalization: Normalization) -> Checkpoint:
    """Return a V-MoE as probes take it, its whole input an image; capacities do not act on choices."""
    mean, std = normalization
    adapter = Vmoe(net, mean=mean, std=std).to(next(net.parameters()).device)
    return Checkpoint("monitor", adapter, Framing(adapter.image_size[0]))


def _check_undivided(net: nn.Module) -> nn.Module:
    """Return a model of which this process has all parameters; raises ``UserError`` where others have some."""
    # Marks of tensors that are divided among processes, of DeepSpeed's third stage, and of the first FSDP.
    is_divided = any(hasattr(part, "device_mesh") or hasattr(part, "ds_id") for part in net.parameters())
    if is_divided or any(hasattr(module, "_fsdp_wrapped_module") for module in net.modules()):
        raise UserError(
            "The parameters of the model are divided among processes, and the monitor runs it in one of them; measure "
            "its checkpoints in place of that, e.g. moeprobe audit."
        )
    return net
