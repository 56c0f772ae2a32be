"""What configuration and headers tell of a model: passes and memory of a run, and what opening it takes."""

import json
import math
import re
import shutil
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from moeprobe import api
from moeprobe.adapters.huggingface import files, needs
from moeprobe.declarations import Probe
from moeprobe.declarations.options import Options
from moeprobe.errors import RunWarning, UserError
from moeprobe.probes.confidence import Confidence
from moeprobe.probes.engine import run as engine
from moeprobe.probes.engine.run import plan
from moeprobe.probes.evaluate import Evaluate
from moeprobe.probes.experts import Experts
from moeprobe.probes.flips import Flips
from moeprobe.probes.margins import Margins
from moeprobe.probes.precision import Precision
from moeprobe.probes.sweep import Sweep
from moeprobe.probes.trace import Trace
from moeprobe.routing import other_dtype
from tests.adapters import tiny_texts
from tests.commands import run

NOISE = "embedding_noise"
PROBES: list[Probe[Any]] = [
    Sweep(view=NOISE, severities=(0.0, 0.1, 0.5)),
    Confidence(),
    Experts(),
    Flips(view=NOISE),
    Margins(view=NOISE),
    Precision(formats=("int8",)),
    Trace(),
]
QUICK = ("sweep", "confidence", "trace record")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unopened")
    (folder / "lines.txt").write_text("\n".join(tiny_texts.texts(3)), encoding="utf-8")
    tiny_texts.olmoe(folder / "olmoe")
    return folder


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where weights are read."""

    def load(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("Weights are read.")

    monkeypatch.setattr("moeprobe.adapters.huggingface.opening.load", load)


@pytest.mark.parametrize(
    "probe",
    [
        pytest.param(
            probe,
            id=probe.name,
            marks=[] if probe.name in QUICK else [pytest.mark.slow, pytest.mark.promise],
        )
        for probe in PROBES
    ],
)
def test_passes_are_counted_as_of_the_loaded_model(folder: Path, probe: Probe[Any], tmp_path: Path) -> None:
    source, data = f"hf:{folder / 'olmoe'}", f"text:{folder / 'lines.txt'}"
    options = Options(batch_size=1, figures=False, out=tmp_path / "out" if probe.needs_folder else None)
    loaded = plan(probe, api.load_model(source), data=data, options=options)
    with pytest.MonkeyPatch.context() as context:
        context.setattr("moeprobe.adapters.huggingface.opening.load", None)
        counted = plan(probe, source, data=data, options=options)
    assert (counted.images, counted.passes) == (loaded.images, loaded.passes)
    assert math.isnan(counted.seconds) and not math.isnan(loaded.seconds)
    weights = api.load_model(source).model.model.parameters()  # type: ignore[attr-defined]
    assert counted.weights == {"olmoe": {"cpu": sum(each.nbytes for each in weights)}}
    assert loaded.weights == {}


@pytest.mark.usefixtures("no_weights")
def test_a_plan_refuses_what_the_run_would(folder: Path) -> None:
    source, data = f"hf:{folder / 'olmoe'}", f"text:{folder / 'lines.txt'}"
    with pytest.raises(UserError, match="The classes of olmoe are unknown"):
        plan(Evaluate(), source, data=data)
    with pytest.raises(UserError, match=r"no MoE layer 'layers\.7'"):
        plan(Confidence(), source, data=data, options=Options(layers=("layers.7",)))
    with pytest.raises(UserError, match="max_length for olmoe is at most 64"):
        plan(Confidence(), source, data=data, options=Options(max_length=65))
    assert plan(Confidence(), source, data=data, options=Options(chunk_length=8)).passes


@pytest.mark.usefixtures("no_weights")
def test_a_plan_refuses_formats_that_the_run_refuses(folder: Path, tmp_path: Path) -> None:
    data = f"text:{folder / 'lines.txt'}"
    quantized = shutil.copytree(folder / "olmoe", tmp_path / "quantized")
    about = json.loads((quantized / "config.json").read_text())
    about["quantization_config"] = {"quant_method": "hqq"}
    (quantized / "config.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="quantized by 'hqq', which moeprobe does not read"):
        plan(Confidence(), f"hf:{quantized}", data=data)
    assert run("doctor", f"hf:{quantized}").exit_code == 2
    about["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
    (quantized / "config.json").write_text(json.dumps(about))
    with pytest.raises(
        UserError, match="dequantized in one memory; leave device_map, max_memory and offload"
    ):
        plan(Confidence(), f"hf:{quantized}", data=data, options=Options(device_map="auto"))


@pytest.mark.usefixtures("no_weights")
def test_a_dry_run_says_where_weights_would_be(folder: Path) -> None:
    data = f"text:{folder / 'lines.txt'}"
    arguments = ["confidence", f"hf:{folder / 'olmoe'}", "--data", data, "--dry-run"]
    printed = run(*arguments, "--dtype", "bfloat16").stdout
    assert "The time is unknown until the model is loaded." in printed
    assert re.match(r"1 checkpoint x \d+ texts x 1 forward passes", printed)
    assert "Weights of olmoe,dtype=bfloat16: 108.1 KB on cpu." in printed
    offload = folder / "offload"
    plan = json.loads(run(*arguments, "--max-memory", "cpu:195KB", "--offload", offload, "--json").stdout)
    assert plan["seconds"] is None
    sizes = plan["weights"]["olmoe"]
    assert set(sizes) == {"cpu", "disk"} and sum(sizes.values()) == 54_048 * 4
    # What is in memory where nothing fits has no weights.
    plan = json.loads(run(*arguments, "--max-memory", "cpu:1KB", "--offload", offload, "--json").stdout)
    assert plan["weights"]["olmoe"] == {"disk": 54_048 * 4}
    assert not offload.exists()


@pytest.mark.usefixtures("no_weights")
def test_doctor_says_what_opening_takes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"hf:{folder / 'olmoe'}"
    printed = run("doctor", source)
    assert printed.exit_code == 0
    assert "54,048 parameters, 2 layers with 8 experts, 2 for each token" in printed.stdout
    assert "weights take 216.2 KB" in printed.stdout
    # A machine with less memory than the weights take.
    with monkeypatch.context() as context:
        context.setattr(needs, "memory_of", lambda device: (1_000, 2_000))
        printed = run("doctor", source)
    assert printed.exit_code == 2 and "1.0 KB are free, of 2.0 KB: use --max-memory" in printed.stdout
    # One whose processor has no instructions for bfloat16.
    with monkeypatch.context() as context:
        context.setattr(needs, "is_emulated", lambda device: True)
        printed = run("doctor", source, "--dtype", "bfloat16")
    assert printed.exit_code == 0 and "with --dtype float32" in printed.stdout
    printed = run("doctor", f"hf:{tmp_path / 'nothing'}", "--json")
    assert printed.exit_code == 2
    assert [need["level"] for need in json.loads(printed.stdout)] == ["wrong"]


def test_configuration_and_headers_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, calls = f"hf:{folder / 'olmoe'}", Counter[str]()

    def counted(name: str, original: Any, *args: Any) -> Any:
        calls[name] += 1
        return original(*args)

    for name in ("_read_config", "describe_outline", "describe_form"):
        monkeypatch.setattr(files, name, partial(counted, name, getattr(files, name)))
    api.load_model(source)
    assert calls == {"_read_config": 1, "describe_form": 1}
    calls.clear()
    assert run("doctor", source).exit_code == 0
    assert set(calls.values()) == {1} and len(calls) == 3


@pytest.mark.parametrize("emulated", [True, False])
def test_a_run_says_that_bfloat16_is_slow_here(
    folder: Path, emulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_dtype, "is_emulated", lambda device: emulated)
    source, data = f"hf:{folder / 'olmoe'}", f"text:{folder / 'lines.txt'}"
    for act in (plan, engine.run):
        for dtype in ("bfloat16", "float32"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                act(Confidence(), source, data=data, options=Options(dtype=dtype, limit=1, figures=False))
            said = [str(each.message) for each in caught if issubclass(each.category, RunWarning)]
            expected = emulated and dtype == "bfloat16"
            assert any("many times as long as with dtype" in text for text in said) is expected


def test_doctor_refuses_what_it_cannot_look_at() -> None:
    refused = run("doctor", "checkpoints/demo-prc")
    assert refused.exit_code == 2 and "moeprobe inspect" in refused.stderr
    refused = run("doctor", "--dtype", "float32")
    assert refused.exit_code == 2 and "name one: moeprobe doctor hf:MODEL" in refused.stderr
