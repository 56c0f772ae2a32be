"""``moeprobe overlay`` of texts: the expert of each token, clean and perturbed, against the routing itself."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from moeprobe.adapters.open import load_model
from moeprobe.inputs.texts import TextFraming, stack
from moeprobe.inputs.views.typos import Typos
from moeprobe.probes.overlay.figure import token_positions
from moeprobe.probes.overlay.record import TextOverlay
from moeprobe.runtime.seeds import generator
from tests.adapters.tiny_texts import olmoe, texts
from tests.commands import pictures, run
from tests.results.drawn import words

SEVERITY = 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overlay-texts")
    olmoe(folder / "one")
    (folder / "lines.txt").write_text("\n".join(texts(6)), encoding="utf-8")
    arguments = ["--data", f"text:{folder / 'lines.txt'}", "--view", "typos", "--severities", f"0,{SEVERITY}"]
    with pictures():
        made = run("overlay", f"hf:{folder / 'one'}", *arguments, "--count", 3, "--out", folder / "out")
    assert made.exit_code == 0, made.output
    assert "Tokens that changed their set (+" in made.output and "Texts of text:" in made.output
    return folder


def test_every_token_has_the_expert_of_the_models_own_pass(folder: Path) -> None:
    table = pd.read_csv(folder / "out" / "tokens.csv", keep_default_na=False)
    model = load_model(f"hf:{folder / 'one'}", device="cpu")
    assert isinstance(model.framing, TextFraming)
    lines = texts(6)
    view = Typos()
    for text_id, rows in table.groupby("image_id"):
        source = lines[int(str(text_id).split("/")[1])]
        rng = generator(0, "typos", str(text_id))
        clean, perturbed = view.perturb(source, framing=model.framing, severities=(0, SEVERITY), rng=rng)
        assert rows[rows["severity"] == 0]["changed"].eq(False).all()
        for sample, severity in ((clean, 0), (perturbed, SEVERITY)):
            routing = model.model.trace(stack([sample]))[1].layers["layers.1"]
            own = routing.selected[0, sample.num_prefix_tokens :, 0].numpy()
            part = rows[(rows["layer"] == "layers.1") & (rows["severity"] == severity)]
            assert part["perturbed_expert"].astype(int).tolist() == own.tolist()
            # What the tokens read is the text itself, whatever spaces the tokenizer leaves out at the ends.
            assert "".join(part["word"]).strip() == sample.text.strip()


def test_changes_are_against_the_clean_token_of_the_same_place(folder: Path) -> None:
    table = pd.read_csv(folder / "out" / "tokens.csv", keep_default_na=False)
    keys = ["layer", "image_id"]
    clean = table[table["severity"] == 0].set_index([*keys, "token"])
    moved = table[(table["severity"] == SEVERITY) & (table["clean_token"] != "")]
    assert len(moved) and (table["clean_token"] == "").any()
    for row in moved.itertuples():
        partner = clean.loc[(row.layer, row.image_id, int(row.clean_token))]
        assert (row.clean_word, row.clean_token_expert) == (partner["word"], str(partner["perturbed_expert"]))
        assert row.changed == (str(row.perturbed_expert) != row.clean_token_expert)
        assert row.changed_set == (set(row.perturbed_set.split()) != set(row.clean_set.split()))
    unpaired = table[table["clean_token"] == ""]
    assert (unpaired["compared"].eq(False) & unpaired["clean_set"].eq("")).all()


@pytest.mark.pictures
def test_the_figure_and_the_finished_run_show_tokens(folder: Path) -> None:
    found = api.overlay(
        [f"hf:{folder / 'one'}"],
        data=f"text:{folder / 'lines.txt'}",
        view="typos",
        severity=SEVERITY,
        count=1,
    )
    figure = found.plot()["overlay-layers.0"]
    assert "typos at severity 0.5" in words(figure) and "changed from the clean text" in words(figure)
    (overlay,) = [item for item in found.overlays if item.layer == "layers.0"]
    assert isinstance(overlay, TextOverlay)
    clean, perturbed = ([text.get_text() for text in panel.texts] for panel in figure.axes)
    # What a token reads, and the number of its expert.
    assert clean[::2] == overlay.clean_words and perturbed[::2] == overlay.perturbed_words
    assert perturbed[1::2] == [str(expert) for expert in overlay.perturbed_expert]
    again = run(
        "overlay", f"hf:{folder / 'one'}", "--data", f"text:{folder / 'lines.txt'}", "--view", "typos",
        "--severities", f"0,{SEVERITY}", "--count", 3, "--out", folder / "out", "--json",
    )  # fmt: skip
    assert set(json.loads(again.stdout)) == {"tokens", "files"}


def test_words_break_between_lines_and_not_within() -> None:
    sizes = np.random.default_rng(0).integers(1, 12, 60)
    found = token_positions(["x" * size for size in sizes])
    assert (found[:, 0] + sizes <= 46).all() and (np.diff(found[:, 1]) >= 0).all() and found[-1, 1] > 5
    starts = found[:, 0] == 0
    assert (np.diff(found[:, 1]) == starts[1:]).all(), "a line is begun by its first word alone"
    assert token_positions(["y" * 80, "z"]).tolist() == [[0, 0], [0, 1]]
    assert token_positions([]).tolist() == [[0, 0]]
