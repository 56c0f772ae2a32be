"""The PRC paper's tables and figures for any two checkpoints."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.studies.paper.run import PROBES
from moeprobe.studies.paper.tables import dead, markdown, published_values
from tests.commands import Trained, refused, run

FOLDERS = {
    "match-ratio", "match-ratio-prc-crops", "confidence", "noise-sweep", "s-matrix", "discontinuity", "overlay",
    "animation", "correspond", "eval", "compare",
}  # fmt: skip


@pytest.mark.slow
def test_a_folder_holds_every_table_and_figure(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moeprobe.probes.overlay.measure.write_animations", lambda *_, **__: ([], {}))
    out = tmp_path / "paper"
    arguments = (
        "paper",
        *trained.values(),
        "--limit",
        6,
        "--jump-images",
        1,
        "--names",
        "A,B",
        "--out",
        out,
    )
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert "6 images of digits test" in result.output
    assert "noise σ = 0.2: top-1 match" in result.output
    # The main files by their names, the others by their folders.
    (written,) = [line for line in result.output.splitlines() if line.startswith("Written to")]
    assert "seeds.csv" in written and "match-ratio/ (" in written and "images.parquet" not in written
    assert {path.name for path in out.iterdir() if path.is_dir()} == FOLDERS
    assert all((out / name / "table.json").is_file() for name in FOLDERS)
    text = (out / "tables.md").read_text(encoding="utf-8")
    for title in ("Table 2: accuracy, k = 2", "Table 4: match", "Table 5: confidence", "## Load"):
        assert title in text
    assert "Table 3" not in text.split("Tables 2 to 5", 1)[1], "these checkpoints have k = 2"
    assert text.index("### blocks.1: first MoE layer of 2, as the paper's sixth") < text.index(
        "### blocks.3: MoE layer 2 of 2"
    )
    # The numbers are those of the probes' own tables.
    table = pd.read_csv(out / "seeds.csv")
    probe = pd.read_csv(out / "match-ratio-prc-crops" / "table.csv")
    own = table[
        (table["number"] == "prc_crops: κ₁") & (table["layer"] == "blocks.1") & (table["model"] == "B")
    ]
    there = probe[
        (probe["metric"] == "top1_match_kappa") & (probe["null"] == "pooled") & (probe["tokens"] == "patch")
    ]
    there = there[(there["checkpoint"] == "prc") & (there["layer"] == "blocks.1")]
    assert own.loc[own["kind"] == "value", "value"].item() == there["value"].item()
    # Finished its tables are printed; unfinished it goes on, and what is there is kept.
    again = run(*arguments)
    assert again.exit_code == 0 and "is finished" in again.stderr and "| layer |" in again.stdout
    (out / "table.json").unlink()
    (out / "overlay" / "table.json").unlink()
    times = {name: (out / name / "table.json").stat().st_mtime_ns for name in FOLDERS - {"overlay"}}
    before = (out / "seeds.csv").read_bytes()
    assert run(*arguments).exit_code == 0
    assert {name: (out / name / "table.json").stat().st_mtime_ns for name in times} == times
    assert (out / "overlay" / "table.json").is_file()
    assert (out / "seeds.csv").read_bytes() == before


@pytest.mark.slow
def test_the_data_are_those_that_were_trained_on(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(project)
    result = api.paper(["checkpoints/baseline", "checkpoints/prc"], limit=6)
    assert result.sidecar["request"]["data"] == "folder:photos"
    assert set(result.table["model"]) == {"baseline", "prc"}
    assert "accuracy" in set(result.table["number"])
    assert "on folder:photos" in result.markdown
    # On data of other classes there is no accuracy, and it is said.
    other = api.paper(["checkpoints/baseline", "checkpoints/prc"], data="digits", limit=6)
    assert "accuracy" not in set(other.table["number"])
    assert "No accuracy: digits has no labels of the models' classes." in other.markdown


def test_what_is_refused(trained: Trained, tmp_path: Path) -> None:
    assert "got 1 checkpoint." in refused("paper", trained["prc"], "--out", tmp_path / "x")
    assert "two different names" in refused(
        "paper", *trained.values(), "--names", "A,A", "--out", tmp_path / "x"
    )
    with pytest.raises(UserError, match="got 3 checkpoints"):
        api.paper([*trained.values(), trained["prc"]])
    assert not (tmp_path / "x").exists()


class CutOffError(Exception):
    """A call ended here."""


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes one probe, and ends when it has its numbers, before anything is drawn."""

    def end(*_: object, **__: object) -> None:
        raise CutOffError

    monkeypatch.setattr("moeprobe.studies.paper.run.draw_figures", end)
    monkeypatch.setattr("moeprobe.studies.paper.run.PROBES", {"confidence": PROBES["confidence"]})


