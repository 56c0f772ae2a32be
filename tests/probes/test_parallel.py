"""Several processes hold one model: what they refuse, and that they measure what one process measures."""

import json
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from moeprobe.adapters.open import load_model
from moeprobe.errors import UserError
from moeprobe.runtime.extras import is_older
from moeprobe.runtime.run_files import FINISHED
from moeprobe.runtime.spread import EXPERTS, TENSOR, ModelGroup, ModelShare, sharing_models
from tests.adapters import tiny_texts
from tests.commands import PATIENCE, Trained, run
from tests.probes.test_ranks import ended, environments, ranks

# Commands in processes of their own resample as often as users' do.
pytestmark = pytest.mark.resamples
FAMILIES = ("olmoe", "qwen3_moe", "mixtral")
# Values of float32 sums that are added up in another order; ends of intervals where nothing was seen weigh them more.
VALUES, ENDS = 1e-5, 1e-3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("spread")
    made = {"olmoe": tiny_texts.olmoe(folder / "olmoe")}
    return made | {family: tiny_texts.like_olmoe(folder / family, family) for family in FAMILIES[1:]}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "lines.txt"
    path.write_text("\n".join(tiny_texts.texts(24)) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("text", ["experts:1", "experts:", "tensor:x", "fsdp", "experts:0"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="parallel is replicas, experts or tensor"):
        ModelShare.read(text)


class Processes:
    """Stands for processes that were started, of which this is one."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def among(self, members: Any, name: str) -> "Processes":
        return Processes(list(members).index(self.rank), len(members))


def test_groups_number_themselves_and_their_members() -> None:
    groups = [ModelGroup.of(Processes(rank, 6), "experts:2") for rank in range(6)]  # type: ignore[arg-type]
    found = [
        (group.number, group.members.rank, group.leaders and group.leaders.rank)  # type: ignore[union-attr]
        for group in groups
    ]
    assert found == [(0, 0, 0), (0, 1, None), (1, 0, 1), (1, 1, None), (2, 0, 2), (2, 1, None)]
    assert groups[0] is not None and groups[0].facts() == {"share": "experts", "processes": 2, "groups": 3}
    with pytest.raises(UserError, match="takes a multiple of 4 processes, and torchrun started 6"):
        ModelGroup.of(Processes(0, 6), "tensor:4")  # type: ignore[arg-type]


def test_one_process_alone_refuses(models: dict[str, Path], lines: Path) -> None:
    asked = ["sweep", f"hf:{models['olmoe']}", "--data", f"text:{lines}", "--view", "typos"]
    for more in ([], ["--dry-run"]):
        result = run(*asked, "--parallel", "experts", *more)
        assert result.exit_code == 2 and "spreads a model over the processes of one run" in result.stderr


def plan_refusal(folder: Path, share: str, size: int) -> str:
    """Why a model cannot be spread, said of its configuration alone; empty = it can."""
    import transformers
    from transformers import AutoConfig

    from moeprobe.adapters.huggingface.heads import class_of
    from moeprobe.adapters.huggingface.outline import build_outline
    from moeprobe.adapters.huggingface.spread import check_plan

    config = AutoConfig.from_pretrained(folder)
    outline = build_outline(class_of(transformers, config), config)
    try:
        check_plan(outline, config, SimpleNamespace(share=share, size=size))  # type: ignore[arg-type]
    except UserError as error:
        return str(error)
    return ""


def test_an_older_transformers_is_refused(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "5.22.0")
    group = ModelGroup.of(Processes(0, 2), "experts")  # type: ignore[arg-type]
    with (
        sharing_models(group),
        pytest.raises(UserError, match=r"parallel needs transformers 5\.23 or later, and this is 5\.22\.0"),
    ):
        load_model(f"hf:{models['olmoe']}")


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_that_do_not_divide_are_refused(family: str, models: dict[str, Path]) -> None:
    if is_older("transformers", "5.23"):
        pytest.skip("plans are read of transformers 5.23 or later")
    for share in (EXPERTS, TENSOR):
        assert plan_refusal(models[family], share, 2) == ""
    assert "8 experts cannot be shared by 3 processes" in plan_refusal(models[family], EXPERTS, 3)
    assert "heads" in plan_refusal(models[family], TENSOR, 3)
    # As many processes as heads of queries, but more than heads of keys, where there are fewer.
    expected = (
        "" if family == "olmoe" else "Its 2 heads (num_key_value_heads) cannot be shared by 4 processes"
    )
    assert plan_refusal(models[family], TENSOR, 4).startswith(expected)


def test_families_without_a_plan_are_refused(tmp_path: Path) -> None:
    from transformers import AutoConfig

    from tests.adapters import families

    model = families.small("switch_transformers")
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).model_type == "switch_transformers"
    assert "has no plan in transformers that spreads its experts" in plan_refusal(tmp_path, EXPERTS, 2)
    assert "has no plan in transformers that spreads its tensors" in plan_refusal(tmp_path, TENSOR, 2)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("share", [EXPERTS, TENSOR])
def test_routing_is_that_of_one_process(share: str, models: dict[str, Path]) -> None:
    """Gates, choices, scores, repeated choices, and the check of experts, which sees a part of them in each process."""
    command = [sys.executable, "-m", "tests.adapters.spread_ranks", share, *map(str, models.values())]
    started = [
        subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for own in environments(2, minutes=5)
    ]
    results = ended(started)
    assert [code for code, _, _ in results] == [0, 0], results
    found = [json.loads(line) for line in results[0][1].splitlines()]
    assert len(found) == len(models)
    for one in found:
        assert one["changed"] == 0
        assert max(one[name] for name in ("gates", "scores", "log_probs", "resumed")) < VALUES
        assert one["checks"] == ["layers.0: 8 of 8 experts changed, and exactly their tokens with them"]
        # What a process holds is less; what is said of the model is all of it.
        assert one["held"] < 0.8 * one["numbers"] and one["parameters"] == one["numbers"]


def assert_alike(first: Path, second: Path, *, dtypes: bool) -> None:
    """Compare tables; ``dtypes``: with the floor in another number format, which is another one of cut matrices."""
    tables = [pd.read_csv(folder / "table.csv", keep_default_na=False) for folder in (first, second)]
    if not dtypes:
        tables = [table[table["view"] != "clean_other_dtype"].reset_index(drop=True) for table in tables]
    numbers = {"value": VALUES, "ci_low": ENDS, "ci_high": ENDS}
    names = [name for name in tables[0].columns if name not in {"run", *numbers}]
    pd.testing.assert_frame_equal(*[table[names] for table in tables])
    for name, tolerance in numbers.items():
        one, other = (pd.to_numeric(table[name], errors="coerce") for table in tables)
        pd.testing.assert_series_equal(one, other, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def asked(models: dict[str, Path], lines: Path) -> list[str]:
    names = [f"hf:{models[family]}" for family in ("olmoe", "qwen3_moe")]
    view = ["--view", "embedding_noise", "--severities", "0,0.4", "--batch-size", "8"]
    return ["sweep", *names, "--data", f"text:{lines}", *view]


@pytest.fixture(scope="module")
def alone(asked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "sweep"
    result = run(*asked, "--out", out)
    assert result.exit_code == 0, result.stderr
    return out


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("share", [EXPERTS, TENSOR])
def test_a_sweep_is_that_of_one_process(share: str, asked: list[str], alone: Path, tmp_path: Path) -> None:
    with ranks(2, *asked, "--parallel", share, "--out", tmp_path / "sweep") as processes:
        first, second = ended(processes)
    assert (first[0], second[0], second[1]) == (0, 0, ""), (first, second)
    assert_alike(alone, tmp_path / "sweep", dtypes=share == EXPERTS)
    sidecar = json.loads((tmp_path / "sweep" / FINISHED).read_bytes())
    assert sidecar["parallel"] == {"share": share, "processes": 2, "groups": 1}


@pytest.mark.slow
@pytest.mark.promise
def test_a_killed_process_ends_all_in_a_sentence(asked: list[str], alone: Path, tmp_path: Path) -> None:
    """The second is killed while they measure; the same command goes on, in one process."""
    out = tmp_path / "sweep"
    with ranks(2, *asked, "--parallel", "experts", "--out", out, minutes=2) as processes:
        deadline = time.monotonic() + PATIENCE
        while not list(out.glob("shards/1-of-1/*")):
            assert processes[0].poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        processes[1].send_signal(signal.SIGKILL)
        first, second = ended(processes)
    assert second[0] == -signal.SIGKILL and first[0] == 2, first
    assert "gone or hanging (counted from 0): 1" in first[2] and "Traceback" not in first[2]
    assert not (out / FINISHED).exists()
    assert run(*asked, "--out", out).exit_code == 0
    assert_alike(alone, out, dtypes=True)


@pytest.mark.slow
def test_models_that_cannot_be_shared_are_refused(
    trained: Trained, models: dict[str, Path], lines: Path
) -> None:
    """Checkpoints of moeprobe, and probes that change weights."""
    said = []
    for asked in (
        ["confidence", trained["prc"], "--limit", "4"],
        ["precision", f"hf:{models['olmoe']}", "--data", f"text:{lines}"],
    ):
        with ranks(2, *asked, "--parallel", "experts") as processes:
            results = ended(processes)
        assert [code for code, _, _ in results] == [2, 2], results
        said.append("".join(errors for _, _, errors in results))
    assert "--parallel is for models of hf:" in said[0] and "torchrun spreads the inputs" in said[0]
    assert "precision rounds weights, so that each process needs all of them" in said[1]
