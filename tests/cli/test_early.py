"""What is mistyped is refused before torch is imported, which takes seconds."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from moeprobe import api
from moeprobe.cli.commands import explain
from moeprobe.cli.front.environment import FAILED
from moeprobe.results.folder import OutputFolder
from tests.commands import SCRIPT, Trained, refused, run
from tests.docs.pages import COMMANDS

# The command line -> what its sentence says.
REFUSALS = {
    "confidence nosuch": "There is no checkpoint 'nosuch'; give a run folder",
    "confidence runs/demo-pcr": "Did you mean 'runs/demo-prc'?",
    "confidence checkpoints/demo-prc": "There is no checkpoint 'checkpoints/demo-prc' yet; moeprobe demo makes it.",
    "compare runs/demo-prc ./checkpoints/demo-baseline": "yet; moeprobe demo makes it.",
    "confidence photos": "photos is not the folder of a checkpoint: it has no last.safetensors.",
    "overlay cat.png --out x": "cat.png is an image, not a checkpoint; give it as: --file cat.png.",
    "compare runs/demo-prc runs/demo-prc --probe match": "Did you mean 'match-ratio'?",
    "compare runs/demo-prc runs/demo-prc --probe analyze-trace": "moeprobe trace analyze ... --out FOLDER",
    "compare runs/demo-prc nosuch": "There is no checkpoint 'nosuch'",
    "inspect resnet50.pth": "give the model as py:module:factory@settings.yaml, or convert it with moeprobe import.",
    "inspect nosuch": "There is no checkpoint 'nosuch'",
    "correspond nosuch --out x": "There is no checkpoint 'nosuch'",
    "match-ratio runs/demo-prc --data digts": "There is no data set 'digts'. Did you mean 'digits'?",
    "match-ratio runs/demo-prc --data photos": "but a folder. Did you mean 'folder:photos'?",
    "match-ratio runs/demo-prc --data lines.txt": "but a file. Did you mean 'text:lines.txt'?",
    "match-ratio runs/demo-prc --data cat.png": "but a file. Give its folder: folder:PATH.",
    "match-ratio runs/demo-prc --data folder:nosuch": "There is no folder 'nosuch' for 'folder'",
    "match-ratio runs/demo-prc --data folder": "'folder' needs a folder: write folder:PATH",
    "match-ratio runs/demo-prc --data text:nosuch.txt": "nosuch.txt",
    "match-ratio runs/demo-prc --data digits --split tests": "There is no split 'tests' here; choose one of train",
    "match-ratio runs/demo-prc --view randomcrop": "There is no view 'randomcrop'. Did you mean 'random_crop'?",
    "correspond --view nosuch --out x": "There is no view 'nosuch'",
    "sweep runs/demo-prc --view gausian_noise": "Did you mean 'gaussian_noise'?",
    "confidence runs/demo-prc --limit 0": "--limit takes a number of inputs from 1 up; got 0.",
    "confidence runs/demo-prc --layers ,": "--layers takes a name, or a list of names; got ','.",
    "confidence runs/demo-prc --capacity none": "--capacity is unlimited or trained; got 'none'.",
    "train --config digits-pcr": "Did you mean 'digits-prc'?",
    "train --config digits-prc data=photos": "Did you mean 'folder:photos'?",
    "train --config digits-prc data=folder:nosuch": "There is no folder 'nosuch'",
    "train --config digits-prc model.router=sofmax": "Did you mean 'softmax_token_choice'?",
    "train --config digits-prc view=nosuch": "There is no view 'nosuch'",
    "train --config digits-prc objective=pcr": "Did you mean 'prc'?",
    "trace analyze nosuch.parquet": "nosuch.parquet",
    "trace import nosuch.jsonl x.parquet": "There is no log nosuch.jsonl.",
    "report nosuch": "nosuch",
    "confidence runs/demo-prc --out photos/full": "photos/full is not empty and not a folder of moeprobe",
    "fewshot runs/demo-prc --out lines.txt": "lines.txt is a file; give a folder.",
    "paper runs/demo-prc runs/demo-prc --out lines.txt": "lines.txt is a file; give a folder.",
    "confidence runs/demo-prc --out done --overwrite": "did not write: mine.txt",
    "tradeoff nosuch --out x": "There is no sweep and no folder of a training called nosuch",
    "tradeoff routers-digits epoch=5 --out x": "epoch",
    "list routrs": "Did you mean 'routers'?",
    "explain chrun": "Nothing is called 'chrun'. Did you mean 'churn'?",
}
# The same of a checkpoint, whose header says its layers, its data and its classes.
CHECKPOINT = Path(__file__).parents[2] / "checkpoints/reference/digits-prc-k2-seed0"
OF_A_CHECKPOINT = {
    "match-ratio C --split foo": "There is no split 'foo' here; choose one of train, val, test.",
    "match-ratio C --device gpu": "There is no device 'gpu'; choose auto or one of cpu, cuda, mps, e.g. cuda:1.",
    "match-ratio C --device cuda:one": "There is no device 'cuda:one'",
    "match-ratio C C": "The same checkpoint was named twice.",
    "match-ratio C --layers blocks.2": "There is no MoE layer 'blocks.2' in C; there are: blocks.1, blocks.3; first",
    "match-ratio C --view gaussian_noise": "'gaussian_noise' makes no pairs; probe it with: moeprobe sweep --view",
    "match-ratio C --view random_crop,area=1": "no parameter of the view 'random_crop' called 'area'. Did you mean",
    "match-ratio C --max-length 8": "--max-length is for texts, and C reads images.",
    "match-ratio C --dry-run --layers blocks.2": "There is no MoE layer 'blocks.2'",
    "sweep C --view random_crop": "has no severity; use: moeprobe match-ratio --view random_crop.",
    "sweep C --view gaussian_noise --severities 0,0": "A severity is named twice in 0.0, 0.0.",
    "sweep C --view typos": "The view 'typos' perturbs texts, and digits holds images; use one of affine, brightness,",
    "confidence C --data text:lines.txt": "C reads images, and text:lines.txt holds texts; name images, e.g. --data",
    "confidence C --class-null": "use it with agree, attack, corruptions, determinism, frames, ",
    "fewshot C --allow-not-finite": "fewshot needs finite gates and scores of all inputs; omit --allow-not-finite",
    "fewshot C --split train": "The shots are drawn from the split train",
    "eval unlabeled": "The classes of unlabeled are unknown, so there is nothing to evaluate; if it was imported",
    "eval dataless": "dataless does not say what it was trained on; name the data, e.g. --data imagenet:PATH",
    "compare C D --probe sweep": "Name the view of the sweep, e.g. --view affine.",
    "compare C D --view gaussian_noise": "The view 'gaussian_noise' makes no pairs",
    "compare C D --layers blocks.2": "There is no MoE layer 'blocks.2' in C, D; there are: blocks.1, blocks.3",
    "compare C D --margin -1": "--margin takes a number from 0 up; got -1.0.",
    "compare C D --fail-if-worse top1_mach": "There is no metric 'top1_mach'. Did you mean 'top1_match'?",
    "compare C D --fail-if-worse accuracy": "is measured by: agree, attack, corruptions, determinism, eval, experts, ",
    "compare C D --fail-if-worse load_entropy": "More load_entropy is neither better nor worse; take one of: churn, ",
    "noise-sweep C --sigmas 0,-0.3": "--sigmas takes standard deviations from 0 to 10; got [0.0, -0.3].",
    "margins C --sigmas 0.2,-0.3": "--sigmas takes standard deviations from 0 to 10; got [0.2, -0.3].",
    "margins C --sigmas 12": "--sigmas takes standard deviations from 0 to 10; got [12.0].",
    "margins C --small 11": "--small takes a standard deviation above 0, up to 10; got 11.",
    "sweep C --view rotation --severities 181": "An angle in degrees must be between 0 and 180; got 181.0.",
    "sweep C --view corruption,kind=fog --severities 2.5": "must be a whole number; got 2.5.",
    "frames C": "digits holds no clips; use --data frames:PATH or imagenet_p:PATH.",
    "align C": "Name at least two models to align.",
    "audit C --minutes -2": "--minutes takes a number above 0; got -2.",
    "trace align one.parquet": "Name at least two traces to align.",
    "trace drift one.parquet": "Name at least two traces: of the first and of the last checkpoint.",
    "compare C": "A comparison needs at least two checkpoints, or finished runs that hold as many.",
    "paper C D --layers blocks.2 --out x": "There is no MoE layer 'blocks.2' in C, D",
    "train --config digits-prc --device gpu": "There is no device 'gpu'",
    "train --config digits-prc view=gaussian_noise": "'gaussian_noise' makes no random views of images to train on.",
    "demo --device gpu": "There is no device 'gpu'",
    "demo epoch=5": "epoch",
    "tradeoff routers-digits --out x --device gpu": "There is no device 'gpu'",
}
# What lists plug-ins reads what they say of themselves, and imports none; help imports less, which is tested below.
LIGHT = (
    *(f"list {kind}" for kind in explain.KINDS),
    *(f"explain {name}" for name in ("churn_kappa", "sim_low", "few_images", "pooled")),
    "trace --help",
    "import --help",
    "export --help",
)
_RUN = f"""{SCRIPT}
for line in json.load(sys.stdin):
    code, _, said = ended(line.split())
    print(json.dumps([line, code, said, "torch" in sys.modules]), flush=True)
