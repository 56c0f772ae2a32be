"""The process of a command: streams that can write all characters, JSON and errors on them, no window for figures."""

import atexit
import codecs
import errno
import gc
import json
import os
import shutil
import sys
import tempfile
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeGuard

from moeprobe.errors import RunWarning, UserError
from moeprobe.runtime.characters import harmless, harmless_json, in_one_line, is_unicode
from moeprobe.runtime.files import expand
from moeprobe.runtime.processes import ask_for_huge_pages

# Objects between two looks for garbage; of Python itself 700.
_NEW_OBJECTS = 10_000
# Exit code where the user's input is wrong.
USER_ERROR = 2
# What shells say of a command that Ctrl-C ended.
INTERRUPTED = 130
# Where a gate that the user asked for says no.
FAILED = 3
_PYTHONS = warnings.formatwarning
# Signs that have no ASCII letters in them, as somebody without them would write them.
_PLAIN = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "→": "->", "←": "<-", "×": "x", "±": "+/-", "≥": ">=", "≤": "<=", "≠": "!=",
    "≈": "~", "·": "*", "•": "*", "’": "'", "‘": "'", "“": '"', "”": '"', "κ": "kappa", "σ": "sigma", "Δ": "Delta",
    "α": "alpha", "β": "beta", "λ": "lambda", "μ": "mu", "µ": "u", "ε": "eps", "∞": "inf", "✓": "yes", "✗": "no",
}  # fmt: skip


def open_missing_streams() -> None:
    """Open /dev/null for each standard stream that is closed, as services and cron may leave them.

    It must come before any other file is opened: that one would get the stream's number, and what a library prints
    would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115  (as long as the process lives)
            os.set_inheritable(stream.fileno(), True)  # a program that is started from here needs it too
            setattr(sys, name, stream)


def collect_rarely(*, at_end: bool) -> None:
    """Look for garbage less often: loaded modules stay until the process ends, and looking takes longer than a command.

    Args:
        at_end: collect at the end of the process, so that what code of the user left open is closed.
    """
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    if not at_end:
        atexit.register(gc.freeze)


def prepare(arguments: Sequence[str]) -> str | None:
    """Make the streams write whatever their encoding lacks in other characters; keep figures off the screen.

    Tables are written in plain letters then, and JSON with its own escapes, so that it says the same.

    Returns:
        What is wrong with the arguments, None where nothing is.
    """
    os.environ["MPLBACKEND"] = "agg"
    _give_matplotlib_a_folder()
    ask_for_huge_pages()
    warnings.formatwarning = _format_warning
    codecs.register_error("moeprobe.plain", _replacing(_in_plain_letters))
    codecs.register_error("moeprobe.json", _replacing(_escape))
    handler = "moeprobe.json" if "--json" in arguments else "moeprobe.plain"
    for stream, errors in ((sys.stdout, handler), (sys.stderr, "moeprobe.plain")):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=errors)
    wrong = next((argument for argument in arguments if not is_unicode(argument)), None)
    return None if wrong is None else f"The argument {wrong!r} is not UTF-8; rename what it names."


def _give_matplotlib_a_folder() -> None:
    """Name a temporary folder for its settings and fonts where the home takes none; it would say so in two lines."""
    if sys.platform != "linux" or "MPLCONFIGDIR" in os.environ:
        return
    folders = (("XDG_CONFIG_HOME", "~/.config"), ("XDG_CACHE_HOME", "~/.cache"))
    if all(
        _takes_files(Path(os.environ.get(name) or expand(usual), "matplotlib")) for name, usual in folders
    ):
        return
    folder = os.environ["MPLCONFIGDIR"] = tempfile.mkdtemp(prefix="moeprobe-matplotlib-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _takes_files(folder: Path) -> bool:
    """Whether a folder can be written to, or made."""
    nearest = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    return nearest.is_dir() and os.access(nearest, os.W_OK)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning of ours as a sentence, a library's with its place, as Python does."""
    if isinstance(message, RunWarning):
        return f"Warning: {in_one_line(message.sentence)}\n"
    return _PYTHONS(message, category, filename, lineno, line)


