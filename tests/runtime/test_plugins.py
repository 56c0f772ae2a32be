"""Plug-ins from outside the package: files that are named, and modules of installed packages."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pandas as pd
import pytest

from moeprobe.errors import UserError
from moeprobe.metrics import registry
from moeprobe.runtime import catalog, plugins
from tests.commands import run, shell

VIEW = '''
"""Plug-ins of a test."""
from dataclasses import dataclass
from typing import ClassVar

from moeprobe.inputs.images import Sample
from moeprobe.inputs.views.base import SeverityView, check_severities


@dataclass(frozen=True)
class ToyContrast(SeverityView):
    """Pixels drawn towards the mean ``gray`` of the image."""

    aligned: ClassVar[bool] = True
    random: ClassVar[bool] = False
    severities: ClassVar[tuple[float, ...]] = (0.0, 0.4, 0.8)
    unit: ClassVar[str] = "share of the contrast that is removed"

    def perturb(self, image, *, framing, severities, rng):
        check_severities(severities, low=0, high=1, what="A loss of contrast")
        clean = framing.clean(image)
        gray = clean.pixels.mean()
        return [Sample(clean.pixels + share * (gray - clean.pixels), clean.to_source) for share in severities]


class _Hidden(ToyContrast):
    pass
'''
OTHERS = '''
from dataclasses import dataclass
from typing import ClassVar

import torch
from PIL import Image
from torch import nn

from moeprobe.adapters.base import Adapter, Checkpoint, wanted_layers
from moeprobe.inputs.data.base import Example, ImageDataset, check_split
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.images import Framing
from moeprobe.inputs.views.random_crop import RandomCrop
from moeprobe.metrics.base import LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import Share
from moeprobe.declarations import Headline, Probe
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from moeprobe.models.training.objectives.base import Objective, Term
from moeprobe.routing.record import LayerRouting, RoutingTrace


class ToyCrop(RandomCrop):
    """Crops of a test."""


class ToyTokenChoice(SoftmaxTokenChoice):
    """Chooses by logits of twice the size."""

    def __init__(self, width, num_experts, top_k: int = 2, *, scale: float = 2.0, capacity=None, eval_capacity=None):
        super().__init__(width, num_experts, top_k, noise_std=0.0, capacity=capacity, eval_capacity=eval_capacity)
        self.scale = scale

    def forward(self, tokens, noise=None):
        return super().forward(self.scale * tokens, noise)


@dataclass(frozen=True)
class ToyObjective(Objective):
    """Small gates."""

    gate_weight: float = 0.01
    needs_pairs: ClassVar[bool] = False

    def terms(self, decisions, views):
        value = sum(decision.clean_gates.square().mean() for decision in decisions.values())
        return {"toy": Term(value, self.gate_weight)}


class ToyColors(ImageDataset):
    """Red, green and blue squares."""

    flippable = False

    def __init__(self, *, split: str, location: str | None = None) -> None:
        check_split(split, self.splits)
        self.image_ids = [f"{split}/{index}" for index in range(24)]
        self.class_names = ("red", "green", "blue")

    def example(self, index):
        color = tuple(255 if channel == index % 3 else 8 * index for channel in range(3))
        return Example(Image.new("RGB", (32, 32), color), self.image_ids[index], label=index % 3)


TOY_SHARE = Metric("toy_share", about="share of the patches that choose expert 0 first", label="first expert")


class ToyShare(LayerAnalysis):
    """The share of patches that choose expert 0 first."""

    measures = (TOY_SHARE,)
    joins = ("sweep",)
    signature = "toy_patches"

    def applies(self, layer):
        return layer.top_k > 0

    def sums(self, pair):
        first = pair.view.selected[:, pair.view.num_prefix_tokens :, 0]
        return {"patch": {"toy_patches": (first >= 0).sum(1), "toy_first": (first == 0).sum(1)}}

    def estimators(self, columns, *, aligned):
        patches = columns["toy_patches"]
        return [TOY_SHARE.raw(Share(columns["toy_first"].astype(float), patches.astype(float)), patches)]


@dataclass(frozen=True, kw_only=True)
class ToyQuestion(Probe):
    """How many patches choose expert 0 first?

    Example: `moeprobe toy-question checkpoints/toy`
    """

    name: ClassVar[str] = "toy-question"
    title: ClassVar[str] = "Expert 0"
    analyses: ClassVar[tuple[str, ...]] = ("toy_share",)
    headlines: ClassVar[tuple[Headline, ...]] = (Headline("toy_share"),)


class ToyZoo(Adapter):
    """A gate on 8 x 8 patches, opened as toy_zoo:NUM_EXPERTS."""

    @classmethod
    def open(cls, reference, *, device, trained_capacity, group_images):
        model = Gate(int(reference)).eval().to(device)
        return Checkpoint(name=f"zoo-{reference}", model=model, framing=Framing(32))


class Gate(nn.Module):
    layer_names = ("gate",)
    group_images = 1

    def __init__(self, num_experts):
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(192, num_experts)

    @torch.no_grad()
    def trace(self, images, *, layers=None, logits=True):
        patches = nn.functional.unfold(images, 8, stride=8).transpose(1, 2)
        gates = self.gate(patches - 0.5).softmax(-1)
        selected = gates.topk(2).indices.to(torch.int16)
        routing = LayerRouting(
            gates=gates, scores=None, selected=selected, processed=torch.ones_like(selected, dtype=torch.bool),
            valid=torch.ones(gates.shape[:2], dtype=torch.bool), grid=PatchGrid(4, 4, 8), num_prefix_tokens=0,
            gates_sum_to_one=True, token_local=True, router="toy",
        )
        return None, RoutingTrace({name: routing for name in wanted_layers(layers, self.layer_names)})
'''
NAMES = {
    "probes": ("toy-question",),
    "views": ("toy_contrast", "toy_crop"),
    "routers": ("toy_token_choice",),
    "objectives": ("toy_objective",),
    "data": ("toy_colors",),
    "analyses": ("toy_share",),
    "adapters": ("toy_zoo",),
}


@pytest.fixture
def view(tmp_path: Path) -> Path:
    path = tmp_path / "view.py"
    path.write_text(VIEW)
    return path


@pytest.fixture
def others(tmp_path: Path) -> Path:
    path = tmp_path / "others.py"
    path.write_text(OTHERS)
    return path


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``use_plugins`` does to this process ends with the test."""
    monkeypatch.setenv(plugins.VARIABLE, "")


