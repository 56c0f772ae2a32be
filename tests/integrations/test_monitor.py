"""A monitor measures what the probes measure, and a training does not notice it."""

import inspect
import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from moeprobe import api
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import RunWarning, UserError
from moeprobe.inputs.data.digits import Digits
from moeprobe.inputs.images import Framing
from moeprobe.integrations import (
    JsonLines,
    Mlflow,
    RoutingMonitor,
    RoutingRecord,
    Sink,
    TensorBoard,
    WeightsAndBiases,
)
from moeprobe.integrations.undisturbed import ProbedModel, preserve_state
from tests.integrations.trainings import STEPS, equal, random_states, train, vmoe


class Kept(Sink):
    """Keeps records."""

    def __init__(self) -> None:
        self.records: list[RoutingRecord] = []
        self.closed = False

    def write(self, record: RoutingRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Any, RoutingMonitor, Path]:
    """A model after its training with a monitor, what was drawn then, the monitor, and its file."""
    net, path = vmoe(), tmp_path_factory.mktemp("monitor") / "new" / "routing.jsonl"
    net.head.requires_grad_(False)
    monitor = RoutingMonitor(net, "digits", every=3, limit=24, sinks=JsonLines(path))
    draws = train(net, monitor.step)
    monitor.close()
    return net, draws, monitor, path


def test_a_training_ends_with_the_same_bits(monitored: tuple[nn.Module, Any, RoutingMonitor, Path]) -> None:
    net, draws, *_ = monitored
    alone = vmoe()
    alone.head.requires_grad_(False)
    assert train(alone) == draws
    assert equal(alone, net)
    for (name, parameter), expected in zip(net.named_parameters(), alone.parameters(), strict=True):
        assert parameter.requires_grad == expected.requires_grad == (not name.startswith("head.")), name
        gradients = [each.grad for each in (parameter, expected) if each.grad is not None]
        assert len(gradients) == 2 * parameter.requires_grad
        assert not gradients or torch.equal(*gradients), name
    for module, original in zip(net.modules(), alone.modules(), strict=True):
        assert module.training
        assert vars(module).keys() == vars(original).keys()
        for name in ("eval_capacity", "capacity", "group_images"):
            assert getattr(module, name, None) == getattr(original, name, None), name


def test_records_have_a_bounded_number_of_keys(
    monitored: tuple[nn.Module, Any, RoutingMonitor, Path],
) -> None:
    *_, monitor, path = monitored
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 3, STEPS]
    # Two views, the first and the last step.
    assert len(monitor.keys) == 2 * 4 + 5
    last = {name for name in lines[-1] if name.startswith("routing/")}
    assert last == set(monitor.keys)
    assert {"routing/kappa/since_first", "routing/time_share"}.isdisjoint(lines[0])
    assert set(lines[-1]["layers"]) == {"blocks.0", "blocks.1"}
    assert lines[-1]["inputs"] == 24


def test_numbers_are_those_of_the_probes() -> None:
    """A finished model has the values of a sweep, of ``match-ratio`` and of ``confidence``."""
    checkpoint = api.Checkpoint("mine", Vmoe(vmoe(), mean=[0.5] * 3, std=[0.5] * 3), Framing(32))
    kept, options = Kept(), {"data": "digits", "split": "val", "limit": 24, "seed": 0}
    RoutingMonitor(checkpoint, "digits", limit=24, sinks=kept).record(0)
    record = kept.records[0]
    tables = {
        "gaussian_noise": api.noise_sweep(checkpoint, sigmas=[0.1], **options).table,  # type: ignore[arg-type]
        "random_crop": api.match_ratio(checkpoint, **options).table,  # type: ignore[arg-type]
    }
    layers = list(record.layers)
    for view, table in tables.items():
        rows = table[(table["tokens"] == "patch") & (table["view"] == view)]
        rows = rows[(rows["metric"] == "top2_set_match_kappa") & (rows["null"] == "pooled")].set_index(
            "layer"
        )
        found = [record.layers[layer]["kappa"][view]["kappa"] for layer in layers]
        assert found == pytest.approx(rows.loc[layers, "value"].tolist())
        assert record.values[f"routing/kappa/{view}"] == pytest.approx(rows["value"].mean())
        assert record.values[f"routing/kappa_least/{view}"] == pytest.approx(rows["value"].min())
        low, high = record.intervals[f"routing/kappa/{view}"]
        assert low < record.values[f"routing/kappa/{view}"] < high
    table = api.confidence(checkpoint, **options).table  # type: ignore[arg-type]
    rows = table[table["tokens"] == "patch"]
    for metric, of_layers in (
        ("load_entropy", "mean"),
        ("dead_experts", "sum"),
        ("selection_margin", "mean"),
    ):
        wanted = rows[(rows["metric"] == metric) & rows["expert"].isna()]["value"].agg(of_layers)
        assert record.values[f"routing/{metric}"] == pytest.approx(wanted)


