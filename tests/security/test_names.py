"""Names that come out of files lead nowhere else, and are shown as they are, on one line."""

import json
from pathlib import Path

import pytest

from moeprobe.runtime.characters import in_one_line
from tests.commands import refused, run
from tests.inputs.data import making
from tests.security.slots import CHECKPOINT

OUTSIDE = ["../../up", "/etc/up", "a/../../up", "..\\up"]


@pytest.mark.parametrize("name", OUTSIDE[:3])
def test_a_member_of_a_tar_that_leads_out_of_its_folder(name: str, tmp_path: Path) -> None:
    shard = making.tar_shard(tmp_path / "in/test-0.tar", [(f"{name}.png", making.encoded(0))])
    said = refused("eval", CHECKPOINT, "--data", f"webdataset:{shard}")
    assert "leads out of a folder" in said


@pytest.mark.parametrize("name", [*OUTSIDE, "..", ".", "a/b", "", "-rf", "a\nb"])
def test_a_training_of_such_a_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert " name: " in refused("train", "--config", "digits-prc", f"name={json.dumps(name)}", "steps=1")
    sweep = tmp_path / "sweep.yaml"
    about = {"base": "digits-prc", "name": name, "seeds": [0], "cells": [{"model.top_k": [1]}]}
    sweep.write_text(json.dumps(about))
    assert " name: " in refused("tradeoff", sweep, "--out", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"sweep.yaml"}


@pytest.mark.parametrize("name", [*OUTSIDE, ".."])
def test_a_model_of_such_a_name(name: str, tmp_path: Path) -> None:
    settings = tmp_path / "mine.yaml"
    settings.write_text(
        f"name: {name!r}\nimage_size: 32\nnum_prefix_tokens: 1\nmean: [0, 0, 0]\nstd: [1, 1, 1]\n"
    )
    refused(
        "trace", "record", f"py:torch.nn:Identity@{settings}", "--data", "digits", "--out", tmp_path / "out"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"mine.yaml"}


@pytest.mark.parametrize("text", ["one\ntwo", "a\x1b]0;owned\x07b", "c\x9bd", "tab\there", "e\r\nf"])
def test_no_error_has_two_lines_or_steers_the_terminal(text: str) -> None:
    shown = in_one_line(text)
    assert shown.isprintable() and len(shown.splitlines()) == 1


def test_names_with_odd_characters_are_one_sentence(tmp_path: Path) -> None:
    odd = tmp_path / "a\x1b[2J\nb.safetensors"
    odd.write_bytes(b"no weights")
    assert "\x1b" not in refused("inspect", odd)
    said = run("report", tmp_path / "a\x1b[2J").stderr
    assert "\x1b" not in said
