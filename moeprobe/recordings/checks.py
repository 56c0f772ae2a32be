"""What must hold in a routing trace (see ``format``); each fault is one sentence."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.inputs.modality import TOKEN_KINDS
from moeprobe.recordings.format import KEPT, ORDERS

# What is the same in all rows of a layer, and what it is.
OF_LAYER: dict[str, type] = {
    "router": str, "num_experts": int, "top_k": int, "num_prefix_tokens": int, "grid_rows": int, "grid_columns": int,
    "patch_size": int, "gates_sum_to_one": bool, "token_local": bool, "experts_choose": bool, "gates_kept": str,
    "ordered_by": str,
}  # fmt: skip
# Lists of gates for each value of ``gates_kept``.
_KEPT_IN = {
    "none": (),
    "chosen": ("gates",),
    "summary": ("gates", "highest", "second", "rest"),
    "all": ("gates", "all_gates"),
}
_GATES = ("gates", "highest", "second", "rest", "all_gates")
_AGAIN = "record it again"


_OPTIONAL_TEXT = (str, type(None))
_METADATA: dict[str, tuple[type, ...]] = {
    "moeprobe": (str,), "checkpoint": (dict,), "layers": (list,), "skipped": (list,),
    "missing": (list,), "misplaced": (int,), "clusters": (dict,), "data": _OPTIONAL_TEXT,
    "split": _OPTIONAL_TEXT, "view": _OPTIONAL_TEXT, "severity": (int, float, type(None)),
    "severity_unit": _OPTIONAL_TEXT, "seed": (int, type(None)), "inputs": (dict, type(None)),
    "reference": (dict, type(None)), "aligned": (bool, type(None)),
}  # fmt: skip
_CHECKPOINT: dict[str, tuple[type, ...]] = {
    "name": (str,), "sha256": _OPTIONAL_TEXT, "seed": (int, type(None)), "group": _OPTIONAL_TEXT,
    "capacity": _OPTIONAL_TEXT,
}  # fmt: skip


def _misfit(metadata: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> str | None:
    """Return the name of an entry that is missing or mistyped; None where all is well."""
    for name, kind in kinds.items():
        value = metadata.get(name)
        entries = value.values() if name == "clusters" and isinstance(value, dict) else value
        if isinstance(entries, str | dict) or not isinstance(entries, Iterable):
            entries = []
        texts = all(isinstance(entry, str) for entry in entries)
        finite = not isinstance(value, float) or np.isfinite(value)
        if not (isinstance(value, kind) and texts and finite):
            return name
    return None


def damage_error(path: Path) -> UserError:
    """Return the error of a file that cannot be read."""
    return UserError(f"{path} cannot be read: it is not a trace, or is damaged; copy or record it again.")


def metadata(path: Path, metadata: Mapping[str, Any]) -> None:
    """Check the metadata."""
    problem = _misfit({"missing": [], "misplaced": 0, "clusters": {}} | dict(metadata), _METADATA)
    if problem is None:
        problem = _misfit(metadata["checkpoint"], _CHECKPOINT) or (
            "layers" if len(set(metadata["layers"])) < len(metadata["layers"]) else None
        )
    if problem is not None:
        raise UserError(f"{path}: {problem} in its metadata is not as a trace has it; {_AGAIN}.")


def no_inputs_error(path: Path) -> UserError:
    """Return the error of a file without rows."""
    return UserError(f"{path} holds no inputs; {_AGAIN}.")


def twice_error(path: Path, layer: str, name: str) -> UserError:
    """Return the error of a file in which a layer of an input has two rows."""
    return UserError(f"{path} holds {layer} of {name} twice; {_AGAIN}.")


def unknown_layer_error(path: Path, layer: str) -> UserError:
    """Return the error of a file with rows of a layer that it does not name."""
    return UserError(f"{path} holds a layer {layer} that its metadata do not name; {_AGAIN}.")


def lost_row_error(path: Path, layer: str, name: str) -> UserError:
    """Return the error of a file in which a layer lacks an input that other layers have."""
    return UserError(f"{path} has no {layer} of {name}, of which it has other layers; {_AGAIN}.")


def unlike_error(path: Path, layer: str, column: str, values: Sequence[Any]) -> UserError:
    """Return the error of a file whose rows do not say the same of a layer."""
    first = ", ".join(map(str, values))
    return UserError(f"{path}: {column} of {layer} is not the same for all inputs ({first}); {_AGAIN}.")


def layer(path: Path, name: str, sizes: Mapping[str, Any], num_tokens: NDArray[np.generic]) -> None:
    """Check what holds for a layer."""
    experts, top_k, prefix = sizes["num_experts"], sizes["top_k"], sizes["num_prefix_tokens"]
    grid = [sizes["grid_rows"], sizes["grid_columns"], sizes["patch_size"]]
    patches = num_tokens - prefix
    problem = None
    if experts < 1 or not 0 <= top_k <= experts:
        problem = f"a token cannot choose {top_k} of {experts} experts"
    elif sizes["experts_choose"] and top_k != experts:
        problem = f"where experts choose, a token may have all {experts}, and not {top_k}"
    elif sizes["gates_kept"] not in KEPT:
        problem = f"gates_kept is one of {', '.join(KEPT)}, and not {sizes['gates_kept']!r}"
    elif sizes["ordered_by"] not in (None, *ORDERS):
        problem = f"ordered_by is one of {', '.join(ORDERS)}, and not {sizes['ordered_by']!r}"
    elif prefix < 0 or ((patches < 1).any() and num_tokens.any()):
        problem = f"an input has {num_tokens.min()} tokens, {prefix} of them a prefix"
    elif None in grid and any(grid):
        problem = "a grid has rows, columns and a patch size, or none of them"
    elif None not in grid and (
        # Patches of no extent are numbered, where their place in the picture is not known.
        min(grid[:2]) < 1 or grid[2] < 0 or (patches != grid[0] * grid[1]).any()
    ):
        problem = f"{patches[0]} patches do not fill a grid of {grid[0]} × {grid[1]}"
    if problem is not None:
        raise UserError(f"{path}, {name}: {problem}; {_AGAIN}.")


def block(
    where: str, layer: Mapping[str, Any], arrays: Mapping[str, NDArray[Any] | None], ids: Sequence[str]
) -> None:
    """Check the values of some inputs of a layer."""
    columns = _KEPT_IN[layer["gates_kept"]]
    for name in _GATES:
        if (name in columns) != (arrays[name] is not None):
            state = "lacks" if name in columns else "has"
            raise UserError(f"{where} {state} {name}, though gates_kept is {layer['gates_kept']}; {_AGAIN}.")
    if (arrays["partner"] is None) != (arrays["view_first"] is None):
        raise UserError(f"{where}: partner and view_first go together; {_AGAIN}.")
    for name in ("experts", "processed", "valid"):
        assert arrays[name] is not None
    problems = expert_problems(arrays["experts"], num_experts=layer["num_experts"])  # type: ignore[arg-type]
    for name in columns:
        values = arrays[name]
        assert values is not None
        odd = ~(np.isfinite(values) & (values >= 0))
        problems[f"{name} that are no numbers from 0 up"] = odd & _spread(arrays["valid"], odd)
    if arrays["token_ids"] is not None:
        problems["a token_id below 0"] = arrays["token_ids"] < -1
    if arrays["kinds"] is not None:
        problems["a token of no known kind"] = (arrays["kinds"] < -1) | (arrays["kinds"] >= len(TOKEN_KINDS))
    partner = arrays["partner"]
    if partner is not None:
        beyond = (partner < -1) | (partner >= partner.shape[1])
        problems["a partner that is no patch"] = beyond
    for problem, odd in problems.items():
        if odd.any():
            row = int(np.argmax(odd.reshape(len(odd), -1).any(1)))
            raise UserError(f"{where}: {ids[row]} has {problem}; {_AGAIN}.")


def _spread(valid: NDArray[Any] | None, like: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which tokens are valid, for values with more axes."""
    assert valid is not None
    return valid.reshape(valid.shape + (1,) * (like.ndim - 2))


