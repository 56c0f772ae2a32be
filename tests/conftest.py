"""What all tests share."""

import os
from collections.abc import Iterator

import pytest

# Figures are drawn without a screen, and two processes on two cores should not fight for them.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "2")


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Say how many golden comparisons ran: a skipped one is easily taken for a passed one."""
    yield
    ran = [r for r in terminalreporter.getreports("passed") if "golden" in r.keywords]
    failed = [r for r in terminalreporter.getreports("failed") if "golden" in r.keywords]
    skipped = [r for r in terminalreporter.getreports("skipped") if "golden" in r.keywords]
    terminalreporter.write_line(
        f"golden comparisons: {len(ran)} passed, {len(failed)} failed, {len(skipped)} skipped"
    )
