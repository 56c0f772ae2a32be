"""Several processes that share tar shards or parquet files: no image twice, none lost, names as in one process."""

from pathlib import Path

import pandas as pd
import pytest

from moeprobe.inputs.data.webdataset import Webdataset
from tests.commands import Trained, names_in, run
from tests.inputs.data import making
from tests.inputs.data.making import encoded, hub_rows, tar_shard
from tests.probes.test_ranks import ended, ranks
from tests.probes.test_shards import contents

# Commands in processes of their own leave the same bytes.
pytestmark = pytest.mark.resamples

# Images of each shard: no process' part ends where a shard does.
_SHARDS = (5, 1, 7, 4)


def tar_shards(folder: Path) -> str:
    for number, count in enumerate(_SHARDS):
        members = [(f"{key}.png", encoded(10 * number + key)) for key in range(count)]
        labels = [(f"{key}.cls", b"%d" % (key % 3)) for key in range(count)]
        tar_shard(folder / f"test-{number}.tar", sorted(members + labels))
    return f"webdataset:{folder}"


def parquet_files(folder: Path) -> str:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cow"])}
    )
    folder.mkdir()
    for number, count in enumerate(_SHARDS):
        rows = datasets.Dataset.from_dict(hub_rows(10 * number, count), features=features)
        rows.to_parquet(folder / f"test-{number:05d}-of-{len(_SHARDS):05d}.parquet")
    return f"huggingface:{folder}"


def streamed(folder: Path) -> str:
    return f"huggingface_stream:{making.parquet_files(folder, counts=_SHARDS, splits=('test',))}"


def streamed_from_disk(folder: Path) -> str:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image()})
    rows = datasets.Dataset.from_dict({"image": hub_rows(0, sum(_SHARDS))["image"]}, features=features)
    rows.save_to_disk(folder, num_shards=3)
    return f"huggingface_stream:{folder}"


@pytest.mark.pictures
@pytest.mark.pictures
@pytest.mark.slow
@pytest.mark.parametrize("make", [tar_shards, parquet_files, streamed])
@pytest.mark.parametrize("limit", [[], ["--limit", "11"]])
def test_processes_share_shards_as_one_reads_them(
    make: object, limit: list[str], trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    one, two = tmp_path / "one/sweep", tmp_path / "two/sweep"
    source = make(tmp_path / "data")  # type: ignore[operator]
    asked = ["noise-sweep", trained["prc"], "--data", source, "--split", "test", "--sigmas", "0,0.1"]
    asked += ["--batch-size", "2", *limit]
    assert run(*asked, "--out", one).exit_code == 0
    with ranks(2, *asked, "--out", two) as processes:
        results = ended(processes)
    assert [code for code, _, _ in results] == [0, 0], results
    assert contents(two) == contents(one)
    assert names_in(two) == names_in(one)
    table = pd.read_parquet(two / "images.parquet")
    per_image = table.groupby("image_id").size()
    assert len(per_image) == (11 if limit else sum(_SHARDS))
    if make is tar_shards:
        known = Webdataset(split="test", location=str(tmp_path / "data")).image_ids
        assert set(per_image.index) <= set(known) and len(set(known)) == sum(_SHARDS)


@pytest.mark.pictures
@pytest.mark.pictures
@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("make", [streamed, streamed_from_disk])
def test_parts_of_a_stream_are_put_together_as_one_process_reads_it(
    make: object, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    source = make(tmp_path / "data")  # type: ignore[operator]
    asked = ["noise-sweep", trained["prc"], "--data", source, "--sigmas", "0,0.1"]
    asked += ["--batch-size", "2", "--limit", "13"]
    one, parts, put_together = (tmp_path / name / "sweep" for name in ("one", "parts", "all"))
    assert run(*asked, "--out", one).exit_code == 0
    for part in (1, 2, 3):
        made = run(*asked, "--workers", "2", "--shard", f"{part}/3", "--out", parts / f"{part}")
        assert made.exit_code == 0, made.output
    assert run("merge", *(parts / f"{part}" for part in (1, 2, 3)), "--out", put_together).exit_code == 0
    assert contents(put_together) == contents(one)


def test_a_stream_is_not_trained_on(tmp_path: Path) -> None:
    making.parquet_files(tmp_path / "data", counts=(3, 2))
    config = ["--config", "digits-prc", f"data=huggingface_stream:{tmp_path / 'data'}"]
    refused = run("train", *config, "--folder", tmp_path / "out", "--device", "cpu")
    assert refused.exit_code == 2 and "is a stream; name it huggingface:" in refused.output
