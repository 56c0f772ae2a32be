"""Routers' rows read from checkpoints, models of transformers and modules with hooks, and what is printed of them."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from moeprobe import api
from moeprobe.adapters import inspect_routers as inspection
from moeprobe.adapters.inspect_routers import inspect_routers, read_router_rows
from moeprobe.adapters.router_rows import RowNames, name_rows, spread_slices
from moeprobe.cli.front.router_table import show_routers
from moeprobe.metrics.router_rows import find_faults
from tests.adapters import zoo
from tests.commands import refused, run
from tests.routing.routings import checkpoint

REFERENCE = Path(__file__).parents[2] / "checkpoints" / "reference"
BASELINE, PRC = (str(REFERENCE / f"digits-{objective}-k2-seed0") for objective in ("baseline", "prc"))


def printed(*arguments: str) -> str:
    return " ".join(run("inspect", *arguments, "--routers").stdout.split())


def test_our_checkpoints_give_the_rows_of_their_files() -> None:
    name, layers = read_router_rows(BASELINE)
    assert name == "digits-baseline-k2-seed0"
    stored = load_file(Path(BASELINE) / "last.safetensors")
    for layer, rows in layers.items():
        assert rows is not None and rows.embedding is not None and rows.top_k == 2
        np.testing.assert_array_equal(rows.rows, stored[f"{layer}.mlp.router.gate.weight"].double().numpy())
        assert rows.embedding.shape == (3 * 8 * 8, 64)


def test_two_models_stand_side_by_side() -> None:
    text = printed(BASELINE, PRC)
    assert text.count("untrained │") == 1  # of one shape, so of one row
    first, second = (text.index(f"{name}-k2-seed0 │") for name in ("digits-baseline", "digits-prc"))
    assert first < second
    as_json = json.loads(run("inspect", BASELINE, PRC, "--routers", "--json").stdout)
    for model in as_json["checkpoints"]:
        for layer in model["layers"]:
            for number, (low, high) in layer["untrained"].items():
                assert (number in layer["outside"]) == (not low <= layer[number] <= high)
    assert as_json == json.loads(json.dumps(inspect_routers([BASELINE, PRC]))), "the same draws each time"


def test_planted_faults_are_printed(tmp_path: Path) -> None:
    # A copy of a checkpoint, whose router has a zero row and two parallel ones.
    from safetensors import safe_open

    source = Path(BASELINE) / "last.safetensors"
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(source)
    weight = tensors["blocks.3.mlp.router.gate.weight"]
    weight[1] = 0
    weight[6] = 2 * weight[4]
    (tmp_path / "broken").mkdir()
    save_file(tensors, tmp_path / "broken" / "last.safetensors", metadata=metadata)
    text = printed(BASELINE, str(tmp_path / "broken"))
    assert "blocks.3 of broken: the rows of expert 1 are zero" in text
    assert "blocks.3 of broken: parallel rows (cosine of at least 0.99): 4 and 6." in text
    assert "of digits-baseline-k2-seed0: " not in text
    assert "blocks.1 of broken" not in text


class BiasedMoe(zoo.TokenMoe):
    """Experts are scored with a bias."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate.bias = torch.nn.Parameter(torch.zeros(self.gate.out_features))


def test_names_of_rows() -> None:
    assert name_rows({"weight": (8, 32), "bias": (8,)}, 8) == RowNames("weight", "bias")
    correction = name_rows({"weight": (8, 32), "e_score_correction_bias": (8,)}, 8)
    assert correction is not None and correction.is_bias_of_gates
    assert name_rows({"weight": (32, 8)}, 8) is None  # experts in columns, or a layer before the router
    assert name_rows({"first.weight": (8, 32), "second.weight": (8, 8)}, 8) is None
    assert name_rows({}, 8) is None


@pytest.mark.parametrize("number", [1, 2048, 2049, 50_000])
def test_vectors_are_spread_over_an_embedding(number: int) -> None:
    indices = np.concatenate([np.arange(number)[part] for part in spread_slices(number)])
    assert len(indices) == len(set(indices)) == min(number, 2048)
    assert (indices[0], indices[-1]) == (0, number - 1)