def stamp(*paths: Path) -> list[dict[str, str]]:
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return [{"source": name, "sha256": digests[name]} for name in sorted(digests)]


def test_they_are_listed_with_where_they_are_from(view: Path, others: Path) -> None:
    files = ("--plugins", view, "--plugins", others)
    for kind, names in NAMES.items():
        found = json.loads(run(*files, "list", kind, "--json").stdout)
        assert set(names) <= set(found), kind
        assert all(found[name].endswith("(from others.py)") for name in names if name != "toy_contrast")
    found = json.loads(run("list", "views", "--json").stdout)  # named for this process by now
    assert found["toy_contrast"] == "Pixels drawn towards the mean gray of the image. (from view.py)"
    assert "hidden" not in " ".join(found)


def test_the_variable_names_files_as_the_option_does(
    view: Path, others: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugins.VARIABLE, os.pathsep.join([str(view), str(others)]))
    assert "toy_contrast" in catalog.VIEWS.names() and "toy_zoo" in catalog.ADAPTERS
    assert catalog.is_foreign("toy_zoo:8") and not catalog.is_foreign("vmoe:8")
    monkeypatch.setenv(plugins.VARIABLE, str(view))
    assert "toy_zoo" not in catalog.ADAPTERS.names()


def test_nothing_of_the_working_directory_is_imported_by_itself(
    view: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(view.parent)
    (view.parent / "sitting.py").write_text("raise SystemExit(7)")
    (view.parent / "sitting-1.dist-info").mkdir()
    (view.parent / "sitting-1.dist-info" / "entry_points.txt").write_text(
        "[moeprobe.plugins]\nmine = sitting\n"
    )
    found = shell("list", "views")
    assert found.returncode == 0 and "toy" not in found.stdout


PROBE = """
from dataclasses import dataclass
from typing import Any
from moeprobe.declarations import Probe

@dataclass(frozen=True, kw_only=True)
class Mine(Probe[Any]):
    "Asks."
    name = "mine"
    title = "Mine"
"""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            VIEW.replace("    unit:", "    # unit:"),
            "The view ToyContrast of {path} does not say its unit; see moeprobe.inputs.views.base.View.",
        ),
        (
            PROBE.replace("    title", "    # title"),
            "The probe Mine of {path} does not say its title; see moeprobe.declarations.kinds.Kind.",
        ),
        (
            PROBE.replace("    name", "    # name"),
            "The probe Mine of {path} does not say its name; see moeprobe.declarations.kinds.Kind.",
        ),
        (None, "There is no plug-in file {path}."),
        (
            "x = 1\n\nraise ValueError('no weights')\n",
            "Cannot import {path}: line 3: ValueError: no weights.",
        ),
        ("def broken(:\n", "Cannot import {path}: line 1: SyntaxError: invalid syntax."),
        (
            "import no_such_module\n",
            "Cannot import {path}: line 1: ModuleNotFoundError: No module named 'no_such_module'.",
        ),
        ("raise SystemExit(1)\n", "Cannot import {path}: line 1: SystemExit: 1."),
        ("x = 1\n", "{path} holds no plug-in: no class in it is derived from one of moeprobe."),
        (
            "from moeprobe.inputs.views.base import PairView\n\n\nclass Mirror(PairView):\n    pass\n",
            "{path} holds no plug-in: its class Mirror lacks pair.",
        ),
        (
            VIEW.replace("ToyContrast", "Brightness"),
            "{path} has a view 'brightness' (class Brightness), and so has moeprobe; give the class another name.",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    result = run("--plugins", path, "list", "views")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {said.format(path=path)}") and result.stderr.count("\n") == 1
    assert not os.environ[plugins.VARIABLE]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("margins", "is called 'margins', which another probe is called already"),
        ("trace-balance", "has the function trace_balance, which another probe has already"),
    ],
)
def test_a_probe_takes_no_name_of_another(tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PROBE.replace('"mine"', f'"{name}"'))
    catalog.use_plugins([path])
    with pytest.raises(UserError, match=f"^The probe Mine of a plug-in {said}; give it another name"):
        registry.kinds()


