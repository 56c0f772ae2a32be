"""The page on recorded routing: every command of it runs, in its order, on what the page says lies there."""

import json
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.commands import run
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "guide" / "recorded-routing.md"


@pytest.mark.slow
def test_every_command_of_the_page(
    trained: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("checkpoints").mkdir()
    Path("checkpoints/demo-prc").symlink_to(trained["prc"])
    _, line, response, config = blocks("json", PAGE)
    Path("routing.jsonl").write_text(line)
    Path("responses.jsonl").write_text(json.dumps(json.loads(response)))
    Path("config.json").write_text(config)
    commands = [line for block in blocks("bash", PAGE) for line in block.splitlines()]
    assert len(commands) == 9
    said = []
    for command in commands:
        program, *arguments = shlex.split(command, comments=True)
        assert program == "moeprobe"
        if arguments[1] == "drift":
            # As if the noise were what training did to the model.
            for step, name in ((0, "clean"), (100, "gaussian_noise-0.1"), (200, "gaussian_noise-0.2")):
                folder = Path(f"traces/step-{step}")
                folder.mkdir()
                shutil.copy(f"traces/demo-prc/{name}.parquet", folder / "clean.parquet")
        if arguments[1] == "balance":
            shutil.copytree("traces/served", "traces/2026-11-01")
        if arguments[1] == "check":
            shutil.copy("traces/served.parquet", "traces/again.parquet")
        result = run(*arguments)
        assert result.exit_code == 0, (command, result.output)
        said.append(" ".join(result.output.split()))
    assert "κ" in said[1], said[1]
    # The log on the page is one layer of one request, of two tokens.
    assert "1 requests, layers blocks.3: 2 tokens" in said[2], said[2]
    drift = pd.read_csv("reports/drift/table.csv")
    moved = drift[
        (drift["metric"] == "top1_match_kappa") & (drift["null"] == "pooled") & (drift["tokens"] == "patch")
    ]
    layer = moved[moved["layer"] == "blocks.3"].set_index("view")["value"]
    near, far = (layer[f"step-{step}/clean against the first"] for step in (100, 200))
    assert 1 > near > far > 0
    assert "Overlap of the choices in the common input: 1.000" in said[-1], said[-1]
