"""Models and tokenizers of ``transformers`` from a folder or the hub, and what a folder may say."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from moeprobe.adapters.huggingface.digests import remembered_digest
from moeprobe.adapters.huggingface.gguf_files import GgufFile
from moeprobe.adapters.huggingface.heads import class_of, class_with_pictures
from moeprobe.adapters.huggingface.outline import (
    Stored,
    build_outline,
    check_routers,
    describe_outline,
    weight_dtype,
)
from moeprobe.adapters.huggingface.placing import choose_map
from moeprobe.adapters.huggingface.quantized import (
    dequantize,
    describe_form,
    prepare_dequantization,
    state_dict,
)
from moeprobe.adapters.huggingface.settings import GGUF, Settings
from moeprobe.adapters.huggingface.spread import spread_keywords
from moeprobe.errors import UserError, first_line, option
from moeprobe.inputs.texts import MAX_LENGTH, TextFraming, Tokenizer
from moeprobe.recordings.model_config import EXPERTS, MOST_EXPERTS, MOST_LAYERS
from moeprobe.runtime.characters import quote
from moeprobe.runtime.device import AUTO
from moeprobe.runtime.extras import missing_package
from moeprobe.runtime.files import check_regular_files, expand, is_folder, is_there, read_json, resolve
from moeprobe.runtime.hub import HOW, local_unless_allowed, may_download
from moeprobe.runtime.placement import WeightPlacement
from moeprobe.runtime.similar_paths import did_you_mean_path
from moeprobe.runtime.spread import current_group
from moeprobe.runtime.torchvision_compat import import_with_operators

# How families of the library call their numbers of layers.
_LAYERS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")
_TOP_K = "num_experts_per_tok"
_ADAPTER = "adapter_config.json"
# What weights, and an index of weights, are called; the hash of a folder is of these among others.
_HASHED = (".safetensors", ".json")
# Files of a tokenizer.
_TOKENIZERS = ("*token*", "vocab.*", "*.model")
# Files that name a processor of pictures.
_PROCESSORS = ("processor_config.json", "preprocessor_config.json")


def check_folder(folder: Path) -> None:
    """Raise ``UserError`` where the weights of a folder lie elsewhere: their hash would be of other files."""
    if is_there(folder / _ADAPTER):
        raise UserError(
            f"{folder} holds an adapter ({_ADAPTER}) of a model that lies elsewhere. Merge the two and save the whole."
        )
    for path, name in _names(folder):
        if not isinstance(name, str) or "/" in name or "\\" in name or not name.endswith(_HASHED):
            raise UserError(
                f"{path} names weights that are not in its folder: {quote(str(name))}. Put all safetensors into it."
            )


def _names(folder: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the files of weights that a folder names, and where it names them."""
    for path in sorted(folder.glob("*.safetensors.index.json")):
        content = read_json(path)
        names = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(names, dict):
            raise UserError(f"{path} is no index of weights: it lacks weight_map.")
        yield from ((path, name) for name in names.values())
    path = folder / "config.json"
    content = read_json(path) if is_there(path) else None
    if isinstance(content, dict) and content.get("transformers_weights") is not None:
        yield path, content["transformers_weights"]


def check_sizes(config: Any, *, tensors: int | None) -> None:
    """Raise ``UserError`` where a model would be built of more than there can be.

    Args:
        config: of the model.
        tensors: in the folder; each layer has at least one. None = not known.
    """
    max_layers = MOST_LAYERS if tensors is None else min(MOST_LAYERS, tensors)
    for part in {id(section): section for section in (config, config.get_text_config())}.values():
        for name in _LAYERS:
            _check(name, getattr(part, name, None), maximum=max_layers, least=0)
        experts = [name for name in EXPERTS if getattr(part, name, None) is not None]
        for name in experts:
            _check(name, getattr(part, name), maximum=MOST_EXPERTS, least=0)
        if experts:
            _check(_TOP_K, getattr(part, _TOP_K, None), maximum=getattr(part, experts[0]), least=1)


def _check(name: str, value: Any, *, maximum: int, least: int) -> None:
    if value is not None and (type(value) is not int or not least <= value <= maximum):
        raise UserError(
            f"In config.json, {name} takes a whole number from {least} to {maximum:,}; got {quote(str(value))}."
        )


