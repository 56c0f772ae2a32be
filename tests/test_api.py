"""The library as a notebook calls it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.inputs.data.digits import Digits
from moeprobe.studies import demo

Trained = dict[str, Path]


def test_public_names_are_sorted_and_described() -> None:
    assert api.__all__ == sorted(api.__all__)
    for name in set(api.__all__) - {"Model"}:
        assert (getattr(api, name).__doc__ or "").strip(), name


def test_a_name_is_imported_when_it_is_asked_for() -> None:
    lines = [
        "import sys",
        "from moeprobe import api",
        "heavy = {'torch', 'timm', 'torchvision', 'matplotlib', 'pandas', 'scipy'}",
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)",
        "assert callable(api.compare)",
        "heavy = {'timm', 'torchvision', 'torch._dynamo'}",
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
    with pytest.raises(AttributeError, match="no attribute 'match_ration'"):
        api.match_ration  # noqa: B018


def test_all_names_are_imported_at_once() -> None:
    names: dict[str, Any] = {}
    exec("from moeprobe.api import *", names)
    assert names.keys() >= {*api.__all__} and names["match_ratio"] is api.match_ratio


def test_trace(trained: Trained) -> None:
    model = api.load_model(trained["prc"], device="cpu")
    images = torch.rand(3, 3, 32, 32)
    logits, routing = api.trace(model, images)
    assert logits is not None
    assert logits.shape == (3, 10)
    assert list(routing.layers) == ["blocks.1", "blocks.3"]
    layer = routing.layers["blocks.3"]
    assert layer.num_prefix_tokens == 1
    # The choice is the two largest gates, best first, and gates are a distribution.
    expected = np.argsort(-layer.gates.numpy(), axis=-1, kind="stable")[..., :2]
    np.testing.assert_array_equal(layer.selected.numpy(), expected)
    torch.testing.assert_close(layer.gates.sum(-1), torch.ones(3, 17))
    assert layer.processed.all()
    only = api.trace(model, images, layers=["blocks.1"])[1]
    assert list(only.layers) == ["blocks.1"]
    with pytest.raises(UserError, match=r"takes images \(B, 3, 32, 32\)"):
        api.trace(model, torch.rand(1, 3, 30, 32))
    with pytest.raises(UserError, match=r"Did you mean 'blocks\.3'"):
        api.trace(model, images, layers=["block.3"])


def test_nothing_is_written_unless_asked(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    api.noise_sweep([trained["prc"]], sigmas=[0, 0.1], limit=5)
    api.overlay([trained["prc"]], count=1)
    assert not list(tmp_path.iterdir())


def test_loaded_models_and_paths_are_one(trained: Trained) -> None:
    loaded = api.load_model(trained["prc"])
    first = api.match_ratio([loaded], limit=30)
    second = api.match_ratio([trained["prc"]], limit=30)
    np.testing.assert_array_equal(first.table["value"], second.table["value"])
    assert first.comparison is None


def test_a_comparison_is_the_difference_of_the_values(trained: Trained) -> None:
    result = api.match_ratio(list(trained.values()), limit=40)
    assert result.comparison is not None
    keys = ["layer", "tokens", "metric", "null", "expert"]
    table, comparison = (rows.fillna({"expert": -1}) for rows in (result.table, result.comparison))
    values = table.pivot(index=keys, columns="checkpoint", values="value")
    differences = comparison.set_index(keys)["value"]
    np.testing.assert_allclose(
        differences, (values["prc"] - values["baseline"]).loc[differences.index], atol=1e-12
    )


def test_the_subset_is_the_same_for_all_and_seeded() -> None:
    from moeprobe.probes.engine.run_spec import choose_images

    data = api.open_data("digits")
    first, again = choose_images(data, limit=20, seed=1), choose_images(data, limit=20, seed=1)
    assert first == again
    assert first == choose_images(data, limit=None, seed=1)[:20]
    assert first != choose_images(data, limit=20, seed=2)


def test_digits_are_never_mirrored() -> None:
    data = api.open_data("digits")
    assert api.open_view("prc_crops", dataset=data).flip is False  # type: ignore[union-attr]
    assert api.open_view("prc_crops", dataset=api.open_data("shapes")).flip is True  # type: ignore[union-attr]


def test_a_parameter_that_a_view_does_not_have() -> None:
    with pytest.raises(UserError, match="no parameter of the view 'random_crop' called 'speed'"):
        api.open_view("random_crop", speed=3)


@pytest.mark.slow
def test_demo_writes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demonstration in small: three steps of training, then all analyses of 40 images."""
    made = Digits.__init__

    def few(self: Digits, **named: Any) -> None:
        made(self, **named)
        self.image_ids, self._labels = self.image_ids[:40], self._labels[:40]

    monkeypatch.setattr(Digits, "__init__", few)
    found = demo.run(
        checkpoints=tmp_path / "checkpoints",
        reports=tmp_path / "reports" / "demo",
        overrides=("steps=3", "epochs=null", "batch_size=8", "schedule.warmup_steps=1"),
        device="cpu",
    )
    folders = {path.name for path in found.reports.iterdir()}
    runs = {"match-ratio", "match-ratio-prc-crops", "confidence", "noise-sweep", "overlay", "eval"}
    assert folders == {*runs, "report", "verdicts.csv", "audit.html", "audit.md"}
    verdicts = found.audited.verdicts
    assert {"crops", "noise", "dead", "accuracy"} <= set(verdicts["property"])
    assert set(verdicts.loc[verdicts["property"] == "noise", "severity"]) == {0.2}
    assert all((found.reports / folder / "table.json").exists() for folder in runs)
    assert (found.reports / "report" / "report.html").exists()
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"demo-baseline", "demo-prc"}
    from moeprobe.cli.commands.demo import closing_table

    assert closing_table(found).row_count == 16
    # Only the objective differs: the two resolved configurations agree in all else.
    texts = [
        (tmp_path / "checkpoints" / name / "config.yaml").read_text().splitlines()
        for name in ("demo-baseline", "demo-prc")
    ]
    import yaml

    baseline, prc = (yaml.safe_load("\n".join(text)) for text in texts)
    assert {key for key in baseline if baseline[key] != prc[key]} == {"name", "group", "objective"}


