"""Orbax's folders, made with TensorStore in the layouts that orbax-checkpoint 0.12 leaves."""

import json
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.vmoe import find
from moeprobe.models.checkpoints.vmoe_files import read_vmoe
from tests.commands import sentence, shell
from tests.models.checkpoints import making
from tests.models.checkpoints.making import BFLOAT16
from tests.models.nn.released import random_parameters, to_state_dict

LAYOUTS = [("ocdbt", "zarr"), ("ocdbt", "zarr3"), ("folders", "zarr"), ("folders", "zarr3")]


def written(
    folder: Path, arrays: dict[str, NDArray[Any]], layout: str = "ocdbt", driver: str = "zarr"
) -> Path:
    """A store with an array per name, its keys joined by dots, in chunks that are no divisors; and a file beside it."""
    tensorstore = pytest.importorskip("tensorstore", reason="TensorStore (extra orbax) is not installed")
    folder.mkdir(parents=True)
    (folder / "_METADATA").write_text("{}")
    base = {"driver": "file", "path": f"{folder}/"}
    store = tensorstore.KvStore.open(
        {"driver": "ocdbt", "base": base} if layout == "ocdbt" else base
    ).result()
    transaction = tensorstore.Transaction()
    for name, array in arrays.items():
        dtype = "bfloat16" if array.dtype == BFLOAT16 else array.dtype.name
        place = (store / f"{name.replace('/', '.')}/").spec().to_json()
        opened = tensorstore.open(
            {"driver": driver, "kvstore": place},
            create=True,
            transaction=transaction,
            dtype=dtype,
            shape=array.shape,
            chunk_layout=tensorstore.ChunkLayout(chunk_shape=[max(1, size - 1) for size in array.shape]),
        ).result()
        values = array
        if dtype == "bfloat16":
            values = array.view("<u2").view(tensorstore.bfloat16.numpy_dtype)
        opened.write(values).result()
    transaction.commit_sync()
    return folder


@pytest.mark.parametrize(("layout", "driver"), LAYOUTS)
def test_a_state_of_training(tmp_path: Path, layout: str, driver: str) -> None:
    parameters = random_parameters()
    narrow = np.arange(7, dtype="<u2").view(BFLOAT16)
    state = {f"params/{name}": array for name, array in parameters.items()} | {
        "opt_state/0/mu": narrow,
        "step": np.array(3, "i4"),
    }
    folder = written(tmp_path / "5" / "state", state, layout, driver)
    for source in (folder, folder.parent):
        found = find(source)
        assert found.ignored == {"opt_state": 1, "step": 1}
        tensors, expected = found.read(), to_state_dict(parameters)
        assert set(tensors) == set(expected)
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    read = read_vmoe(folder).arrays["opt_state/0/mu"].read()
    assert (read.dtype, read.tobytes()) == (BFLOAT16, narrow.tobytes())


def test_two_items_have_to_be_told_apart(tmp_path: Path) -> None:
    for name in ("ema", "state"):
        written(tmp_path / "5" / name, {"a": np.ones(3, "f4")})
    with pytest.raises(UserError, match="wrote in it: several: ema, state; name one"):
        read_vmoe(tmp_path / "5")


@pytest.mark.parametrize(("layout", "driver"), LAYOUTS)
def test_a_missing_part_is_not_taken_for_zeros(tmp_path: Path, layout: str, driver: str) -> None:
    """Zarr's own rule is that what is not there is the fill value."""
    folder = written(tmp_path / "c", {"a": np.ones((4, 4), "f4")}, layout, driver)
    if layout == "ocdbt":
        for file in (folder / "d").iterdir():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        largest = max(
            (path for path in folder.glob("a/**/*") if path.name not in (".zarray", "zarr.json")), key=_size
        )
        largest.unlink()
    with pytest.raises(UserError, match=r"^Cannot read "):
        read_vmoe(folder).arrays["a"].read()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def test_damage_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "c", {"a": np.ones(4, "f4")}, "folders")
    (folder / "a" / ".zarray").write_text("{")
    with pytest.raises(UserError, match=r"^Cannot read .*/c/a/\.zarray: it is not JSON"):
        read_vmoe(folder)
    shutil.rmtree(folder)
    written(folder, {"a": np.ones(4, "f4")}, "folders")
    path = folder / "a" / ".zarray"
    path.write_text(path.read_text().replace("[4]", "[4000000000000]"))
    with pytest.raises(UserError, match="should unpack to 16,000,000,000,000"):
        read_vmoe(folder)
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "manifest.ocdbt").write_bytes(b"\x00" * 40)
    with pytest.raises(UserError, match=r"^Cannot read .*/o as a checkpoint of Orbax's: "):
        read_vmoe(tmp_path / "o")


def test_without_tensorstore_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "manifest.ocdbt").touch()
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(
        UserError, match=r"needs TensorStore, .*: pip install -c constraints\.txt -e '\.\[orbax\]'\.$"
    ):
        read_vmoe(tmp_path)
    plain = making.write(tmp_path / "v", *making.content(making.nested(random_parameters())))
    assert find(plain).sizes.width == 6


def test_a_chunk_of_forty_gigabytes_is_refused(tmp_path: Path) -> None:
    """TensorStore makes room for a whole chunk, however small its array, and ends the process where there is none."""
    pytest.importorskip("tensorstore", reason="TensorStore (extra orbax) is not installed")
    about = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [10**10],
        "dtype": "<f4",
        "order": "C",
        "compressor": {"id": "zlib", "level": 1},
    }
    about |= {"fill_value": None, "filters": None, "dimension_separator": "."}
    (tmp_path / "cls").mkdir()
    (tmp_path / "cls/.zarray").write_text(json.dumps(about))
    (tmp_path / "cls/0").write_bytes(zlib.compress(bytes(4000)))
    with pytest.raises(UserError, match=r"a chunk of 'cls' should hold 40,000,000,000 bytes"):
        read_vmoe(tmp_path)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize(("driver", "name"), [("zarr", ".zarray"), ("zarr3", "zarr.json")])
@pytest.mark.parametrize(
    "content",
    [b"[" * 200_000, b'{"a": ' * 70 + b"0" + b"}" * 70, b"{", b"\xff"],
    # The name of a test is handed to processes that it starts.
    ids=["brackets", "levels", "cut off", "no UTF-8"],
)
def test_a_description_that_would_overflow_the_stack(
    tmp_path: Path, driver: str, name: str, content: bytes
) -> None:
    """TensorStore recurses without a bound, which ends the process: hence a process of its own."""
    folder = written(tmp_path / "c", {"a/kernel": np.ones(4, "f4")}, "folders", driver)
    (folder / "a.kernel" / name).write_bytes(content)
    done = shell("import", "vmoe", folder, tmp_path / "out")
    assert done.returncode == 2, (done.returncode, done.stderr[-500:])
    assert name in sentence(done)


def test_a_description_within_a_packed_store(tmp_path: Path) -> None:
    tensorstore = pytest.importorskip("tensorstore", reason="TensorStore (extra orbax) is not installed")
    folder = written(tmp_path / "c", {"a/kernel": np.ones(4, "f4")})
    base = {"driver": "file", "path": f"{folder}/"}
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
    store.write("a.kernel/.zarray", b"[" * 65 + b"]" * 65).result()
    with pytest.raises(UserError, match="at most 16,777,216 bytes and 64 levels"):
        read_vmoe(folder)
