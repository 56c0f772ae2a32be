"""One spelling, American, in code and pages; what files of runs and configurations say stays as it is."""

import re

from tests.sources import ROOT, tracked_files

BRITISH = re.compile(
    r"colour|neighbour|behaviour|favour|[a-z]ecognis|ummaris|serialis|organis|optimis(?!m|tic)|generalis|centre\b|\bgrey|"
    r"ormalis(?:ed|es|ing|ation)|nitialis(?:ed|es|ing|ation)|nlabelled|labelling|modelling|catalogue",
    re.IGNORECASE,
)
# Keys of sidecars and of descriptions.
KEPT = re.compile(r"\"(colours|normalisation)\"")


def test_spelling_is_american() -> None:
    files = [
        ROOT / name
        for name in tracked_files("moeprobe", "tests", "docs", "reports", "benchmarks", "*.md")
        if name.endswith((".py", ".md", ".jinja", ".css", ".js"))
        and name not in ("tests/test_spelling.py", "tests/models/test_config.py")
    ]
    assert len(files) > 300
    british = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in files
        for found in BRITISH.finditer(KEPT.sub("", path.read_text(encoding="utf-8")))
    ]
    assert not british
