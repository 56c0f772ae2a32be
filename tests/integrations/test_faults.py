"""Whatever goes wrong in a monitor, the training that it watches goes on, with the same bits and in time."""

import errno
import random
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from moeprobe.errors import RunWarning, UserError
from moeprobe.integrations import (
    HuggingfaceMonitor,
    Mlflow,
    RoutingMonitor,
    RoutingRecord,
    Sink,
    WeightsAndBiases,
    delivery,
)
from moeprobe.integrations.delivery import Deliveries
from tests.integrations.trainings import STEPS, Draws, equal, random_states, train, vmoe

# Real processes and servers, which take their time.
pytestmark = [pytest.mark.slow, pytest.mark.promise]

KEY = "routing/kappa/typos"

ERRORS = (
    RuntimeError("shapes do not match"),
    OSError(errno.ENOSPC, "No space left on device"),
    MemoryError(),
    ValueError("too many values"),
    AssertionError(),
    KeyError("router"),
    torch.OutOfMemoryError("CUDA out of memory"),
    RecursionError(),
    UserError("The gates are not finite."),
)
CALLS = ("attach", "open", "write", "close")
SETTINGS: dict[str, Any] = {"data": "digits", "every": 1, "limit": 2, "views": {}}


class Kept(Sink):
    """Keeps records."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def write(self, record: RoutingRecord) -> None:
        self.steps.append(record.step)


class Faulty(Kept):
    """Does something else in one of its calls."""

    def __init__(self, call: str, action: Any) -> None:
        super().__init__()
        setattr(self, call, action)


def raising(error: BaseException) -> Any:
    def action(*_: Any) -> None:
        raise error

    return action


@pytest.fixture(scope="module")
def alone() -> tuple[nn.Module, Draws]:
    """A model trained without a monitor, and what was drawn afterwards."""
    net = vmoe()
    return net, train(net)


def monitored(net: nn.Module, sinks: Any, *, steps: int = STEPS) -> tuple[Draws, list[str]]:
    """Train with a monitor; returns what was drawn afterwards, and the warnings."""
    monitor = RoutingMonitor(net, sinks=sinks, **SETTINGS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        draws = train(net, monitor.step, steps=steps)
        monitor.close()
    said = [str(warning.message) for warning in caught if issubclass(warning.category, RunWarning)]
    return draws, [sentence for sentence in said if "of the time of the training" not in sentence]


@pytest.mark.parametrize("call", CALLS)
def test_a_sink_that_fails_ends_no_training(call: str, alone: tuple[nn.Module, Draws]) -> None:
    net, kept = vmoe(), Kept()
    draws, said = monitored(net, [*(Faulty(call, raising(error)) for error in ERRORS), kept])
    assert draws == alone[1]
    assert equal(net, alone[0])
    assert kept.steps == list(range(STEPS + 1)), "the sink beside it has every record"
    failure = "was not closed" if call == "close" else "did not take the record of step 0"
    for error, sentence in zip(ERRORS, said, strict=False):
        text = str(error) if isinstance(error, UserError) else type(error).__name__
        assert sentence.startswith(f"Faulty {failure}: {text}")
        assert sentence.endswith("The training continues.")
    left_out = "Faulty failed 5 times in a row; it gets no more records."
    lost = f"Faulty took 0 of {STEPS + 1} records."
    assert [sentence.partition(" Check")[0] for sentence in said[len(ERRORS) :]] == (
        [] if call == "close" else [left_out] * len(ERRORS) + [lost] * len(ERRORS)
    )


def test_a_model_that_fails_in_evaluation_ends_no_training() -> None:
    nets, steps = [vmoe(), vmoe()], len(ERRORS) + 2
    net, kept, errors = nets[0], Kept(), [*ERRORS, *ERRORS[:1]]
    layer = net.get_submodule("blocks.1")

    def fail(module: nn.Module, _: Any) -> None:
        if not net.training:
            torch.rand(1)
            module.scratch = 1  # type: ignore[assignment]
            if errors:
                raise errors.pop()

    def hooks() -> list[Any]:
        return [(dict(module._forward_hooks), dict(module._forward_pre_hooks)) for module in net.modules()]

    layer.register_forward_pre_hook(fail)
    before = hooks()
    draws, said = monitored(net, kept, steps=steps)
    assert draws == train(nets[1], steps=steps)
    assert equal(*nets)
    assert kept.steps == [steps - 1, steps]
    assert len(said) == len(ERRORS), "each kind once"
    for sentence in said:
        assert sentence.startswith("The routing was not measured at step ")
        assert sentence.endswith("The training continues.")
    assert all(module.training for module in net.modules())
    assert not hasattr(layer, "scratch")
    assert hooks() == before


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3)], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("call", [*CALLS, "measure"])
def test_who_ends_the_program_ends_it(call: str, error: BaseException) -> None:
    net = vmoe()
    if call == "measure":
        net.register_forward_pre_hook(raising(error))
    monitor = RoutingMonitor(net, sinks=Faulty(call, raising(error)), **SETTINGS)
    if call == "close":
        monitor.step(0)
    with pytest.raises(type(error)):
        monitor.close() if call == "close" else monitor.step(0)
    assert net.training


@pytest.fixture
def forever() -> Iterator[Any]:
    """What hangs until the test has ended."""
    ended = threading.Event()
    yield lambda *_: ended.wait(60)
    ended.set()


@pytest.mark.parametrize("call", ["open", "write", "close"])
def test_a_sink_that_hangs_holds_up_no_training(
    call: str, forever: Any, alone: tuple[nn.Module, Draws], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "DEADLINE", 0.2)
    monkeypatch.setattr(delivery, "LAST_DEADLINE", 0.2)
    net, kept = vmoe(), Kept()
    started = time.perf_counter()
    draws, said = monitored(net, [Faulty(call, forever), kept])
    assert time.perf_counter() - started < 5
    assert draws == alone[1]
    assert equal(net, alone[0])
    assert kept.steps == list(range(STEPS + 1))
    late = "Faulty did not take the record of step 0 within 0.2 s."
    expected = ["Faulty was not closed within 0.2 s."]
    if call != "close":
        expected = [late, *expected, f"Faulty took 0 of {STEPS + 1} records."]
    assert len(said) == len(expected)
    for sentence, beginning in zip(said, expected, strict=True):
        assert sentence.startswith(beginning)


def record(step: int) -> RoutingRecord:
    return RoutingRecord(step, {KEY: 0.5, f"{KEY}_least": 0.25}, {KEY: (0.4, 0.6)}, {}, 24, 0.1)


def wait_for_threads(number: int) -> None:
    """Wait until no more than so many threads are left."""
    patience = time.perf_counter() + 10
    while threading.active_count() > number:
        assert time.perf_counter() < patience
        time.sleep(0.01)


def test_a_sink_that_is_late_takes_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "DEADLINE", 0.05)
    monkeypatch.setattr(delivery, "MOST_WAITING", 3)
    released = threading.Event()
    kept = Faulty("open", lambda: released.wait(60))
    deliveries = Deliveries([kept])
    with pytest.warns(RunWarning, match=r"of step 0 within 0.05 s.* 3 records wait for it at the most"):
        deliveries.send(record(0))
    for step in range(1, 6):  # three wait, and two are lost
        deliveries.send(record(step))
    assert kept.steps == []
    released.set()
    with pytest.warns(RunWarning, match="Faulty took 4 of 6 records"):
        deliveries.close()
    assert kept.steps == [0, 1, 2, 3]


def test_a_sink_that_was_late_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "DEADLINE", 0.05)
    released, threads = threading.Event(), threading.active_count()

    class Slow(Kept):
        def write(self, record: RoutingRecord) -> None:
            released.wait(60)
            time.sleep(0.05)
            super().write(record)

    slow = Slow()
    deliveries = Deliveries([slow])
    with pytest.warns(RunWarning, match=r"of step 0 within 0.05 s"):
        deliveries.send(record(0))
    released.set()
    wait_for_threads(threads)
    monkeypatch.setattr(delivery, "DEADLINE", 60)
    deliveries.send(record(1))
    assert slow.steps == [0, 1]


def test_a_sink_that_recovers_is_not_left_out() -> None:
    class Unsteady(Kept):
        def write(self, record: RoutingRecord) -> None:
            if record.step % 4:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(record)

    unsteady = Unsteady()
    deliveries = Deliveries([unsteady])
    deliveries.send(record(0))
    with pytest.warns(RunWarning, match=r"of step 1: OSError: .*No space left on device\. Check its disk"):
        deliveries.send(record(1))
    for step in range(2, 9):
        deliveries.send(record(step))
    assert unsteady.steps == [0, 4, 8]


@pytest.mark.parametrize("call", CALLS)
def test_what_a_sink_draws_is_put_back(call: str) -> None:
    def draw(*_: Any) -> None:
        random.seed(9)
        np.random.seed(9)
        torch.rand(9)

    deliveries, states = Deliveries([Faulty(call, draw)]), random_states()
    deliveries.send(record(0))
    deliveries.close()
    assert random_states() == states


def test_no_thread_is_left_between_records() -> None:
    """Loaders of data fork, which is not safe beside another thread."""
    threads = threading.active_count()
    deliveries = Deliveries([Kept(), Kept()])
    deliveries.send(record(0))
    wait_for_threads(threads)


class FakeRun:
    """A run of Weights & Biases that ends."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.is_finished = False

    def define_metric(self, *_: Any, **__: Any) -> None:
        pass

    def log(self, row: dict[str, float]) -> None:
        if self.is_finished:
            raise Exception("Run (x) is finished. The call to `log` will be ignored.")
        self.rows.append(row)


