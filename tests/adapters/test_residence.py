"""Models of one command are in memory one at a time, and their numbers are those of models that stay there."""

import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from moeprobe import api
from moeprobe.adapters import residence
from moeprobe.adapters.huggingface import files
from moeprobe.adapters.residence import Residence, free_weights, take_weights
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError
from moeprobe.probes.engine import loop
from moeprobe.studies.paper.run import PROBES
from tests.adapters import tiny_pictures, tiny_texts

ASKED: dict[str, Any] = {"view": "embedding_noise", "severities": (0.0, 0.5), "figures": False}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    (tmp_path / "lines.txt").write_text("\n".join(tiny_texts.texts(6)), encoding="utf-8")
    return [tiny_texts.olmoe(tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two"))]


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of tests are treated as large ones."""
    monkeypatch.setattr(residence, "SMALL", 0)


def sweep(folders: list[Path], **more: Any) -> Any:
    data = f"text:{folders[0].parent / 'lines.txt'}"
    return api.sweep([f"hf:{folder}" for folder in folders], data=data, **(ASKED | more))


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many models that were read before are in memory, each time that one is read."""
    loaded: list[weakref.ref[torch.Tensor]] = []
    counts: list[int] = []
    original = files.load

    def load(*args: Any, **kwargs: Any) -> Any:
        gc.collect()
        counts.append(sum(weight() is not None for weight in loaded))
        model_files = original(*args, **kwargs)
        # The largest parameter stands for all.
        loaded.append(
            weakref.ref(max(model_files.model.parameters(), key=lambda parameter: parameter.numel()))
        )
        return model_files

    monkeypatch.setattr("moeprobe.adapters.huggingface.opening.load", load)
    return counts


@pytest.mark.slow
@pytest.mark.promise
def test_one_model_is_in_memory_and_the_numbers_are_the_same(folders: list[Path], alive: list[int]) -> None:
    alternating = sweep(folders).table
    # Whatever was loaded before is gone when the next is read.
    assert len(alive) > len(folders) and set(alive) == {0}
    together = api.sweep(
        [api.load_model(f"hf:{folder}") for folder in folders],
        data=f"text:{folders[0].parent / 'lines.txt'}",
        **ASKED,
    ).table
    # Models that the caller holds stay in memory: the second was read while the first was there.
    assert alive[-1] == 1
    assert alternating.equals(together)


@pytest.mark.slow
@pytest.mark.promise
def test_an_audit_has_one_model_in_memory(folders: list[Path], alive: list[int], tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(tiny_texts.texts(20)), encoding="utf-8")
    asked: dict[str, Any] = {
        "data": f"text:{tmp_path / 'lines.txt'}", "probes": ("agree", "confidence", "precision"), "figures": False,
    }  # fmt: skip
    alternating = api.audit([f"hf:{folder}" for folder in folders], **asked).verdicts
    assert {"forms", "load", "precision"} <= set(alternating["property"])
    # Opened once each, then in turn: while a probe is timed, and while it runs.
    assert set(alive) == {0} and len(alive) > 2 * len(folders)
    together = api.audit([api.load_model(f"hf:{folder}") for folder in folders], **asked).verdicts
    assert alive[-1] == 1
    # Commands name a loaded model otherwise.
    assert alternating.drop(columns="command").equals(together.drop(columns="command"))


@pytest.mark.slow
@pytest.mark.promise
def test_the_tables_of_a_pair_are_made_with_one_model_in_memory(
    alive: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take models that read pictures, each beside a prompt."""
    monkeypatch.setattr("moeprobe.studies.paper.run.PROBES", {"confidence": PROBES["confidence"]})
    data = f"folder:{tiny_pictures.photographs(tmp_path / 'photos', 4)}"
    folders = [tiny_pictures.save(tmp_path / name) for name in ("one", "two")]
    alternating = api.paper([f"hf:{folder}" for folder in folders], data=data)
    assert set(alive) == {0} and len(alive) == len(folders) + 1
    assert "No picture of corresponding patches" in alternating.markdown
    prompt = Options().prompt
    together = [api.load_model(f"hf:{folder}", prompt=prompt) for folder in folders]
    assert alive[-1] == 1
    assert alternating.table.equals(api.paper(together, data=data).table)


@pytest.fixture
def residences(monkeypatch: pytest.MonkeyPatch) -> list[Residence]:
    """The residences of a run, one for each model that is taken in."""
    taken_in: list[Residence] = []

    def admit(self: Residence, *args: Any) -> None:
        taken_in.append(self)
        original(self, *args)

    original = Residence.admit
    monkeypatch.setattr(Residence, "admit", admit)
    return taken_in


def test_small_models_are_read_once(
    folders: list[Path], residences: list[Residence], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residence, "SMALL", 2**31)
    sweep(folders)
    assert [one.num_loads for one in residences] == [2, 2]


# What checks ask before the run differs by probe; with passes in another precision there is a floor after it, too.
TEXTS = {"limit": 2, "figures": False}
RUNS = {
    "sweep": ("sweep", ASKED | TEXTS),
    "sweep in bfloat16": ("sweep", ASKED | TEXTS | {"precision": "bfloat16"}),
    "precision": ("precision", TEXTS | {"formats": ("int8",), "parts": ("router",)}),
    "flips": ("flips", TEXTS | {"view": "embedding_noise", "patches": 1}),
    "experts": ("experts", TEXTS | {"draws": 1, "layers": "first"}),
    "margins": ("margins", TEXTS | {"view": "embedding_noise", "sigmas": (0.1,), "draws": 2}),
    "confidence": ("confidence", TEXTS),
    "align": ("align", TEXTS | {"permutations": 40}),
    "s-matrix": ("s_matrix", TEXTS | {"view": "token_dropout"}),
}


QUICK = ("sweep", "precision", "confidence")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow, pytest.mark.promise])
        for name in RUNS
    ],
)
def test_of_two_models_one_is_read_again(folders: list[Path], residences: list[Residence], name: str) -> None:
    function, keywords = RUNS[name]
    data = f"text:{folders[0].parent / 'lines.txt'}"
    getattr(api, function)([f"hf:{folder}" for folder in folders], data=data, **keywords)
    # Two to open them; the one that was opened last is measured first, and the other is read again.
    assert residences[0].num_loads == 3


def test_one_model_is_read_once(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def load(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return files.load(*args, **kwargs)

    monkeypatch.setattr("moeprobe.adapters.huggingface.opening.load", load)
    sweep(folders[:1])
    assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.promise
def test_a_second_model_that_cannot_be_read_again_does_not_lose_the_first(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, backup = tmp_path / "out", tmp_path / "backup"
    shutil.copytree(folders[1], backup)
    original = loop.run

    def measure(spec: Any, model: Any, **more: Any) -> Any:
        measured = original(spec, model, **more)
        # Once the first model is measured, the second is gone.
        shutil.rmtree(folders[1], ignore_errors=True)
        return measured

    with monkeypatch.context() as context:
        context.setattr(loop, "run", measure)
        with pytest.raises(UserError, match="two"):
            sweep(folders, out=out)
    shutil.copytree(backup, folders[1])
    blocks: list[str] = []
    original_block = loop.measure_block

    def measure_block(spec: Any, model: Any, *args: Any, **more: Any) -> Any:
        blocks.append(model.name)
        return original_block(spec, model, *args, **more)

    monkeypatch.setattr(loop, "measure_block", measure_block)
    assert set(sweep(folders, out=out).table["checkpoint"]) == {"one", "two"}
    # What the first run had measured is not measured again.
    assert set(blocks) == {"two"}


def test_a_model_that_changed_meanwhile_is_refused(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = loop.run

    def measure(*args: Any, **more: Any) -> Any:
        measured = original(*args, **more)
        tiny_texts.olmoe(folders[1], seed=7)
        return measured

    monkeypatch.setattr(loop, "run", measure)
    with pytest.raises(UserError, match="has changed since the run began"):
        sweep(folders)


def test_freed_weights_have_shapes_and_come_back() -> None:
    def network() -> torch.nn.Sequential:
        first = torch.nn.Linear(3, 3)
        tied = torch.nn.Linear(3, 3)
        tied.weight = first.weight
        return torch.nn.Sequential(first, tied, torch.nn.BatchNorm1d(3)).eval()

    one, source = network(), network()
    inputs = torch.randn(2, 3)
    expected = source(inputs)
    free_weights(one)
    assert one[0].weight is one[1].weight and one[0].weight.shape == (3, 3)
    with pytest.raises(RuntimeError):
        one(inputs)
    take_weights(one, source)
    assert one[0].weight is one[1].weight
    assert torch.equal(one(inputs), expected)


def test_an_empty_residence_has_room() -> None:
    Residence().make_room()
