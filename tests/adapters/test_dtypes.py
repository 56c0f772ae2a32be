"""A language model in another precision than it was saved in: all of it, and said so."""

import shutil
from pathlib import Path

import pytest
import torch

from moeprobe import api
from moeprobe.errors import UserError
from tests.commands import refused, run

pytest.importorskip("transformers")

from tests.adapters.tiny_texts import tokenizer
from tests.recordings.test_sequences import REFERENCE, saved_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("dtype") / "small", "olmoe")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_whole_model_is_in_the_precision(dtype: str, model: Path) -> None:
    checkpoint = api.load_model(f"hf:{model}", dtype=dtype)
    parameters = checkpoint.model.model.parameters()  # type: ignore[attr-defined]
    assert {str(value.dtype) for value in parameters} == {f"torch.{dtype}"}
    assert checkpoint.name == f"small,dtype={dtype}" and checkpoint.provenance["dtype"] == dtype


def test_by_default_it_is_as_it_was_saved(model: Path, tmp_path: Path) -> None:
    import transformers

    assert api.load_model(f"hf:{model}").name == "small"
    assert api.load_model(f"hf:{model}").provenance["dtype"] == "float32"
    half = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    tokenizer().save_pretrained(tmp_path / "half")
    assert api.load_model(f"hf:{tmp_path / 'half'}").provenance["dtype"] == "bfloat16"


def test_precision_changes_choices_and_names(model: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(f"line {number} of some text" for number in range(24)))
    for dtype in ("float32", "bfloat16"):
        options = ["--data", f"text:{lines}", "--dtype", dtype, "--out", tmp_path / "traces" / dtype]
        assert run("trace", "record", f"hf:{model}", *options).exit_code == 0
    first, second = (
        tmp_path / "traces" / dtype / f"small,dtype={dtype}" / "clean.parquet"
        for dtype in ("float32", "bfloat16")
    )
    table = api.analyze_trace([first, second]).table
    [row] = table.query("metric == 'pairs_differ' and tokens == 'token'").to_dict("records")
    assert row["checkpoint"] == "small,dtype=bfloat16" and 0 < row["value"] < 0.3


def test_precisions_that_there_are_not(model: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    with pytest.raises(UserError, match=r"dtype.* is auto, float32, bfloat16 or float16; got 'half'"):
        api.load_model(f"hf:{model}", dtype="half")
    with pytest.raises(UserError, match="is loaded already, in another precision; choose it where"):
        api.confidence(api.load_model(f"hf:{model}"), data=f"text:{tmp_path}/lines.txt", dtype="float16")
    said = refused("confidence", REFERENCE, "--dtype", "bfloat16")
    assert "--dtype is for models of hf:; leave it out for" in said


def test_a_study_takes_models_that_it_has_loaded(model: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(f"line {number} of some text" for number in range(24)))
    comparison = api.compare(
        [f"hf:{model}", f"hf:{shutil.copytree(model, tmp_path / 'other')}"],
        probe="confidence", data=f"text:{tmp_path}/lines.txt", dtype="bfloat16",
    )  # fmt: skip
    assert list(comparison.sidecar["checkpoints"]) == ["small,dtype=bfloat16", "other,dtype=bfloat16"]
