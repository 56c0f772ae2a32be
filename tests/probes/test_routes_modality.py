"""Which experts see pictures: planted biases for image tokens, and permutations of places."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.huggingface.picture_model import PictureModel
from moeprobe.adapters.open import load_model
from moeprobe.probes.engine.leading import leading_sentences
from moeprobe.probes.routes import Routes
from moeprobe.probes.routes.modality import ModalityTable, modality_frame, modality_table
from moeprobe.probes.routes.tables import sentences
from moeprobe.results.folder import Result
from moeprobe.results.stored import of_table
from moeprobe.results.stored_cell import StoredCell
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table
from tests.adapters import tiny_pictures

PROMPT = "what is this ?"
EXPERT = 0


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pictures.with_photographs(tmp_path_factory.mktemp("modality"))


@pytest.fixture(scope="module")
def data(here: Path) -> str:
    return f"folder:{here / 'photos'}"


def opened(here: Path, name: str, *, bias: float = 0.0) -> Checkpoint:
    """The model, whose routers add ``bias`` to the logit of one expert where a token is an image token."""
    checkpoint = load_model(f"hf:{here / 'one'}", device="cpu", prompt=PROMPT)
    assert isinstance(checkpoint.model, PictureModel)
    tiny_pictures.with_bias(checkpoint.model, bias, expert=EXPERT)
    return dataclasses.replace(checkpoint, name=name)


def apart(result: Result) -> pd.DataFrame:
    """The paired differences of the divergence, layer by layer."""
    assert result.comparison is not None
    return result.comparison[result.comparison["metric"] == "modality_divergence"].set_index("layer")


def test_a_bias_for_image_tokens_that_one_form_forgets_is_found_by_routes(here: Path, data: str) -> None:
    models = [opened(here, "forgets"), opened(here, "biased", bias=10)]
    result = api.routes(models, data=data, count=0, figures=False)
    verdicts = apart(result)["verdict"].tolist()
    assert verdicts.count("higher") >= 2 and "lower" not in verdicts
    said = leading_sentences(result, Routes().layout)[0]
    assert "ivergence of the experts of image tokens and words over all 3 MoE layers" in said
    assert said.endswith("higher in 2 of 3 layers.")
    # The picture names the expert: its share of image tokens grows more than that of any other.
    first = result.modalities[result.modalities["layer"] == "layers.0"].pivot(
        index="expert", columns="checkpoint", values="value"
    )
    assert (first["biased"] - first["forgets"]).idxmax() == EXPERT
    assert len(result.modalities) == 2 * 3 * 8


@pytest.mark.slow
@pytest.mark.promise
def test_two_forms_with_the_same_bias_differ_in_nothing(here: Path, data: str) -> None:
    models = [opened(here, name, bias=10) for name in ("one", "two")]
    result = api.routes(models, data=data, count=0, figures=False)
    assert (apart(result)["value"] == 0).all()
    values = result.modalities.set_index(["layer", "expert"])
    one, two = (values[values["checkpoint"] == name]["value"] for name in ("one", "two"))
    pd.testing.assert_series_equal(one, two)


def cell_of(selected: np.ndarray, *, words: int, experts: int) -> StoredCell:
    """A cell of pictures whose tokens ``(n, J, K)``, the last of them words, choose these experts."""
    count, tokens, _ = selected.shape
    columns = {
        "label": np.full(count, -1),
        "experts": np.full(count, experts),
        "modality_selected": selected.astype(np.int16),
        "modality_image_tokens": np.full(count, tokens - words),
        "modality_tokens": np.full(count, tokens),
    }
    accumulator = Accumulator()
    accumulator.add(
        Cell(layer="l0", top_k=selected.shape[2], tokens="patch"), [f"{i:03d}" for i in range(count)], columns
    )
    (cell,) = of_table(image_table(accumulator, checkpoint="a"))
    return cell


def table_of(selected: np.ndarray, *, words: int, experts: int) -> ModalityTable:
    table = modality_table(cell_of(selected, words=words, experts=experts), seed=0)
    assert table is not None
    return table


def test_shares_and_their_errors_against_loops() -> None:
    rng = np.random.default_rng(0)
    selected = rng.random((30, 9, 6)).argsort(-1)[..., :2]
    # An expert of words alone, one of image tokens alone, and one that nobody chooses.
    selected[:, :6][selected[:, :6] == 0] = 1
    selected[:, 6:][selected[:, 6:] == 2] = 3

    def by_hand(pictures: np.ndarray) -> np.ndarray:
        found = []
        for expert in range(7):
            image_tokens, words = (
                np.mean([choice == expert for choice in part.ravel()])
                for part in (pictures[:, :6], pictures[:, 6:])
            )
            found.append(image_tokens / (image_tokens + words) if image_tokens + words else np.nan)
        return np.array(found)

    table = table_of(selected, words=3, experts=7)
    np.testing.assert_allclose(table.image_shares, by_hand(selected))
    assert table.image_shares[0] == 0 and table.image_shares[2] == 1 and np.isnan(table.image_shares[6])
    assert table.one_kind == pytest.approx(2 / 6)
    leave_one_out = np.stack([by_hand(np.delete(selected, i, 0)) for i in range(30)])
    jackknife = np.sqrt(29 / 30 * np.square(leave_one_out - leave_one_out.mean(0)).sum(0))
    np.testing.assert_allclose(table.errors[:6], jackknife[:6], rtol=0.05)
    rows = modality_frame([table]).set_index("expert")
    assert rows["ci_low"][1] < rows["value"][1] < rows["ci_high"][1] and np.isnan(rows["ci_low"][6])


def test_exchanged_places_reject_in_as_many_cases_as_they_say() -> None:
    """Each place has an expert that it prefers, whatever its kind: places may be exchanged."""
    rng = np.random.default_rng(3)
    p_values = []
    for _ in range(120):
        preferred = rng.integers(0, 6, (1, 14, 1))
        drawn = rng.integers(0, 6, (10, 14, 1))
        table = table_of(np.where(rng.random(drawn.shape) < 0.7, preferred, drawn), words=4, experts=6)
        p_values.append((1 + (table.permuted[:, 0] >= table.divergence).sum()) / (1 + len(table.permuted)))
    rejected = np.mean(np.array(p_values) <= 0.1)
    # Binomial: 120 cases at 0.1 are outside of this once in 400 times.
    assert 0.02 <= rejected <= 0.19


def test_a_planted_split_is_beyond_exchanged_places() -> None:
    rng = np.random.default_rng(4)
    selected = rng.integers(0, 3, (20, 14, 1))
    selected[:, 10:] += 3
    table = table_of(selected, words=4, experts=6)
    assert table.divergence == pytest.approx(1) and table.one_kind == 1
    assert (table.permuted < 1).mean() > 0.99


@pytest.mark.slow
@pytest.mark.promise
def test_the_sentences_and_the_picture_say_what_the_table_says(here: Path, data: str) -> None:
    result = api.routes(f"hf:{here / 'one'}", data=data, count=0, figures=False)
    said = sentences(result.table)
    rows = result.table[result.table["layer"] == "layers.1"].set_index("metric")["value"]
    assert any(f"are {rows['modality_divergence_plain']:.3f} bits apart" in line for line in said)
    assert any(
        f"{rows['one_kind_experts']:.0%} of the experts in use serve one kind" in line for line in said
    )
    (panel, _) = result.plot()["modality"].axes
    drawn = np.asarray(panel.images[0].get_array())
    shares = result.modalities.pivot(index="layer", columns="expert", values="value")
    np.testing.assert_allclose(drawn, shares.to_numpy())
    sums = result.modalities.groupby("layer")[["of_image_tokens", "of_words"]].sum()
    np.testing.assert_allclose(sums, 1)