@pytest.mark.slow
@pytest.mark.promise
def test_a_process_of_its_own_says_the_same(tmp_path: Path) -> None:
    result = shell("--plugins=none.py", "list", "views", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"Error: There is no plug-in file {tmp_path / 'none.py'}.\n"


def test_two_files_with_one_name(view: Path) -> None:
    other = view.with_name("other.py")
    other.write_text(VIEW)
    with pytest.raises(
        UserError, match=r"view\.py and .*other\.py both have a view 'toy_contrast'; leave one out"
    ):
        catalog.use_plugins([view, other])
    with pytest.raises(UserError, match="is no Python file"):
        catalog.use_plugins([view.with_suffix("")] if view.rename(view.with_suffix("")) else [])


def test_the_name_is_made_of_the_class() -> None:
    for name in ("toy", "prc_crops", "s_matrix", "cifar10"):
        assert catalog.plugin_name(catalog.class_name(name)) == name


def test_a_request_names_the_plugins_that_it_uses(view: Path, others: Path) -> None:
    catalog.use_plugins([view, others])
    assert catalog.plugins_in({"view": {"name": "gaussian_noise"}, "data": "digits", "limit": 3}) == []
    assert catalog.plugins_in({"view": {"name": "toy_contrast"}}) == stamp(view)
    assert catalog.plugins_in({"data": "toy_colors:x", "view": ["toy_contrast"]}) == stamp(view, others)


def test_a_module_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "installed_toys"
    package.mkdir()
    (package / "__init__.py").write_text("from installed_toys.views import ToyContrast\n")
    (package / "views.py").write_text(VIEW)
    about = tmp_path / "installed_toys-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-toys\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[moeprobe.plugins]\ntoys = installed_toys\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [point.value for point in metadata.entry_points(group=plugins.GROUP)] == ["installed_toys"]
    plugins._installed_plugins.cache_clear()
    try:
        assert catalog.VIEWS.describe("toy_contrast").endswith("(from installed_toys)")
        assert catalog.VIEWS.get("toy_contrast").__module__ == "installed_toys.views"
        (source,) = catalog.plugins_in("toy_contrast")
        assert source["source"] == "installed_toys"
    finally:
        monkeypatch.undo()
        plugins._installed_plugins.cache_clear()


@pytest.mark.slow
@pytest.mark.promise
def test_a_process_that_unpickles_a_view_finds_its_class(view: Path) -> None:
    """Where loader processes are not forked, they get the views pickled."""
    catalog.use_plugins([view])
    made = pickle.dumps(catalog.VIEWS.get("toy_contrast")())
    code = f"import moeprobe.inputs.batches, pickle; print(pickle.loads({made!r}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout == "ToyContrast()\n", found.stderr


def test_metrics_of_an_analysis_are_declared_like_others(others: Path) -> None:
    assert not registry.find("toy_share").declared
    catalog.use_plugins([others])
    form = registry.find("toy_share_kappa")
    assert form.metric.label == "first expert" and registry.analyses_of("toy_share") == ("toy_share",)


@pytest.mark.slow
@pytest.mark.promise
def test_real_runs(view: Path, others: Path, tmp_path: Path) -> None:
    """A training with a router, an objective, a view and data from outside; sweeps of it and of an adapter's model."""
    files = ("--plugins", view, "--plugins", others)
    overrides = (
        "data=toy_colors", "model.router=toy_token_choice", "model.router.scale=3.0", "objective=toy_objective",
        "view=toy_crop", "steps=2", "epochs=null", "schedule.warmup_steps=1", "evaluate_every=1", "batch_size=8",
        "name=toy",
    )  # fmt: skip
    trained = shell(
        *files, "train", "--config", "digits-baseline", *overrides, "--device", "cpu", cwd=tmp_path
    )
    assert trained.returncode == 0, trained.stderr
    about = json.loads((tmp_path / "checkpoints" / "toy" / "last.json").read_text())
    assert about["model"]["router"] == {"name": "toy_token_choice", "scale": 3.0}
    assert about["training"]["plugins"] == stamp(others)
    assert "train_toy" in (tmp_path / "checkpoints" / "toy" / "metrics.csv").read_text().splitlines()[0]
    sweep = ("sweep", "checkpoints/toy", "--view", "toy_contrast", "--limit", "12", "--workers", "1")
    probed = shell(*files, *sweep, "--out", "sweep", "--device", "cpu", cwd=tmp_path)
    assert probed.returncode == 0, probed.stderr
    sidecar = json.loads((tmp_path / "sweep" / "table.json").read_text())
    assert sidecar["request"] == json.loads((tmp_path / "sweep" / "run.json").read_text())
    assert sidecar["request"]["plugins"] == stamp(view, others)
    assert sidecar["request"]["data"] == "toy_colors"
    assert "--plugins" in sidecar["command"]
    assert "toy_share" in set(pd.read_csv(tmp_path / "sweep" / "table.csv")["metric"])
    # The same question with another plug-in is another one; without any there is no such router.
    view.write_text(VIEW + "# changed\n")
    (tmp_path / "sweep" / "table.json").unlink()
    changed = shell(*files, *sweep, "--out", "sweep", "--device", "cpu", cwd=tmp_path)
    assert changed.returncode == 2 and "holds an unfinished run of something else" in changed.stderr
    without = shell("eval", "checkpoints/toy", "--device", "cpu", cwd=tmp_path)
    said = "was made with the plug-in others.py, which is not known here; name its file with --plugins"
    assert without.returncode == 2 and f"last.safetensors {said}" in without.stderr
    foreign = ("toy_zoo:4", "toy_zoo:5", "--data", "digits", "--limit", "12", "--device", "cpu")
    measured = shell(*files, "toy-question", *foreign, "--out", "zoo", cwd=tmp_path)
    assert measured.returncode == 0, measured.stderr
    assert "zoo-4" in measured.stdout and "first expert" in measured.stdout
    table = pd.read_csv(tmp_path / "zoo" / "table.csv").query("metric == 'toy_share'")
    assert list(table["checkpoint"]) == ["zoo-4", "zoo-5"] and table["value"].between(0, 1).all()
    request = json.loads((tmp_path / "zoo" / "run.json").read_text())
    assert request["kind"] == "toy-question" and request["plugins"] == stamp(others)
    assert f"zoo {said}" in shell("compare", "zoo", cwd=tmp_path).stderr
    assert "First expert" in shell(*files, "compare", "zoo", cwd=tmp_path).stdout
    compared = shell(*files, "compare", *foreign, "--probe", "toy-question", cwd=tmp_path)
    assert compared.returncode == 0 and "First expert" in compared.stdout, compared.stderr
    assert "toy-question" in shell(*files, "--help").stdout and "toy" not in shell("--help").stdout
    taken = others.with_name("taken.py")
    taken.write_text(others.read_text().replace('"toy-question"', '"report"'))
    refused = shell("--plugins", taken, "--help")
    assert refused.returncode == 2 and "is called 'report', as another command is" in refused.stderr
