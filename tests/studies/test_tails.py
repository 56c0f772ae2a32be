"""Quantiles over inputs from finished runs, against counting tokens by hand."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.results import finished
from moeprobe.results.columns import TAILS_COLUMNS
from moeprobe.studies.audit import result as audit_result
from moeprobe.studies.report import reading
from tests import commands


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Fifty requests of ten tokens, of which the second recording changes the first ``changed``; and these shares."""
    folder = tmp_path_factory.mktemp("tails")
    changed = np.random.default_rng(0).integers(0, 11, 50)
    for name in ("before", "after"):
        lines = [
            {
                "id": f"r{at}",
                "layer": "mlp",
                "experts": [[int(name == "after" and place < count), 2] for place in range(10)],
            }
            for at, count in enumerate(changed)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
        api.import_trace(folder / f"{name}.jsonl", folder / f"{name}.parquet", num_experts=4)
    traces = [folder / f"{name}.parquet" for name in ("before", "after")]
    api.analyze_trace(traces, out=folder / "run", figures=False)
    (folder / "hours.csv").write_text("\n".join(["image_id,hour", *(f"r{at},{at // 2}" for at in range(50))]))
    return folder, changed / 10


def value(table: object, metric: str, at: float) -> float:
    rows = table[(table["metric"] == metric) & (table["at"] == at) & (table["tokens"] == "token")]  # type: ignore[index]
    return float(rows["value"].iloc[-1])


def test_quantiles_and_shares_are_those_of_a_count(run: tuple[Path, np.ndarray]) -> None:
    folder, shares = run
    result = api.tails(folder / "run", above=0.5)
    ordered = sorted(shares)
    assert [value(result.table, "quantile", at) for at in (0.5, 0.9, 0.99)] == pytest.approx(
        [ordered[24], ordered[44], ordered[49]]
    )
    assert value(result.table, "above", 0.5) == pytest.approx(sum(share > 0.5 for share in shares) / 50)
    assert set(result.table["inputs"]) == {50}
    # An input at the limit is not above it.
    assert (shares == 0.3).any()
    at_limit = api.tails(folder / "run", above=0.3)
    assert value(at_limit.table, "above", 0.3) == pytest.approx((shares > 0.3).mean())
    assert result.sentences() == [
        "The 99% quantile has no interval here: it takes 368 requests, and there are 50."
    ]


def test_units_are_added_up_first(run: tuple[Path, np.ndarray]) -> None:
    folder, shares = run
    result = api.tails(folder / "run", unit=str(folder / "hours.csv"))
    assert value(result.table, "quantile", 0.5) == pytest.approx(sorted(shares.reshape(25, 2).mean(1))[12])
    assert "368 hours, and there are 25" in result.sentences()[-1]


def test_the_figure_draws_what_is_above(run: tuple[Path, np.ndarray]) -> None:
    """The height of the curve right of each share is the share of requests above it; the bars are the intervals."""
    folder, shares = run
    result = api.tails(folder / "run")
    [axes] = result.plot()["tails"].axes
    [line] = axes.lines
    x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    for limit in (0.05, 0.35, 0.75, 0.95):
        assert y[np.searchsorted(x, limit, side="right") - 1] == pytest.approx((shares > limit).mean())
    [bars] = axes.collections
    assert isinstance(bars, LineCollection)
    rows = result.table[result.table["ci_low"].notna()]
    assert len(rows) == 2, "the 99 % quantile has no interval"
    expected = [[[low, 1 - at], [high, 1 - at]] for at, low, high in rows[["at", "ci_low", "ci_high"]].values]
    np.testing.assert_allclose(bars.get_segments(), expected)


def test_a_report_has_them(run: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    folder, shares = run
    document = api.report(folder / "run", names=["before the change", "after it"])
    lines = [
        line for line in document.markdown.splitlines() if "Tails: the share of tokens that change" in line
    ]
    assert lines, document.markdown
    median = sorted(shares)[24]
    row = next(
        line
        for line in document.markdown.splitlines()
        if line.startswith("| after it |")
        and "mlp" in line
        and f"{median:.3f} [" in line
        and line.count("[") == 2
    )
    assert row.rstrip("| ").endswith("50")
    # A run without its sums has none, and neither has one of other things.
    copy = tmp_path / "run"
    shutil.copytree(folder / "run", copy)
    (copy / "images.parquet").unlink()
    assert "Tails:" not in api.report(copy).markdown


def test_a_report_needs_no_sums_that_can_be_read(run: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    """The table is an extra: what a run's sums lack or need takes no report away."""
    damaged = tmp_path / "damaged"
    shutil.copytree(run[0] / "run", damaged)
    content = (damaged / "images.parquet").read_bytes()
    # Without its footer, and with a page that is none.
    for broken in (
        content[: len(content) // 2],
        content[:4] + bytes(len(content) // 2) + content[4 + len(content) // 2 :],
    ):
        (damaged / "images.parquet").write_bytes(broken)
        with pytest.raises(UserError):
            api.tails(damaged)
        assert "Tails:" not in api.report(damaged).markdown
    for name, changed in (("plugins", [{"source": "lost.py"}]), ("analyses", ["match", "forgotten"])):
        unknown = tmp_path / name
        shutil.copytree(run[0] / "run", unknown)
        sidecar = json.loads((unknown / "table.json").read_text())
        sidecar["request"][name] = changed
        (unknown / "table.json").write_text(json.dumps(sidecar))
        with pytest.raises(UserError):
            api.tails(unknown)
        assert "Tails:" not in api.report(unknown).markdown


def test_a_report_reads_none_of_too_many_sums(
    run: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run[0] / "run"
    rows = len(pd.read_parquet(folder / "images.parquet"))
    monkeypatch.setattr(reading, "MOST_SUMS", rows)
    assert "Tails:" in api.report(folder).markdown
    monkeypatch.setattr(reading, "MOST_SUMS", rows - 1)
    # It would hash the whole file.
    monkeypatch.setattr(finished, "read", lambda _: pytest.fail("the sums are read"))
    assert "Tails:" not in api.report(folder).markdown


def test_an_audit_reads_none_of_too_many_sums(
    run: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = [run[0] / f"{name}.parquet" for name in ("before", "after")]
    rows = len(pd.read_parquet(run[0] / "run" / "images.parquet"))
    for limit in (rows, rows - 1):
        monkeypatch.setattr(audit_result, "MOST_SUMS", limit)
        assert ("Tails:" in api.audit(traces).html) == (limit == rows)


@pytest.mark.pictures
def test_the_command_prints_and_refuses(run: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    folder, _ = run
    printed = commands.run("tails", folder / "run", "--above", "0.5")
    assert "90% quantile" in printed.stdout
    assert "above 0.5" in printed.stdout
    out = tmp_path / "out"
    printed = commands.run("tails", folder / "run", "--out", out)
    assert printed.exit_code == 0, printed.output
    assert commands.names_in(out) == {"tails.csv", "tails.png"}
    assert list(pd.read_csv(out / "tails.csv").columns) == list(TAILS_COLUMNS)
    assert "holds tails.csv already" in commands.refused("tails", folder / "run", "--out", out)
    assert commands.run("tails", folder / "run", "--out", out, "--overwrite").exit_code == 0
    with pytest.raises(UserError, match="from 0 to below 1"):
        api.tails(folder / "run", above=1.0)
    api.trace_balance(folder / "before.parquet", out=tmp_path / "balance", figures=False)
    with pytest.raises(UserError, match="no matches of tokens"):
        api.tails(tmp_path / "balance")
