"""What rounded weights do to routing: which part they are of, what is measured, and that the model stays as it is."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.models.nn.quantize import quantize_weight
from moeprobe.probes.precision import Precision, by_part
from moeprobe.probes.precision.measure import Rounding
from moeprobe.routing.parts import PARTS, weights_of
from tests.adapters import zoo
from tests.commands import refused, run
from tests.routing.routings import checkpoint

LIMIT = 24


def parts(model: Checkpoint) -> dict[str, int]:
    """How many numbers each part has."""
    found = dict.fromkeys(PARTS, 0)
    for one in model.model.weights():  # type: ignore[attr-defined]
        found[one.part] += one.parameter.numel()
    return found


def test_every_parameter_of_our_models_is_of_one_part() -> None:
    model = checkpoint()
    net = model.model.model  # type: ignore[attr-defined]
    named = dict(net.named_parameters())
    expected = dict.fromkeys(PARTS, 0)
    for name, parameter in named.items():
        part = "router" if ".router." in name else "experts" if ".experts." in name else None
        part = part or ("attention" if ".attn." in name else "rest")
        expected[part] += parameter.numel()
    assert parts(model) == expected and all(expected.values())
    inputs = {id(one.parameter): one.inputs for one in model.model.weights()}  # type: ignore[attr-defined]
    assert {inputs[id(p)] for n, p in named.items() if ".experts." in n and p.ndim == 3} == {-2}


def test_vectors_stay_stacked_or_not() -> None:
    """Biases of experts, class token and position embedding are added, not multiplied with inputs."""
    model = checkpoint()
    before = {name: p.detach().clone() for name, p in model.model.model.named_parameters()}  # type: ignore[attr-defined]
    with Rounding(model.model).of(PARTS, "int4_g128"):  # type: ignore[arg-type]
        after = {name: p.detach().clone() for name, p in model.model.model.named_parameters()}  # type: ignore[attr-defined]
    vectors = {
        name
        for name in before
        if before[name].ndim == 1 or name.endswith((".bias", "cls_token", "pos_embed"))
    }
    assert {"cls_token", "pos_embed"} < vectors and len(vectors) < len(before)
    assert {name for name in before if torch.equal(before[name], after[name])} >= vectors
    net = torch.nn.Module()
    for name, shape in (
        ("gate_up_proj", (4, 6, 8)),
        ("gate_up_proj_bias", (4, 8)),
        ("position_embeddings", (1, 9, 8)),
    ):
        net.register_parameter(name, torch.nn.Parameter(torch.randn(shape)))
    assert [one.inputs for one in weights_of(net, routers=())] == [-1, None, None]


def test_parts_of_a_module_by_its_paths() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn = torch.nn.Linear(2, 2)
            self.post_attention_layernorm = torch.nn.LayerNorm(2)
            self.gate = torch.nn.Linear(2, 2)
            self.experts = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
            self.shared_experts = torch.nn.Linear(2, 2)

    net = Layer()
    found = {id(one.parameter): one.part for one in weights_of(net, routers=[net.gate])}
    assert {name: found[id(parameter)] for name, parameter in net.named_parameters() if "bias" not in name} == {
        "self_attn.weight": "attention", "post_attention_layernorm.weight": "rest", "gate.weight": "router",
        "experts.0.weight": "experts", "shared_experts.weight": "rest",
    }  # fmt: skip


def test_a_model_is_as_before_whatever_happens() -> None:
    model = checkpoint()
    weights = model.model.weights()  # type: ignore[attr-defined]
    before = [one.parameter.detach().clone() for one in weights]
    rounding = Rounding(model.model)  # type: ignore[arg-type]

    def fails() -> None:
        with rounding.of(("router", "rest"), "int4_g128"):
            for one, own in zip(weights, before, strict=True):
                rounded = one.part in ("router", "rest")
                wanted = quantize_weight(own, "int4_g128", inputs=one.inputs) if rounded else own
                assert torch.equal(one.parameter, wanted)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert all(torch.equal(one.parameter, own) for one, own in zip(weights, before, strict=True))


def test_every_number_is_that_of_a_model_with_rounded_weights() -> None:
    source = "checkpoints/reference/digits-prc-k1-seed0"
    model = api.load_model(source)
    result = api.precision(model, data="digits", formats=["int4_g128", "bf16"], limit=LIMIT, batch_size=7)
    table = result.table.set_index(["view", "layer", "tokens", "metric", "null"])["value"]
    views = {f"{part} {form}" for part in (*PARTS, "whole") for form in ("int4_g128", "bf16")}
    assert set(result.table["view"]) == {"clean", *views}
    # What routers alone choose depends on no expert of their own layer, and the first layer on none at all.
    first = result.table[result.table["layer"] != ""]["layer"].iloc[0]
    assert table["experts int4_g128", first, "patch", "top1_match", ""] == 1
    assert table["whole int4_g128", first, "patch", "top1_match", ""] < 1
    assert table["clean", "", "", "accuracy", ""] > 0.8
    assert {"position", "image", "pooled"} <= set(result.table["null"])
    whole = result.table[result.table["view"] == "whole int4_g128"]
    assert whole["metric"].eq("prediction_agreement").any() and whole["ci_low"].notna().any()
    other = api.load_model(source)
    for one in other.model.weights():  # type: ignore[attr-defined]
        one.parameter.data = quantize_weight(one.parameter.data, "int4_g128", inputs=one.inputs)
    accuracy = api.evaluate(other, data="digits", limit=LIMIT).table.set_index("metric")["value"]["accuracy"]
    assert table["whole int4_g128", "", "", "accuracy", ""] == accuracy


@pytest.mark.pictures
def test_the_command(tmp_path: Path) -> None:
    where = "checkpoints/reference/digits-prc-k2-seed0"
    out = tmp_path / "precision"
    command = (
        "precision",
        where,
        "--formats",
        "int8",
        "--parts",
        "router,experts",
        "--limit",
        "24",
        "--out",
        out,
    )
    result = run(*command)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "int8 (24 images, 384 trials): rounding all parts changes the experts of 0." in said
    assert "whole int8" in said and (out / "figures" / "precision.png").exists()
    assert "is finished" in run(*command).output
    about = json.loads((out / "table.json").read_text())
    assert about["request"]["parts"] == ["router", "experts"] and about["request"]["formats"] == ["int8"]
    page = run("report", out, "--out", tmp_path / "page")
    assert page.exit_code == 0 and "whole int8" in (tmp_path / "page" / "report.md").read_text()
    assert "There is no part 'routers'. Did you mean 'router'?" in refused(
        "precision", where, "--parts", "routers"
    )
    assert "There is no format 'int9'" in refused("precision", where, "--formats", "int9")
    assert "once at most" in refused("precision", where, "--formats", "int8,int8")


def test_the_set_decides_where_a_token_has_several_experts() -> None:
    """A first choice that only trades places with the second changes nothing that processes the token."""
    shared = {
        "checkpoint": "a",
        "view": "router int8",
        "layer": "blocks.1",
        "tokens": "patch",
        "null": "",
        "images": 40,
        "trials": 640,
        "flag": "",
    }
    matches = {"top1_match": 0.9, "top2_match": 0.6, "top2_set_match": 0.7}
    ends = {"ci_low": 0.5, "ci_high": 0.95}
    table = pd.DataFrame(
        [shared | ends | {"metric": name, "value": value} for name, value in matches.items()]
    )
    [said] = Precision.conclusions(table)
    assert said == (
        "a, int8 (40 images, 640 trials): rounding router changes the experts of 0.300 [0.050, 0.500] (blocks.1) of "
        "the patches."
    )
    assert by_part(table)["value"].tolist() == pytest.approx([0.3])
    alone = table[table["metric"] == "top1_match"]
    assert by_part(alone)["value"].tolist() == pytest.approx([0.1])


@pytest.mark.parametrize("fields", [{"parts": []}, {"formats": []}, {"parts": ["router", "router"]}])
def test_lists_that_say_nothing_are_refused(fields: dict[str, list[str]]) -> None:
    with pytest.raises(UserError, match="once at most, and at least one"):
        Precision(**fields)


def test_a_part_that_a_model_lacks_is_named() -> None:
    hooked = checkpoint("mine")
    own = hooked.model.weights()  # type: ignore[attr-defined]
    hooked.model.weights = lambda: [one for one in own if one.part != "attention"]  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="mine has no weights of attention; choose other parts"):
        api.precision(hooked, data="digits", limit=LIMIT)
    assert len(api.precision(hooked, data="digits", limit=4, parts=["router"], formats=["int8"]).table)


@pytest.mark.slow
@pytest.mark.promise
def test_language_models_say_how_probable_texts_are(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.adapters.tiny_texts import olmoe, texts

    folder = olmoe(tmp_path / "one")
    (tmp_path / "lines.txt").write_text("\n".join(texts(22)), encoding="utf-8")
    data = f"text:{tmp_path / 'lines.txt'}"
    result = api.precision(f"hf:{folder}", data=data, formats=["int4_g128"], batch_size=5)
    table = result.table[result.table["layer"] == ""].set_index(["view", "metric"])["value"]
    # By a loop over single texts, without padding.
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    sums, count = 0.0, 0
    for text in texts(22):
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            scores = model(ids).logits[0].double().log_softmax(-1)
        sums += sum(float(scores[place, token]) for place, token in enumerate(ids[0, 1:].tolist()))
        count += ids.shape[1] - 1
    assert table["clean", "log_probability"] == pytest.approx(sums / count, rel=1e-5)
    assert table["whole int4_g128", "log_probability_gap"] > 0
    assert table["whole int4_g128", "k3_divergence"] > 0
    assert ("clean", "log_probability_gap") not in table.index
    assert parts(api.load_model(f"hf:{folder}"))["experts"] > 0
    # The token null stands beside the others.
    assert "token" in set(result.table["null"])


def test_hooked_modules_have_parts_too() -> None:
    net = zoo.vit()
    hooks = api.Hooks(net, routers="blocks.*.mlp.gate", top_k=2, **zoo.VIT)
    model = api.wrap(hooks, name="mine")
    found = {id(one.parameter): one.part for one in hooks.weights()}
    gates = {found[id(p)] for name, p in net.named_parameters() if "gate" in name}
    assert gates == {"router"}
    result = api.precision(model, data="digits", parts=["router"], formats=["int4_g128"], limit=24)
    assert (result.table[result.table["metric"] == "top1_match"]["value"] < 1).any()
