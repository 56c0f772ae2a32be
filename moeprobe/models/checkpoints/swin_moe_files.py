"""The files of a Swin-MoE, one per rank of its training, read without executing anything, and put together.

``PREFIX.rank0``, ``PREFIX.rank1``, … hold ``{"model": parameters, "config": …, "optimizer": …}``; the experts of a rank
are its own, all other parameters are the same in every file, or are once in ``PREFIX.master``. A file called PREFIX
itself is one rank.

Source: the layout that Swin-MoE's program writes, as publicly known; no released file was at hand.
"""

import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.runtime.characters import quote
from moeprobe.runtime.files import DAMAGE, check_regular, is_file, is_folder
from moeprobe.runtime.similar_paths import did_you_mean_path
from moeprobe.runtime.torch_names import check_names

EXPERT = re.compile(r"layers\.\d{1,3}\.blocks\.\d{1,4}\.mlp\._moe_layer\.experts\.batched_fc[12]_(w|bias)")
_RANK = re.compile(r"\.rank(\d{1,5})$")


@dataclass(frozen=True)
class RankParameters:
    """The parameters of all ranks.

    Attributes:
        shared: by name, what all ranks have in common.
        experts: by name, each rank's own parameters, in the order of the ranks.
        files: the files read.
    """

    shared: dict[str, Tensor]
    experts: dict[str, list[Tensor]]
    files: tuple[Path, ...]

    @property
    def number(self) -> int:
        """How many ranks there are."""
        return len(next(iter(self.experts.values()), [None]))


def find_files(source: Path) -> tuple[list[Path], Path | None]:
    """Return the files of all ranks in order, and the master file if there is one.

    Args:
        source: PREFIX, or the file of any rank.

    Raises:
        UserError: there are none, or a rank is missing between others.
    """
    prefix = source.with_name(_RANK.sub("", source.name))
    folder = prefix.parent
    names = [path.name for path in folder.iterdir()] if is_folder(folder) else []
    files = {
        int(match[1]): folder / name
        for name in names
        if name.startswith(f"{prefix.name}.rank") and (match := _RANK.fullmatch(name, len(prefix.name)))
    }
    master = prefix.with_name(f"{prefix.name}.master")
    if not files and is_file(prefix):
        return [prefix], None
    if not files:
        raise UserError(
            f"There is no Swin-MoE checkpoint {str(source)!r}: neither a file of that name nor {prefix.name}.rank0."
            f"{did_you_mean_path(source)}"
        )
    missing = sorted(set(range(max(files) + 1)) - set(files))
    if missing:
        raise UserError(
            f"{prefix} lacks the file of rank {', '.join(map(str, missing[:5]))}: the highest of the {len(files)} "
            f"that are there is {max(files)}."
        )
    return [files[rank] for rank in sorted(files)], master if is_file(master) else None


def read_ranks(source: Path, advance: Callable[[], None] = lambda: None) -> RankParameters:
    """Read the files of a checkpoint and check that they are of one; ``advance`` is called for each file.

    Raises:
        UserError: a file is missing, damaged, would have to be executed, or does not belong to the others.
    """
    files, master = find_files(source)
    shared: dict[str, Tensor] = {}
    experts: dict[str, list[Tensor]] = {}
    origin: dict[str, Path] = {}
    names: set[str] | None = None
    for path in [*files, *([master] if master is not None else [])]:
        parameters = _read(path)
        if path != master:
            if names is not None and names != set(parameters):
                odd = sorted(names ^ set(parameters))[0]
                who, lacking = (path, files[0]) if odd in parameters else (files[0], path)
                raise UserError(
                    f"{who} holds {quote(odd)} and {lacking} does not; are they ranks of one checkpoint?"
                )
            names = set(parameters)
        for name, tensor in parameters.items():
            if path != master and EXPERT.fullmatch(name):
                experts.setdefault(name, []).append(tensor)
            elif name not in shared:
                shared[name], origin[name] = tensor, path
            elif not _same(shared[name], tensor):
                raise UserError(
                    f"{path} and {origin[name]} are of different checkpoints: {quote(name)}, which all ranks share, "
                    "differs."
                )
        advance()
    for name, tensors in experts.items():
        shapes = [tuple(tensor.shape) for tensor in tensors]
        odd_ones = [rank for rank, shape in enumerate(shapes) if shape != shapes[0]]
        if odd_ones:
            raise UserError(
                f"{files[odd_ones[0]]} does not belong to {files[0]}: {quote(name)} is {shapes[odd_ones[0]]} there "
                f"and {shapes[0]} here."
            )
        if name in shared:
            raise UserError(
                f"{quote(name)} belongs to the experts, but is in {master}, which all ranks share."
            )
    return RankParameters(shared, experts, tuple(files if master is None else [*files, master]))


def _same(left_tensor: Tensor, right_tensor: Tensor) -> bool:
    return (
        left_tensor.dtype == right_tensor.dtype
        and left_tensor.shape == right_tensor.shape
        and torch.equal(left_tensor, right_tensor)
    )


def _read(path: Path) -> dict[str, Tensor]:
    """Return the parameters of one file.

    Raises:
        UserError: it is damaged, holds none, or something that would have to be executed.
    """
    # What a pickle may name in addition to torch's own list; the configuration becomes plain mappings.
    allowed: list[Any] = [set, frozenset, (OrderedDict, "yacs.config.CfgNode")]
    check_regular(path)
    try:
        check_names(path)
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings(action="ignore"):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    # torch leaves a file that is called so to safetensors.
    except (SafetensorError, *DAMAGE) as error:
        raise UserError(_damage_message(path, error)) from None
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]
    if not isinstance(content, Mapping) or not content:
        raise UserError(
            f"{path} holds no parameters: a mapping of names to tensors, or one under 'model', is needed."
        )
    parameters = {}
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise UserError(f"In {path}, {quote(str(name))} is no tensor, as a parameter should be.")
        parameters[name.removeprefix("module.")] = tensor
    return parameters


def _damage_message(path: Path, error: BaseException) -> str:
    """Return the sentence for a file that torch does not read."""
    refused = re.search(r"GLOBAL ([\w.]{1,100})", str(error))
    if refused is not None:
        return (
            f"{path} holds {refused[1]}, which would have to be executed; in a program that you trust, save the "
            "parameters alone: torch.save({'model': checkpoint['model']}, …)."
        )
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{path} is damaged or no file of torch's ({type(error).__name__}: {first[:200]})."
