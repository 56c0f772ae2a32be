"""Configurations: what a file and overrides come to, and one sentence for everything that is wrong."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from moeprobe.errors import UserError
from moeprobe.models import config, config_files
from moeprobe.models.config import TrainConfig
from moeprobe.runtime.catalog import VIEWS
from moeprobe.runtime.schema import Plugin, make_plugin


def written(folder: Path, text: str | bytes, name: str = "small.yaml") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def refused(source: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        config.load(source, overrides)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith((".", "?")) and len(sentence) < 700
    return sentence


def test_a_file_is_named_by_its_file(tmp_path: Path) -> None:
    assert config.load(written(tmp_path, "steps: 5", "my-run.yaml")).name == "my-run"
    assert config.load(written(tmp_path, "steps: 5\nname: other")).name == "other"


def test_overrides(tmp_path: Path) -> None:
    source = written(tmp_path, "steps: 5\nmodel: {top_k: 2}")
    made = config.load(
        source,
        [
            "model.top_k=1",
            "model.layers=[1,3]",
            "model.capacity_factor=none",
            "optimizer.learning_rate=1e-4",
            "objective.diagonal_weight=5e-2",
            "objective.name=prc",
            "data=shapes:96",
            "view=prc_crops",
            "view.flip=false",
            "initialise.checkpoint=some/where",
            "seed=3",
        ],
    )
    assert (made.model.top_k, made.model.layers, made.model.capacity_factor) == (1, [1, 3], "none")
    assert made.optimizer.learning_rate == 1e-4 and made.seed == 3
    assert made.objective == Plugin(name="prc", diagonal_weight=0.05)
    assert made.data.name == "shapes:96"
    assert made.view == Plugin(name="prc_crops", flip=False)
    assert made.initialise is not None and made.initialise.checkpoint == "some/where"


def test_a_section_written_as_its_name_replaces_it(tmp_path: Path) -> None:
    source = written(tmp_path, "steps: 5\nobjective: {name: prc, diagonal_weight: 3.0}\ndata: digits")
    assert config.load(source).data.name == "digits"
    assert config.load(source, ["objective=balanced"]).objective.parameters == {}
    assert config.load(source, ["objective.diagonal_weight=1"]).objective.parameters == {"diagonal_weight": 1}


@pytest.mark.parametrize(
    ("text", "overrides", "steps", "epochs"),
    [
        ("epochs: 60", ["steps=5"], 5, None),
        ("steps: 60", ["epochs=5"], None, 5),
        ("epochs: 60", ["steps=5", "epochs=null"], 5, None),
        ("epochs: 60", ["steps=null"], None, 60),
        ("epochs: 60", ["steps=4", "steps=5"], 5, None),
    ],
)
def test_an_override_of_the_length_replaces_the_other_kind(
    text: str, overrides: list[str], steps: int | None, epochs: float | None, tmp_path: Path
) -> None:
    made = config.load(written(tmp_path, text), overrides)
    assert (made.steps, made.epochs) == (steps, epochs)


def test_two_lengths_or_none_are_refused(tmp_path: Path) -> None:
    assert "either epochs or steps" in refused(written(tmp_path, "epochs: 3\nsteps: 4"))
    assert "either epochs or steps" in refused(written(tmp_path, "epochs: 3"), "epochs=4", "steps=5")
    assert "either epochs or steps" in refused(written(tmp_path, "seed: 3"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- 1\n- 2", "it holds list"),
        ("", "it holds nothing"),
        ("just words", "it holds str"),
        ("a: [", "as YAML"),
        ("seed: 1\nsteps: 2\nseed: 3", "'seed' is given twice"),
        ("steps: 1\nmodel: {top_k: 1, top_k: 2}", "'top_k' is given twice"),
        (b"\xff\xfe\x00", "as YAML"),
        ("when: 2024-99-99", "as YAML"),
        ("a: " + "[" * 60 + "]" * 60, "nested too deeply"),
        ("a: " + "[" * 500_000, "as YAML: "),
        ("a: &a [*a]", "it refers to itself"),
        ("a: [" + "0," * 100_000 + "]", "holds more than 100,000 values"),
        ("a: [" + "0," * 2**20 + "]", "more than 1,048,576 bytes"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + "".join(f"{new}: &{new} [{','.join(['*' + old] * 10)}]\n" for old, new in pairwise("abcdefg")),
            "holds more than 100,000 values",
        ),
        ("".join(f"k{number}: 1\n" for number in range(40_000)), "no configuration key 'k0'"),
        ("x: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("1: 2\nsteps: 3", "no configuration key '1'"),
        (
            "steps: 3\ndata: [digits]",
            "data is a section of keys (data.name, data.workers, data.val_fraction, data.labeled, "
            "data.unlabeled); got ['digits']",
        ),
        ("steps: 3\nmodel:", "model is a section of keys"),
        ("steps: 3\nobjective: {weight: 3}", "objective has no name, only weight: add objective.name"),
        ("steps: 3\nname: a b", "name: string should match"),
    ],
)
def test_files_that_are_no_configuration(text: str | bytes, sentence: str, tmp_path: Path) -> None:
    assert sentence in refused(written(tmp_path, text))


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.top=1", "There is no configuration key 'model.top'. Did you mean 'model.top_k'?"),
        ("sede=1", "Did you mean 'seed'?"),
        ("optimiser.name=sgd", "Did you mean 'optimizer'?"),
        ("initialise.chekpoint=x", "Did you mean 'initialise.checkpoint'?"),
        ("model.a.b=1", "no configuration key 'model.a'"),
        ("model.upcycle.foo=1", "no configuration key 'model.upcycle.foo'. Known here: file, name, noise."),
        ("model.swin.windoes=[1]", "Did you mean 'model.swin.windows'?"),
        ("model.router.foo=3", "model.router has no name, only foo: add model.router.name=NAME"),
        ("steps=true", "steps: input should be a valid integer; got True."),
        ("batch_size=true", "batch_size: input should be a valid integer; got True."),
        ("views_per_image=true", "views_per_image: input should be a valid integer; got True."),
        ("steps=1_0", "steps: input should be a valid integer; got '1_0'."),
        ("steps=1:30", "steps: input should be a valid integer; got '1:30'."),
        ("steps=0x10", "steps: input should be a valid integer; got '0x10'."),
        ("optimizer.learning_rate='0.1'", "valid number; got '0.1'."),
        ("amp=1", "amp: input should be a valid boolean; got 1."),
        ("seed=18446744073709551617", "seed: input should be less than or equal to 9223372036854775807"),
        ("epochs=1e308", "epochs: input should be less than or equal to 1000000; got 1e+308."),
        ("steps=1000000000000000", "steps: input should be less than or equal to"),
        ("steps=" + "[" * 200 + "]" * 200, "Cannot read the value of 'steps=[[["),
        ("name.x=1", "'name' in 'name.x' is a value, not a section"),
        ("nothing", "written key=value"),
        ("=1", "written key=value"),
        ("steps={", "Cannot read the value"),
        ("name=2024-99-99", "Cannot read the value"),
        ("steps=1.5", "steps: input should be a valid integer"),
        ("steps=0", "steps: input should be greater than 0; got 0."),
        ("seed=-1", "seed: input should be greater than or equal to 0; got -1."),
        ("seed=null", "seed: input should be a valid integer; got None."),
        ("name=null", "name: input should be a valid string; got None."),
        ("model.capacity_factor=lots", "model.capacity_factor: input should be a valid number"),
        ("model.layers=[1,x]", "model.layers.1: input should be a valid integer"),
        ("model.mean=[1,2]", "model.mean: list should have at least 3 items"),
        (
            "optimizer.learning_rate=.nan",
            "optimizer.learning_rate: input should be a finite number; got nan.",
        ),
        ("optimizer.learning_rate=.inf", "finite number"),
        ("mixup=.inf", "finite number"),
        ("loss=hinge", "loss: input should be 'softmax' or 'sigmoid'; got 'hinge'."),
        ("views_per_image=3", "views_per_image: input should be less than or equal to 2; got 3."),
        ("amp=perhaps", "amp: input should be a valid boolean"),
        ("model=" + "x" * 1000, "..."),
    ],
)
def test_overrides_that_are_wrong(override: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in refused(written(tmp_path, "steps: 3"), override)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert "no configuration file" in refused(str(tmp_path / "nothing.yaml"))
    assert "Did you mean 'digits-prc'?" in refused("digits-prk")
    (tmp_path / "folder.yaml").mkdir()
    assert "no configuration file" in refused(str(tmp_path / "folder.yaml"))


def test_what_is_dumped_is_loaded(tmp_path: Path) -> None:
    for name in config_files.names():
        made = config.load(name)
        assert config.load(written(tmp_path, config.dump(made))) == made


def test_every_configuration_is_named_by_its_file_and_says_what_it_is() -> None:
    assert {"digits-prc", "shapes-prc", "vmoe-s32-imagenet224-prc"} <= set(config_files.names())
    for name in config_files.names():
        # A run's folder has a plain name, so that of a sub-folder goes before with a hyphen.
        assert config.load(name).name == name.replace("/", "-")
        assert config_files.path_of(name).read_text().startswith("# ")


def test_plugins_are_made_with_checked_parameters() -> None:
    crops = VIEWS.get("prc_crops")
    plugin = Plugin(name="prc_crops", first_area=[0.2, 1], flip=True)
    made = make_plugin(crops, plugin, what="view", flip=False)
    assert (made.first_area, made.flip) == ((0.2, 1), False)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"flop": True}, "no parameter of the view 'prc_crops' called 'flop'. Did you mean 'flip'?"),
        ({"flip": "yes"}, "In the view 'prc_crops', flip: input should be a valid boolean; got 'yes'."),
        ({"first_area": 0.3}, "In the view 'prc_crops', first_area: input should be a valid tuple; got 0.3."),
        ({"first_area": [0.3, "x"]}, "first_area: input should be a valid number"),
        ({"first_area": [0.3]}, "first_area: "),
        ({"first_area": [0.9, 0.3]}, "0 < low <= high <= 1"),
    ]
    for parameters, sentence in wrong:
        with pytest.raises(UserError) as caught:
            make_plugin(crops, Plugin(name="prc_crops", **parameters), what="view")
        assert sentence in str(caught.value)


def test_the_schema_has_no_number_that_is_no_number() -> None:
    with pytest.raises(ValueError, match="finite"):
        TrainConfig.model_validate({"name": "a", "steps": 1, "mixup": float("nan")})


def test_numbers_are_what_they_look_like(tmp_path: Path) -> None:
    """Not what YAML 1.1 makes of them: octal, sexagesimal, with underscores."""
    source = written(tmp_path, "steps: 010\noptimizer: {learning_rate: 1e-3, clip_norm: .5, weight_decay: 1}")
    made = config.load(source)
    assert (made.steps, made.optimizer.learning_rate) == (10, 1e-3)
    assert (made.optimizer.clip_norm, made.optimizer.weight_decay) == (0.5, 1)
