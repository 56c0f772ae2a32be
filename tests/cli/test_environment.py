"""Commands in an environment that is not the usual one: other encodings, no such matplotlib, odd arguments."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moeprobe.cli import main
from moeprobe.cli.front import environment as _environment
from moeprobe.runtime.processes import HUGE_PAGES
from tests.commands import Trained, sentence, shell


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MPLBACKEND", HUGE_PAGES):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(sys, "argv", ["moeprobe"])
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert _environment.prepare([]) is None


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("ascii", "kappa 0.5 +/- 0.1 -> Muller's cafe... ?"),
        ("latin-1", "kappa 0.5 ± 0.1 -> Müller's café... ?"),
        ("utf-8", "κ 0.5 ± 0.1 → Müller’s café… 猫"),
    ],
)
def test_what_an_encoding_lacks_is_written_in_plain_letters(encoding: str, written: str) -> None:
    said = "κ 0.5 ± 0.1 → Müller’s café… 猫"
    assert said.encode(encoding, "moeprobe.plain").decode(encoding) == written


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_says_the_same_in_every_encoding(encoding: str) -> None:
    content = {"κ": "Müller 猫 🦊", "path": "caf\udce9"}
    text = json.dumps(content, ensure_ascii=False).encode(encoding, "moeprobe.json").decode(encoding)
    assert json.loads(text) == content


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_help_is_printed_in_any_encoding(encoding: str) -> None:
    result = shell("import", "swin-moe", "--help", env=os.environ | {"PYTHONIOENCODING": encoding})
    assert (result.returncode, result.stderr) == (0, "")
    assert "P.rank1, ..." in " ".join(result.stdout.split())


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.skipif(sys.platform != "linux", reason="looks where matplotlib keeps its fonts on Linux")
def test_a_home_that_takes_no_files_is_no_matter(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    given = {"HOME": str(tmp_path / "home"), "TMPDIR": str(temporary)}
    unset = ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    env = {name: value for name, value in os.environ.items() if name not in unset} | given
    done = shell("confidence", trained["prc"], "--limit", 4, "--out", tmp_path / "out", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "out" / "figures").iterdir())
    assert not list(temporary.iterdir()), "the folder of matplotlib is gone with the command"


def test_an_argument_that_is_not_utf_8() -> None:
    command = [os.fsencode(sys.executable), b"-m", b"moeprobe", b"inspect", b"caf\xe9"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "caf\\udce9' is not UTF-8" in sentence(result)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_without_room_is_one_sentence() -> None:
    command = [sys.executable, "-m", "moeprobe", "list", "configs"]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2
    assert "No room is left to write" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="has no pipes that break")
def test_a_reader_that_has_read_enough_is_no_bug() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "moeprobe", "--help"]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (result.returncode, result.stderr) == (0, "")


COMMAND = """
import sys
sys.argv[1:] = ["--version"]
from moeprobe.cli import main
try:
    main()
except SystemExit:
    import moeprobe.results.figures
"""


@pytest.mark.slow
@pytest.mark.promise
def test_a_backend_of_matplotlib_that_there_is_not() -> None:
    def python(code: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"MPLBACKEND": "nosuch"}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    result = python(COMMAND)
    assert (result.returncode, result.stderr) == (0, "")
    result = python("import moeprobe.results.figures")
    assert "UserError: matplotlib cannot be imported" in result.stderr
    assert "MPLBACKEND" in result.stderr


HUGE = """
import re
from pathlib import Path
from moeprobe.cli.front import environment
environment.prepare([])
import torch
kept = torch.ones(64 << 18)
sizes = re.findall("AnonHugePages: *([0-9]+) kB", Path("/proc/self/smaps").read_text())
print(sum(map(int, sizes)) // 1024)
"""
_ASKED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.skipif(
    not _ASKED.exists() or "[madvise]" not in _ASKED.read_text(encoding="utf-8"),
    reason="this system has no huge pages for those who ask",
)
@pytest.mark.parametrize(("wish", "least", "most"), [(None, 48, 4096), ("0", 0, 32)])
def test_large_tensors_lie_on_huge_pages_unless_somebody_says_otherwise(
    wish: str | None, least: int, most: int
) -> None:
    """A tensor of 64 MiB."""
    others = {name: value for name, value in os.environ.items() if name != HUGE_PAGES}
    own = {} if wish is None else {HUGE_PAGES: wish}
    command = [sys.executable, "-c", HUGE]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=others | own)
    assert result.returncode == 0, result.stderr
    assert least <= int(result.stdout) <= most


def test_importing_moeprobe_changes_no_other_import() -> None:
    code = "import sys; before = [*sys.meta_path]; import moeprobe; assert sys.meta_path == before, sys.meta_path"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ctrl_c_before_a_command_has_begun_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(argv: list[str]) -> list[Path]:
        raise KeyboardInterrupt

    monkeypatch.setattr("moeprobe.cli.plugin_options", interrupted)
    monkeypatch.setattr("moeprobe.cli.prepare", lambda argv: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