def test_drift_is_from_the_first_and_from_the_last_recorded_step() -> None:
    net, kept = vmoe(), Kept()
    monitor = RoutingMonitor(net, "digits", limit=24, views={}, sinks=[kept])
    routers = [module for name, module in net.named_modules() if name.endswith("router.gate")]
    before = [router.weight.detach().clone() for router in routers]
    monitor.record(1)
    with torch.no_grad():
        for router in routers:
            router.weight.normal_()
    monitor.record(2)
    with torch.no_grad():
        for router, weight in zip(routers, before, strict=True):
            router.weight.copy_(weight)
    monitor.record(3)
    monitor.record(3)
    first, second, third = (record.values for record in kept.records)
    assert "routing/kappa/since_first" not in first
    assert second["routing/kappa/since_first"] == second["routing/kappa/since_last"] < 0.7
    assert third["routing/kappa/since_first"] == 1
    assert third["routing/kappa/since_last"] == pytest.approx(second["routing/kappa/since_last"])
    assert len(monitor.keys) == 2 * 2 + 5


def test_drift_goes_on_in_another_process() -> None:
    def moved(net: nn.Module, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        return net

    net = vmoe()
    settings: dict[str, Any] = {"limit": 24, "views": {}, "batch_size": 16}
    before = RoutingMonitor(net, "digits", **settings)
    assert before.state_dict() == {}
    before.record(0)
    moved(net, 1)
    before.record(4)
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    file.seek(0)
    after = RoutingMonitor(net, "digits", **settings)
    after.load_state_dict(torch.load(file, weights_only=True))
    assert after.record(4) is None
    moved(net, 2)
    expected, record = before.record(8), after.record(8)
    assert expected is not None and record is not None
    drift = ["routing/kappa/since_first", "routing/kappa/since_last"]
    assert [record.values[key] for key in drift] == [expected.values[key] for key in drift]
    assert len({record.values[key] for key in drift}) == 2
    for other, words in (
        (
            RoutingMonitor(net, "digits", **settings | {"limit": 25}),
            "of another probe set; give the same data",
        ),
        (RoutingMonitor(vmoe(layers=[1]), "digits", **settings), "with MoE layers blocks.0, blocks.1"),
    ):
        with pytest.raises(UserError, match=words):
            other.load_state_dict(before.state_dict())


@pytest.fixture(scope="module")
def recorded() -> RoutingMonitor:
    """A monitor with one record."""
    monitor = RoutingMonitor(vmoe(), "digits", limit=2, views={})
    monitor.record(1)
    return monitor


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (list, "no state of a monitor"),
        (lambda state: {"inputs": state["inputs"]}, "no state of a monitor"),
        (lambda state: {"weight": torch.zeros(1)}, "no state of a monitor"),
        (lambda state: state | {"first/step": torch.zeros(2)}, "no state of a monitor"),
        (lambda state: state | {"last/more": torch.zeros(2)}, "no state of a monitor"),
        (lambda state: state | {"last/x/gate/valid": torch.zeros(2)}, "no state of a monitor"),
        (lambda state: state | {3: torch.zeros(2)}, "no state of a monitor"),
        (lambda state: state | {"inputs": 3}, "no state of a monitor"),
        (lambda state: state | {"first/0/blocks.0/valid": None}, "no state of a monitor"),
        (lambda state: state | {"first/0/blocks.0/valid": torch.zeros(1, device="meta")}, "no state"),
        (lambda state: state | {"inputs": torch.zeros(32)}, "another probe set"),
        (lambda state: {name: value.float() for name, value in state.items()}, "other tokens or choices"),
        (lambda state: state | {"first/0/blocks.0/valid": torch.zeros(1)}, "other tokens or choices"),
        (lambda state: {name: value[..., :1] if name.endswith("selected") else value
                        for name, value in state.items()}, "other tokens or choices"),
        (lambda state: state | {"last/0/blocks.0/selected": state["last/0/blocks.0/selected"].float()},
         "other tokens or choices"),
        (lambda state: state | {"last/7/blocks.0/selected": state["last/0/blocks.0/selected"]},
         "other tokens or choices"),
        (lambda state: state | {"last/0/blocks.9/valid": torch.zeros(1)}, r"MoE layers .*blocks\.9"),
    ],
)  # fmt: skip
def test_another_state_is_one_sentence(recorded: RoutingMonitor, change: Any, words: str) -> None:
    before = recorded.state_dict()
    with pytest.raises(UserError, match=words):
        recorded.load_state_dict(change(before))
    assert all(torch.equal(value, before[name]) for name, value in recorded.state_dict().items())
    recorded.load_state_dict(before)


