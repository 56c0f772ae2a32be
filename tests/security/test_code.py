"""Code is run where the user names it, and nowhere else."""

import json
import shutil
from pathlib import Path

import pytest

from tests.commands import refused, run
from tests.security.slots import Made

MODULE = "open({marker!r}, 'w').close()\ndef model():\n    raise SystemExit\n"


@pytest.fixture
def named(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Shards that say that their model is a factory of a module beside them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "not_mine.py").write_text(MODULE.format(marker=str(tmp_path / "marker")))
    folders = []
    for name in ("shard", "other shard"):
        copy = shutil.copytree(made[name], tmp_path / name.replace(" ", "-"))
        about = json.loads((copy / "shard.json").read_text())
        about["asked"]["checkpoints"] = ["py:not_mine:model"]
        (copy / "shard.json").write_text(json.dumps(about))
        folders.append(copy)
    return folders


def test_a_shard_names_code_and_none_of_it_runs(named: list[Path], tmp_path: Path) -> None:
    assert "add --trust if they are yours" in refused("merge", *named, "--out", "merged")
    assert not (tmp_path / "marker").exists() and not (tmp_path / "merged").exists()


def test_what_is_trusted_is_run(named: list[Path], tmp_path: Path) -> None:
    assert "not_mine" in refused("merge", *named, "--out", "merged", "--trust")
    assert (tmp_path / "marker").exists()


def test_python_says_it_in_its_own_words(named: list[Path]) -> None:
    from moeprobe import api
    from moeprobe.errors import UserError

    with pytest.raises(UserError, match="add trust=True if they are yours"):
        api.merge(named, out="merged")


def test_a_model_that_the_user_names_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_to_run.py").write_text(MODULE.format(marker=str(tmp_path / "marker")))
    result = run("inspect", "py:mine_to_run:model")
    assert result.exit_code == 2 and (tmp_path / "marker").exists()
