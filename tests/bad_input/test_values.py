"""Values that no option takes: exit code 2, no traceback, nothing written."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import run
from tests.security.slots import CHECKPOINT

NUMBERS = ("x", "", "1.5", "1e3", "--", "٣", "0x10")
# Of probes: option -> values.
VALUES: dict[str, tuple[str, ...]] = {
    "--limit": (*NUMBERS, "0", "-1"),
    "--seed": ("x", "", "1.5"),
    "--batch-size": (*NUMBERS, "0", "-1"),
    "--workers": (*NUMBERS[:3], "-1", "257", "100000"),
    "--group-images": (*NUMBERS, "0", "-1"),
    "--max-length": ("x", "", "0", "-1"),
    "--device": ("tpu", "", "cuda:99", "cpu:x"),
    "--capacity": ("", "x", "none"),
    "--masks": ("nowhere", ""),
    "--shard": ("x", "", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "1.5/2"),
    "--split": ("x", "", "TEST"),
    "--layers": ("x", "blocks.99", ",", "blocks.1,blocks.1"),
    "--data": (
        "",
        "x",
        ":",
        "folder",
        "folder:",
        "folder:nowhere",
        "webdataset:{0..9}.tar",
        "mnist:nowhere",
        "digits:x",
    ),
    "--nonsense": ("1",),
}
PROBES = (
    "align", "confidence", "match-ratio", "contagion", "corruptions", "discontinuity", "eval", "experts", "fewshot",
    "flips", "margins", "noise-sweep", "overlay", "regret", "routes", "s-matrix", "sweep", "trace record",
)  # fmt: skip
FEW = ("confidence",)
NEEDED = {"sweep": ("--view", "gaussian_noise")}
OWN: dict[tuple[str, str], tuple[str, ...]] = {
    ("sweep", "--view"): ("x", "", "random_crop", "gaussian_noise:", "synonyms:nowhere"),
    ("sweep", "--severities"): ("x", "", "-1", "0,0", "nan", "inf", "0;1"),
    ("noise-sweep", "--sigmas"): ("x", "", "-1", "0,0", "nan", "inf", "0;1"),
    ("noise-sweep", "--gates"): ("x", ""),
    ("match-ratio", "--view"): ("x", "", "gaussian_noise", "random_crop:x"),
    ("fewshot", "--shots"): ("x", "", "0", "-1", "1.5"),
    ("fewshot", "--draws"): ("x", "", "0", "-1"),
    ("contagion", "--share"): ("x", "", "-1", "2", "nan"),
    ("corruptions", "--corruptions"): ("x", "", "fog,fog", "fog;snow"),
    ("corruptions", "--severities"): ("x", "", "0", "6", "1.5", "1,1", "nan"),
    ("corruptions", "--baseline"): ("x",),
    ("flips", "--patches"): ("x", "", "0", "-1", "1.5"),
    ("flips", "--severities"): ("x", "", "-1", "0,1", "nan"),
    ("flips", "--view"): ("x", "", "random_crop", "affine"),
    ("flips", "--later"): ("x", ""),
    ("regret", "--tried"): ("x", "", "0", "-1", "1.5"),
    ("regret", "--patches"): ("x", "", "0", "1.5"),
    ("regret", "--delta"): ("x", "", "-1", "nan", "inf"),
    ("regret", "--weights"): ("x", ""),
    ("margins", "--sigmas"): ("x", "", "0", "-1", "nan"),
    ("margins", "--draws"): ("x", "", "1", "2.5"),
    ("margins", "--small"): ("x", "", "0", "nan", "inf"),
    ("margins", "--view"): ("x", "", "affine", "random_crop"),
    ("margins", "--transfer"): ("x", "", "gaussian_noise"),
    ("margins", "--transfer-severity"): ("x", "", "1"),
    ("align", "--permutations"): ("x", "", "0", "-1", "1.5"),
    ("discontinuity", "--steps"): ("x", "", "0", "-1"),
    ("overlay", "--count"): ("x", "", "0", "-1"),
    ("overlay", "--severity"): ("x", "", "-1", "nan"),
    ("overlay", "--file"): ("nowhere.png", ""),
    ("trace record", "--tokens"): ("nowhere.jsonl", ""),
    ("routes", "--count"): ("x", "", "0", "-1"),
}


def lines(probes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Each probe with each of the wrong values."""
    for probe in probes:
        for option, values in VALUES.items():
            yield from ((probe, option, value) for value in values)
    for (probe, option), values in OWN.items():
        if probe in probes:
            yield from ((probe, option, value) for value in values)


def refused_at_least(kinds: Iterator[tuple[str, ...]], folder: Path) -> int:
    """Run each; returns how many were refused. What was taken must be done, and nothing else happens."""
    refused = 0
    wrong: list[tuple[object, ...]] = []
    for probe, option, value in kinds:
        typed = (
            *probe.split(),
            CHECKPOINT,
            *NEEDED.get(probe, ()),
            f"{option}={value}",
            "--out",
            folder / "out",
        )
        result = run(*typed, "--dry-run")
        if result.exit_code == 2 and "Traceback" not in result.output and result.stderr.strip():
            refused += 1
        elif result.exit_code != 0:
            wrong.append((probe, option, value, result.exit_code, repr(result.exception)))
        if (folder / "out").exists():
            wrong.append((probe, option, value, "wrote", ""))
    assert not wrong, wrong
    return refused


def test_values_of_one_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused_at_least(lines(FEW), tmp_path) >= 50


@pytest.mark.slow
def test_values_of_all_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused_at_least(lines(PROBES), tmp_path) >= 500