def test_a_run_of_weights_and_biases_may_begin_late_and_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = SimpleNamespace(run=None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    deliveries, run = Deliveries([WeightsAndBiases()]), FakeRun()
    with pytest.warns(
        RunWarning, match=r"WeightsAndBiases did not take the record of step 0: .* call wandb\.init"
    ):
        deliveries.send(record(0))
    wandb.run = run
    deliveries.send(record(1))
    assert run.rows == [{**record(1).values, "routing/step": 1}]
    run.is_finished = True
    with pytest.warns(RunWarning, match="of step 2: Exception: Run .* is finished"):
        deliveries.send(record(2))


def test_mlflow_sends_one_request_to_the_run_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has active runs of its own."""
    requests, training = [], threading.current_thread()

    class Client:
        def __init__(self, tracking_uri: str | None) -> None:
            pass

        def log_batch(self, run_id: str, metrics: Any) -> None:
            requests.append((run_id, [(metric.key, metric.value, metric.step) for metric in metrics]))

    def active_run() -> Any:
        is_here = threading.current_thread() is training
        return SimpleNamespace(info=SimpleNamespace(run_id="mine")) if is_here else None

    def metric(key: str, value: float, timestamp: int, step: int) -> Any:
        assert abs(timestamp / 1000 - time.time()) < 60
        return SimpleNamespace(key=key, value=value, step=step)

    mlflow = SimpleNamespace(
        active_run=active_run, MlflowClient=Client, entities=SimpleNamespace(Metric=metric)
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    deliveries = Deliveries([Mlflow()])
    deliveries.send(record(3))
    assert requests == [("mine", [(KEY, 0.5, 3), (f"{KEY}_least", 0.25, 3)])]


def state(step: int) -> Any:
    return SimpleNamespace(is_world_process_zero=True, global_step=step, log_history=[])


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_state_that_cannot_be_saved_ends_no_training(error: Exception, tmp_path: Path) -> None:
    callback = HuggingfaceMonitor(["a text"])
    callback.monitor = SimpleNamespace(state_dict=raising(error))  # type: ignore[assignment]
    with pytest.warns(RunWarning, match="The state of the monitor was not saved at step 2: .* continues"):
        callback.on_save(SimpleNamespace(output_dir=str(tmp_path)), state(2), None)


def test_a_checkpoint_that_cannot_be_written_ends_no_training(tmp_path: Path) -> None:
    callback = HuggingfaceMonitor(["a text"])
    callback.monitor = SimpleNamespace(state_dict=lambda: {"inputs": torch.zeros(1)})  # type: ignore[assignment]
    (tmp_path / "checkpoint-2").touch()
    with pytest.warns(RunWarning, match=r"not saved at step 2: Cannot write .*checkpoint-2"):
        callback.on_save(SimpleNamespace(output_dir=str(tmp_path)), state(2), None)
