"""Vision-language models of Hugging Face's library, made on the spot, with their processors and photographs.

The weights are random: they show how pictures reach the routers, and nothing about trained models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from moeprobe.adapters.huggingface.picture_model import PictureModel
from moeprobe.runtime.torchvision_compat import import_with_operators
from tests.adapters import families

WORDS = [
    "what", "is", "this", "picture", "of", "a", "cat", "dog", "in", "the", "user", "assistant", "describe", "?", ".",
]  # fmt: skip
_TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


@dataclass(frozen=True)
class Family:
    """How a family gets pictures: what its processor is made of, and what its special tokens are called.

    Attributes:
        processor: class of the processor.
        images: class of its image processor.
        videos: class of its video processor, if it needs one.
        tokens: field of the configuration -> special token; "image_token_id" stands for a part of a picture.
        picture: what the chat template writes for a picture.
        named: fields of the tokenizer -> special token.
        more: arguments of the image processor; numbers of patches are filled in.
        of_videos: arguments of the video processor.
        of_processor: arguments of the processor.
    """

    processor: str
    images: str
    tokens: Mapping[str, str]
    picture: str
    videos: str = ""
    named: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    of_videos: Mapping[str, Any] = field(default_factory=dict)
    of_processor: Mapping[str, Any] = field(default_factory=dict)


# Side of a patch in all small models, and how many are merged into one token along either axis.
PATCH, MERGE = 14, 2
_DYNAMIC = {
    "patch_size": PATCH,
    "merge_size": MERGE,
    "size": {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": (PATCH * MERGE * 4) ** 2},
}
_TWO_FRAMES = {"temporal_patch_size": 2}
_QWEN = Family(
    "Qwen3VLProcessor",
    "Qwen2VLImageProcessor",
    {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
    "<|vision_start|><|image_pad|><|vision_end|>",
    videos="Qwen3VLVideoProcessor",
    more=_DYNAMIC | _TWO_FRAMES,
)
_GLM = {
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}
_GLM_PICTURE = "<|begin_of_image|><|image|><|end_of_image|>"
FAMILIES = {
    "qwen3_vl_moe": _QWEN,
    "qwen3_5_moe": _QWEN,
    "qwen4_exp": _QWEN,
    "glm4v_moe": Family(
        "Glm4vProcessor",
        "Glm4vImageProcessor",
        _GLM,
        _GLM_PICTURE,
        videos="Glm4vVideoProcessor",
        more=_DYNAMIC | _TWO_FRAMES | {"size": {"shortest_edge": 28**2, "longest_edge": 2 * 112**2}},
    ),
    "minimax_m3_vl": Family(
        "MiniMaxM3VLProcessor",
        "MiniMaxM3VLImageProcessor",
        {
            "image_token_id": "]<]image[>[",
            "video_token_id": "]<]video[>[",
            "start": "]<]start of image[>[",
            "end": "]<]end of image[>[",
        },
        "]<]image[>[",
        videos="MiniMaxM3VLVideoProcessor",
        more=_DYNAMIC,
    ),
    "dots3_note": Family(
        "Dots3NoteProcessor",
        "Qwen2VLImageProcessor",
        {"image_token_id": "<|imgpad|>", "video_token_id": "<|video_pad|>", "sound": "<|audio_comp_pad|>"},
        "<|imgpad|>",
        videos="Qwen3VLVideoProcessor",
        more=_DYNAMIC | {"temporal_patch_size": 1},
        of_processor={"feature_extractor": "Dots3NoteFeatureExtractor"},
    ),
    "llama4": Family(
        "Llama4Processor",
        "Llama4ImageProcessor",
        {
            "image_token_id": "<|patch|>",
            "image": "<|image|>",
            "boi_token_index": "<|image_start|>",
            "eoi_token_index": "<|image_end|>",
            "columns": "<|tile_x_separator|>",
            "rows": "<|tile_y_separator|>",
        },
        "<|image|>",
        more={"size": {"height": 112, "width": 112}, "max_patches": 1},
        of_processor={"patch_size": PATCH, "pixel_shuffle_ratio": 0.5},
    ),
    "gemma4": Family(
        "Gemma4Processor",
        "Gemma4ImageProcessor",
        {
            "image_token_id": "<|image|>",
            "audio_token_id": "<|audio|>",
            "video_token_id": "<|video|>",
            "boi_token_id": "<|image>",
            "eoi_token_id": "<image|>",
        },
        "<|image|>",
        videos="Gemma4VideoProcessor",
        named={
            "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>",
            "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>", "video_token": "<|video|>",
        },
        more={"patch_size": PATCH, "pooling_kernel_size": 3, "max_soft_tokens": 70},
        of_processor={"feature_extractor": "Gemma4AudioFeatureExtractor"},
    ),
    "mistral_large4": Family(
        "PixtralProcessor",
        "PixtralImageProcessor",
        {"image_token_id": "[IMG]", "break": "[IMG_BREAK]", "end": "[IMG_END]"},
        "[IMG]",
        more={"patch_size": PATCH * MERGE, "size": {"longest_edge": PATCH * MERGE * 4}},
        of_processor={"patch_size": PATCH, "spatial_merge_size": MERGE},
    ),
    # Families whose image tokens have no place in the picture.
    "aria": Family(
        "AriaProcessor",
        "AriaImageProcessor",
        {"image_token_id": "<|img|>"},
        "<|img|>",
        named={"image_token": "<|img|>"},
        more={"max_image_size": 490},
        of_processor={"size_conversion": {490: 128, 980: 256}},
    ),
    "step3p7": Family(
        "Step3p7Processor",
        "Step3p7ImageProcessor",
        {"image_token_id": "<im_patch>", "start": "<im_start>", "end": "<im_end>"},
        "<im_patch>",
        more={"size": {"height": 224, "width": 224}, "patch_size": 112},
    ),
    # A family whose routers of image tokens are not those of texts.
    "ernie4_5_vl_moe": Family(
        "Ernie4_5_VLMoeProcessor",
        "Ernie4_5_VLMoeImageProcessor",
        {
            "image_token_id": "<|image|>",
            "image_start_token_id": "<|begin_of_image|>",
            "image_end_token_id": "<|end_of_image|>",
            "video_token_id": "<|video|>",
        },
        _GLM_PICTURE,
        videos="Ernie4_5_VLMoeVideoProcessor",
        named={
            "image_token": "<|image|>", "image_start_token": "<|begin_of_image|>",
            "image_end_token": "<|end_of_image|>", "video_token": "<|video|>",
            "video_start_token": "<|begin_of_video|>", "video_end_token": "<|end_of_video|>",
        },
        more=_DYNAMIC,
        of_videos={"draw_on_frames": False},
    ),
}  # fmt: skip
PLACED = [name for name in FAMILIES if name not in ("aria", "step3p7", "ernie4_5_vl_moe")]


def tokenizer(family: Family) -> Any:
    """One id for each special token and each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = list(dict.fromkeys([*family.tokens.values(), *family.named.values()]))
    vocabulary = ["<pad>", "<s>", "</s>", "<unk>", *special, *WORDS]
    made = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    read = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=dict(family.named) or special,
    )
    read.add_special_tokens({"extra_special_tokens": special}, replace_extra_special_tokens=False)
    return read