def say(error: UserError) -> None:
    """Print the sentence of an error on one line, whatever names it holds; and its notes, which are lines of code."""
    sys.stderr.write(f"Error: {in_one_line(error.sentence)}\n")
    for note in getattr(error, "__notes__", ()):
        sys.stderr.write(f"{harmless(note)}\n")


def print_json(content: object) -> None:
    """Print JSON in one line; letters of any language stay as they are, and what steers a terminal is escaped."""
    print(harmless_json(json.dumps(content, ensure_ascii=False)))


def _replacing(replace: Callable[[str], str]) -> Callable[[UnicodeError], tuple[str, int]]:
    """Return an error handler that replaces each character."""

    def handle(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(map(replace, error.object[error.start : error.end])), error.end

    return handle


def _in_plain_letters(character: str) -> str:
    decomposed = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return _PLAIN.get(character) or decomposed or "?"


def _escape(character: str) -> str:
    """Return a character as JSON writes it in ASCII: one or two units of UTF-16."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


# Errors of the operating system, wherever they are raised, as one sentence: a disk that fails is no bug.

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# What only a program causes: it uses a file that it closed, or memory that it does not have.
_OURS = (errno.EBADF, errno.EFAULT)
# What libraries that are not written in Python say without a number: Arrow, safetensors, torch.
_SAID = tuple(
    os.strerror(number)
    for number in (
        errno.EIO, errno.ESTALE, errno.EACCES, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENODEV, errno.ENOMEM,
        errno.EINTR, errno.EAGAIN, *_NO_ROOM,
    )
)  # fmt: skip
_PACKAGE = Path(__file__).parents[2]
_LONGEST = 300


def system_error(error: BaseException) -> UserError | None:
    """Return what to say of an error that the operating system reported; None of any other."""
    if isinstance(error, BrokenPipeError):
        return None  # whoever reads the output has read enough: no error
    if isinstance(error, RuntimeError) and _is_loop(error.__context__):
        error = error.__context__
    if isinstance(error, OSError) and error.errno is not None:
        return None if error.errno in _OURS or _lacks_own_file(error) else _of_system(error)
    if not _may_be_in_words(error):
        return None
    phrase = next((words for words in _SAID if words in str(error)), None)
    if phrase is None:
        return None
    # The last line: an error of a loader process begins with its traceback.
    line = in_one_line([line for line in str(error).splitlines() if phrase in line][-1].strip())
    return UserError(f"Reading or writing a file failed: {line[:_LONGEST].rstrip('.')}.")


def _is_loop(error: BaseException | None) -> TypeGuard[OSError]:
    """Whether a link leads to itself, of which ``Path.resolve`` up to Python 3.12 makes a RuntimeError."""
    return isinstance(error, OSError) and error.errno == errno.ELOOP


def _lacks_own_file(error: OSError) -> bool:
    """Whether a file of the package itself is missing, which is a bug or a damaged installation."""
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, str | os.PathLike):
        return False
    return Path(os.path.abspath(error.filename)).is_relative_to(_PACKAGE)  # noqa: PTH100  (which follows links)


def _may_be_in_words(error: BaseException) -> bool:
    """Whether an error's type may report the system's errors in words.

    In any other type such words are a coincidence, and the error is a bug. A library that was not imported raises
    nothing.
    """
    if isinstance(error, OSError | ImportError):  # the latter of a shared library that cannot be opened
        return True
    if type(error) is RuntimeError:
        return "torch" in sys.modules
    libraries = (("pyarrow", "ArrowException"), ("safetensors", "SafetensorError"))
    return any(
        isinstance(error, getattr(sys.modules[module], name))
        for module, name in libraries
        if module in sys.modules
    )


def _of_system(error: OSError) -> UserError:
    reason = error.strerror or os.strerror(error.errno or 0)
    if error.errno in _NO_ROOM:
        where = f" for {error.filename}" if error.filename else ""
        return UserError(f"No room is left to write{where} ({reason}); make some, or write elsewhere.")
    what = error.filename if isinstance(error.filename, str | os.PathLike) else "a file"
    return UserError(f"Cannot read or write {what}: {reason}.")
