"""Options by name: what a caller may give, and the sentence for what does not fit."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from moeprobe import api
from moeprobe.declarations.options import Keywords, Options
from moeprobe.errors import UserError
from moeprobe.probes.match_ratio import MatchRatio
from moeprobe.recorded.analyze_trace import AnalyzeTrace
from moeprobe.runtime import arguments
from moeprobe.runtime.arguments import HIGHEST_SEED, several
from moeprobe.runtime.catalog import nearest
from tests.commands import refused

Trained = dict[str, Path]
PROBES = ("match_ratio", "s_matrix", "confidence", "sweep", "noise_sweep", "evaluate", "fewshot", "contagion",
          "corruptions", "experts", "flips", "margins", "regret", "discontinuity", "overlay",
          "record", "compare")  # fmt: skip


def test_the_keywords_are_the_options() -> None:
    fields = {field.name for field in dataclasses.fields(Options)}
    assert set(get_type_hints(Keywords)) == fields


@pytest.mark.parametrize("name", PROBES)
def test_a_notebook_completes_the_options(name: str) -> None:
    parameters = inspect.signature(getattr(api, name)).parameters
    assert {field.name for field in dataclasses.fields(Options)} <= set(parameters)
    assert not [one for one in parameters.values() if one.kind is one.VAR_KEYWORD]
    assert parameters["limit"].default is None
    assert parameters["limit"].annotation == int | None


def test_a_question_to_recordings_takes_some_of_them() -> None:
    parameters = inspect.signature(api.analyze_trace).parameters
    assert {*parameters} & {field.name for field in dataclasses.fields(Options)} == {*AnalyzeTrace.common}
    with pytest.raises(UserError, match="no argument 'batch_size'"):
        api.analyze_trace("x.parquet", batch_size=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["probe", "plan", "measure_shard"])
def test_a_mistyped_keyword_of_a_named_probe_is_a_sentence(name: str) -> None:
    more = {"shard": "1/2"} if name == "measure_shard" else {}
    with pytest.raises(
        UserError, match=rf"api\.{name} of eval has no argument 'limt'\. Did you mean 'limit'\?"
    ):
        getattr(api, name)("eval", "checkpoints/x", limt=1, **more)
    with pytest.raises(UserError, match=r"MatchRatio\(\.\.\.\) sets all of its fields; omit view"):
        getattr(api, name)(MatchRatio(), "checkpoints/x", view="random_crop", **more)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in api.__all__
        if name not in ("probe", "plan", "measure_shard")
        and inspect.isfunction(getattr(api, name))
        and name != "open_view"
    ],
)
def test_a_mistyped_keyword_is_a_sentence(name: str) -> None:
    with pytest.raises(UserError, match=rf"api\.{name} has no argument 'wacher'"):
        getattr(api, name)("checkpoints/x", wacher=1)


def test_the_keyword_that_was_meant() -> None:
    with pytest.raises(UserError, match=r"'limt'\. Did you mean 'limit'\? There are: models, data, view"):
        api.match_ratio("x", limt=5)  # type: ignore[call-arg]
    with pytest.raises(
        UserError, match=r"too many positional arguments; its arguments are models, data=, view="
    ):
        api.match_ratio("x", "y")  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"missing a required (keyword-only )?argument: 'view'"):
        api.sweep("x")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"limit": "5"}, "limit takes a whole number, or None; got '5'."),
        ({"limit": 2.5}, "limit takes a whole number, or None; got 2.5."),
        ({"limit": True}, "limit takes a whole number, or None; got True."),
        ({"limit": 0}, "limit takes a number of inputs from 1 up; got 0."),
        ({"batch_size": -1}, "batch_size takes a number of inputs from 1 up; got -1."),
        ({"workers": -1}, "workers takes a number of processes from 0 to 256; got -1."),
        ({"seed": None}, "seed takes a whole number; got None."),
        ({"split": 3}, "split takes a string; got 3."),
        ({"layers": 3}, "layers takes a name, or a list of names; got 3."),
        ({"layers": []}, "layers takes a name, or a list of names; got []."),
        ({"out": 3}, "out takes a path, or None; got 3."),
        ({"skip_bad_images": "no"}, "skip_bad_images takes True or False; got 'no'."),
    ],
)
def test_values_that_do_not_fit(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as found:
        api.match_ratio("nowhere", **given)
    assert str(found.value) == sentence


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: api.noise_sweep("x", sigmas="0,0.1"),  # type: ignore[arg-type]
         "sigmas takes a number, or a list of numbers; got '0,0.1'."),
        (lambda: api.sweep("x", view="affine", severities=[0, "a"]),  # type: ignore[list-item]
         "severities takes a number, or a list of numbers; got [0, 'a']."),
        (lambda: api.fewshot("x", shots=1.5),  # type: ignore[arg-type]
         "shots takes different whole numbers from 1 up"),
        (lambda: api.contagion("x", share="half"), "share takes a number; got 'half'."),  # type: ignore[arg-type]
        (lambda: api.overlay("x", animate=1), "animate takes True or False; got 1."),  # type: ignore[arg-type]
        (lambda: api.match_ratio("x", view=3), "view takes a string; got 3."),  # type: ignore[arg-type]
        (lambda: api.import_trace(5, "y"), "log takes a path; got 5."),  # type: ignore[arg-type]
        (lambda: api.trace(float("nan"), 0), "A checkpoint is a path, or what api.load_model returns; got float."),  # type: ignore[arg-type]
        (lambda: api.match_ratio("x", capacity="trained"),  # type: ignore[call-arg]
         "no argument 'capacity'. Did you mean trained_capacity=True?"),
        (lambda: api.overlay("x", file="cat.png"),  # type: ignore[call-arg]
         "no argument 'file'. Did you mean files=[\"cat.png\"]?"),
        (lambda: api.Hooks(nn.Identity(), img_size=32),  # type: ignore[call-arg]
         "api.Hooks has no argument 'img_size'. Did you mean 'image_size'? There are: net, routers, read"),
        (lambda: api.Hooks(nn.Identity()),  # type: ignore[call-arg]
         "api.Hooks: missing a required argument: 'image_size'; its arguments are net, routers="),
        (lambda: api.Options(limt=3),  # type: ignore[call-arg]
         "api.Options has no argument 'limt'. Did you mean 'limit'?"),
        (lambda: api.Checkpoint(nam="x"),  # type: ignore[call-arg]
         "api.Checkpoint has no argument 'nam'. Did you mean 'name'?"),
        (lambda: MatchRatio(veiw="x"),  # type: ignore[call-arg]
         "MatchRatio has no argument 'veiw'. Did you mean 'view'? There are: view."),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UserError) as found:
        call()
    assert sentence in str(found.value)


@pytest.mark.parametrize("given", [0.1, np.float32(0.1), [0.1], np.array([0.1]), torch.tensor(0.1)])
def test_a_lone_number_is_a_list_of_one(given: Any) -> None:
    [read] = arguments.read("sigmas", Sequence[float] | None, given)
    assert type(read) is float
    assert read == pytest.approx(0.1)
    assert arguments.read("sigmas", Sequence[float] | None, None) is None


def test_options_that_are_none() -> None:
    with pytest.raises(UserError, match=r"options takes api.Options\(...\), or None; got dict"):
        api.match_ratio("nowhere", options={"limit": 5})  # type: ignore[arg-type]


def test_what_options_are_read_from() -> None:
    options = Options(layers="blocks.1, blocks.3", limit=np.int64(5), out="reports/x", masks=Path("m"))  # type: ignore[arg-type]
    assert options.layers == ("blocks.1", "blocks.3")
    assert type(options.limit) is int
    assert (options.out, options.masks) == (Path("reports/x"), Path("m"))
    assert Options(layers=["blocks.1"]).layers == ("blocks.1",)  # type: ignore[arg-type]


def test_one_or_several() -> None:
    assert several("a") == several(["a"]) == several(one for one in "a") == ["a"]
    assert several(Path("a")) == [Path("a")]
    assert several(()) == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("sofmax", "softmax_token_choice"),
        ("noise", "gaussian_noise"),
        ("gausian_noise", "gaussian_noise"),
        ("limt", "limit"),
        ("Digits", "digits"),
        ("softmoe", "soft_moe"),
        ("noise_gaussian", "gaussian_noise"),
        ("bright", "brightness"),
        ("embed", "embedding_noise"),
        ("limits_of_it", "limit"),
        ("moe-soft", "soft_moe"),
        ("xyzzy", None),
        # Letters in common are not enough.
        ("jitter", None),
        ("vmoe", None),
        ("topk", None),
    ],
)
def test_the_nearest_name(typed: str, meant: str | None) -> None:
    names = (
        "softmax_expert_choice",
        "softmax_token_choice",
        "soft_moe",
        "embedding_noise",
        "gaussian_noise",
        "brightness",
        "limit",
        "digits",
        "split",
    )
    assert nearest(typed, names) == meant


def test_one_checkpoint_in_every_form(trained: Trained) -> None:
    loaded = api.load_model(trained["prc"])
    tables = [
        api.confidence(given, limit=4, layers="blocks.3").table
        for given in (loaded, [loaded], trained["prc"], str(trained["prc"]))
    ]
    for table in tables[1:]:
        np.testing.assert_array_equal(table["value"], tables[0]["value"])
    assert set(tables[0]["layer"]) == {"blocks.3"}


def test_what_is_no_checkpoint(trained: Trained) -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    for given in (net, [net]):
        with pytest.raises(
            UserError, match=r"cannot be probed as it is; wrap it: api\.wrap\(api\.Hooks\(net"
        ):
            api.match_ratio(given)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"wrap it: api\.wrap\(api\.Hooks\(net"):
        api.trace(net, torch.zeros(1, 3, 32, 32))  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"say it with Hooks: api\.wrap\(api\.Hooks\(net, image_size=…\), name='a'\)"
    ):
        api.wrap(net, name="a")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"a path, or what api\.load_model returns; got int"):
        api.compare([trained["prc"], 5])  # type: ignore[list-item]


def test_trace_takes_images_as_they_come(trained: Trained) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    image = Image.fromarray(array)
    floats = torch.from_numpy(array.transpose(2, 0, 1).copy()).float() / 255
    expected, routing = api.trace(trained["prc"], floats[None], layers="blocks.3")
    assert expected is not None
    assert list(routing.layers) == ["blocks.3"]
    uint8 = (floats * 255).round().to(torch.uint8)
    for given in (image, [image], array, array[None], uint8, uint8[None], floats.numpy(), floats):
        logits, _ = api.trace(str(trained["prc"]), given)
        assert logits is not None
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    # An image of another size is framed; pixels are not.
    assert api.trace(trained["prc"], [image.resize((50, 40)), image])[0].shape == (2, 10)  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"takes images \(B, 3, 32, 32\)"):
        api.trace(trained["prc"], torch.zeros(1, 3, 40, 40))


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.full((1, 3, 32, 32), 255.0), "these reach from 255 to 255. Divide by 255"),
        (torch.full((1, 3, 32, 32), -2.0), "these reach from -2 to -2"),
        (torch.full((1, 3, 32, 32), torch.nan), "these reach from nan to nan"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.int64), "Pixels are floats in [0, 1], or uint8; got int64"),
        (np.array(["a"]), "got an array of <U1"),
        ("cat.png", "or PIL images; got str"),
        ([], "or PIL images; got list"),
    ],
)
def test_trace_refuses_what_is_no_image(trained: Trained, images: Any, sentence: str) -> None:
    with pytest.raises(UserError) as found:
        api.trace(trained["prc"], images)
    assert sentence in str(found.value)


def test_seeds(trained: Trained) -> None:
    assert Options(seed=HIGHEST_SEED).seed == HIGHEST_SEED == 9_223_372_036_854_775_807
    for seed in (-1, 2**63, 10**30):
        said = f"seed takes a whole number from 0 to 9,223,372,036,854,775,807; got {seed}."
        with pytest.raises(UserError, match=said):
            Options(seed=seed)
        assert f"--{said}" in refused("eval", trained["prc"], "--seed", seed)
        assert "seed" in refused("train", "--config", "digits-prc", f"seed={seed}")