@dataclass(frozen=True)
class FastTokenizer:
    """A fast tokenizer of the library, as views of texts call it."""

    tokenizer: Any

    def __call__(
        self, text: str, *, max_length: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return ids ``(T,)``, the characters of each ``(T, 2)``, and which are special."""
        encoding = self.tokenizer(
            text,
            truncation=True,
            max_length=max_length,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        spans = np.array(encoding["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        special = np.array(encoding["special_tokens_mask"], dtype=bool)
        # A token of spaces alone, which tokenizers trim off: it represents what is between its neighbors.
        ordinary = np.flatnonzero(~special)
        edges = np.concatenate([[[0, 0]], spans[ordinary], [[len(text), len(text)]]])
        for index in np.flatnonzero(edges[1:-1, 0] == edges[1:-1, 1]):
            spans[ordinary[index]] = edges[index, 1], max(edges[index + 2, 0], edges[index, 1])
        return np.array(encoding["input_ids"], dtype=np.int64), spans, special


@dataclass(frozen=True)
class NoTokenizer:
    """Stands for the tokenizer of a folder without one: token ids can be read, and texts cannot."""

    reference: str

    def __call__(self, text: str, *, max_length: int) -> Any:
        """Refuse a text.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"hf:{self.reference} has no tokenizer, so it reads only token ids ({option('tokens')}); for texts, put "
            "the files of the model's tokenizer into its folder."
        )


class LoadedFiles(NamedTuple):
    """What the files of a model hold.

    Attributes:
        model: with its weights.
        tokenizer: of the model; None where it was not looked for.
        form: in which the files hold the weights; empty of plain safetensors.
    """

    model: Any
    tokenizer: FastTokenizer | NoTokenizer | None
    form: dict[str, Any]


class OutlinedFiles(NamedTuple):
    """What configuration and headers of a model say.

    Attributes:
        model: without memory, in the precision of its weights.
        tokenizer: of the model.
        stored: what the files hold; None = not known, as of names on the hub.
        facts: sizes of the model, see ``outline.describe_outline``.
    """

    model: Any
    tokenizer: FastTokenizer | NoTokenizer
    stored: Stored | None
    facts: dict[str, Any]


def load(
    reference: str,
    *,
    dtype: str = AUTO,
    settings: Settings | None = None,
    pictures: bool = False,
    again: bool = False,
    placement: WeightPlacement | None = None,
    offload: Path | None = None,
) -> LoadedFiles:
    """Return a model in a precision (auto = as it was saved), and its tokenizer; quantized weights are dequantized.

    Args:
        reference: a folder, or a name on the hub.
        dtype: the precision.
        settings: of the model.
        pictures: whether it is to read pictures too.
        again: it was opened before: its routers are not looked for again, and None takes the place of the tokenizer.
        placement: of the weights; None = all in the machine's memory.
        offload: folder for weights that the placement puts on the disk.

    Raises:
        UserError: there is none, it is damaged, it needs code of its own, a setting does not fit it, or it reads no
            pictures.
    """
    settings = settings or Settings()
    with _loading(reference, settings.gguf) as (transformers, source, folder, keywords):
        config, stored, gguf = _read_config(transformers, source, folder, keywords, settings)
        kind = class_with_pictures(transformers, config) if pictures else class_of(transformers, config)
        outline = None if again else build_outline(kind, config)
        # A model without routers is refused before its weights are read, which may take minutes.
        if outline is not None:
            check_routers(outline)
        form = describe_form(config, folder, gguf)
        if form:
            _check_whole(placement)
        # Of a model that is read again, only what spreads or dequantizes it needs the outline.
        if outline is None and (form or placement is not None or current_group() is not None):
            outline = build_outline(kind, config)
        prepare_dequantization(config, folder)
        precision = (config.dtype or torch.float32) if dtype == AUTO else getattr(torch, dtype)
        state = state_dict(config, folder, precision) if gguf is None else gguf.state_dict(outline, precision)
        weights: dict[str, Any]
        if state is None:
            weights = {"pretrained_model_name_or_path": source, "use_safetensors": True, **keywords}
        else:
            # Weights of no file are taken by the class of a family alone.
            kind, weights = type(outline), {"pretrained_model_name_or_path": None, "state_dict": state}
        weights |= spread_keywords(outline, config)
        if placement is not None:
            device_map = choose_map(placement, outline, weight_dtype(config, stored, dtype))
            weights |= {"device_map": device_map, "offload_folder": offload}
        model, loading_info = kind.from_pretrained(
            config=config,
            dtype=dtype,
            output_loading_info=True,
            # Not those of config.json, which may name code on the hub.
            **settings.kernels,
            **weights,
        )
        model = dequantize(model)
        tokenizer = (
            None if again else _load_tokenizer(reference, transformers, source, folder, keywords, gguf)
        )
    if loading_info["missing_keys"]:
        missing = sorted(loading_info["missing_keys"])
        raise UserError(f"hf:{reference} lacks {len(missing)} of the model's parameters, e.g. {missing[0]}.")
    return LoadedFiles(model, tokenizer, form)