@pytest.mark.parametrize(
    ("router", "changes_none"),
    [("softmax_token_choice", True), ("cosine_token_choice", False), ("soft_moe", False), ("dense", False)],
)
def test_the_legend_says_no_more_of_a_choice_than_holds(
    router: str, changes_none: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = checkpoint(router=router).model.router_rows()  # type: ignore[attr-defined]
    monkeypatch.setattr(inspection, "read_router_rows", lambda source: (source, rows))
    _, legend, *_ = show_routers(inspect_routers(["a"]))
    assert isinstance(legend, str) and ("all rows share, which changes no choice." in legend) is changes_none
    assert "all rows share" in legend


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "several are put side by side with --routers" in refused("inspect", BASELINE, PRC)
    assert "leave it out with --routers" in refused("inspect", BASELINE, "--routers", "--check")
    from moeprobe.models.nn.routers.rules.linear import LinearRouter

    # A router that has no row for each expert is named, and left out.
    monkeypatch.setattr(LinearRouter, "expert_rows", lambda self: None)
    text = printed(BASELINE)
    assert "blocks.1 of digits-baseline-k2-seed0: its router has not one row for each expert" in text
    assert "┃" not in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    from tests.adapters import tiny_texts

    return tiny_texts.olmoe(tmp_path_factory.mktemp("rows") / "tiny")


def test_only_routers_and_the_embedding_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from moeprobe.adapters.huggingface import files

    loaded = api.load_model(f"hf:{folder}", device="cpu")
    expected: Any = loaded.model.router_rows()  # type: ignore[attr-defined]
    monkeypatch.setattr(files, "load", None)
    name, rows = read_router_rows(f"hf:{folder}")
    assert name == loaded.name and list(rows) == list(expected)
    for layer, row in rows.items():
        assert row is not None and row.bias is None and row.top_k == 2
        np.testing.assert_array_equal(row.rows, expected[layer].rows)
        np.testing.assert_array_equal(row.embedding, expected[layer].embedding)
        assert row.start == expected[layer].start
        assert (row.start.law, row.start.std) == ("normal", pytest.approx(0.02))


@pytest.mark.parametrize("quantized", [{"quant_method": "fp8"}, None])
def test_models_quantized_in_a_part_of_their_configuration_are_loaded(
    quantized: dict[str, Any] | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of pictures and text has the settings of its text in a configuration of its own."""
    from moeprobe.adapters.huggingface import router_rows

    load_outline = router_rows.load_outline

    def load_nested(*arguments: Any, **options: Any) -> Any:
        model, *others = load_outline(*arguments, **options)
        of_text = copy.deepcopy(model.config)
        if quantized is not None:
            of_text.quantization_config = quantized
        model.config.get_text_config = lambda **_: of_text
        return model, *others

    monkeypatch.setattr(router_rows, "load_outline", load_nested)
    assert (router_rows.read_rows(str(folder)) is None) is (quantized is not None)


def test_other_names_in_the_files_are_found_or_the_model_is_loaded(folder: Path, tmp_path: Path) -> None:
    from moeprobe.adapters.huggingface.router_rows import read_rows

    path = tmp_path / "model.safetensors"
    tensors = load_file(folder / "model.safetensors")
    for change, is_read in (("feed_forward.gate", True), ("mlp.wg", False)):
        save_file(
            {name.replace("mlp.gate.weight", f"{change}.weight"): value for name, value in tensors.items()},
            path,
            metadata={"format": "pt"},
        )
        for part in folder.iterdir():
            if part.suffix != ".safetensors":
                (tmp_path / part.name).write_bytes(part.read_bytes())
        read = read_rows(str(tmp_path))
        assert (read is not None) is is_read
        if read is not None:
            weight = tensors["model.layers.1.mlp.gate.weight"].double().numpy()
            np.testing.assert_array_equal(read[1]["layers.1"].rows, weight)  # type: ignore[union-attr]


def test_biases_of_a_module_with_hooks_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = zoo.vit(BiasedMoe)
    hooks = api.Hooks(net, routers="blocks.*.mlp.gate", top_k=2, **zoo.VIT)
    net.get_submodule("blocks.1.mlp.gate").bias.data[2] = -1e4
    rows = hooks.router_rows()
    assert all(row is not None and row.bias is not None and row.top_k == 2 for row in rows.values())
    monkeypatch.setattr(inspection, "read_router_rows", lambda source: (source, rows))
    first = next(iter(rows))
    described = inspect_routers(["biased"])["checkpoints"][0]["layers"]
    assert described[0]["unreachable"] == (2,) and described[1]["unreachable"] == ()
    assert not described[0]["start_is_known"]
    sentences = [part for part in show_routers(inspect_routers(["biased"])) if isinstance(part, str)]
    assert any(
        f"{first} of biased: no token" in sentence and "expert 2" in sentence for sentence in sentences
    )
    assert "How this model's routers start is not known" in sentences[0]


class CountingMoe(zoo.TokenMoe):
    """Its router has a number for each expert that is added to nothing."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate.register_buffer("load", 100.0 * torch.arange(self.gate.out_features))


def test_numbers_of_experts_by_another_name_are_no_bias() -> None:
    hooks = api.Hooks(zoo.vit(CountingMoe), routers="blocks.*.mlp.gate", top_k=2, **zoo.VIT)
    rows = hooks.router_rows()
    assert rows and all(
        row is not None and row.bias is None and not find_faults(row).unreachable for row in rows.values()
    )
