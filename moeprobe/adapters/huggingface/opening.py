"""Open a model of ``transformers``: read its files, put its weights into place, and say where it is from."""

from functools import partial
from typing import TYPE_CHECKING

import torch

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.huggingface import placing
from moeprobe.adapters.huggingface.digests import digesting, reload
from moeprobe.adapters.huggingface.files import load, load_processor, name_of
from moeprobe.adapters.huggingface.gguf_files import locate
from moeprobe.adapters.huggingface.picture_model import PictureModel
from moeprobe.adapters.huggingface.settings import split_settings
from moeprobe.adapters.residence import admit, make_room
from moeprobe.errors import UserError
from moeprobe.runtime.files import expand
from moeprobe.runtime.placement import WeightPlacement

if TYPE_CHECKING:
    from moeprobe.adapters.huggingface import HuggingfaceAdapter


def open_model(
    adapter: "type[HuggingfaceAdapter]",
    reference: str,
    *,
    device: torch.device,
    trained_capacity: bool,
    dtype: str,
    prompt: str | None,
    image_size: int | None,
    placement: WeightPlacement | None,
) -> Checkpoint:
    """Return a model that is ready to be probed; see ``HuggingfaceAdapter.open``."""
    reference, settings = split_settings(reference)
    processor = None if prompt is None else load_processor(reference)
    move = partial(placing.put, device=device) if placement is None else placing.keep
    offload = placing.make_folder(placement)
    load_files = partial(
        load,
        reference,
        dtype=settings.precision(dtype),
        settings=settings,
        pictures=processor is not None,
        placement=placement,
        offload=None if offload is None else offload.path,
    )
    make_room()
    with digesting(reference, settings.gguf) as digest:
        model, tokenizer, form = load_files()
        assert tokenizer is not None
        try:
            texts = adapter(move(model), trained_capacity=trained_capacity)
            texts._offload = offload  # the folder lives as long as the model
            texts.form = form
            settings.check(texts._layers)
            pictures = (
                None if prompt is None else PictureModel(texts, processor, prompt=prompt, size=image_size)
            )
        except UserError as error:
            raise UserError(f"hf:{reference} cannot be probed: {error}") from None
        sha256 = digest(model.config)
    again = partial(load_files, again=True)
    admit(
        texts,
        model,
        partial(reload, reference, again, move=move, sha256=sha256, gguf=settings.gguf),
    )
    return Checkpoint(
        name=name_of(reference, settings, dtype),
        model=pictures or texts,
        framing=pictures.framing if pictures else texts.framing(tokenizer),
        class_names=() if pictures else texts.class_names,
        provenance={
            "path": str(locate(expand(reference), settings.gguf)) if settings.gguf else reference,
            "sha256": sha256,
            "capacity": "trained" if texts._limited else "unlimited",
            "group_images": 1,
            "dtype": texts.dtype,
            "class": type(model).__name__,
            "experts": [str(check) for check in texts.expert_checks],
            **({} if placement is None else {"devices": placing.describe_map(model)}),
            "training": {},
            **({"served": settings.plain()} if settings.suffix else {}),
            **({"form": form} if form else {}),
            **({"pictures": pictures.picture_facts()} if pictures else {}),
        },
    )
