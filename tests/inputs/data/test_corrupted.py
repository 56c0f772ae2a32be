"""ImageNet-C, CIFAR-10-C, ImageNet-P and clips of frames, on small files in their published formats."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.data.cifar10_c import Cifar10C
from moeprobe.inputs.data.frames import Frames
from moeprobe.inputs.data.imagenet_c import ImagenetC
from moeprobe.inputs.data.imagenet_p import ImagenetP
from tests.inputs.data.making import cifar10_c, encoded, frames, imagenet_c, write


def test_one_corruption_at_one_severity_in_either_layout(tmp_path: Path) -> None:
    imagenet_c(tmp_path)
    imagenet_c(tmp_path, kind="glass_blur", family="blur")
    write(tmp_path / "LOC_synset_mapping.txt", b"n01440764 tench\nn01443537 goldfish\nn02012849 crane")
    three, five = (
        ImagenetC(split="test", location=f"{tmp_path}?corruption=snow&severity={severity}")
        for severity in (3, 5)
    )
    blurred = ImagenetC(split="test", location=f"{tmp_path}?severity=3&corruption=glass_blur")
    assert three.image_ids == five.image_ids == blurred.image_ids
    assert three.image_ids[0] == "n01440764/ILSVRC2012_val_00000000.JPEG"
    assert three.class_names == ("tench", "goldfish", "crane") and three.labels().tolist() == [0, 0, 2, 2]
    assert three.example(0).image.tobytes() != five.example(0).image.tobytes()


def test_a_severity_is_a_fifth_of_an_array(tmp_path: Path) -> None:
    cifar10_c(tmp_path, num=4)
    pixels = np.load(tmp_path / "snow.npy")
    for severity in (1, 5):
        data = Cifar10C(split="test", location=f"{tmp_path}?corruption=snow&severity={severity}")
        assert data.image_ids == [f"test/{row:05d}" for row in range(4)]
        for row in range(4):
            example = data.example(row)
            assert np.array_equal(np.asarray(example.image), pixels[4 * (severity - 1) + row])
            assert example.label == row


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("", "write imagenet_c:PATH"),
        ("?corruption=snow", "write imagenet_c:PATH"),
        ("?corruption=snwo&severity=1", "Did you mean 'snow'"),
        ("?corruption=snow&severity=6", "from 1 to 5; got '6'"),
        ("?corruption=fog&severity=1", "no folder 'fog/1'"),
    ],
)
def test_what_is_read_is_named(tmp_path: Path, query: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        ImagenetC(split="test", location=f"{imagenet_c(tmp_path)}{query}")


def test_damaged_arrays_are_one_sentence(tmp_path: Path) -> None:
    location = f"{cifar10_c(tmp_path)}?corruption=snow&severity=1"
    for array, sentence in (
        (np.zeros((19, 32, 32, 3), np.uint8), "5 n images"),
        (np.zeros((20, 32, 32, 3), np.float32), "5 n images"),
        (np.zeros((25, 32, 32, 3), np.uint8), "must hold 25 whole numbers"),
    ):
        np.save(tmp_path / "snow.npy", array)
        with pytest.raises(UserError, match=sentence):
            Cifar10C(split="test", location=location)
    np.save(tmp_path / "snow.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"no \.npy file of numbers"):
        Cifar10C(split="test", location=location)
    with pytest.raises(UserError, match="There is no file"):
        Cifar10C(split="test", location=f"{tmp_path}?corruption=fog&severity=1")


@pytest.mark.parametrize(
    "header",
    ["(", "{'descr': '|u1', 'fortran_order': False, 'shape': (1e999,)}", "{'shape': (5,)}", "\xff", "[" * 60],
)
@pytest.mark.parametrize("name", ["snow", "labels"])
def test_headers_that_numpy_cannot_parse(tmp_path: Path, name: str, header: str) -> None:
    """NumPy parses a header as Python, and raises what a parser does."""
    location = f"{cifar10_c(tmp_path)}?corruption=snow&severity=1"
    length = len(header).to_bytes(2, "little")
    (tmp_path / f"{name}.npy").write_bytes(b"\x93NUMPY\x01\x00" + length + header.encode("latin-1"))
    with pytest.raises(UserError, match=r"no \.npy file of numbers"):
        Cifar10C(split="test", location=location)


@pytest.mark.parametrize("cut", [0, 7, 100, 128, 129, -1])
def test_arrays_that_are_cut(tmp_path: Path, cut: int) -> None:
    location = f"{cifar10_c(tmp_path)}?corruption=snow&severity=1"
    content = (tmp_path / "snow.npy").read_bytes()
    (tmp_path / "snow.npy").write_bytes(content[:cut])
    with pytest.raises(UserError, match=r"no \.npy file of numbers"):
        Cifar10C(split="test", location=location)


def test_frames_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    data = Frames(split="test", location=str(frames(tmp_path, clips=("b", "a"), num=12)))
    assert [list(clip) for clip in data.clips] == [list(range(12)), list(range(12, 24))]
    assert list(data.clip_names) == ["a", "b"]
    assert data.image_ids[2] == "a/frame_2.png" and data.image_ids[10] == "a/frame_10.png"
    (single,) = Frames(split="test", location=str(tmp_path / "a")).clips
    assert len(single) == 12


def test_clips_of_imagenet_p_have_the_class_of_their_folder(tmp_path: Path) -> None:
    frames(tmp_path, clips=("n02012849/v", "n01440764/v"), num=2)
    data = ImagenetP(split="test", location=str(tmp_path))
    assert data.class_names == ("n01440764", "n02012849") and data.labels().tolist() == [0, 0, 1, 1]


def test_a_video_without_pyav_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    write(tmp_path / "clip.mp4", encoded(0))
    with pytest.raises(UserError, match=r"pip install .* -e '\.\[video\]', or store"):
        Frames(split="test", location=str(tmp_path))


def test_videos_are_read_frame_by_frame_in_any_order(tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="the extra video is not installed")
    with av.open(str(tmp_path / "clip.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        for level in range(0, 250, 50):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), level, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    data = pickle.loads(pickle.dumps(Frames(split="test", location=str(tmp_path))))
    assert data.image_ids == [f"clip.mp4/{number:05d}" for number in range(5)]
    for number in (3, 1, 4, 0, 2):
        assert abs(float(np.asarray(data.example(number).image).mean()) - 50 * number) < 8
    write(tmp_path / "damaged.mp4", b"no video")
    with pytest.raises(UserError, match=r"damaged\.mp4.*cannot be read"):
        Frames(split="test", location=str(tmp_path))
