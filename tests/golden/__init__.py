"""Comparisons with numbers that a released program printed; README.md says how each was made.

Whatever is compared here is also held to an independent reference in a test of its own.
"""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

_FOLDER = Path(__file__).parent

VALUES, GRADIENTS = 1e-5, 1e-4


def golden(name: str) -> Any:
    """Return the numbers called ``name`` (``router/a_k1.npz``, ``router/cases.json``); NaN is what was thinned out."""
    path = _FOLDER / name
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    with np.load(path) as arrays:
        return dict(arrays)


def golden_names(pattern: str) -> list[str]:
    """Return the names of the files that match."""
    return sorted(str(path.relative_to(_FOLDER)) for path in _FOLDER.glob(pattern))


def golden_checkpoint(name: str, folder: Path) -> Path:
    """Write a checkpoint of the program into a folder, byte for byte; return its index.

    Its parameters are those of ``model_small/params.npz``, so of its data are kept where these lie, and the rest.
    """
    parameters = golden("model_small/params.npz")
    for path in sorted((_FOLDER / "ckpt").glob(f"{name}.data-*.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        content, rest = np.zeros(about["bytes"], np.uint8), np.ones(about["bytes"], bool)
        for parameter, start, stop, place in about["pieces"]:
            piece = np.frombuffer(parameters[parameter].reshape(-1)[start:stop].tobytes(), np.uint8)
            content[place : place + piece.size] = piece
            rest[place : place + piece.size] = False
        content[rest] = np.frombuffer(base64.b64decode(about["rest"]), np.uint8)
        (folder / path.stem).write_bytes(content.tobytes())
    return Path(shutil.copy(_FOLDER / "ckpt" / f"{name}.index", folder))


def assert_golden(actual: torch.Tensor | ArrayLike, reference: ArrayLike, tolerance: float = VALUES) -> None:
    """Assert max|actual - reference| <= tolerance · max|reference|, and that 1.01 x the reference would fail.

    Only values that the reference has are compared.
    """
    expected = np.asarray(reference, dtype=np.float64)
    got = np.asarray(actual.detach() if isinstance(actual, torch.Tensor) else actual, dtype=np.float64)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    assert np.isfinite(got).all()
    kept = ~np.isnan(expected)
    assert kept.any(), "nothing is compared"
    got, expected = got[kept], expected[kept]
    scale = np.abs(expected).max()
    error = np.abs(got - expected).max()
    assert error <= tolerance * scale, f"off by {error:.3g}; the largest reference is {scale:.3g}"
    if scale > 0:
        assert np.abs(1.01 * got - expected).max() > tolerance * scale, "this comparison cannot fail"