def test_an_interrupted_call_does_not_go_on_as_another(
    trained: Trained, tmp_path: Path, cut_off: None
) -> None:
    """The probes that are finished would be taken for those of the other question, or of the other reference."""
    models, out = list(trained.values()), tmp_path / "paper"
    with pytest.raises(CutOffError):
        api.paper(models, names=("A", "B"), limit=2, out=out)
    others: list[tuple[list[Path], dict[str, Any]]] = [
        (models, {"trained_capacity": True}),
        (models, {"skip_bad_images": True}),
        (models, {"allow_not_finite": True}),
        (models[::-1], {}),
    ]
    for given, change in others:
        with pytest.raises(UserError, match="unfinished run of something else"):
            api.paper(given, names=("A", "B"), limit=2, out=out, **change)
    with pytest.raises(CutOffError):
        api.paper(models, names=("A", "B"), limit=2, out=out)


def test_a_probe_that_was_replaced_by_hand_is_not_taken_for_its_own(
    trained: Trained, tmp_path: Path, cut_off: None
) -> None:
    models, out = list(trained.values()), tmp_path / "paper"
    with pytest.raises(CutOffError):
        api.paper(models, limit=2, out=out)
    api.confidence(models, limit=3, out=out / "confidence", overwrite=True)
    before = (out / "confidence" / "table.csv").read_bytes()
    with pytest.raises(UserError, match="confidence holds a finished run of something else"):
        api.paper(models, limit=2, out=out)
    assert (out / "confidence" / "table.csv").read_bytes() == before


def test_a_model_without_a_hash_is_not_taken_for_that_of_before(
    trained: Trained, tmp_path: Path, cut_off: None
) -> None:
    baseline, prc = (api.load_model(path) for path in trained.values())
    # The same by name, with other weights.
    unknown = {**prc.provenance, "sha256": None}
    before, now = (replace(model, name="mine", provenance=unknown) for model in (prc, baseline))
    for mine in (before, now):
        with pytest.raises(CutOffError):
            api.paper([baseline, mine], limit=2, out=tmp_path / "paper")
    table = pd.read_csv(tmp_path / "paper" / "confidence" / "table.csv")
    found = table.pivot(columns="checkpoint", index=["layer", "tokens", "metric", "expert"], values="value")
    assert found["mine"].equals(found["baseline"])


@pytest.mark.slow
def test_dry_run_writes_nothing(trained: Trained, tmp_path: Path) -> None:
    result = run(
        "paper", *trained.values(), "--limit", 4, "--jump-images", 1, "--dry-run", "--out", tmp_path / "x"
    )
    assert result.exit_code == 0, result.output
    assert "for 1 pair before the statistics" in result.output and "discontinuity: 1 image x" in result.output
    assert not (tmp_path / "x").exists()
    printed = run("paper", *trained.values(), "--limit", 2, "--jump-images", 1, "--dry-run", "--json")
    assert printed.exit_code == 0, printed.output
    plan = json.loads(printed.stdout)
    assert plan["seconds"] >= sum(part["seconds"] for part in plan["parts"].values()) > 0


def test_the_papers_values_are_labeled_and_are_next_to_its_own_layer_alone() -> None:
    rows = [
        {
            "top_k": 2,
            "seed": 0,
            "layer": layer,
            "number": "prc_crops: top-1 match",
            "kind": kind,
            "model": model,
        }
        | {"value": 0.5, "ci_low": 0.4, "ci_high": 0.6, "images": 30, "trials": 100}
        for layer in ("blocks.5", "blocks.7")
        for kind, model in (("value", "A"), ("value", "B"), ("difference", "B"))
    ]
    load = pd.DataFrame(columns=["top_k", "seed", "layer", "model", "choices", "expert", "share"])
    text = markdown(pd.DataFrame(rows), load, data="photos")
    assert text.count("*reference: V-MoE with PRC in the paper, ImageNet-1K* | | 0.7578") == 1
    assert text.index("0.7578") < text.index("### blocks.7")
    assert "Foreground" not in text and "accuracy, k" not in text


def test_the_published_values_are_complete() -> None:
    """Tables 2 and 3: two models, four data sets; Table 4 and 5: two models, three numbers. Two are read by hand."""
    values = published_values()
    assert values.groupby("table").size().to_dict() == {"2": 8, "3": 8, "4": 6, "5": 6}
    best = values[(values["table"] == "3") & (values["dataset"] == "Flowers-102")].set_index("model")["value"]
    assert best["V-MoE with PRC"] == 0.9124 and best["V-MoE"] == 0.9021


def test_an_expert_with_less_than_a_tenth_of_an_even_share_is_dead() -> None:
    load = pd.DataFrame({"expert": [0, 1, 2, 3], "share": [0.951, 0.0, 0.024, 0.025]})
    assert dead(load) == [1, 2]
