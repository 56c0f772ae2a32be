"""Where a run folder of training keeps its weights, and which file a path to a checkpoint means."""

from pathlib import Path

from moeprobe.errors import UserError
from moeprobe.runtime.files import is_file, is_folder
from moeprobe.runtime.similar_paths import did_you_mean_path

# The checkpoint of the full budget.
LAST = "last.safetensors"
# Of a training that has not ended.
STATE = "state.safetensors"
# What moeprobe demo makes, and where by default: examples of commands name them.
CHECKPOINTS, DEMO = Path("checkpoints"), ("demo-baseline", "demo-prc")
# Weights that need the program that wrote them.
_OF_OTHERS = (".pth", ".pt", ".ckpt", ".bin", ".pkl", ".npz", ".msgpack", ".h5", ".onnx")


def find_checkpoint(source: str | Path) -> Path:
    """Return the safetensors file that a path to a file or a run folder means.

    Raises:
        UserError: there is nothing there.
    """
    path = Path(source)
    if path.suffix in _OF_OTHERS and not is_folder(path):
        raise UserError(
            f"{path} is a file of another program: give the model as py:module:factory@settings.yaml, or convert it "
            "with moeprobe import."
        )
    if path.suffix == ".parquet" and is_file(path):
        raise UserError(
            f"{path} is a table, not a checkpoint; recorded routing is for moeprobe trace, e.g. trace analyze."
        )
    if is_folder(path):
        if not is_file(path / LAST):
            raise UserError(f"{path} is not the folder of a checkpoint: it has no {LAST}.")
        return path / LAST
    if not is_file(path):
        if path.parent == CHECKPOINTS and path.name in DEMO:
            raise UserError(f"There is no checkpoint {str(source)!r} yet; moeprobe demo makes it.")
        raise UserError(
            f"There is no checkpoint {str(source)!r}; give a run folder or a .safetensors file."
            f"{did_you_mean_path(path, _is_checkpoint)}"
        )
    return path


def _is_checkpoint(path: Path) -> bool:
    return is_file(path / LAST) or (path.suffix == ".safetensors" and is_file(path))
