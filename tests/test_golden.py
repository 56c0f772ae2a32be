"""The golden numbers are all there, small, and each file is described."""

import hashlib
import json
import re
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

from tests.golden import assert_golden, golden_checkpoint

FOLDER = Path(__file__).parent / "golden"
FILES = [
    path.relative_to(FOLDER).as_posix()
    for path in FOLDER.rglob("*")
    if path.suffix in (".npz", ".json", ".index")
]


def test_each_file_is_described_and_small() -> None:
    rows = re.findall(
        r"^\| (`.*?) \|", (FOLDER / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    patterns = [pattern for row in rows for pattern in re.findall(r"`(.*?)`", row)]
    assert [name for name in FILES if not any(fnmatch(name, pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in FILES)] == []
    sizes = [(FOLDER / name).stat().st_size for name in FILES]
    assert max(sizes) < 2**20 and sum(sizes) <= 5_000_000


@pytest.mark.parametrize(("name", "shards"), [("small_1shard", 1), ("small_4shards", 4)])
def test_checkpoints_are_put_together_byte_for_byte(name: str, shards: int, tmp_path: Path) -> None:
    golden_checkpoint(name, tmp_path)
    written = sorted(tmp_path.glob(f"{name}.data-*"))
    assert len(written) == shards
    for path in written:
        about = json.loads((FOLDER / "ckpt" / f"{path.name}.json").read_text(encoding="utf-8"))
        assert hashlib.sha256(path.read_bytes()).hexdigest() == about["sha256"]


def test_values_that_were_thinned_out_are_not_compared_and_the_others_are() -> None:
    reference = np.array([1.0, np.nan, 3.0])
    assert_golden(np.array([1.0, 7.0, 3.0]), reference)
    with pytest.raises(AssertionError, match="off by"):
        assert_golden(np.array([1.1, 7.0, 3.0]), reference)
    with pytest.raises(AssertionError):
        assert_golden(np.array([1.0, np.nan, 3.0]), reference)
    with pytest.raises(AssertionError, match="nothing is compared"):
        assert_golden(np.array([1.0]), np.array([np.nan]))
