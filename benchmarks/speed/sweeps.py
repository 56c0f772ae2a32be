"""What the part ``sweep`` runs: a model and images, what its probes cannot do without, a notebook's way.

Axes: B images of a batch, N of all, S pixels of a side, P patches, L severities, E experts.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.declarations import Probe
from moeprobe.declarations.options import FLOOR_IMAGES, Options
from moeprobe.inputs.batches import Loading, batches
from moeprobe.inputs.data.base import Example
from moeprobe.inputs.data.folder import Folder
from moeprobe.inputs.geometry import correspond
from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.open import open_view
from moeprobe.inputs.views.base import PairView
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import capture
from moeprobe.probes.engine.run import run
from moeprobe.probes.engine.run_spec import RunSpec, choose_images, recipe
from moeprobe.results.folder import Result
from moeprobe.runtime.seeds import generator

CLASSES = 10
_SEED = 0
_RESAMPLES = 1000
Choices = NDArray[np.int64]
# layer -> match of the patches
Matches = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        name: of the model, as the table calls it.
        model: keys of ``ModelConfig``.
        images: N.
        batch: images of a forward pass.
    """

    name: str
    model: Mapping[str, Any]
    images: int
    batch: int


class Subject:
    """A model with random parameters, and a folder of made-up photographs (500 x 375 pixels, JPEG)."""

    def __init__(self, sizes: Sizes, folder: Path, device: str) -> None:
        self.sizes, self.folder, self.device = sizes, folder, device
        torch.manual_seed(_SEED)
        config = ModelConfig(num_classes=CLASSES, **sizes.model)
        self.net: Any = build_model(config).to(device)
        self.model = Vmoe(self.net, mean=config.mean, std=config.std).to(device)
        self.framing = Framing(self.model.image_size[0])
        self.checkpoint = Checkpoint(sizes.name, self.model, self.framing)
        if sizes.images > FLOOR_IMAGES:
            raise ValueError(f"The noise floor takes {FLOOR_IMAGES} images at most, not {sizes.images}.")
        write_photographs(folder, sizes.images)
        self.data = Folder(split="test", location=str(folder))

    @cached_property
    def pixels(self) -> Tensor:
        """``(B, 3, S, S)``, normalized, where the model is."""
        shape = (self.sizes.batch, 3, *self.model.image_size)
        return torch.randn(shape, generator=torch.Generator().manual_seed(_SEED)).to(self.device)

    @property
    def num_batches(self) -> float:
        """How many times all images are a batch."""
        return self.sizes.images / self.sizes.batch

    def ask(self, probe: Probe[Result]) -> Result:
        """Run a probe from its images to the last figure, into a folder that is then removed."""
        with tempfile.TemporaryDirectory() as out:
            options = Options(
                batch_size=self.sizes.batch, device=self.device, out=Path(out) / "run", seed=_SEED
            )
            return run(probe, self.checkpoint, data=f"folder:{self.folder}", options=options)

    def whole(self, pixels: Tensor | None = None) -> None:
        """Run the model to its end."""
        with torch.inference_mode():
            self.net(self.pixels if pixels is None else pixels)

    def routed(self, pixels: Tensor | None = None) -> None:
        """Run the model up to its last router."""
        with torch.inference_mode(), capture(self.net, stop_after=self.model.layer_names[-1]):
            self.net(self.pixels if pixels is None else pixels)

    def floor(self, pixels: Tensor | None = None) -> None:
        """Run what the noise floor takes of a batch: the same again, in halves, and in another dtype."""
        clean = self.pixels if pixels is None else pixels
        half = len(clean) // 2
        for part in (clean, clean[:half], clean[half:]):
            self.routed(part)
        with torch.autocast(clean.device.type, dtype=torch.bfloat16):
            self.routed(clean)

    @cached_property
    def order(self) -> list[int]:
        """The images as the probes take them."""
        return choose_images(self.data, limit=None, seed=_SEED)

    def clean_and_noise(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image from its file, and the noise that ``noise-sweep`` draws for it: ``(3, S, S)`` each."""
        example = self.data.example(index)
        clean = self.framing.clean(example.image).pixels
        draws = generator(_SEED, "gaussian_noise", example.image_id)
        return clean, torch.from_numpy(draws.standard_normal(tuple(clean.shape), dtype=np.float32))

    def pair(self, example: Example, view_name: str) -> tuple[Sample, Sample]:
        """Return the two random views that ``match-ratio`` makes of an image."""
        view = open_view(view_name)
        assert isinstance(view, PairView)
        draws = generator(_SEED, view_name, example.image_id)
        return view.pair(example.image, framing=self.framing, rng=draws)

    def normalized(self, pixels: Sequence[Tensor]) -> Tensor:
        """Return a batch of images in [0, 1] as the model takes it."""
        return torch.stack(list(pixels)).sub_(0.5).div_(0.5).to(self.device)


def write_photographs(folder: Path, number: int) -> None:
    """Write JPEG files of smooth noise, ten classes of a split ``test``."""
    for index in range(number):
        pixels = np.random.default_rng(index).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        path = folder / "test" / f"class {index % CLASSES}" / f"{index:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)


class FromFiles:
    """The passes of the probes, and what those need: images from their files, and the views of them."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def sweep(self, sigmas: Sequence[float]) -> None:
        """Run the model on every image, clean and with each amount of noise, and what the noise floor takes."""
        subject = self._subject
        for numbers in self._batches():
            made = [subject.clean_and_noise(index) for index in numbers]
            clean = subject.normalized([image for image, _ in made])
            subject.whole(clean)
            for sigma in sigmas:
                noisy = [(sigma * noise).add_(image).clamp_(0, 1) for image, noise in made]
                subject.whole(subject.normalized(noisy))
            subject.floor(clean)

    def match_ratio(self, view_name: str) -> None:
        """Run the model on two random views of every image."""
        subject = self._subject
        for numbers in self._batches():
            made = zip(
                *(subject.pair(subject.data.example(index), view_name) for index in numbers), strict=True
            )
            for view in made:
                subject.routed(subject.normalized([one.pixels for one in view]))

    def _batches(self) -> Iterator[list[int]]:
        order, size = self._subject.order, self._subject.sizes.batch
        return (order[start : start + size] for start in range(0, len(order), size))


class Notebook:
    """The probes as a notebook does them: view after view, whole passes, forward hooks, NumPy, resamples in a loop.

    It takes the images in the order of the probes, and their draws.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def sweep(self, sigmas: Sequence[float]) -> dict[float, Matches]:
        """Return the match with the clean images, of each amount of noise and each layer."""
        found = {}
        for sigma in sigmas:
            clean, noisy = (self._chosen(self._noisy(amount)) for amount in (0.0, sigma))
            found[sigma] = {name: self._match(clean[name], noisy[name]) for name in clean}
        return found

    def match_ratio(self, view_name: str) -> Matches:
        """Return the match of corresponding patches of two random views, of each layer."""
        pairs, sizes = [], []
        for example in map(self._subject.data.example, self._subject.order):
            pairs.append(self._subject.pair(example, view_name))
            sizes.append(example.image.size)
        first, second = (self._chosen([pair[side].pixels for pair in pairs]) for side in (0, 1))
        maps = [np.stack([pair[side].to_source for pair in pairs]) for side in (0, 1)]
        grid = next(iter(self._subject.model.grids.values()))
        same = correspond(*maps, grid=grid, source_size=np.array(sizes, dtype=np.float64))
        image = np.arange(len(pairs))[:, None]
        return {
            name: self._match(
                np.where(same.valid, first[name][image, same.reference], -1),
                np.where(same.valid, second[name][image, same.view], -1),
            )
            for name in first
        }

    def _noisy(self, sigma: float) -> list[Tensor]:
        made = map(self._subject.clean_and_noise, self._subject.order)
        return [(clean + sigma * noise).clamp(0, 1) for clean, noise in made]

    def _chosen(self, made: list[Tensor]) -> dict[str, Choices]:
        """Return layer -> ``(N, P)`` the first expert of each patch."""
        subject = self._subject
        found: dict[str, list[Choices]] = {name: [] for name in subject.model.layer_names}
        handles = [
            subject.net.get_submodule(name).mlp.router.register_forward_hook(_reader(kept))
            for name, kept in found.items()
        ]
        for start in range(0, len(made), subject.sizes.batch):
            batch = torch.stack(made[start : start + subject.sizes.batch])
            subject.whole(((batch - 0.5) / 0.5).to(subject.device))
        for handle in handles:
            handle.remove()
        prefix = subject.net.num_prefix_tokens
        shape = (len(made), -1)
        return {
            name: np.concatenate([part.ravel() for part in kept]).reshape(shape)[:, prefix:]
            for name, kept in found.items()
        }

    def _match(self, reference: Choices, view: Choices) -> float:
        """Return the match of choices ``(N, P)``, -1 = no trial, when it also has κ and the intervals of both."""
        rng = np.random.default_rng(_SEED)
        images = len(reference)
        resampled = [_match_and_kappa(reference[rows], view[rows]) for rows in _drawn(rng, images)]
        np.percentile(resampled, [2.5, 97.5], axis=0)
        return _match_and_kappa(reference, view)[0]


def _reader(kept: list[Choices]) -> Any:
    def hook(_module: nn.Module, _inputs: object, decision: Any) -> None:
        kept.append(decision.gates.argmax(-1).cpu().numpy())

    return hook


def _drawn(rng: np.random.Generator, images: int) -> Iterator[NDArray[np.int64]]:
    for _ in range(_RESAMPLES):
        yield rng.integers(0, images, images)


def _match_and_kappa(reference: Choices, view: Choices) -> tuple[float, float]:
    trials = reference >= 0
    one, other = reference[trials], view[trials]
    match = float((one == other).mean())
    size = int(max(one.max(), other.max())) + 1
    first, second = (np.bincount(side, minlength=size) / len(one) for side in (one, other))
    chance = float(first @ second)
    return match, (match - chance) / (1 - chance)


def load_views(spec: RunSpec, subject: Subject, *, workers: int) -> None:
    """Make the views of a question in loader processes, and find which patches correspond."""
    grid = next(iter(subject.model.grids.values()))
    loading = Loading(subject.sizes.batch, workers)
    made = batches(spec.dataset, spec.indices, recipe(spec, subject.framing), loading=loading)
    for batch in made:
        for view in range(1, len(batch.views)) if not spec.aligned else ():
            batch.correspond(view, grid)
