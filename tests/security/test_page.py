"""The bounds that SECURITY.md states are those of the code."""

from PIL import Image

from moeprobe.inputs.data import flowers102, text, webdataset
from moeprobe.inputs.data.readers import cifar, mnist
from moeprobe.inputs.views import synonyms
from moeprobe.models.checkpoints import vmoe_files
from moeprobe.recordings import model_config, responses
from moeprobe.results import packed
from moeprobe.runtime import files, parquet, yaml
from moeprobe.studies.report import pictures
from tests.security.slots import ROOT

MIB = 2**20


def test_bounds() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [
        f"(YAML) | {yaml._LIMIT // MIB} MiB, {yaml._DEEPEST} levels, {yaml._MOST:,} values",
        f"(JSON) | {files.JSON_LIMIT // MIB} MiB |",
        f"| {model_config.MOST_LAYERS:,}, and as many as its files have tensors; "
        f"{model_config.MOST_EXPERTS:,} experts |",
        f"(`cells.json`) | {packed._LIMIT // MIB} MiB |",
        f"in a report | {pictures._LIMIT // 2**30} GiB |",
        f"| image | {(Image.MAX_IMAGE_PIXELS or 0) / 1e6:.0f} million pixels; "
        f"{webdataset._LARGEST // MIB} MiB in a tar",
        f"| idx, packed or not | {mnist._MOST // 2**30} GiB |",
        f"| CIFAR's file | {cifar._MOST // 2**30} GiB; its list of names {cifar._LONGEST // MIB} MiB |",
        f"| texts | {text._LIMIT // MIB} MiB |",
        f"| synonyms | {synonyms._LIMIT // MIB} MiB |",
        f"| one response of a server, in a file | {responses.MOST_BYTES // MIB} MiB |",
        f"| Parquet | {parquet.MOST_VALUES / 1e6:.0f} million values in a row group; "
        f"{parquet.MOST_ROWS / 1e6:.0f} million rows",
        f"at most {vmoe_files._MOST_UNPACKED:,} times its size",
    ]
    for row in rows:
        assert row in page, row
    assert flowers102._MOST == webdataset._MOST_CLASSES == 10**6
