"""What the tests of reports share."""

from pathlib import Path

import pytest

from tests.studies.report.making import EVAL, write_frames, write_run


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        write_run(tmp_path / "runs" / "match"),
        write_run(tmp_path / "runs" / "eval", "eval", values=EVAL, pictures=()),
        write_frames(tmp_path / "runs" / "overlay"),
    ]
