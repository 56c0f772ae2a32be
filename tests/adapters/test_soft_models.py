"""Models in which nothing is chosen, through every command: rows where something exists, else one sentence."""

from pathlib import Path

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from tests.commands import refused, run
from tests.routing.routings import checkpoint


@pytest.fixture(scope="module")
def soft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A soft MoE without class token, trained for a few steps."""
    folder = tmp_path_factory.mktemp("soft") / "soft"
    overrides = ["name=soft", "model.router=soft_moe", "model.head=gap", "steps=3", "epochs=null"]
    api.train(
        "digits-baseline", overrides=[*overrides, "schedule.warmup_steps=1"], folder=folder, device="cpu"
    )
    return folder


@pytest.mark.parametrize(
    ("command", "consequence"),
    [
        (("noise-sweep", "--attribute", "--limit", 4), "no choices to replay"),
        (("discontinuity", "--limit", 1), "no switches to find"),
        (("discontinuity", "--limit", 1, "--dry-run"), "no switches to find"),
    ],
)
def test_what_does_not_exist_is_one_sentence_and_no_folder(
    soft: Path, tmp_path: Path, command: tuple[object, ...], consequence: str
) -> None:
    out = tmp_path / "out"
    more = () if "--dry-run" in command else ("--out", out)
    assert consequence in refused(command[0], soft, *command[1:], *more)
    assert not out.exists()


@pytest.mark.slow
def test_what_exists_gets_its_rows(soft: Path, tmp_path: Path) -> None:
    for command, metrics in (
        (("match-ratio",), {"slot_match", "slot_match_kappa", "weight_distance", "weight_cosine"}),
        (("confidence",), {"gate_highest", "gate_second", "gate_rest", "gate_margin", "gate_entropy"}),
        (("noise-sweep", "--sigmas", "0,0.2"), {"gate_highest", "accuracy", "prediction_agreement"}),
        (("s-matrix",), {"s", "s_diagonal", "prc_offdiagonal"}),
        (("eval",), {"accuracy", "loss"}),
    ):
        out = tmp_path / command[0]
        result = run(command[0], soft, *command[1:], "--limit", 20, "--out", out)
        assert result.exit_code == 0, result.output
        table = pd.read_csv(out / "table.csv")
        assert metrics <= set(table["metric"])
        assert not table["metric"].str.contains("top1|set_|churn|unserved|load_entropy|dead|share").any()
        assert set(table["tokens"].dropna()) <= {"patch"}  # there is no class token
        assert table["value"].notna().all()
    result = run("report", tmp_path / "noise-sweep", tmp_path / "s-matrix", "--out", tmp_path / "report")
    assert result.exit_code == 0, result.output
    assert "capacity: as trained (soft: 1, 1 image per group)" in (tmp_path / "report/report.md").read_text()


def test_beside_a_sparse_model_what_both_have_is_compared(
    soft: Path, trained: dict[str, Path], tmp_path: Path
) -> None:
    result = run("match-ratio", soft, trained["prc"], "--limit", 20, "--out", tmp_path / "both")
    assert result.exit_code == 0, result.output
    found = pd.read_csv(tmp_path / "both/comparison.csv")
    shared = {"weight_distance", "weight_cosine"}
    assert set(found["metric"]) == shared | {
        f"{name}_{more}" for name in shared for more in ("chance", "kappa")
    }
    table = pd.read_csv(tmp_path / "both/table.csv")
    assert "top1_match" in set(table[table["checkpoint"] == "prc"]["metric"])


def test_of_a_single_expert_nothing_can_be_told(tmp_path: Path) -> None:
    """Every gate is 1 and every token goes there: no number of the matrix means anything."""
    with pytest.raises(UserError, match="Nothing that s-matrix measures exists in a"):
        api.s_matrix([checkpoint(num_experts=1, top_k=1)], limit=4, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_head_does_not_start_from_the_other(soft: Path, trained: dict[str, Path]) -> None:
    for source, head in ((trained["prc"], "gap"), (soft, "token")):
        said = refused(
            "train", "--config", "digits-baseline", f"model.head={head}", f"initialise={source}", "steps=1"
        )
        other = "token" if head == "gap" else "gap"
        assert f"has the head '{other}' and the configured model '{head}': set model.head={other}." in said
