"""What a foreign model raises in its own code: an error of that model, which its owner can correct, and no bug of ours.

Where an error arose decides whose it is. What a hook of moeprobe raises inside of a foreign pass stays as it is, so
that our bugs are seen as such; so do ``UserError``, an interruption, and an error that says that memory ran out,
which the engine answers by smaller batches.
"""

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from moeprobe.errors import UserError
from moeprobe.runtime.characters import in_one_line
from moeprobe.runtime.processes import ran_out

_PACKAGE = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
_PYTHON = sysconfig.get_paths()["stdlib"]
_PACKAGES = ("site-packages", "dist-packages")
# Characters of a model's own words in a sentence.
_LONGEST = 300


@contextmanager
def running(model: str, *, doing: str = "in its forward pass") -> Iterator[None]:
    """Turn what a foreign model raises meanwhile into a sentence with its own error and the line that raised it.

    A signal that ends the pass from a hook is to be caught inside.

    Args:
        model: what the sentence calls the model.
        doing: what it did, e.g. "on images (3, 3, 32, 32)".

    Raises:
        UserError: the model's code raised an error, or asked to end the program.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        # A watched call of torch passes through a function of ours of this name, which does no more than call it.
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if frame.name != "__torch_function__"
        ]
        if ran_out(error) or _is_ours(frames):
            raise
        location = f" ({name})" if (name := _location(frames)) else ""
        raise UserError(
            f"{model} raised {error_text(error)} {doing}{location}. Correct the code or the "
            "configuration of the model."
        ) from error


def _is_ours(frames: list[traceback.FrameSummary]) -> bool:
    """Whether a hook of moeprobe failed inside the foreign pass: torch's and Python's own frames do not count."""
    origins = [_origin(frame.filename) for frame in frames]
    foreign = next((number for number, origin in enumerate(origins) if origin in ("torch", "model")), None)
    if foreign is None:
        # The model's code was never entered.
        return True
    innermost = max(number for number, origin in enumerate(origins) if origin in ("moeprobe", "model"))
    return origins[innermost] == "moeprobe" and innermost > foreign


def _location(frames: list[traceback.FrameSummary]) -> str:
    """Return file and line of the innermost code of the model; empty where all of it is torch's."""
    frame = next((frame for frame in reversed(frames) if _origin(frame.filename) == "model"), None)
    if frame is None:
        return ""
    # A package is called by its name, wherever it is installed.
    parts = Path(frame.filename).parts
    installed = max((number for number, part in enumerate(parts) if part in _PACKAGES), default=-1)
    return f"{in_one_line('/'.join(parts[installed + 1 :]) if installed >= 0 else frame.filename)}:{frame.lineno}"


def _origin(file: str) -> str:
    """Return whose code a file is: "moeprobe", "torch", "python" (its own library) or "model"."""
    path = Path(file)
    for origin, folder in (("moeprobe", _PACKAGE), ("torch", _TORCH)):
        if path.is_relative_to(folder):
            return origin
    # The folder of installed packages lies in that of Python's own library.
    is_installed = any(package in path.parts for package in _PACKAGES)
    is_python = file.startswith("<frozen") or (path.is_relative_to(_PYTHON) and not is_installed)
    return "python" if is_python else "model"


def error_text(error: BaseException) -> str:
    """Return the class of an error and the first line of its text."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an error whose text raises is described by its class
        lines = []
    text = in_one_line(lines[0])[:_LONGEST].rstrip(".: ") if lines else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
