"""The trainers of ``transformers`` and Lightning, and several processes, with a monitor and without."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moeprobe import integrations
from moeprobe.errors import RunWarning, UserError
from moeprobe.integrations import HuggingfaceMonitor, JsonLines, RoutingMonitor
from tests.adapters.tiny_texts import olmoe, texts
from tests.commands import PATIENCE
from tests.integrations.trainings import (
    STEPS,
    equal,
    lightning_loader,
    lightning_module,
    olmoe_trainer,
    vmoe,
)
from tests.probes.test_ranks import environments

TEXTS = texts(24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny OLMoE and its tokenizer."""
    return olmoe(tmp_path_factory.mktemp("olmoe") / "olmoe")


def recorded(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_loop_with_the_callback_ends_with_the_same_bits(folder: Path, tmp_path: Path) -> None:
    """The events that the trainer sends, in its order, without the package ``accelerate`` that it needs."""
    from transformers import AutoTokenizer, OlmoeForCausalLM
    from transformers.trainer_callback import TrainerState

    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(TEXTS[:8], return_tensors="pt", padding=True)
    models, callback = [], HuggingfaceMonitor(TEXTS, every=2, sinks=JsonLines(tmp_path / "r.jsonl"))
    for is_monitored in (False, True):
        model = OlmoeForCausalLM.from_pretrained(folder)
        models.append(model)
        optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3)
        state, more = (
            TrainerState(is_world_process_zero=True),
            {"model": model, "processing_class": tokenizer},
        )
        if is_monitored:
            callback.on_train_begin(None, state, None, **more)
        for _ in range(3):
            model(**batch, labels=batch["input_ids"]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            state.global_step += 1
            if is_monitored:
                callback.on_step_end(None, state, None, **more)
        if is_monitored:
            callback.on_train_end(None, state, None, **more)
            assert [entry["step"] for entry in state.log_history] == [0, 2, 3]
            assert "routing/kappa/typos" in state.log_history[0]
    assert equal(*models)
    assert models[1].training
    assert models[1].config.use_cache == models[0].config.use_cache
    lines = recorded(tmp_path / "r.jsonl")
    assert [line["step"] for line in lines] == [0, 2, 3]
    assert callback.monitor is not None
    assert {name for name in lines[-1] if name.startswith("routing/")} == set(callback.monitor.keys)
    assert len(callback.monitor.keys) == 2 * 3 + 5


def test_a_resumed_training_goes_on_with_the_drift(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, OlmoeForCausalLM

    tokenizer, model = AutoTokenizer.from_pretrained(folder), OlmoeForCausalLM.from_pretrained(folder)
    args, more = SimpleNamespace(output_dir=str(tmp_path)), {"model": model, "processing_class": tokenizer}

    def state(step: int) -> SimpleNamespace:
        return SimpleNamespace(is_world_process_zero=True, global_step=step, log_history=[])

    before, after = (HuggingfaceMonitor(TEXTS, every=2, views={}) for _ in range(2))
    before.on_train_begin(args, state(0), None, **more)
    before.on_step_end(args, state(2), None, **more)
    (tmp_path / "checkpoint-2").mkdir()
    before.on_save(args, state(2), None, **more)
    resumed = state(2)
    after.on_train_begin(args, resumed, None, **more)
    assert resumed.log_history == []
    ended = state(3)
    after.on_train_end(args, ended, None, **more)
    assert ended.log_history[0]["routing/kappa/since_first"] == 1
    with pytest.warns(RunWarning, match=r"The drift .* from here on.*: There is no .*checkpoint-5"):
        after.on_train_begin(args, state(5), None, **more)
    damaged = tmp_path / "checkpoint-2" / "routing_monitor.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    again = HuggingfaceMonitor(TEXTS, every=2, views={})
    with pytest.warns(RunWarning, match=rf"The drift .* from here on.*: .*{damaged.name}"):
        again.on_train_begin(args, state(2), None, **more)
    assert again.monitor is not None and again.monitor.state_dict()


def test_other_processes_of_the_trainer_measure_nothing() -> None:
    callback, state = HuggingfaceMonitor(TEXTS), SimpleNamespace(is_world_process_zero=False, global_step=0)
    callback.on_train_begin(None, state, None)
    callback.on_step_end(None, state, None)
    callback.on_train_end(None, state, None)
    assert callback.monitor is None


def test_a_model_without_its_tokenizer_is_refused(folder: Path) -> None:
    from transformers import OlmoeForCausalLM

    model = OlmoeForCausalLM.from_pretrained(folder)
    with pytest.raises(UserError, match="Name the fast tokenizer of the model: tokenizer"):
        RoutingMonitor(model, TEXTS)
    state = SimpleNamespace(is_world_process_zero=True, global_step=0)
    with pytest.raises(UserError, match="no processing_class"):
        HuggingfaceMonitor(TEXTS).on_train_begin(None, state, None, model=model)


def test_a_missing_trainer_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    monkeypatch.delitem(sys.modules, "moeprobe.integrations.lightning", raising=False)
    with pytest.raises(UserError, match=r"LightningMonitor needs .*: pip install .* -e '\.\[lightning\]'"):
        _ = integrations.LightningMonitor
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = integrations.Nothing


def test_all_names_are_there() -> None:
    needed = {"HuggingfaceMonitor": "transformers", "LightningMonitor": "lightning"}
    for name in integrations.__all__:
        if importlib.util.find_spec(needed.get(name, "torch")):
            assert getattr(integrations, name).__name__ == name


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.filterwarnings("default")
def test_the_trainer_of_transformers_ends_with_the_same_bits(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip(
        "accelerate", reason="accelerate, which the trainer of transformers needs, is not installed"
    )
    path = tmp_path / "routing.jsonl"
    monitor = HuggingfaceMonitor(TEXTS, every=2, sinks=JsonLines(path))
    trainers = [olmoe_trainer(folder, tmp_path, callbacks) for callbacks in ([], [monitor])]
    for trainer in trainers:
        trainer.train()
    assert equal(trainers[0].model, trainers[1].model)
    assert not equal(trainers[0].model, olmoe_trainer(folder, tmp_path, []).model)
    assert [line["step"] for line in recorded(path)] == [0, 2, 4, STEPS]
    assert sum("routing/load_entropy" in entry for entry in trainers[1].state.log_history) == 4


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.filterwarnings("default")
def test_the_trainer_of_transformers_resumes_the_drift(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip(
        "accelerate", reason="accelerate, which the trainer of transformers needs, is not installed"
    )
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, steps in zip(paths, (2, 4), strict=True):
        callback = HuggingfaceMonitor(TEXTS, every=1, views={}, sinks=JsonLines(path))
        trainer = olmoe_trainer(
            folder, tmp_path, [callback], steps=steps, save_steps=2, save_strategy="steps"
        )
        trainer.train(resume_from_checkpoint=steps > 2)
    assert [[line["step"] for line in recorded(path)] for path in paths] == [[0, 1, 2], [3, 4]]
    assert "routing/kappa/since_first" in recorded(paths[1])[0]


@pytest.mark.filterwarnings("default")
def test_lightning_resumes_the_drift(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")
    paths, checkpoint = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "last.ckpt"
    for path, steps in zip(paths, (2, 4), strict=True):
        monitor = integrations.LightningMonitor(
            lambda module: module.net, "digits", every=1, limit=24, views={}, sinks=JsonLines(path)
        )
        trainer = lightning.Trainer(
            max_steps=steps, accelerator="cpu", callbacks=[monitor], logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(lightning_module(vmoe()), lightning_loader(), ckpt_path=checkpoint if steps > 2 else None)
        trainer.save_checkpoint(checkpoint)
    assert [[line["step"] for line in recorded(path)] for path in paths] == [[0, 1, 2], [3, 4]]
    assert "routing/kappa/since_first" in recorded(paths[1])[0]


@pytest.mark.filterwarnings("default")
def test_lightning_goes_on_without_a_damaged_state(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")
    monitor = integrations.LightningMonitor(lambda module: module.net, "digits", every=1, limit=2, views={})
    monitor.load_state_dict({"inputs": 3})
    trainer = lightning.Trainer(
        max_steps=1, accelerator="cpu", callbacks=[monitor], logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path,
    )  # fmt: skip
    with pytest.warns(RunWarning, match=r"The drift .* from here on.*: This is no state of a monitor"):
        trainer.fit(lightning_module(vmoe()), lightning_loader())
    assert trainer.global_step == 1
    assert "inputs" in monitor.state_dict()


@pytest.mark.filterwarnings("default")
def test_lightning_ends_with_the_same_bits(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")
    from lightning.pytorch.loggers import CSVLogger

    modules, path = [], tmp_path / "routing.jsonl"
    for is_monitored in (False, True):
        lightning.seed_everything(0, verbose=False)
        modules.append(lightning_module(vmoe()))
        monitor = integrations.LightningMonitor(
            lambda module: module.net, "digits", every=2, limit=24, sinks=JsonLines(path)
        )
        trainer = lightning.Trainer(
            max_steps=STEPS, accelerator="cpu", callbacks=[monitor] if is_monitored else [], log_every_n_steps=1,
            logger=CSVLogger(tmp_path) if is_monitored else False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(modules[-1], lightning_loader())
    assert equal(*modules)
    assert not equal(modules[0].net, vmoe())
    assert [line["step"] for line in recorded(path)] == [0, 2, 4, STEPS]
    [metrics] = tmp_path.glob("lightning_logs/*/metrics.csv")
    assert "routing/kappa/random_crop" in metrics.read_text().splitlines()[0]


PROCESS = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from moeprobe.integrations import JsonLines, RoutingMonitor
from tests.integrations.trainings import digits, equal, vmoe
dist.init_process_group("gloo")
rank, path = dist.get_rank(), Path(sys.argv[1]) / f"{dist.get_rank()}.jsonl"
nets, (images, labels) = [vmoe(), vmoe()], digits()
for net in nets:
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(net)
    monitor = RoutingMonitor(model, "digits", every=2, limit=24, sinks=JsonLines(path)) if net is nets[1] else None
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(1, 5):
        rows = torch.randint(len(images), (8,))
        loss = torch.nn.functional.cross_entropy(model((images[rows] - 0.5) / 0.5), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if monitor:
            monitor.step(step)
assert equal(*nets) and not equal(nets[0], vmoe())
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.distributed
def test_of_two_processes_the_first_measures(tmp_path: Path) -> None:
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROCESS, str(tmp_path)]
    processes = [subprocess.Popen(command, env=environment | path) for environment in environments(2)]
    assert [process.wait(PATIENCE) for process in processes] == [0, 0]
    assert [line["step"] for line in recorded(tmp_path / "0.jsonl")] == [2, 4]
    assert recorded(tmp_path / "1.jsonl") == []