"""


def outcomes(lines: list[str], script: str, *, cwd: Path) -> list[Any]:
    """What each command line ended with, said and brought along, in one process."""
    process = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=cwd,
        check=True,
    )
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_refusals_import_no_torch(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("cat.png", "lines.txt", "runs/demo-prc/last.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "photos/full").mkdir()
    (tmp_path / "photos/full/mine.txt").write_text("mine")
    with OutputFolder(tmp_path / "done", {"kind": "eval"}) as folder:
        folder.finish({})
    (tmp_path / "done/mine.txt").write_text("mine")
    every = outcomes([*LIGHT, *REFUSALS], _RUN, cwd=tmp_path)
    listed, found = every[: len(LIGHT)], every[len(LIGHT) :]
    assert not {line: said for line, code, said, _ in listed if code}
    assert [line for line, *_, torch in listed if torch][:1] == []
    assert [line for line, *_ in found] == list(REFUSALS)
    sentences = {line: said for line, code, said, _ in found if code != 2 or not said.startswith("Error: ")}
    assert not sentences
    assert not {line: said for line, _, said, _ in found if REFUSALS[line] not in said}
    # Once imported it stays: the first one is to blame.
    assert [line for line, *_, torch in found if torch][:1] == []
    assert not (tmp_path / "x").exists()


def described(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Copy the header of the checkpoint, with some of its description changed; all weights are 0."""
    with safe_open(CHECKPOINT / "last.safetensors", framework="np") as file:
        arrays = {name: np.zeros_like(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118  (no mapping)
        description = json.loads(file.metadata()["description"])
    change(description)
    path.parent.mkdir()
    save_file(arrays, path, metadata={"description": json.dumps(description)})


@pytest.mark.slow
@pytest.mark.promise
def test_what_the_header_of_a_checkpoint_says_is_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a line\n")
    for name in "CD":
        shutil.copytree(CHECKPOINT, tmp_path / name)
    described(tmp_path / "unlabeled/last.safetensors", lambda about: about.pop("class_names"))
    described(tmp_path / "dataless/last.safetensors", lambda about: about.pop("training"))
    found = outcomes([*OF_A_CHECKPOINT], _RUN, cwd=tmp_path)
    assert [line for line, *_ in found] == list(OF_A_CHECKPOINT)
    assert not {line: said for line, code, said, _ in found if code != 2 or OF_A_CHECKPOINT[line] not in said}
    assert [line for line, *_, torch in found if torch][:1] == []
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["vmoe", "swin"])
def test_the_header_names_the_layers_of_the_model(kind: str) -> None:
    import torch

    from moeprobe.models.checkpoints.header import Header
    from moeprobe.models.config import ModelConfig
    from moeprobe.models.nn.build import build_model
    from moeprobe.models.nn.capture import moe_layers
    from moeprobe.models.nn.swin import build_swin

    sizes = {"image_size": 32, "patch_size": 4, "width": 8, "hidden_width": 16, "num_classes": 2}
    settings: dict[str, Any] = {"layers": [1, 2, 10], "depth": 12, "num_heads": 2, "name": "vmoe"} | sizes
    if kind == "swin":
        swin = {"depths": [2, 10], "num_heads": [2, 2], "windows": [4, 4]}
        settings = {"layers": [1, 3, 11], "swin": swin} | sizes
    with torch.device("meta"):
        model = (build_swin if kind == "swin" else build_model)(ModelConfig.model_validate(settings))
    shapes = {name: tuple(tensor.shape) for name, tensor in sorted(model.state_dict().items())}
    assert Header({}, shapes).moe_layers == tuple(moe_layers(model))


@pytest.mark.slow
@pytest.mark.promise
def test_finished_runs_are_compared_and_reported_without_torch(trained: Trained, tmp_path: Path) -> None:
    for name, options in (
        ("match", ("match-ratio",)),
        ("sweep", ("noise-sweep", "--sigmas", "0,0.2")),
    ):
        result = run(*options, *trained.values(), "--limit", 24, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
    lines = [
        "compare match",
        "compare sweep --fail-if-worse top1_match --full --out compared",
        "compare match --json",
        "report match sweep compared --out report",
        "explain top1_match",
    ]
    found = outcomes(lines, _RUN, cwd=tmp_path)
    assert [line for line, *_ in found] == lines
    assert not {line: said for line, code, said, _ in found if code not in (0, FAILED)}
    assert [line for line, *_, torch in found if torch][:1] == []
    assert (tmp_path / "compared/comparison.csv").is_file() and (tmp_path / "report/report.html").is_file()


@pytest.mark.slow
@pytest.mark.promise
def test_recorded_routing_is_analyzed_without_what_draws(trained: Trained, tmp_path: Path) -> None:
    api.record(trained["prc"], data="digits", limit=4, out=tmp_path / "recorded")
    (trace,) = (tmp_path / "recorded").rglob("*.parquet")
    draws = _RUN.replace('"torch" in sys.modules', '"matplotlib" in sys.modules')
    ((_, code, said, brought),) = outcomes([f"trace analyze {trace}"], draws, cwd=tmp_path)
    assert (code, brought) == (0, False), said


@pytest.mark.slow
@pytest.mark.promise
def test_help_lists_and_mistyped_names_import_nothing_that_takes_long(tmp_path: Path) -> None:
    (tmp_path / "last.safetensors").write_bytes(b"")
    without_arrays = [
        "--help",
        *(f"{command} --help" for command in COMMANDS),
        "match-ratio last.safetensors --view randomcrop",
        "compare last.safetensors last.safetensors --view randomcrop",
    ]
    lines = [
        *without_arrays,
        *(f"list {kind}" for kind in ("", *explain.KINDS) if kind != "metrics"),
        "match-ratio last.safetensors --data digts",
        "fewshot last.safetensors --shots 0",
    ]
    heavy = 'sorted({"torch", "scipy", "pandas", "pyarrow", "matplotlib", "numpy", "PIL"} & {*sys.modules})'
    found = outcomes(lines, _RUN.replace('"torch" in sys.modules', heavy), cwd=tmp_path)
    refusals = [line for line in lines if "last.safetensors" in line]
    assert {line: code for line, code, *_ in found} == {line: 2 * (line in refusals) for line in lines}
    assert [(line, brought) for line, *_, brought in found[: len(without_arrays)] if brought][:1] == []
    assert {name for *_, brought in found for name in brought} <= {"numpy", "PIL"}


@pytest.mark.parametrize("given", ["nosuch", "digits:"])
def test_the_same_sentence_where_it_is_used(given: str) -> None:
    from moeprobe.errors import UserError
    from moeprobe.models.checkpoints.location import find_checkpoint

    with pytest.raises(UserError) as found:
        find_checkpoint(given)
    assert refused("confidence", given) == f"Error: {found.value.sentence}"