def expert_problems(experts: NDArray[np.integer[Any]], *, num_experts: int) -> dict[str, NDArray[np.bool_]]:
    """Return what may be wrong with choices ``(..., K)``, and where it is."""
    ordered = np.sort(experts, axis=-1)
    repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    gap = (experts[..., 1:] >= 0) & (experts[..., :-1] < 0)
    return {
        f"experts outside of -1 to {num_experts - 1}": (experts < -1) | (experts >= num_experts),
        "one expert twice for a token": repeated,
        "a choice after an absent one (-1)": gap,
    }


def counts(where: str, rows: pa.Table, *, num_experts: int) -> NDArray[np.int64]:
    """Return the counts ``(n, E)`` of rows without tokens."""
    column = rows["counts"].chunk(0) if "counts" in rows.column_names else None
    if column is None or column.null_count or (column.value_lengths().to_numpy() != num_experts).any():
        raise UserError(f"{where}: there are no tokens, and no counts of {num_experts} experts; {_AGAIN}.")
    values = column.flatten()
    counts: NDArray[np.int64] = values.to_numpy(zero_copy_only=False).reshape(-1, num_experts)
    if values.null_count or (counts < 0).any():
        raise UserError(f"{where}: counts are no numbers from 0 up; {_AGAIN}.")
    return counts
