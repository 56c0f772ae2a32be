"""Files of torch whose names of classes are absurd: refused at once, by every reader, and honest files are not."""

import io
import pickle
import time
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.recordings.responses import load_unpickled
from moeprobe.runtime.torch_names import check_names
from tests.commands import refused
from tests.security.slots import SETTINGS

HONEST = {
    "weight": torch.ones(3, 4),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "nested": OrderedDict(a=[(1, 2.5, None, True), {3}, b"x"], b=torch.Size([2])),
    "text": "x" * 50_000,
    "numbers": list(range(100)),
}
GLOBAL = b"ctorch._utils\n_rebuild_tensor_v2\n"


def saved(*, zipped: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(HONEST, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


def renamed(content: bytes, name: bytes) -> bytes:
    """The same file, whose tensors would be built by another function."""
    new = b"c" + name + b"\n_rebuild_tensor_v2\n"
    if not zipfile.is_zipfile(io.BytesIO(content)):
        assert GLOBAL in content
        return content.replace(GLOBAL, new)
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(stream, "w") as after:
        for member in before.infolist():
            after.writestr(member.filename, before.read(member).replace(GLOBAL, new))
    return stream.getvalue()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", [b"t" + b"(" * 100_000, b"\xc3\xa9" * 50_000])
def test_an_absurd_name_costs_no_time(name: bytes, zipped: bool, tmp_path: Path) -> None:
    for file in ("a.pt", "a.pth"):
        (tmp_path / file).write_bytes(renamed(saved(zipped=zipped), name))
    (tmp_path / "a.yaml").write_text(SETTINGS.format("a.pt"))
    before = time.process_time()
    said = refused("eval", f"py:torch.nn:Identity@{tmp_path / 'a.yaml'}", "--data", "digits")
    assert "Cannot read the weights" in said
    said = refused("import", "swin-moe", tmp_path / "a.pth", tmp_path / "out")
    assert "is damaged or no file of torch's" in said
    if zipped:
        with pytest.raises(UserError, match="is damaged, or torch"):
            load_unpickled(tmp_path / "a.pt")
    # Searching the message of one such file took 20 seconds.
    assert time.process_time() - before < 10


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("spelled", [b"X\x03\0\0\0(((", b"((X\x01\0\0\0xh\x00tt"], ids=["text", "texts"])
def test_what_is_no_class_is_not_called(spelled: bytes, zipped: bool, tmp_path: Path) -> None:
    """torch's message would hold it, as long as it is, or as often as it is repeated."""
    content = b"\x80\x02Nq\x00" + spelled + b")R."
    path = tmp_path / "a.pt"
    path.write_bytes(content)
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/data.pkl", content)
    with pytest.raises(pickle.UnpicklingError, match="it calls what is no class"):
        check_names(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_honest_files_are_passed_on(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(saved(zipped=zipped))
    check_names(path)
    path.write_bytes(renamed(saved(zipped=zipped), b"another.module"))
    check_names(path)  # torch says what it may not name


def test_a_packed_pickle_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(2**20))
    with pytest.raises(pickle.UnpicklingError, match="packed"):
        check_names(tmp_path / "a.pt")
