"""A training on a folder without ``val``: what is split off is said, and probes use the same split."""

import json
from pathlib import Path

from moeprobe import api
from moeprobe.models import config
from tests.commands import refused, run
from tests.inputs.data.making import encoded, write


def test_a_folder_of_classes_is_trained_and_probed_on_one_split(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        for number in range(30):
            write(tmp_path / "data" / label / f"{number}.png", encoded(number))
    settings = tmp_path / "own.yaml"
    settings.write_text(
        "model: {image_size: 16, num_experts: 4, depth: 2, layers: [1]}\nbatch_size: 8\nsteps: 2\n"
        f"data: {{name: 'folder:{tmp_path / 'data'}', val_fraction: 0.3}}\n"
    )
    trained = run("train", "--config", settings, "--folder", tmp_path / "run", "--device", "cpu")
    assert trained.exit_code == 0, trained.output
    assert "test is 0.1 and val 0.3 of the images, by a hash of each path" in trained.stdout
    about = json.loads((tmp_path / "run" / "last.json").read_text())["training"]
    assert about["split"].startswith("test is 0.1") and about["data"].endswith("?val_fraction=0.3")
    of_val = api.open_data(about["data"], split="val")
    assert f" on {len(of_val)} images of {about['data']} val, " in trained.stdout
    train = set(api.open_data(about["data"], split="train").image_ids)
    for split in ("val", "test", "all"):
        probed = run("eval", tmp_path / "run", "--split", split, "--json", "--device", "cpu")
        assert probed.exit_code == 0, probed.output
        images = set(api.open_data(about["data"], split=split).image_ids)
        found = json.loads(probed.stdout)
        assert max(row["images"] for row in found["table"]) == len(images)
        # Images of the training are said to be such.
        warning = found["sidecar"]["checkpoints"]["run"].get("warning", "")
        assert bool(images & train) == (split == "all") == ("holds images that it was trained on" in warning)


def test_a_share_of_what_has_splits_is_refused() -> None:
    assert "share of data.name=folder:PATH" in refused(
        "train", "--config", "digits-prc", "data.val_fraction=0.2"
    )
    assert config.load("digits-prc").data.source == "digits"
