"""A stand-in for a vLLM with a small vision-language model, which answers in the form of a vLLM.

Its routing comes from the library's model and processor; nothing of moeprobe reads a picture or a router here.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tests.adapters import tiny_pictures
from tests.recordings import serving

GENERATED = 5
# From router logits ``(T, E)``, the number of the layer and which tokens are of the picture ``(T,)`` to other logits.
Change = Callable[[Tensor, int, Tensor], Tensor]


def pictures(folder: Path, count: int) -> Path:
    """Pictures of requests ``r0`` and so on, of several sizes."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        size = (60 + 28 * (number % 4), 56 + 28 * (number % 3))
        colors = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
        Image.fromarray(colors).resize(size, Image.Resampling.BICUBIC).save(folder / f"r{number}.png")
    return folder


def ask(processor: Any, picture: Image.Image) -> dict[str, Any]:
    """What a processor gives of a question about a picture."""
    content = [{"type": "image"}, {"type": "text", "text": "what is this ?"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    with warnings.catch_warnings(action="ignore"):  # of the library, about its own code
        return dict(processor(text=[text], images=[[picture]], return_tensors="pt", add_special_tokens=False))


def serve(folder: Path, count: int, *, change: Change | None = None) -> Path:
    """Write a model, pictures, and responses to a question about each; returns ``folder``.

    Args:
        folder: for ``model/``, ``images/`` and ``responses.jsonl``.
        count: requests.
        change: what the server's routers choose by in place of their logits.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor

    tiny_pictures.save(folder / "model")
    pictures(folder / "images", count)
    model = AutoModelForImageTextToText.from_pretrained(folder / "model").eval()
    processor = AutoProcessor.from_pretrained(folder / "model")
    lines = []
    for number in range(count):
        inputs = ask(processor, Image.open(folder / "images" / f"r{number}.png"))
        prompt = inputs["input_ids"][0].tolist()
        generated = np.random.default_rng(number).integers(20, 60, GENERATED).tolist()
        ids = torch.tensor([prompt + generated])
        marks = torch.cat([inputs["mm_token_type_ids"], torch.zeros(1, GENERATED, dtype=torch.int64)], 1)
        tokens = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": marks}
        with _choosing(model, ids[0] == model.config.image_token_id, change) as chosen, torch.no_grad():
            logits = model(**inputs | tokens).logits
        log_probs = logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[-GENERATED:, 0]
        choice = {
            "index": 0, "token_ids": generated, "logprobs": {"token_logprobs": log_probs.tolist()},
            "routed_experts": serving.npy(torch.stack(chosen, 1)[:-1].numpy().astype("uint8")),
        }  # fmt: skip
        lines.append({"id": f"r{number}", "prompt_token_ids": prompt, "choices": [choice],
                      "usage": serving.usage(len(prompt), GENERATED)})  # fmt: skip
    (folder / "responses.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


@contextmanager
def _choosing(model: Any, is_image: Tensor, change: Change | None) -> Iterator[list[Tensor]]:
    """Note the experts of each layer ``(T, K)``; the weights of changed choices follow from the router's own logits."""
    chosen: list[Tensor] = []

    def choose(router: Any, inputs: Any, output: Any) -> Any:
        logits, weights, index = output
        if change is not None:
            index = change(logits, len(chosen), is_image).topk(index.shape[-1]).indices
            gates = logits.softmax(-1).gather(-1, index)
            weights = gates / gates.sum(-1, keepdim=True)
        chosen.append(index)
        return logits, weights, index

    routers = [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
    hooks = [router.register_forward_hook(choose) for router in routers]
    yield chosen
    for hook in hooks:
        hook.remove()
