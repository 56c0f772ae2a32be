"""Which class of ``transformers`` a model is opened as, and what its head predicts.

The file of a model names its class (``architectures``): the class that it was saved from has the head that its weights
were trained with. So a model that reads pictures too keeps the head of its texts, and a classifier its classes.

Axes: B texts, T tokens, C classes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.errors import UserError, option
from moeprobe.inputs.texts import TokenBatch

NEXT_TOKEN, CLASSES, SCORE, TOKEN_LABELS, NOTHING = (
    "the next token", "classes", "one score", "a label of each token", "nothing",
)  # fmt: skip
# What the names of the library's classes end in; others, such as those of diffusion, write in another order.
_ENDINGS = {
    "ForSequenceClassification": CLASSES,
    "ForTokenClassification": TOKEN_LABELS,
    "ForCausalLM": NEXT_TOKEN,
    "ForConditionalGeneration": NEXT_TOKEN,
    "LMHeadModel": NEXT_TOKEN,
}
# The library's names of classes that have none.
_NAMELESS = "LABEL_"


def class_of(transformers: Any, config: Any) -> Any:
    """Return the class that a configuration names, if it is the library's own; otherwise the one that fits it."""
    names = config.architectures if isinstance(config.architectures, list) else []
    for name in names:
        # Only public classes of models: a file may name anything.
        model_class = (
            getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
        )
        is_model = isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)
        if is_model and getattr(model_class, "config_class", None) is type(config):
            return model_class
    return kind_of(transformers, config)


def class_with_pictures(transformers: Any, config: Any) -> Any:
    """Return the class of models that read pictures with a text.

    Raises:
        UserError: a model of this configuration reads texts alone.
    """
    if type(config) not in transformers.AutoModelForImageTextToText._model_mapping:
        raise UserError(
            f"A model of type {config.model_type!r} reads texts and no images; name texts, e.g. "
            f"{option('data', 'text:PATH')}."
        )
    return transformers.AutoModelForImageTextToText


def kind_of(transformers: Any, config: Any) -> Any:
    """Return the class of models that a configuration belongs to: with the head that says the next token, if any."""
    kinds = (
        transformers.AutoModelForCausalLM,
        transformers.AutoModelForSeq2SeqLM,
        transformers.AutoModelForImageTextToText,
    )
    for kind in kinds:
        if type(config) in kind._model_mapping:
            return kind
    return transformers.AutoModel


def text_part(model: Any) -> Any:
    """Return the part of a model that reads texts: itself, unless only its parts can be run, or its encoder."""
    if type(model).forward is nn.Module.forward:
        parts = [part for part in model.children() if hasattr(part, "get_output_embeddings")]
        model = next((part for part in parts if part.get_output_embeddings() is not None), model)
    writes = _predicts(model) != NOTHING and not model.config.is_encoder_decoder
    return model if writes else model.get_encoder()


def _predicts(model: Any) -> str:
    name = type(model).__name__
    return next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), NOTHING)


@dataclass(frozen=True)
class Head:
    """What a model predicts of a text.

    Attributes:
        predicts: NEXT_TOKEN, CLASSES, SCORE (a reward), TOKEN_LABELS or NOTHING.
        module: the head that scores the next token; None of others.
        class_names: of the classes, sorted, as the labels of texts are.
        order: ``(C,)`` number of each class among the model's own.
    """

    predicts: str
    module: nn.Module | None = None
    class_names: tuple[str, ...] = ()
    order: tuple[int, ...] = ()

    @property
    def has_scores(self) -> bool:
        """Whether each text gets scores of which the highest is a prediction."""
        return self.predicts in (NEXT_TOKEN, CLASSES)


def head_of(body: Any) -> Head:
    """Return the head of a model that is run."""
    predicts = _predicts(body)
    if predicts == CLASSES:
        count = int(body.config.num_labels)
        if count == 1:
            # The highest of one score predicts nothing: it is the same for every text.
            return Head(SCORE)
        names = _names_of_classes(body.config.id2label, count)
        order = sorted(range(count), key=lambda number: names[number])
        return Head(CLASSES, class_names=tuple(names[number] for number in order), order=tuple(order))
    module = body.get_output_embeddings() if predicts == NEXT_TOKEN else None
    return Head(NOTHING if predicts == NEXT_TOKEN and module is None else predicts, module)


def _names_of_classes(labels: Any, count: int) -> list[str]:
    """Return the classes' names, or their numbers where they are named by nothing else, or two alike."""
    names = [
        str(labels.get(number, number)) if isinstance(labels, dict) else str(number)
        for number in range(count)
    ]
    is_named = len(set(names)) == count and any(
        name != f"{_NAMELESS}{number}" for number, name in enumerate(names)
    )
    return names if is_named else [str(number) for number in range(count)]


def pad_texts(config: Any, texts: TokenBatch) -> tuple[Tensor, int]:
    """Return ids ``(B, T)`` with the model's own padding, and what that is.

    A classifier of the library reads the last token that is not padding, which it knows by its id alone. A model that
    names no padding gets one that is no token of these texts.
    """
    text_config = config.get_text_config()
    padding = text_config.pad_token_id
    if not isinstance(padding, int) or not 0 <= padding < text_config.vocab_size:
        present = torch.zeros(text_config.vocab_size, dtype=torch.bool, device=texts.ids.device)
        present[texts.ids[texts.present]] = True
        padding = int((~present).int().argmax())
    return texts.ids.where(texts.present, padding), padding
