"""The examples of the pages run as they are printed."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from moeprobe import api
from moeprobe.adapters.hooks.factory import FileSettings
from moeprobe.runtime.catalog import VIEWS, use_plugins
from tests.adapters import tiny_pictures, zoo
from tests.adapters.test_packages import mixture_of_experts
from tests.commands import refused, run
from tests.contracts import test_probes as probe_contract
from tests.contracts import test_views as view_contract
from tests.docs.pages import PAGES, README, ROOT, TEXT, blocks, documented_commands, text
from tests.models.training import tiny
from tests.recordings import serving
from tests.routing.routings import aligned, routing

NOTEBOOK = ROOT / "docs" / "guide" / "python.md"
OWN_MODEL = ROOT / "docs" / "guide" / "own-model.md"
OWN_ROUTERS = ROOT / "docs" / "guide" / "own-routers.md"
OTHER_FORMS = ROOT / "docs" / "guide" / "other-forms.md"
OUTSIDE = ROOT / "docs" / "guide" / "plugins.md"
PLUGINS = ROOT / "docs" / "contributing" / "adding-a-view-router-data.md"
PROBE = ROOT / "docs" / "contributing" / "adding-a-probe.md"
RECORDED = ROOT / "docs" / "guide" / "recorded-routing.md"
ADAPTER = ROOT / "docs" / "contributing" / "adding-an-adapter.md"
MANY_MACHINES = ROOT / "docs" / "guide" / "many-machines.md"
MONITOR = ROOT / "docs" / "guide" / "monitor.md"
PICTURES = ROOT / "docs" / "guide" / "vision-language-models.md"
READER = ROOT / "docs" / "contributing" / "adding-a-reader.md"


def test_every_python_block_is_run_here() -> None:
    by_hand = [page for page in PAGES if "<!-- written by docs/generate.py" not in TEXT[page]]
    assert {page: len(blocks("python", page)) for page in by_hand if blocks("python", page)} == {
        README: 1, NOTEBOOK: 1, OWN_MODEL: 2, OWN_ROUTERS: 2, OUTSIDE: 1, PLUGINS: 4, PROBE: 4, ADAPTER: 2, READER: 1,
        MANY_MACHINES: 1,  # tests/examples/test_many_machines.py
        OTHER_FORMS: 2,  # one: tests/examples/test_servers.py
        MONITOR: 4,  # tests/integrations/test_page.py
        PICTURES: 1,
    }  # fmt: skip


def test_a_vision_language_model_is_probed_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_pictures.save(tmp_path / "tiny-vision")
    tiny_pictures.photographs(tmp_path / "photos", 6)
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python", PICTURES)
    names: dict[str, Any] = {}
    exec(compile(example, PICTURES.name, "exec"), names)
    assert (names["result"].table["tokens"] == "patch").any()


def test_the_notebook_example_runs(
    trained: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "checkpoints").mkdir()
    for name, folder in trained.items():
        (tmp_path / "checkpoints" / f"demo-{name}").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python", NOTEBOOK)
    exec(compile(example, "python.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "blocks.3" in printed
    assert "ci_low" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints"}, "the example wrote something"


@pytest.fixture
def my_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module that the examples import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("my_models", "contrast", "sharp_token_choice", "colors", "tutorial", "sure", "certainty"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "my_models.py").write_text(
        f"{blocks('python', OWN_MODEL)[0]}\nnet = vit()\n"
        "from moeprobe.adapters.hooks import Hooks\nfrom tests.adapters import zoo\n"
        "from tests.adapters.test_hooks_replay import HandingMoe\nhanding = zoo.vit(HandingMoe)\n"
        "def hooked():\n    return Hooks(net, **zoo.VIT)\n"
    )
    return tmp_path


@pytest.mark.slow
@pytest.mark.promise
def test_a_model_of_ones_own_is_probed_as_the_readme_says(my_models: Path) -> None:
    """In a process of its own: which import comes first matters where torchvision does not fit PyTorch."""
    (example,) = blocks("python", README)
    (my_models / "example.py").write_text(
        f"{example}\nassert {{*result.table['checkpoint']}} == {{'mine'}}\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{my_models}"}
    command = [sys.executable, "example.py"]
    done = subprocess.run(
        command, cwd=my_models, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "blocks.3" in done.stdout, done.stderr
    assert len(example.splitlines()) <= 10


def test_a_model_of_ones_own_is_probed_as_its_page_says(
    my_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = blocks("python", OWN_MODEL)[1]
    made: dict[str, Any] = {}
    exec(compile(example, str(OWN_MODEL), "exec"), made)
    assert {*made["result"].table["checkpoint"]} == {"mine"} and "blocks.3" in capsys.readouterr().out
    # What the README imports first, which is tried in a process of its own, this imports first too.
    assert example.splitlines()[0] == blocks("python", README)[0].splitlines()[0]
    assert len(example.splitlines()) <= 10


def test_a_model_of_ones_own_repeats_a_routing_as_the_page_says(my_models: Path) -> None:
    made: dict[str, Any] = {}
    exec(compile(blocks("python", OWN_ROUTERS)[1], str(OWN_ROUTERS), "exec"), made)
    assert made["others"].shape == (4, 10) and not torch.allclose(made["others"], made["scores"], atol=1e-3)


def test_a_gate_that_is_a_bare_parameter_is_read_as_the_page_says() -> None:
    made: dict[str, Any] = {"net": zoo.vit(mixture_of_experts)}
    exec(compile(blocks("python", OWN_ROUTERS)[0], str(OWN_ROUTERS), "exec"), made)
    model = made["model"]
    assert model.layer_names == ("blocks.1", "blocks.3")
    model.check_replay()


def test_router_logits_are_saved_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logits = tuple(torch.randn(12, 8) for _ in range(3))
    made: dict[str, Any] = {
        "torch": torch,
        "output": SimpleNamespace(router_logits=logits),
        "ids": torch.arange(12)[None] + 3,
        "mask": torch.ones(1, 12, dtype=torch.long),
    }
    exec(compile(blocks("python", OTHER_FORMS)[0], str(OTHER_FORMS), "exec"), made)
    sizes = {"num_hidden_layers": 3, "num_experts": 8, "num_experts_per_tok": 2, "model_type": "qwen3_moe"}
    (command,) = [
        line
        for block in blocks("bash", OTHER_FORMS)
        for line in block.splitlines()
        if line.startswith("moeprobe trace import logits.pt")
    ]
    words = command.removeprefix("moeprobe ").split()
    config = Path(words[words.index("--model-config") + 1])
    config.parent.mkdir()
    config.write_text(json.dumps(sizes))
    result = run(*words)
    assert result.exit_code == 0, result.output
    layers = api.recorded_routing("traces/logits.parquet").layers
    for (_, layer), expected in zip(layers.items(), logits, strict=True):
        torch.testing.assert_close(layer.gates[0], expected.softmax(-1))


def test_a_model_of_ones_own_is_probed_on_the_command_line(my_models: Path) -> None:
    (settings,) = blocks("yaml", OWN_MODEL)
    assert settings.startswith("# vit.yaml")
    (my_models / "vit.yaml").write_text(settings)
    commands = [command for command in documented_commands() if any("py:" in word for word in command)]
    assert [command[0] for command in commands] == ["inspect", "noise-sweep", "audit"]
    assert "blocks.3.mlp.gate" in run(*commands[0]).output
    assert "x 50 images" in run(*commands[1], "--dry-run").output
    assert "py:my_models:hooked" in text("guide/own-model.md")
    assert run("inspect", "py:my_models:hooked").exit_code == 0


def test_the_responses_of_the_page_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    *_, response, config = blocks("json", RECORDED)
    Path("responses.jsonl").write_text(json.dumps(json.loads(response)))
    command = next(
        one for one in documented_commands("guide") if one[0] == "trace import" and "--model-config" in one
    )
    path = Path(command[command.index("--model-config") + 1])
    path.parent.mkdir(exist_ok=True)
    path.write_text(config)
    result = run(*command[0].split(), *command[1:])
    assert result.exit_code == 0, result.output
    assert "1 requests, 2 layers (layers.1 to layers.2): 3 tokens" in result.output
    assert "1 tokens are -1 (or 255" in result.output
    assert run("trace", "analyze", "traces/served.parquet").exit_code == 0


def test_every_setting_of_a_model_of_ones_own_is_explained() -> None:
    first_cells = re.findall(r"^\|( `.*?)\|", text("guide/own-model.md"), flags=re.MULTILINE)
    assert set(FileSettings.model_fields) <= set(re.findall(r"`(\w+)`", "".join(first_cells)))


def module(code: str, name: str, folder: Path) -> ModuleType:
    """Return the module that an example of a page is; dataclasses and pickle look for it by its name."""
    (folder / f"{name}.py").write_text(code)
    return importlib.import_module(name)


def test_the_view_of_the_page_keeps_the_contract(my_models: Path) -> None:
    view = module(blocks("python", PLUGINS)[0], "contrast", my_models).Contrast()
    view_contract.test_a_view_is_a_frozen_described_dataclass_of_a_known_kind(view)
    view_contract.test_pixels_and_maps(view, view_contract.FRAMINGS[0], view_contract.SOURCES[0])
    view_contract.test_a_sweep_starts_at_the_clean_view_bit_for_bit(view)
    view_contract.test_severities_that_are_no_amounts_are_refused(view)
    view_contract.test_an_aligned_view_never_moves(view)


def test_the_plugin_file_of_the_guide_is_taken(
    trained: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEPROBE_PLUGINS", "")
    (example,) = blocks("python", OUTSIDE)
    file = tmp_path / "my_plugins.py"
    file.write_text(example, encoding="utf-8")
    probed = ("sweep", trained["prc"], "--data", "digits", "--view", "fading", "--limit", 20, "--json")
    result = run("--plugins", file, *probed)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["sidecar"]["request"]["severities"] == [0, 0.25, 0.5, 0.75]
    view_contract.test_a_sweep_starts_at_the_clean_view_bit_for_bit(VIEWS.get("fading")())


def test_the_router_of_the_page_routes(my_models: Path) -> None:
    made = module(blocks("python", PLUGINS)[1], "sharp_token_choice", my_models).SharpTokenChoice(
        12, 8, temperature=0.01
    )
    decision = made(torch.randn(3, 10, 12, generator=torch.Generator().manual_seed(0)))
    assert decision.selected.shape == (3, 10, 2)
    assert decision.gates.max(-1).values.mean() > 0.9


def test_the_router_with_a_buffer_is_trained_saved_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEPROBE_PLUGINS", "")
    file = tmp_path / "biased_token_choice.py"
    file.write_text(blocks("python", PLUGINS)[2], encoding="utf-8")
    use_plugins(file)
    whole, stopped = tmp_path / "whole", tiny.trainer(tmp_path / "stopped", model__router=file.stem)
    tiny.finish(whole, model__router=file.stem)
    train_step = stopped.train_step

    def seven_times(*inputs: Any) -> Any:
        if stopped.step == 7:
            raise KeyboardInterrupt
        return train_step(*inputs)

    monkeypatch.setattr(stopped, "train_step", seven_times)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    tiny.finish(stopped.folder, model__router=file.stem)
    assert tiny.results(stopped.folder) == tiny.results(whole)
    biases = [value for name, value in load_file(whole / "last.safetensors").items() if "router.bias" in name]
    assert len(biases) == 2 and all(bias.any() for bias in biases)


def test_the_data_of_the_page_can_be_read(my_models: Path) -> None:
    data = module(blocks("python", PLUGINS)[3], "colors", my_models).Colors(split="test")
    assert data.labels().tolist() == [data.example(index).label for index in range(len(data))]
    assert data.example(1).image.getpixel((0, 0)) == (0, 255, 0)


def test_the_adapter_of_the_page_can_be_probed(my_models: Path) -> None:
    adapter, function = blocks("python", ADAPTER)
    module(f"{adapter}\n\n{function}", "tutorial", my_models)
    result = run("match-ratio", "py:tutorial:model", "--data", "digits", "--limit", 30, "--json")
    assert result.exit_code == 0, result.output
    assert "tutorial-8" in result.output


def test_the_reader_of_the_page_imports_responses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEPROBE_PLUGINS", "")
    monkeypatch.chdir(tmp_path)
    Path("paged.py").write_text(blocks("python", READER)[0])
    ids = serving.routing()
    response = {"id": "r", "routing_pages": [ids[:5].tolist(), ids[5:].tolist()], "usage": serving.usage()}
    path, _ = serving.write(tmp_path, response)
    path.rename("paged.jsonl")
    (command,) = blocks("console", READER)
    words = command.removeprefix("$ moeprobe").split()
    result = run(*words)
    assert result.exit_code == 0 and "13 tokens" in result.output, result.output
    assert "read as paged." in result.output
    Path("paged.jsonl").write_text(
        json.dumps(response | {"routing_pages": [ids[:5, :2].tolist(), ids.tolist()]})
    )
    assert "routing_pages takes pages of rows" in refused(*words, "--overwrite")


def test_the_metric_of_the_page_is_computed(my_models: Path) -> None:
    analysis = module(blocks("python", PROBE)[0], "sure", my_models).Sure()
    pair = aligned(routing(seed=1), routing(seed=2))
    assert analysis.applies(pair.view)
    columns = {key: column.numpy() for key, column in analysis.sums(pair)["patch"].items()}
    (found,) = analysis.estimators(columns, aligned=True)
    assert found.name == "sure"
    assert found.statistic.evaluate(np.ones((3, 1))) == pytest.approx(columns["sure"].sum() / 18)
    names = {"Sure": type(analysis)}
    exec(compile(blocks("python", PROBE)[1], str(PROBE), "exec"), names)
    assert names["value"] == {"sure": 0.5}


def test_the_probe_of_the_page_is_run(
    my_models: Path, trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, declaration, call = blocks("python", PROBE)
    made = vars(module(declaration, "certainty", my_models))
    probe_contract.test_a_probe_is_a_frozen_dataclass_whose_docstring_is_the_help(made["Certainty"])
    probe_contract.test_options_of_a_probe_are_its_own(made["Certainty"])
    # In the catalog it would be found by its folder.
    module_of_functions = importlib.import_module("moeprobe.api.questions")
    monkeypatch.setattr(module_of_functions, "questions", lambda: {"certainty": made["Certainty"]})
    exec(compile(call.replace("checkpoints/demo-prc", str(trained["prc"])), str(PROBE), "exec"), made)
    assert {"gate_highest", "load_entropy"} <= set(made["result"].table["metric"])
