"""What is too heavy for git is packed, and comes back with the same hashes."""

import fnmatch
import subprocess
import tarfile
from pathlib import Path

import pytest

from moeprobe import api
from reports.scripts import archive

ROOT = Path(__file__).parents[2]
NAMES = ("reports/sweeps/a/cells.parquet", "reports/digits/animation/figures/b.gif")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with two heavy files and one that stays in git, packed."""
    for number, name in enumerate((*NAMES, "reports/sweeps/a/table.csv.gz")):
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 3_000_000)
    archive.pack(tmp_path / "packed.tar", root=tmp_path / "checkout")
    return tmp_path / "checkout"


def test_what_is_packed_comes_back_with_the_same_bytes(root: Path) -> None:
    before = {name: (root / name).read_bytes() for name in NAMES}
    assert archive.read_manifest(root).keys() == set(NAMES)
    for name in NAMES:
        (root / name).unlink()
    assert archive.fetch(root.parent / "packed.tar", root=root) == sorted(NAMES)
    assert {name: (root / name).read_bytes() for name in NAMES} == before


def test_the_same_files_give_the_same_archive(root: Path) -> None:
    archive.pack(root.parent / "again.tar", root=root)
    assert (root.parent / "again.tar").read_bytes() == (root.parent / "packed.tar").read_bytes()


def test_a_file_with_another_hash_is_not_put_back(root: Path) -> None:
    old = (root / NAMES[0]).read_bytes()
    (root / NAMES[0]).write_bytes(b"changed since")
    archive.pack(root.parent / "later.tar", root=root)
    with pytest.raises(api.UserError, match=r"cells\.parquet in the archive is not the one of"):
        archive.fetch(root.parent / "packed.tar", root=root)
    assert (root / NAMES[0]).read_bytes() == b"changed since" != old


def test_a_missing_file_is_not_forgotten(root: Path) -> None:
    (root / NAMES[0]).unlink()
    with pytest.raises(api.UserError, match=r"is missing, which .* names"):
        archive.pack(root.parent / "later.tar", root=root)


@pytest.mark.parametrize("name", ["../outside", "reports/other.csv"])
def test_nothing_but_the_files_of_the_manifest_is_written(root: Path, name: str) -> None:
    with tarfile.open(root.parent / "bad.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(api.UserError, match="is no file of"):
        archive.fetch(root.parent / "bad.tar", root=root)
    assert not (root / name).exists()


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "cannot be read"), (b"no archive", "cannot be read"), (None, "lacks")]
)
def test_an_archive_that_is_none_is_refused(root: Path, content: bytes | None, said: str) -> None:
    path = root.parent / "bad.tar"
    if content is None:
        tarfile.open(path, "w").close()
    else:
        path.write_bytes(content)
    with pytest.raises(api.UserError, match=said):
        archive.fetch(path, root=root)


def git_of(root: Path, *words: str) -> None:
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)


def test_files_that_were_once_in_git_come_back_from_its_history(root: Path) -> None:
    """Of several versions the one that the manifest names, whatever lies there now."""
    right = {name: (root / name).read_bytes() for name in NAMES}
    git_of(root, "init", "-q")
    for version in (b"older", None, b"newer"):
        for name in NAMES:
            (root / name).write_bytes(right[name] if version is None else version)
        git_of(root, "add", *NAMES)
        git_of(root, "commit", "-qm", "version")
    git_of(root, "rm", "-q", *NAMES)
    git_of(root, "commit", "-qm", "too heavy")
    (root / NAMES[1]).parent.mkdir(parents=True, exist_ok=True)
    (root / NAMES[1]).write_bytes(b"damaged")
    assert archive.restore(root=root) == sorted(NAMES)
    assert {name: (root / name).read_bytes() for name in NAMES} == right
    assert archive.restore(root=root) == []


def test_a_history_without_a_file_is_told_once_the_others_are_back(root: Path) -> None:
    right = (root / NAMES[1]).read_bytes()
    (root / NAMES[0]).write_bytes(b"another version")
    git_of(root, "init", "-q")
    git_of(root, "add", *NAMES)
    git_of(root, "commit", "-qm", "one of them is not the manifest's")
    for name in NAMES:
        (root / name).unlink()
    with pytest.raises(api.UserError, match=r"No commit .* has reports/sweeps/a/cells\.parquet .*\(1 such"):
        archive.restore(root=root)
    assert (root / NAMES[1]).read_bytes() == right and not (root / NAMES[0]).exists()


def test_a_folder_that_is_no_checkout_is_told(root: Path) -> None:
    (root / NAMES[0]).unlink()
    with pytest.raises(api.UserError, match=r"git cannot read the history of .*not a git repository"):
        archive.restore(root=root)


def _listed(*words: str) -> list[str]:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_git_holds_nothing_heavy_and_the_archive_the_rest() -> None:
    sizes = {}
    for line in _listed("ls-tree", "-r", "-l", "HEAD"):
        about, name = line.split("\t")
        sizes[name] = int(about.split()[3])
    assert sum(sizes.values()) <= 82 * 2**20
    assert max(sizes.values()) <= 2 * 2**20
    assert sum(size > 2**20 for size in sizes.values()) <= 5
    packed = set(archive.read_manifest())
    assert not packed & sizes.keys()
    assert all(any(fnmatch.fnmatch(name, pattern) for pattern in archive.PATTERNS) for name in packed)
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {f"/{pattern}" for pattern in archive.PATTERNS} <= set(ignored)
