"""The code of the page about the monitor runs as it is printed, for fewer steps."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.tiny_texts import olmoe, texts
from tests.docs.pages import ROOT, blocks
from tests.integrations.trainings import lightning_loader, lightning_module, olmoe_trainer

GUIDE = ROOT / "docs" / "guide"
TRANSFORMERS, LIGHTNING, LOOP, TABLE = blocks("python", GUIDE / "monitor.md")


@pytest.fixture
def my_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with the module that the page names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    Path("my_models.py").write_text(blocks("python", GUIDE / "own-model.md")[0])


def run(code: str, names: dict[str, Any], **changes: tuple[str, str]) -> dict[str, Any]:
    for before, after in changes.values():
        assert before in code
        code = code.replace(before, after)
    exec(compile(code, "monitor.md", "exec"), names)
    return names


@pytest.mark.filterwarnings("default::moeprobe.errors.RunWarning")
def test_the_loop_and_its_table(my_models: None, capsys: pytest.CaptureFixture[str]) -> None:
    shorter = {"steps": ("range(1, 401)", "range(1, 7)"), "every": ("every=20", "every=3")}
    run(LOOP, {}, **shorter)
    run(TABLE, {}, rows=("[1, 10, 20]", "[0, 1, 2]"))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["step", "0", "3", "6"]
    rows = {line.split()[0] for line in printed[1:]}
    page = (GUIDE / "monitor.md").read_text(encoding="utf-8")
    on_page = page.partition("```text\n")[2].partition("```")[0].splitlines()
    assert [line.split()[0] for line in on_page] == [line.split()[0] for line in printed]
    assert {"kappa/gaussian_noise", "kappa/since_first", "time_share"} <= rows


@pytest.mark.filterwarnings("default")
def test_the_trainer_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "accelerate", reason="accelerate, which the trainer of transformers needs, is not installed"
    )
    monkeypatch.chdir(tmp_path)
    trainer = olmoe_trainer(olmoe(tmp_path / "olmoe"), tmp_path / "out", [], steps=2)
    names = {
        "model": trainer.model, "arguments": trainer.args, "data": trainer.train_dataset, "texts": texts(20),
        "collator": trainer.data_collator, "tokenizer": trainer.processing_class,
    }  # fmt: skip
    run(TRANSFORMERS, names)
    assert len(Path("routing.jsonl").read_text().splitlines()) == 2


@pytest.mark.filterwarnings("default")
def test_lightning(my_models: None) -> None:
    pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")
    vit = importlib.import_module("my_models").vit
    names = {"module": lightning_module(vit()), "loader": lightning_loader()}
    shorter = {"steps": ("max_steps=1000", "max_steps=2, accelerator='cpu', enable_progress_bar=False")}
    run(LIGHTNING, names, **shorter)
    written = filter(Path.is_file, Path().glob("lightning_logs/*/*"))
    assert any(b"routing/kappa/since_first" in file.read_bytes() for file in written)
