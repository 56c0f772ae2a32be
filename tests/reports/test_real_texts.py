"""The study of real texts on made-up ones: what is taken out of packages, the sparse model, its losses and training."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.inputs.data.text import Text
from moeprobe.inputs.texts import TextFraming, stack
from moeprobe.models.checkpoints.checkpoint import read_tensors
from moeprobe.models.nn.capture import capture
from reports.scripts.real.texts import distil, encoder, int8, material, study, tables
from reports.scripts.real.texts.names import MODELS

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "a stitch in time saves nine",
    "many hands make light work",
    "early birds catch slow worms",
    "still waters run very deep indeed",
    "every cloud has some silver lining",
]
SETTINGS = {"steps": 4, "batch_size": 2, "warmup": 1, "saved_every": 2, "typos": 0.6}


def letters(text: str, *, max_length: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """A token for each pair of characters, between two special ones."""
    places = [(start, min(start + 2, len(text))) for start in range(0, len(text), 2)][: max_length - 2]
    ids = [3 + sum(map(ord, text[first:last])) % 60 for first, last in places]
    spans = np.array([(0, 0), *places, (0, 0)], dtype=np.int64)
    special = np.array([True, *[False] * len(places), True])
    return np.array([1, *ids, 2], dtype=np.int64), spans, special


FRAMING = TextFraming(letters, 16, 40)


def small_dense(*_: Any) -> Any:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 6}
    torch.manual_seed(7)
    model = BertModel(
        BertConfig(vocab_size=64, max_position_embeddings=48, initializer_range=0.3, **sizes),
        add_pooling_layer=False,
    )
    return model.eval().requires_grad_(False)


@pytest.fixture
def data(tmp_path: Path) -> Text:
    file = tmp_path / "train.txt"
    file.write_text("\n".join(LINES))
    return Text(split="train", location=str(file))


def test_texts_of_a_split_are_in_no_other_and_have_the_wanted_length() -> None:
    words = material.WORDS
    texts = [f"{'word ' * (number % 40)}number {number}" for number in range(2000)]
    splits = material.choose({"made up": [*texts, *texts]})
    names = {split: {row["id"] for row in rows} for split, rows in splits.items()}
    assert {split: len(rows) for split, rows in names.items()} == {"train": 150, "test": 75}
    assert not names["train"] & names["test"]
    chosen = [row["text"] for rows in splits.values() for row in rows]
    assert len(set(chosen)) == len(chosen)
    assert {len(text.split()) for text in chosen} <= set(range(words[0], words[1] + 1))
    assert splits == material.choose({"made up": texts})


def test_synonyms_share_their_most_common_sense() -> None:
    """A second sense, a word of two words, a name with an apostrophe and a short word are left out."""
    index = [
        "large a 2 1 & 2 0 00000001 00000002",
        "big a 2 1 & 2 0 00000001 00000003",
        "bad a 2 1 & 2 0 00000004 00000001",
        "grown_up a 1 1 & 1 0 00000001",
        "huge a 1 1 & 1 0 00000005",
        "giant a 1 1 & 1 0 00000005",
        "giant n 1 1 & 1 0 00000009",
        "car n 1 1 & 1 0 00000006",
        "auto n 1 1 & 1 0 00000006",
    ]
    data = [
        "00000001 00 a 04 large 0 big 0 bad 0 grown_up 0 000 | above average",
        "00000005 00 s 02 Huge 0 giant(p) 0 000 | very large",
        "00000006 06 n 02 car 0 auto 0 000 | a vehicle",
    ]
    assert material.synonyms(index, data) == [["huge", "giant"]]


def test_numbers_of_the_int8_file_are_scaled_and_named_by_their_biases() -> None:
    """The scale is of an output, a column there; a product of two computed values is no linear layer."""
    constants: dict[str, NDArray[Any]] = {
        "val_5_q": np.array([[1, -2], [3, 4], [5, -6]], dtype=np.int8),
        "val_5_scale": np.array([[0.5, 2.0]], dtype=np.float32),
        "inner.table.weight_q": np.array([[1, 2], [3, 4]], dtype=np.int8),
        "inner.table.weight_scale": np.array([[10.0], [0.1]], dtype=np.float32),
        "inner.dense.bias": np.array([7.0, 8.0], dtype=np.float32),
        "inner.position_ids": np.arange(3),
    }

    def node(kind: str, inputs: list[str], output: str) -> Any:
        return SimpleNamespace(op_type=kind, input=inputs, output=[output])

    graph = SimpleNamespace(
        node=[
            node("MatMul", ["x", "y"], "attention"),
            node("MatMul", ["x", "val_5"], "product"),
            node("Add", ["attention", "inner.dense.bias"], "other"),
            node("Add", ["product", "inner.dense.bias"], "sum"),
        ]
    )
    named = int8.named(graph, constants)
    assert set(named) == {"dense.weight", "dense.bias", "table.weight"}
    np.testing.assert_array_equal(named["dense.weight"], [[0.5, 1.5, 2.5], [-4, 8, -12]])
    np.testing.assert_allclose(named["table.weight"], np.array([[10, 20], [0.3, 0.4]]), rtol=1e-6)


def test_the_sparse_model_begins_as_the_dense_one() -> None:
    dense, sparse = small_dense(), encoder.make_sparse(small_dense())
    batch = stack([FRAMING.clean(line) for line in LINES])
    assert not batch.present.all()
    with torch.inference_mode():
        theirs, ours = encoder.tokens_of(dense, batch), encoder.tokens_of(sparse, batch)
    where = batch.present
    assert (ours - theirs)[where].abs().max() <= 1e-5 * theirs[where].abs().max()
    # Not because nothing is sparse: another expert's output changes it.
    sparse.encoder.layer[3].intermediate.experts.fc2.bias.data[:, 0] += 1
    with torch.inference_mode():
        assert (encoder.tokens_of(sparse, batch) - theirs)[where].abs().max() > 0.01


def test_a_text_is_routed_alike_alone_and_in_a_batch() -> None:
    model = encoder.TextEncoder(encoder.make_sparse(small_dense()))
    samples = [FRAMING.clean(line) for line in LINES]
    embeddings, together = model.trace(stack(samples))
    assert embeddings is not None
    for number, sample in enumerate(samples):
        own, alone = model.trace(stack([sample]))
        assert own is not None
        torch.testing.assert_close(own[0], embeddings[number])
        for name in model.layer_names:
            layer = together.layers[name]
            assert layer.valid[number].sum() == len(sample.ids) - 1, "all but the last special token"
            length = len(sample.ids)
            torch.testing.assert_close(alone.layers[name].gates[0], layer.gates[number, :length])
            assert torch.equal(alone.layers[name].selected[0], layer.selected[number, :length])


def lesson(data: Text, **changes: Any) -> tuple[distil.Lessons, distil.Settings, distil.Batch]:
    settings = distil.Settings(seed=3, **{"prc": True} | SETTINGS | changes)
    lessons = distil.Lessons.of(data, small_dense(), FRAMING)
    return lessons, settings, distil.batch_of(lessons, FRAMING, settings, step=1)


def test_versions_of_a_text_are_clean_and_with_typos_and_their_tokens_correspond(data: Text) -> None:
    lessons, _, batch = lesson(data)
    first, second = batch.pairs
    for text, number in enumerate(batch.numbers[::2].tolist()):
        clean = lessons.clean[number]
        length = len(clean.ids)
        assert batch.rows.ids[2 * text, :length].tolist() == clean.ids.tolist()
        assert batch.rows.ids[2 * text + 1].tolist() != batch.rows.ids[2 * text].tolist()
        places = batch.clean[2 * text, :length].tolist()
        # Of the clean version each token but the special ones is its own.
        assert places == [-1, *range(1, length - 1), -1]
        pairs = [(one, two) for one, two in zip(first[text], second[text], strict=True) if one >= 0]
        assert len(pairs) > 5
        # What the second version's token stands for in the clean text is what it is paired with, or its neighbor.
        assert all(abs(batch.clean[2 * text + 1, two] - one) <= 1 for one, two in pairs)


def test_distance_is_none_of_the_dense_model_on_clean_texts(data: Text) -> None:
    lessons, _, batch = lesson(data, typos=0.0)
    hidden = encoder.tokens_of(small_dense(), batch.rows)
    assert abs(distil.distance(hidden, batch, lessons)) < 1e-5
    assert distil.distance(-hidden, batch, lessons) == pytest.approx(4, abs=1e-5)


def decisions_of(batch: distil.Batch) -> Any:
    model = encoder.make_sparse(small_dense())
    # Far from even, so that wrong pairs would show.
    for layer in encoder.moe_part(model).values():
        layer.router.gate.weight.data *= 40  # type: ignore[union-attr,operator]
        layer.train().requires_grad_(True)
    torch.manual_seed(0)
    with capture(model) as decisions:
        encoder.tokens_of(model, batch.rows)
    return decisions


def test_prc_is_over_the_pairs_of_tokens(data: Text) -> None:
    """By a loop over pairs, in float64."""
    _, settings, batch = lesson(data)
    decisions = decisions_of(batch)
    expected = np.zeros(2)
    for decision in decisions.values():
        gates = decision.clean_gates.detach().double().numpy()
        outer = [
            np.outer(gates[2 * text, one], gates[2 * text + 1, two])
            for text, (firsts, seconds) in enumerate(zip(*batch.pairs, strict=True))
            for one, two in zip(firsts, seconds, strict=True)
            if one >= 0
        ]
        matrix = 8 * np.mean(outer, axis=0)
        off = matrix[~np.eye(8, dtype=bool)]
        expected += np.mean((1 - np.diag(matrix)) ** 2), np.mean(off**2)
    terms = distil.consistency(decisions, batch.pairs, settings)
    assert [terms[name].value.item() for name in ("prc_diagonal", "prc_offdiagonal")] == pytest.approx(
        expected, rel=1e-5
    )
    terms["prc_diagonal"].value.backward()


def test_padding_is_not_balanced(data: Text) -> None:
    _, settings, batch = lesson(data)
    decisions = decisions_of(batch)
    present = batch.rows.present.numpy()
    assert not present.all()
    expected = 0.0
    for decision in decisions.values():
        total = decision.clean_gates.detach().double().numpy()[present].sum(0)
        expected += float((total.std() / total.mean()) ** 2)
    terms = distil.balance(decisions, batch.rows.present, settings.balance)
    assert set(terms) == {"importance", "load"}
    assert terms["importance"].value.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("prc", [False, True])
def test_an_interrupted_training_ends_as_one_that_was_not(
    data: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prc: bool
) -> None:
    monkeypatch.setattr(distil, "dense_model", small_dense)
    monkeypatch.setattr(distil, "framing", lambda folder: FRAMING)
    settings = distil.Settings(prc=prc, seed=0, **SETTINGS)  # type: ignore[arg-type]
    distil.distil(tmp_path, data, tmp_path / "once", settings)
    monkeypatch.setattr(distil, "loss_of", interrupted(distil.loss_of, at=3))
    with pytest.raises(KeyboardInterrupt):
        distil.distil(tmp_path, data, tmp_path / "twice", settings)
    assert (tmp_path / "twice" / distil.STATE).exists()
    monkeypatch.undo()
    monkeypatch.setattr(distil, "dense_model", small_dense)
    monkeypatch.setattr(distil, "framing", lambda folder: FRAMING)
    distil.distil(tmp_path, data, tmp_path / "twice", settings)
    once, twice = ((tmp_path / name / distil.WEIGHTS).read_bytes() for name in ("once", "twice"))
    assert once == twice
    assert not (tmp_path / "twice" / distil.STATE).exists()
    trained = distil.trained(tmp_path, tmp_path / "once")
    fresh = encoder.moe_part(distil.start(tmp_path, settings)[1]).state_dict()
    moved = {
        name: bool((value != fresh[name]).any())
        for name, value in read_tensors(tmp_path / "once" / distil.WEIGHTS)[0].items()
    }
    assert all(moved.values()), "routers and experts all learn"
    assert not any(parameter.requires_grad for parameter in trained.embeddings.parameters())


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_training_with_other_settings_is_not_taken_for_this_one(
    data: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    monkeypatch.setattr(distil, "dense_model", small_dense)
    monkeypatch.setattr(distil, "framing", lambda folder: FRAMING)
    settings = distil.Settings(prc=True, seed=0, **SETTINGS)  # type: ignore[arg-type]
    out = tmp_path / "run"
    if is_finished:
        distil.distil(tmp_path, data, out, settings)
    else:
        monkeypatch.setattr(distil, "loss_of", interrupted(distil.loss_of, at=3))
        with pytest.raises(KeyboardInterrupt):
            distil.distil(tmp_path, data, out, settings)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    other = tmp_path / "other.txt"
    other.write_text("\n".join(reversed(LINES)))
    for texts, changed in (
        (data, dataclasses.replace(settings, typos=0.1)),
        (Text(split="train", location=str(other)), settings),
    ):
        with pytest.raises(UserError, match="run holds a training with other settings"):
            distil.distil(tmp_path, texts, out, changed)
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}


def interrupted(loss_of: Callable[..., Any], *, at: int) -> Callable[..., Any]:
    calls = []

    def call(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > at:
            raise KeyboardInterrupt
        return loss_of(*arguments)

    return call


def test_the_encoder_is_probed_as_a_model_of_a_users_own(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(LINES * 4))
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = encoder.make_sparse(small_dense())
        models.append(encoder.as_checkpoint(model, FRAMING, name=f"model{seed}", group="g", seed=seed))
    result = api.sweep(models, data=f"text:{file}", view="typos", severities=(0.0, 0.8), figures=False)
    table = result.table[result.table["metric"] == "top2_set_match"]
    means = table[table["tokens"] == "token"].groupby("severity")["value"].mean()
    assert means[0.0] == 1 and means[0.8] < 0.9
    cosine = result.table[result.table["metric"] == "output_cosine"]
    assert set(cosine["checkpoint"]) == {"model0", "model1"}
    rounded = api.precision(models[:1], data=f"text:{file}", formats=("int4_g128",), figures=False).table
    assert set(rounded["view"]) == {
        f"{part} int4_g128" for part in ("router", "experts", "attention", "rest", "whole")
    }


def test_numbers_of_seeds_are_kept_by_their_ends() -> None:
    cell = {
        "run": "typos",
        "layer": "a",
        "view": "typos",
        "severity": 0.1,
        "tokens": "token",
        "null": "pooled",
    }
    rows = [
        cell | {"checkpoint": f"minilm-prc-seed{seed}", "metric": "top2_set_match_kappa", "value": value}
        for seed, value in enumerate((0.3, 0.1, 0.2))
    ]
    rows.append(rows[0] | {"tokens": "prefix", "value": 0.9})
    rows.append(rows[0] | {"null": "image", "value": 0.9})
    rows.append(rows[0] | {"view": "clean_again", "severity": None, "value": 1.0})
    form = rows[0] | {"run": "int8", "view": "against the first"}
    rows += [form | {"value": 1.0}, form | {"checkpoint": "minilm-prc-seed0-int8", "value": 0.8}]
    ends = study.over_seeds(pd.DataFrame(rows))
    assert ends[["run", "view", "model", "low", "high", "seeds"]].values.tolist() == [
        ["typos", "typos", "prc", 0.1, 0.3, 3],
        ["int8", "int8", "prc", 0.8, 0.8, 1],
    ]


def test_parts_are_means_over_layers_of_tokens_whose_set_changes() -> None:
    cell = {
        "checkpoint": "minilm-prc-seed0",
        "view": "router int8",
        "draw": None,
        "tokens": "token",
        "images": 7,
    }
    rows = [
        cell | {"metric": "top2_set_match", "layer": layer, "value": value}
        for layer, value in (("one", 0.9), ("two", 0.7))
    ]
    rows += [row | {"tokens": "prefix", "value": 0.0} for row in rows]
    rows += [row | {"metric": "top1_match", "value": 0.0} for row in rows[:2]]
    rows += [row | {"view": "clean_again", "value": 1.0} for row in rows[:2]]
    (row,) = study.by_part(pd.DataFrame(rows)).to_dict("records")
    assert row == {
        "checkpoint": "minilm-prc-seed0", "model": "prc", "part": "router", "format": "int8", "flips": 0.2,
        "layers": 2, "texts": 7,
    }  # fmt: skip


def test_every_line_of_the_page_has_its_rows() -> None:
    """A cell that the tables lack would leave a line out without a word."""
    folder = Path(__file__).parents[2] / "reports" / "real-texts"
    table = pd.read_csv(folder / "table.csv")
    assert set(table["seeds"]) == {3} and set(table["model"]) == set(MODELS)
    layers = 3
    assert len(tables.claims(folder)) == 2 + layers * len(tables.PERTURBATIONS)
    assert len(tables.domains(folder)) == 2 + layers
    assert len(tables.forms(folder)) == 2 + layers
    rounded = pd.read_csv(folder / "precision.csv")
    assert set(rounded["layers"]) == {layers}
    assert set(rounded.groupby(["model", "part", "format"]).size()) == {3}
    assert "nan" not in "".join(tables.precision(folder))