@pytest.mark.parametrize("step", ["one", 1.5, None])
def test_a_step_is_a_whole_number(step: Any) -> None:
    monitor = RoutingMonitor(vmoe(), "digits", limit=2, views={}, every=1)
    with pytest.raises(UserError, match="step takes a whole number; got"):
        monitor.step(step)


def test_a_step_may_be_an_array_of_one_number(tmp_path: Path) -> None:
    monitor = RoutingMonitor(vmoe(), "digits", limit=2, views={}, every=1, sinks=JsonLines(tmp_path / "r"))
    for step in (np.int64(1), torch.tensor(2)):
        monitor.step(step)  # type: ignore[arg-type]
    assert [json.loads(line)["step"] for line in (tmp_path / "r").read_text().splitlines()] == [1, 2]


def test_a_module_of_ones_own_is_monitored_through_hooks() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.gate, self.head = nn.Linear(192, 16), nn.Linear(16, 4), nn.Linear(16, 10)

        def forward(self, images: Tensor) -> Tensor:
            patches = nn.functional.unfold(images, 8, stride=8).transpose(1, 2)
            tokens = self.embed(patches)
            weights, _ = self.gate(tokens).softmax(-1).topk(2, -1)
            return self.head((tokens * weights.sum(-1, keepdim=True)).mean(1))

    torch.manual_seed(0)
    kept, moments = Kept(), {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    hooks = api.Hooks(Net(), image_size=32, **moments)  # type: ignore[arg-type]
    images = [Digits(split="test").example(index).image for index in range(24)]
    RoutingMonitor(hooks, images, sinks=kept, views={"random_crop": None}).record(0)
    (record,) = kept.records
    assert record.layers["gate"]["kappa"]["random_crop"]["metric"] == "top2_set_match"
    assert {"routing/kappa/random_crop", "routing/load_entropy", "routing/selection_margin"} <= set(
        record.values
    )


def test_a_collapsed_router_has_no_kappa(tmp_path: Path) -> None:
    net = vmoe()
    with torch.no_grad():
        for name, module in net.named_modules():
            if name.endswith("router.gate"):
                module.weight.zero_()
    monitor = RoutingMonitor(net, "digits", limit=24, sinks=JsonLines(tmp_path / "r.jsonl"))
    record = monitor.record(0)
    assert record is not None
    assert not any("kappa" in key for key in record.values)
    assert record.values["routing/dead_experts"] == 4
    line = json.loads((tmp_path / "r.jsonl").read_text())
    layer = line["layers"]["blocks.0"]["kappa"]["gaussian_noise"]
    assert (layer["kappa"], layer["flag"]) == (None, "collapsed")
    assert layer["chance"] == pytest.approx(1)


def test_a_diverged_model_ends_no_training() -> None:
    net, kept = vmoe(), Kept()
    monitor = RoutingMonitor(net, "digits", limit=24, sinks=kept)
    monitor.record(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(float("nan"))
    record = monitor.record(1)
    assert record is not None
    assert not any("kappa" in key for key in record.values)

    def broken(*_: Any, **__: Any) -> Any:
        raise UserError("The gates are not finite.")

    monitor._probed.adapter.model.trace = broken  # type: ignore[method-assign]
    with pytest.warns(RunWarning, match="was not measured at step 2: The gates are not finite"):
        assert monitor.record(2) is None
    assert [record.step for record in kept.records] == [0, 1]


class Restless(nn.Module):
    """A layer that changes itself in every pass, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4)
        self.calls, self.cache = 0, torch.zeros(0)
        self.count: Tensor
        self.register_buffer("count", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        self.count += torch.rand(1)
        self.late = np.random.rand()
        self.cache = self.map(inputs)
        return self.cache + torch.rand(1)


def test_what_a_forward_pass_leaves_is_taken_back() -> None:
    layer, inputs = Restless(), torch.ones(1, 4)
    net = nn.Sequential(layer, nn.Dropout())
    net[1].eval()
    outputs, loss = [], net(inputs).sum()
    attributes, count, states = dict(vars(layer)), layer.count.clone(), random_states()
    for _ in range(2):
        with preserve_state(net, seed=0), torch.inference_mode():
            outputs.append(net.eval()(inputs))
    assert torch.equal(*outputs), "draws are the same each time"
    assert [name for name, value in vars(layer).items() if value is not attributes.get(name)] == []
    assert vars(layer).keys() == attributes.keys()
    assert torch.equal(layer.count, count)
    assert random_states() == states
    assert [module.training for module in net] == [True, False]
    loss.backward()


def test_autocast_keeps_no_weights_of_a_monitor() -> None:
    """Else the training would go on with copies of its weights that have no way back to them."""
    layer, inputs = nn.Linear(4, 4), torch.ones(1, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with preserve_state(layer, seed=0), torch.inference_mode():
            assert layer(inputs).dtype is torch.bfloat16
        layer(inputs).sum().backward()
    assert layer.weight.grad is not None


def test_settings_of_an_adapter_hold_while_it_probes_alone() -> None:
    net = vmoe()
    router = next(module for name, module in net.named_modules() if name.endswith(".router"))
    before = router.eval_capacity
    adapter: ProbedModel[Vmoe] = ProbedModel(net, lambda: Vmoe(net, mean=[0.5] * 3, std=[0.5] * 3), seed=0)
    assert router.eval_capacity is before
    assert net.training
    with adapter.probing():
        assert router.eval_capacity.factor is None
        assert not net.training
    assert router.eval_capacity is before
    assert net.training
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_a_monitor_that_takes_too_long_says_so_once() -> None:
    monitor = RoutingMonitor(vmoe(), "digits", limit=2, views={}, every=2)
    for step in (0, 2, 4):
        monitor.step(step)
    words = r"takes \d+\.\d% of the time of the training; with every=\d+ it takes 2%"
    with pytest.warns(RunWarning, match=words):
        monitor.step(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.step(8)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"evry": 9}, r"integrations\.RoutingMonitor has no argument 'evry'\. Did you mean 'every'\?"),
        ({"every": 0}, "every takes a positive whole number; got 0"),
        ({"seed": -1}, r"seed takes a whole number from 0 to 9,223,372,036,854,775,807; got -1"),
        ({"seed": 10**30}, "seed takes a whole number from 0 to"),
        ({"limit": 2.5}, "limit takes a positive whole number; got 2.5"),
        (
            {"sinks": "routing.jsonl"},
            r"sinks takes sinks, e.g. JsonLines\('routing.jsonl'\); got 'routing.jsonl'",
        ),
        ({"views": ["gaussian_noise"]}, r"views takes a severity by the name .*; got \['gaussian_noise'\]"),
        ({"views": {"gaussian_noise": "0.1"}}, "views takes a severity by the name"),
        ({"model": "checkpoints/mine"}, "a torch module, api.Hooks or a checkpoint; got 'checkpoints/mine'"),
        ({"data": ["a text"]}, "The model reads images, and the data hold texts"),
        ({"data": []}, "a list of texts or of PIL images"),
        ({"views": {"typos": 0.1}}, "The view 'typos' is of texts; the data hold images"),
        ({"views": {"random_crop": 0.1}}, "'random_crop' of the monitor has no severity; give None"),
        (
            {"views": {"gaussian_noise": None}},
            "'gaussian_noise' of the monitor has no random pairs; give a severity",
        ),
        ({"views": {"nothing": None}}, "no view"),
        ({"model": nn.Linear(1, 1)}, r"wrap it in api\.Hooks"),
    ],
)
def test_mistakes_are_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"model": vmoe(), "data": "digits", "limit": 4} | changes
    with pytest.raises(UserError, match=sentence):
        RoutingMonitor(arguments.pop("model"), arguments.pop("data"), **arguments)


@pytest.mark.parametrize("sink", [JsonLines, TensorBoard, WeightsAndBiases, Mlflow])
def test_a_sink_refuses_what_it_does_not_take(sink: Any) -> None:
    with pytest.raises(UserError, match=rf"integrations\.{sink.__name__} has no argument 'nothing'"):
        sink(nothing=1)
    [name, *_] = inspect.signature(sink).parameters
    with pytest.raises(UserError, match=rf"has no argument '{name}s'\. Did you mean '{name}'\?"):
        sink(**{f"{name}s": 1})


def test_a_callback_refuses_settings_before_the_training() -> None:
    pytest.importorskip("transformers")
    from moeprobe.integrations import HuggingfaceMonitor

    with pytest.raises(UserError, match=r"integrations\.HuggingfaceMonitor has no argument 'sink'"):
        HuggingfaceMonitor(["a text"], sink=())
    with pytest.raises(UserError, match="has no argument 'model'"):
        HuggingfaceMonitor(["a text"], model=nn.Linear(1, 1))


def test_divided_parameters_are_refused() -> None:
    net = vmoe()
    next(net.parameters()).ds_id = 3  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="divided among processes"):
        RoutingMonitor(net, "digits")
