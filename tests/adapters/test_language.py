"""Language models from the command line to the page: two tiny ones, on texts of a file."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.open import load_model
from moeprobe.cli.front import tables
from moeprobe.errors import UserError
from moeprobe.inputs.views.token_dropout import TokenDropout
from moeprobe.probes.confidence import figure as confidence
from moeprobe.results.folder import Result
from tests.adapters.tiny_texts import olmoe, texts
from tests.commands import refused, run
from tests.results.drawn import words


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    olmoe(folder / "one")
    olmoe(folder / "two", seed=1, spread=0.3)
    (folder / "lines.txt").write_text("\n".join(texts(22)), encoding="utf-8")
    (folder / "sets.txt").write_text("large, big\nsmall, little\nships, vessels\nsail, go by ship\n")
    return folder


@pytest.fixture(scope="module")
def data(here: Path) -> str:
    return f"text:{here / 'lines.txt'}"


@pytest.fixture(scope="module")
def models(here: Path) -> list[Checkpoint]:
    return [load_model(f"hf:{here / name}", device="cpu") for name in ("one", "two")]


@pytest.fixture(scope="module")
def typos(models: list[Checkpoint], data: str) -> Result:
    return api.sweep(models[:1], view="typos", data=data, severities=[0, 0.5], batch_size=8)


def pick(result: Result, **wanted: Any) -> pd.DataFrame:
    table = result.table[result.table["draw"].isna()]
    for column, value in wanted.items():
        table = table[table[column] == value]
    return table


def test_nothing_moves_where_nothing_is_changed(typos: Result) -> None:
    rows = pick(typos, view="typos", severity=0.0, tokens="token")
    for metric in ("top1_match", "top1_match_kappa", "set_jaccard", "set_jaccard_kappa", "weight_cosine"):
        values = rows[rows["metric"] == metric]["value"]
        assert len(values) and values.sub(1).abs().max() < 1e-6, metric
    assert set(typos.table["tokens"]) == {"token", "prefix", ""}
    assert pick(typos, metric="top1_match", tokens="token", severity=0.5)["value"].max() < 1
    # The prefix of a causal model sees nothing of the text.
    assert (pick(typos, metric="top1_match", tokens="prefix")["value"] == 1).all()


def test_experts_of_language_models_are_aligned(models: list[Checkpoint], data: str) -> None:
    table = api.align(models, data=data, permutations=40, figures=False).table
    kappas = table[(table["metric"] == "expert_overlap_kappa") & (table["tokens"] == "token")]
    kappa = kappas[kappas["null"] == "pooled"]
    assert kappa["layer"].tolist() == ["layers.0", "layers.1"] and kappa["value"].between(-0.1, 0.9).all()
    assert set(table["metric"]) >= {"fitted", "fitted_unrelated", "joint_routing"}


@pytest.mark.slow
@pytest.mark.promise
def test_sums_do_not_depend_on_the_batch_size(models: list[Checkpoint], data: str, typos: Result) -> None:
    other = api.sweep(models[:1], view="typos", data=data, severities=[0, 0.5], batch_size=5)
    for result in (typos, other):
        assert result.sidecar["request"]["max_length"] == 64  # positions of the model
    clean = [result.table[~result.table["view"].str.startswith("clean")] for result in (typos, other)]
    pd.testing.assert_frame_equal(*[table.reset_index(drop=True) for table in clean], rtol=1e-5, atol=1e-6)


def test_trials_are_the_tokens_that_have_a_partner(models: list[Checkpoint], data: str) -> None:
    """Dropout: a token has a partner if it is still there, so trials can be counted beforehand."""
    from moeprobe.runtime.seeds import generator

    view = TokenDropout()
    framing: Any = models[0].framing
    expected = 0
    lines = api.open_data(data)
    for index, name in enumerate(lines.image_ids):
        text = lines.example(index).text
        (left,) = view.perturb(
            text, framing=framing, severities=[0.5], rng=generator(0, "token_dropout", name)
        )
        expected += int((~left.special).sum())
    found = api.sweep(models[:1], view="token_dropout", data=data, severities=[0.5])
    assert set(pick(found, metric="top1_match", tokens="token", view="token_dropout")["trials"]) == {expected}


@pytest.mark.slow
@pytest.mark.promise
def test_noise_leaves_tokens_in_place(models: list[Checkpoint], data: str) -> None:
    found = api.sweep(models, view="embedding_noise", data=data, severities=[0, 0.5], layers=("layers.1",))
    kappa = pick(found, metric="top1_match_kappa", tokens="token", view="embedding_noise")
    assert {"pooled", "position", "image"} <= set(kappa["null"])
    assert kappa[kappa["severity"] == 0]["value"].sub(1).abs().max() < 1e-9
    assert kappa[kappa["severity"] == 0.5]["value"].max() < 1
    assert found.comparison is not None and len(found.comparison)
    (titles,) = [{table.title for table in tables.along_severity(found, title="noise")}]
    assert "noise: layers.1, tokens" in titles
    assert any("clean texts with themselves, tokens" in str(title) for title in titles)


def test_a_text_is_cut_off_where_it_is_told(models: list[Checkpoint], data: str) -> None:
    short = api.confidence(models[:1], data=data, max_length=5)
    assert set(pick(short, metric="gate_highest", tokens="token")["trials"]) == {4 * 22}  # and <s>
    (figure,) = confidence.draw(short.table, colors=short.sidecar["colours"]).values()
    assert "Router confidence on clean texts" in words(figure)


def test_all_models_cut_texts_off_at_one_length(models: list[Checkpoint], data: str) -> None:
    """The least of their own; more than one of them can read is refused."""
    framing: Any = models[1].framing
    short = dataclasses.replace(models[1], framing=dataclasses.replace(framing, max_length=6, longest=6))
    result = api.confidence([models[0], short], data=data)
    assert result.sidecar["request"]["max_length"] == 6
    assert (
        pick(result, metric="gate_highest", tokens="token").groupby("checkpoint")["trials"].max().nunique()
        == 1
    )
    with pytest.raises(UserError, match="is at most 6; got 7"):
        api.confidence([models[0], short], data=data, max_length=7)


def test_another_text_of_the_same_name_is_another_question(
    models: list[Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted run is not gone on with when the file was written anew."""
    file, out = tmp_path / "t.txt", tmp_path / "out"

    def ask() -> Result:
        return api.confidence(models[:1], data=f"text:{file}", out=out)

    file.write_text("a cat sat\n" * 3)
    with monkeypatch.context() as patched:
        patched.setattr("moeprobe.probes.engine.measurement.summarize", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ask()
    assert list((out / "parts").iterdir())
    file.write_text("the dog ran far away\n" * 3)
    with pytest.raises(UserError, match="holds an unfinished run of something else"):
        ask()


@pytest.mark.pictures
def test_from_the_command_line_to_the_page(here: Path, data: str, tmp_path: Path) -> None:
    two = [f"hf:{here / 'one'}", f"hf:{here / 'two'}", "--data", data, "--layers", "layers.1"]
    noise, page = tmp_path / "synonyms", tmp_path / "page"
    shown = run("match-ratio", two[0], *two[2:], "--view", "typos")
    assert shown.exit_code == 0 and "22 texts of text:" in shown.output, shown.output
    shown = run("sweep", *two, "--view", f"synonyms:{here / 'sets.txt'}", "--severities", "1", "--out", noise)
    assert shown.exit_code == 0 and "synonyms" in shown.output, shown.output
    request = json.loads((noise / "table.json").read_text())["request"]
    assert request["view"]["name"] == "synonyms" and len(request["view"]["sha256"]) == 64
    shown = run("confidence", two[0], *two[2:], "--json")
    assert {row["tokens"] for row in json.loads(shown.output)["table"]} == {"token", "prefix"}
    shown = run("compare", noise)
    assert shown.exit_code == 0 and "22 texts of text:" in shown.output, shown.output
    shown = run("report", noise, "--out", page)
    assert shown.exit_code == 0 and "κ of top-1 match" in shown.output, shown.output
    assert "layers.1, tokens" in (page / "report.md").read_text(encoding="utf-8")
    assert (noise / "figures" / "routing.png").exists()


def test_inspect_says_what_a_model_is(here: Path) -> None:
    shown = json.loads(run("inspect", f"hf:{here / 'one'}", "--check", "--json").output)
    assert shown["model"] == "olmoe" and shown["dense_layers"] == [] and shown["reads"] == "texts"
    # 3 · 16 · 32 parameters per expert, 8 per layer, 2 layers; 2 of 8 are active.
    assert shown["parameters"] - shown["active_parameters"] == 2 * 6 * 3 * 16 * 32
    assert [(row["layer"], row["num_experts"], row["top_k"], row["gates"]) for row in shown["layers"]] == [
        (f"layers.{number}", 8, 2, "softmax") for number in (0, 1)
    ]


def test_what_texts_have_not_is_said(here: Path, data: str, tmp_path: Path, trained: dict[str, Path]) -> None:
    one, out = f"hf:{here / 'one'}", tmp_path / "none"
    asked = {
        ("noise-sweep", one, "--data", data): "'gaussian_noise' perturbs images.* --view embedding_noise",
        ("match-ratio", one, "--data", data): "'random_crop' perturbs images.* e.g. --view embedding_noise",
        (
            "sweep",
            one,
            "--data",
            "digits",
            "--view",
            "typos",
        ): "'olmoe' reads texts and no images; name texts",
        ("confidence", one): "one does not say what it was trained on; name the data, e.g. --data text:PATH",
        ("confidence", trained["prc"], "--data", data): "prc reads images, and text:.* holds texts",
        (
            "confidence",
            trained["prc"],
            "--max-length",
            5,
        ): "--max-length is for texts, and prc reads images",
        ("confidence", one, "--data", data, "--max-length", 1): "at least 2; got 1",
        ("sweep", trained["prc"], "--view", "typos"): "'typos' perturbs texts, and digits holds images",
        ("sweep", one, "--data", data, "--view", "synonyms"): "needs a file: write synonyms:PATH",
        ("sweep", one, "--data", data, "--view", "typos:x.txt"): "takes no file",
        ("sweep", one, "--data", data, "--view", "typos", "--masks", here): "--masks are for images",
        (
            "overlay",
            one,
            "--data",
            data,
            "--view",
            "typos",
            "--animate",
            "--out",
            out,
        ): "Texts are not animated",
        ("contagion", one, "--data", data): "no patches, so there is nothing to exchange",
        ("eval", one, "--data", data): "nothing to evaluate: the model is no classifier of texts",
        ("fewshot", one, "--data", data): "does not say what its head reads",
        ("discontinuity", one, "--data", data, "--out", out): "cannot replay a routing",
        ("correspond", "--data", data, "--out", out): "Images are needed here",
    }
    for arguments, sentence in asked.items():
        assert re.search(sentence, refused(*arguments)), arguments
    assert not out.exists()