def _check_whole(placement: WeightPlacement | None) -> None:
    """Raise ``UserError`` where quantized weights, which are dequantized in one memory, are to be spread."""
    if placement is not None:
        raise UserError(
            f"Its quantized weights are dequantized in one memory; leave {option('device_map')}, "
            f"{option('max_memory')} and {option('offload')} out."
        )
    if current_group() is not None:
        raise UserError(
            f"Its quantized weights are dequantized in one memory; leave {option('parallel')} out."
        )


def _load_tokenizer(
    reference: str,
    transformers: Any,
    source: str,
    folder: Path | None,
    keywords: dict[str, Any],
    gguf: GgufFile | None,
) -> FastTokenizer | NoTokenizer:
    if folder is None or _has_tokenizer(folder):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **keywords)
    else:
        tokenizer = None if gguf is None else gguf.tokenizer(transformers)
    if tokenizer is None:
        return NoTokenizer(reference)
    if not getattr(tokenizer, "is_fast", False):
        raise UserError("It has no fast tokenizer, which is needed to map its tokens to characters.")
    return FastTokenizer(tokenizer)


def load_outline(
    reference: str, *, dtype: str, settings: Settings, placement: WeightPlacement | None
) -> OutlinedFiles:
    """Return a model without memory, its tokenizer, and what configuration and headers say of it.

    Raises:
        UserError: as of ``load``, if configuration and headers show it.
    """
    with _loading(reference, settings.gguf) as (transformers, source, folder, keywords):
        config, stored, gguf = _read_config(transformers, source, folder, keywords, settings)
        model = build_outline(class_of(transformers, config), config)
        # What follows refuses what cannot be opened; of a copy, since the configuration of a load is changed.
        facts = describe_outline(model, stored)
        if describe_form(config, folder, gguf):
            _check_whole(placement)
        prepare_dequantization(copy.deepcopy(config), folder)
        tokenizer = _load_tokenizer(reference, transformers, source, folder, keywords, gguf)
        model = model.to(weight_dtype(config, stored, settings.precision(dtype)))
    return OutlinedFiles(model, tokenizer, stored, facts)


def name_of(reference: str, settings: Settings, dtype: str) -> str:
    """Return what tables call a model: in another precision than its own, or with other settings, it is another one."""
    folder = expand(reference)
    name = Path(settings.gguf).name or (resolve(folder) if is_folder(folder) else folder).name
    return f"{name}{settings.suffix}" + ("" if dtype == AUTO or settings.dtype else f",dtype={dtype}")


def framing_of(config: Any, tokenizer: Tokenizer, width: int) -> TextFraming:
    """Return how a text is brought to the input, cut off after 128 tokens, or what fits the model."""
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) or None
    return TextFraming(tokenizer, width, min(MAX_LENGTH, longest or MAX_LENGTH), longest)


def describe_files(reference: str, settings: Settings) -> dict[str, Any]:
    """Return what a model is by its configuration and the headers of its files, and its hash if that is known.

    Raises:
        UserError: there is none, it is damaged, it needs code of its own, a setting does not fit it, or it has no
            routers.
    """
    with _loading(reference, settings.gguf) as (transformers, source, folder, keywords):
        config, stored, gguf = _read_config(transformers, source, folder, keywords, settings)
        model = build_outline(class_of(transformers, config), config)
        sha256 = remembered_digest(reference, config, settings.gguf)
        return {"sha256": sha256} | describe_outline(model, stored) | describe_form(config, folder, gguf)