def test_the_demo_probes_what_it_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    """Every probe gets the data of the training; nothing is trained or probed here."""
    seen: dict[str, object] = {}

    def recorder(name: str) -> Any:
        def call(*given: Any, **named: Any) -> str:
            seen[given[0].name if name == "run" else name] = named.get("data")
            return name

        return call

    probes = ("match-ratio", "confidence", "noise-sweep", "overlay", "eval")
    monkeypatch.setattr(demo.engine, "run", recorder("run"))
    for name in ("train", "load_model", "write_report", "audit_runs"):
        monkeypatch.setattr(demo, name, recorder(name))
    announced: list[tuple[str, str]] = []
    monkeypatch.chdir(project)
    overrides = ("data=folder:photos",)
    demo.run(
        reports=tmp_path / "reports",
        overrides=overrides,
        report=lambda name, data: announced.append((name, data)) or (lambda _: None),  # type: ignore[func-returns-value]
    )
    assert {seen[name] for name in probes} == {"folder:photos"}
    assert announced == [("demo-baseline", "folder:photos"), ("demo-prc", "folder:photos")]
    # Data that cannot be probed are refused before minutes of training.
    with pytest.raises(UserError, match="There is no folder"):
        demo.run(reports=tmp_path / "reports", overrides=("data=folder:nowhere",))


def test_strings_are_paths_and_lists_of_one(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    api.evaluate(str(trained["prc"]), limit=20, out="text", figures=False)
    assert (tmp_path / "text/table.csv").is_file()
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save("one.png")
    assert {one.image_id for one in api.overlay(str(trained["prc"]), files="one.png").overlays} == {"one.png"}
    (tmp_path / "log.jsonl").write_text(
        '{"id": "r", "layer": "l", "num_experts": 2, "experts": [[0], [1]], "gates": [[0.6], [0.7]]}\n'
    )
    assert api.import_trace("log.jsonl", "log.parquet").path == Path("log.parquet")
    with pytest.raises(UserError, match="There is no configuration 'nosuch'"):
        api.train("nosuch", folder="runs/x", overrides="seed=1")
    with pytest.raises(UserError, match="nosuch"):
        api.plan_tradeoff("nosuch", out="runs", checkpoints="here")
    with pytest.raises(UserError, match="nosuch"):
        api.tradeoff("nosuch", out="runs", checkpoints="here")


def test_passes_compute_in_full_float32(trained: Trained) -> None:
    checkpoint, seen = api.load_model(trained["prc"]), []
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]

    def note(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if inputs[0].std() > 0:  # a blank image is only asked whether the model has what is measured
            seen.append(conv.fp32_precision)

    checkpoint.model.model.register_forward_pre_hook(note)  # type: ignore[attr-defined]
    before = conv.fp32_precision
    api.confidence(checkpoint, limit=4)
    probed = len(seen)
    api.trace(checkpoint, torch.rand(1, 3, 32, 32))
    assert 0 < probed < len(seen)
    assert set(seen) == {"ieee"}
    assert conv.fp32_precision == before
