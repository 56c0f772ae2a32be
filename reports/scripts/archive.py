"""Keep what is too heavy for git in an archive of its own, and put it back where it lay.

    python -m reports.scripts.archive pack dist/moeprobe-reports.tar
    python -m reports.scripts.archive fetch [dist/moeprobe-reports.tar]

``reports/MANIFEST.json`` names path, bytes and SHA-256 of each file. ``pack`` writes the manifest and the archive from
the files that are there; ``make reports`` makes figures and animations again. ``fetch`` puts a file back only after its
hash was found right: from an archive, or from the history of the checkout, which has those that were once in git. The
sums per image (``cells.parquet``, ``cells.json``) follow from trainings of hours:
``moeprobe tradeoff prc-ablation --out reports/sweeps/prc-ablation``.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from moeprobe import api
from moeprobe.runtime.files import atomic_file, sha256, write_json

ROOT = Path(__file__).parents[2]
MANIFEST = Path("reports/MANIFEST.json")
# Too heavy for git; .gitignore has the same patterns. Figures of sweeps follow from them: ``make reports``.
PATTERNS = (
    "reports/routers/*/cells.parquet",
    "reports/sweeps/*/cells.parquet",
    "reports/routers/digits-patch4/cells.json",
    "reports/routers/shapes/cells.json",
    "reports/sweeps/experts-digits/cells.json",
    "reports/sweeps/prc-ablation/cells.json",
    "reports/*/animation/figures/*.gif",
)
_CHUNK = 2**20


def pack(archive: Path, *, root: Path = ROOT) -> None:
    """Write the manifest and the archive from the files that are there.

    Raises:
        UserError: a file that the manifest names is missing.
    """
    paths = sorted({path for pattern in PATTERNS for path in root.glob(pattern)})
    names = [path.relative_to(root).as_posix() for path in paths]
    known = read_manifest(root) if (root / MANIFEST).exists() else {}
    if missing := sorted(known.keys() - set(names)):
        raise api.UserError(f"{missing[0]} is missing, which {MANIFEST} names; fetch the last archive first.")
    entries = [
        {"path": name, "bytes": path.stat().st_size, "sha256": sha256(path)}
        for name, path in zip(names, paths, strict=True)
    ]
    archive.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(archive) as temporary, tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in zip(names, paths, strict=True):
            # The same files give the same archive: no times, no owners.
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(entry, file)
    write_json(root / MANIFEST, {"files": entries})


def fetch(archive: Path, *, root: Path = ROOT) -> list[str]:
    """Put the files of an archive back, each once its hash was found right; return their names.

    Raises:
        UserError: the archive cannot be read, lacks a file of the manifest, or holds one that differs from it.
    """
    left = read_manifest(root)
    names = list(left)
    try:
        with tarfile.open(archive, "r:") as tar:
            for entry in tar:
                if (wanted := left.pop(entry.name, None)) is None or not entry.isreg():
                    raise api.UserError(f"{archive} holds {entry.name}, which is no file of {MANIFEST}.")
                _put_back(tar, entry, root / entry.name, wanted["sha256"])
    except (OSError, tarfile.TarError) as error:
        raise api.UserError(f"{archive} cannot be read as an archive of reports ({error}).") from error
    if left:
        raise api.UserError(f"{archive} lacks {next(iter(left))}, which {MANIFEST} names.")
    return names


def restore(*, root: Path = ROOT) -> list[str]:
    """Put the files that are missing or changed back from the history of a checkout; return their names.

    Raises:
        UserError: no commit there has a file with the hash of the manifest; the others are back.
    """
    known = read_manifest(root)
    names = changed(known, root=root)
    lacking = []
    for name in names:
        for commit in _git(root, "log", "--all", "--diff-filter=AM", "--format=%H", "--", name).split():
            content = _git(root, "cat-file", "blob", f"{commit.decode()}:{name}")
            if hashlib.sha256(content).hexdigest() == known[name]["sha256"]:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                with atomic_file(root / name) as temporary:
                    temporary.write_bytes(content)
                break
        else:
            lacking.append(name)
    if lacking:
        raise api.UserError(
            f"No commit of this checkout has {lacking[0]} as {MANIFEST} names it ({len(lacking)} such files); fetch "
            "its whole history (git fetch --unshallow), or give an archive."
        )
    return names


def _git(root: Path, *words: str) -> bytes:
    """Return what a git command prints.

    Raises:
        UserError: git is missing or refuses, as in a folder that is no checkout.
    """
    try:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=True).stdout
    except OSError as error:
        raise api.UserError(
            f"The history of a checkout is read with git, which does not start: {error}."
        ) from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise api.UserError(f"git cannot read the history of {root}: {said}.") from error


def read_manifest(root: Path = ROOT) -> dict[str, dict[str, object]]:
    """Return what the manifest says of each file, by its path."""
    entries = json.loads((root / MANIFEST).read_text(encoding="utf-8"))["files"]
    return {entry["path"]: entry for entry in entries}


def changed(names: Iterable[str], *, root: Path = ROOT) -> list[str]:
    """Return which of the files of the manifest are missing, or differ from it."""
    known = read_manifest(root)
    return [
        name for name in names if not (root / name).is_file() or sha256(root / name) != known[name]["sha256"]
    ]


def _put_back(tar: tarfile.TarFile, entry: tarfile.TarInfo, path: Path, wanted: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(entry)
    assert content is not None  # a regular file
    digest = hashlib.sha256()
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
        if digest.hexdigest() != wanted:
            raise api.UserError(f"{entry.name} in the archive is not the one of {MANIFEST}; fetch it again.")


def main() -> None:
    """Pack, or fetch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("pack", "fetch"))
    parser.add_argument(
        "archive",
        type=Path,
        nargs="?",
        help="to be read or written; fetch without it reads the checkout's history",
    )
    asked = parser.parse_args()
    if asked.action == "pack" and not asked.archive:
        parser.error("name the archive that is to be written")
    try:
        if asked.action == "pack":
            pack(asked.archive)
        elif asked.archive:
            fetch(asked.archive)
        else:
            restore()
    except api.UserError as error:
        sys.exit(str(error))
    size = sum(int(str(entry["bytes"])) for entry in read_manifest().values())
    print(
        f"{asked.archive or 'history'}: {len(read_manifest())} files, {size / 2**20:.0f} MiB, as {MANIFEST} names them."
    )


if __name__ == "__main__":
    main()