def _read_config(
    transformers: Any, source: str, folder: Path | None, keywords: dict[str, Any], settings: Settings | None
) -> tuple[Any, Stored | None, GgufFile | None]:
    """Return a configuration with settings applied, what the headers of the weights say, and the GGUF file of them."""
    gguf, stored = None, None
    if settings is not None and settings.gguf:
        if folder is None:
            raise UserError(
                f"{GGUF}={settings.gguf} takes a file on this machine, in a folder: download it first."
            )
        gguf = GgufFile.find(folder, settings.gguf)
        config, stored = gguf.config(transformers, folder), gguf.stored
    else:
        config = transformers.AutoConfig.from_pretrained(source, **keywords)
        stored = None if folder is None else Stored.of_folder(folder)
    check_sizes(config, tensors=None if stored is None else stored.tensors)
    if settings is not None:
        settings.apply(config)
    return config, stored, gguf


def load_processor(reference: str) -> Any:
    """Return the processor of a model that reads pictures.

    Raises:
        UserError: the model reads none, or there is no processor, or it needs code of its own.
    """
    processor = None
    with _loading(reference) as (transformers, source, folder, keywords):
        class_with_pictures(transformers, transformers.AutoConfig.from_pretrained(source, **keywords))
        if folder is None or any(is_there(folder / name) for name in _PROCESSORS):
            processor = transformers.AutoProcessor.from_pretrained(source, **keywords)
    if getattr(processor, "image_processor", None) is None or not hasattr(processor, "tokenizer"):
        raise UserError(
            f"hf:{reference} has no processor of pictures; put the files of the model's processor into its folder "
            f"({' or '.join(_PROCESSORS)})."
        )
    return processor


@contextmanager
def _loading(reference: str, gguf: str = "") -> Iterator[tuple[Any, str, Path | None, dict[str, Any]]]:
    """Yield the library, the source and the keywords to load from it; its folder is None where it is on the hub.

    Errors name the file ``gguf`` of its weights too, if there is one.

    Raises:
        UserError: whatever fails meanwhile, in a sentence.
    """
    try:
        import transformers
    except ModuleNotFoundError:
        raise missing_package("hf:", "transformers", "hf") from None
    import_with_operators("torchvision")  # which transformers imports with its first model
    folder = expand(reference)
    local = is_folder(folder)
    # A name on the hub is OWNER/NAME, or NAME.
    if not local and (reference.startswith((".", "~", "/")) or reference.count("/") > 1):
        raise UserError(f"There is no folder {quote(reference)}.{did_you_mean_path(folder)}")
    if local:
        check_regular_files(folder, "*")
        check_folder(folder)
    source = str(folder) if local else reference
    name = f"hf:{reference},{GGUF}={gguf}" if gguf else f"hf:{reference}"
    keywords: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local or not may_download()}
    try:
        with _quiet(transformers), local_unless_allowed():
            yield transformers, source, folder if local else None, keywords
    except UserError as error:
        raise UserError(f"{quote(name)} cannot be loaded. {error}") from None
    except Exception as error:  # files, network, hub and formats: each has errors of its own
        if not local and isinstance(error, OSError) and not may_download():
            raise UserError(
                f"There is no folder {quote(reference)}, and no model of that name in the local cache; {HOW}."
            ) from None
        reason = first_line(error)[:300].rstrip(".:")
        where = "The folder" if local else f"{quote(name)} is no folder, and the model"
        raise UserError(f"{where} {quote(name)} cannot be loaded: {reason}.") from error


def _has_tokenizer(folder: Path) -> bool:
    """Whether any file in a folder is of a tokenizer."""
    return any(is_there(path) for pattern in _TOKENIZERS for path in folder.glob(pattern))


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence the library, whose errors are said in a sentence."""
    logging = transformers.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    had_progress_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_progress_bar:
            logging.enable_progress_bar()