def model(name: str) -> Any:
    """A small random model of a family, whose special tokens are those of ``tokenizer``."""
    made, ids = families.complete(name), tokenizer(FAMILIES[name])
    configs = {id(part.config): part.config for part in made.modules() if hasattr(part, "config")}
    for config in configs.values():
        for field_name, token in FAMILIES[name].tokens.items():
            if hasattr(config, field_name):
                setattr(config, field_name, ids.convert_tokens_to_ids(token))
    return made


def save(folder: Path, name: str = "qwen3_vl_moe", *, of: Any = None, chat: bool = True) -> Path:
    """Write a model of a family with its processor; ``of``: this model in place of a new one."""
    import_with_operators("torchvision")
    import transformers

    def made(kind: str, **arguments: Any) -> Any:
        return getattr(transformers, kind)(**arguments)

    family = FAMILIES[name]
    parts = {
        key: made(value) if key == "feature_extractor" else value
        for key, value in family.of_processor.items()
    }
    if family.videos:
        parts["video_processor"] = made(family.videos, **family.of_videos)
    if chat:
        parts["chat_template"] = _TEMPLATE.replace("IMAGE", family.picture)
    made(
        family.processor,
        image_processor=made(family.images, **family.more),
        tokenizer=tokenizer(family),
        **parts,
    ).save_pretrained(folder)
    (of or model(name)).save_pretrained(folder)
    return folder


def photographs(folder: Path, count: int = 24, *, size: tuple[int, int] = (160, 120)) -> Path:
    """Write smooth pictures of random colors."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        colors = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
        Image.fromarray(colors).resize(size, Image.Resampling.BICUBIC).save(folder / f"{number:02d}.png")
    return folder


def with_photographs(folder: Path) -> Path:
    """Write a model, ``one``, and pictures for it, ``photos``, into a folder."""
    save(folder / "one")
    photographs(folder / "photos")
    return folder


def with_bias(
    model: PictureModel, bias: float, *, expert: int, image_tokens: bool = True, layers: Sequence[str] = ()
) -> PictureModel:
    """Let routers add ``bias`` to the logit of one expert, for image tokens alone or for all tokens.

    Experts and their weights go by the biased logits; what the experts get is not changed. ``layers``: of these alone.
    """
    layout = model.layout
    is_biased = torch.zeros(len(layout.order), dtype=torch.bool)
    is_biased[layout.order[-layout.grid.num_patches :] if image_tokens else slice(None)] = True
    for name, router in zip(model.layer_names, model.router_modules(), strict=True):
        if layers and name not in layers:
            continue
        # The router is linear and has more inputs than experts: this input moves one logit alone.
        shift = bias * torch.linalg.pinv(router.get_parameter("weight").detach())[:, expert]

        def add(module: nn.Module, inputs: tuple[Tensor, ...], shift: Tensor = shift) -> tuple[Tensor, ...]:
            tokens = inputs[0].reshape(-1, len(is_biased), len(shift))
            return ((tokens + is_biased[:, None] * shift).reshape(inputs[0].shape), *inputs[1:])

        router.register_forward_pre_hook(add)
    return model
