"""How much of a server's mismatch is routing: planted mismatches of one kind and of the other are found as such."""

import base64
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from tests.commands import refused, run
from tests.recordings import serving

pytest.importorskip("transformers")

import torch
from matplotlib.figure import Figure

from moeprobe.errors import RunWarning, UserError
from moeprobe.inputs.texts import TokenBatch
from moeprobe.metrics.analyses.mismatch import MismatchAnalysis
from moeprobe.recorded.mismatch.figure import draw
from tests.adapters.test_replay import FAMILIES, forced, model_of, scores
from tests.adapters.tiny_texts import tokenizer

# Intervals are asserted.
pytestmark = pytest.mark.resamples


REQUESTS, PROMPT, GENERATED = 48, 4, 8


def served(folder: Path, family: str, *, rerouted: float = 0.0, noise: float = 0.0) -> Path:
    """A model, and responses of a server that reroutes a share of the tokens, or whose kernels add noise."""
    model = model_of(family)
    model.save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    random = np.random.default_rng(1)
    lines = []
    for number in range(REQUESTS):
        ids = torch.from_numpy(random.integers(3, 320, (1, PROMPT + GENERATED)))
        whole = torch.ones_like(ids, dtype=torch.bool)
        texts = TokenBatch(ids, whole, whole, 0)
        with torch.no_grad():
            logits = model(input_ids=ids, output_router_logits=True).router_logits
        choices = {place: one.topk(2).indices for place, one in enumerate(logits)}
        moved = torch.from_numpy(random.random(ids.shape[1]) < rerouted)
        choices[0][moved] = (choices[0][moved] + 3) % 8
        with forced(model, family, {0: choices[0]}):
            own = scores(model, texts)[0].numpy()
            with torch.no_grad():
                later = model(input_ids=ids, output_router_logits=True).router_logits
        experts = np.stack([choices[0].numpy(), *(one.topk(2).indices.numpy() for one in later[1:])], axis=1)
        own = own[PROMPT - 1 :] - noise * random.random(GENERATED)
        choice = {
            "index": 0, "token_ids": ids[0, PROMPT:].tolist(), "logprobs": {"token_logprobs": own.tolist()},
            "routed_experts": serving.npy(experts[:-1].astype("uint8")),
        }  # fmt: skip
        lines.append({"id": f"r{number}", "prompt_token_ids": ids[0, :PROMPT].tolist(), "choices": [choice],
                      "usage": serving.usage(PROMPT, GENERATED)})  # fmt: skip
    (folder / "responses.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    api.import_routed_experts(
        folder / "responses.jsonl", folder / "served.parquet", model_config=folder / "model" / "config.json"
    )
    return folder


def measured(folder: Path, **more: Any) -> pd.DataFrame:
    found = api.mismatch(
        f"hf:{folder}/model", tokens=folder / "responses.jsonl", routing=folder / "served.parquet", **more
    )
    return found.table.set_index("metric")


@pytest.mark.parametrize(
    "family", [FAMILIES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in FAMILIES[1:])]
)
def test_planted_routing_is_attributed_to_routing(family: str, tmp_path: Path) -> None:
    table = measured(served(tmp_path, family, rerouted=0.3))
    value = table["value"]
    assert value["mismatch"] > 0.01 and value["mismatch_rest"] < 1e-5
    assert value["mismatch_routing_share"] == pytest.approx(1, abs=1e-3)
    assert value["mismatch_k3_routing_share"] == pytest.approx(1, abs=1e-3)
    assert table["trials"].unique().tolist() == [REQUESTS * GENERATED]
    assert table.loc["mismatch_routing", "ci_low"] > 0
    assert value["mismatch"] == pytest.approx(value["mismatch_rest"] + value["mismatch_routing"])


def test_what_is_no_routing_is_the_rest(tmp_path: Path) -> None:
    table = measured(served(tmp_path, "olmoe", noise=0.2))
    value = table["value"]
    assert value["mismatch_rest"] == pytest.approx(value["mismatch"], abs=1e-6)
    assert 0.05 < value["mismatch"] < 0.15 and abs(value["mismatch_routing_share"]) < 1e-4
    lines = [json.loads(line) for line in (tmp_path / "responses.jsonl").read_text().splitlines()]
    model, differences = model_of("olmoe"), []
    for line in lines:
        ids = torch.tensor([line["prompt_token_ids"] + line["choices"][0]["token_ids"]])
        whole = torch.ones_like(ids, dtype=torch.bool)
        own = scores(model, TokenBatch(ids, whole, whole, 0))[0, PROMPT - 1 :].numpy()
        differences.append(own - np.array(line["choices"][0]["logprobs"]["token_logprobs"]))
    moved = np.concatenate(differences)
    assert value["mismatch"] == pytest.approx(np.abs(moved).mean(), abs=1e-6)
    assert value["mismatch_k3"] == pytest.approx((np.exp(moved) - 1 - moved).mean(), abs=1e-6)


def with_two_choices(folder: Path) -> Path:
    """Give each response a second choice, which is as the first, and import the responses anew."""
    lines = [json.loads(line) for line in (folder / "responses.jsonl").read_text().splitlines()]
    for line in lines:
        line["choices"] = [line["choices"][0], line["choices"][0] | {"index": 1}]
        del line["usage"]
    (folder / "responses.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    api.import_routed_experts(
        folder / "responses.jsonl", folder / "served.parquet", model_config=folder / "model" / "config.json",
        overwrite=True,
    )  # fmt: skip
    return folder


@pytest.mark.slow
@pytest.mark.promise
def test_choices_of_a_request_are_no_samples(tmp_path: Path) -> None:
    folder = served(tmp_path, "olmoe", rerouted=0.5, noise=0.2)
    once, twice = measured(folder), measured(with_two_choices(folder))
    assert (twice["trials"] == 2 * once["trials"]).all() and (twice["images"] == REQUESTS).all()
    columns = ["value", "ci_low", "ci_high"]
    np.testing.assert_allclose(twice[columns], once[columns], atol=1e-6)


@pytest.mark.slow
@pytest.mark.promise
def test_requests_are_matched_by_tokens_where_their_names_differ(tmp_path: Path) -> None:
    folder = served(tmp_path, "olmoe", rerouted=0.5, noise=0.2)
    by_name = measured(folder)
    lines = [json.loads(line) for line in (folder / "responses.jsonl").read_text().splitlines()]
    lines = [line | {"id": f"again-{line['id']}"} for line in reversed(lines)]
    (folder / "responses.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(UserError, match=r"no request in common.*Match them by their tokens"):
        measured(folder)
    by_tokens = measured(folder, match="tokens")
    columns = ["value", "ci_low", "ci_high", "trials", "images"]
    np.testing.assert_allclose(by_tokens[columns], by_name[columns], atol=1e-6)


@pytest.mark.slow
@pytest.mark.promise
def test_another_model_than_the_served_one_is_named(tmp_path: Path) -> None:
    folder = served(tmp_path, "olmoe", noise=0.2)
    torch.manual_seed(11)
    other = model_of("olmoe")
    with torch.no_grad():
        for weights in other.parameters():
            weights.copy_(torch.randn_like(weights) * 0.3)
    other.save_pretrained(folder / "other")
    command = ("--tokens", folder / "responses.jsonl", "--routing", folder / "served.parquet")
    same = run("trace", "mismatch", f"hf:{folder}/model", *command)
    with pytest.warns(RunWarning, match="agree with those of other hardly better than by chance"):
        result = run("trace", "mismatch", f"hf:{folder}/other", *command)
    # Of the served model a warning would be an error.
    assert same.exit_code == result.exit_code == 0, result.output
    said = [" ".join(one.output.split()) for one in (same, result)]
    assert ["a share of" in text or "share due to routing" in text for text in said] == [True, False]
    assert ["two models, so no share of it is routing" in text for text in said] == [False, True]
    for name in ("model", "other"):
        recorded = run(
            "trace", "record", f"hf:{folder}/{name}", *command[:2], "--out", folder / f"again-{name}"
        )
        assert recorded.exit_code == 0, recorded.output
    analyzed = [
        " ".join(
            run(
                "trace", "analyze", command[3], folder / f"again-{name}" / name / "tokens.parquet"
            ).output.split()
        )
        for name in ("model", "other")
    ]
    assert ["No layer agrees better than by chance" in text for text in analyzed] == [False, True]
    assert all("within image" not in text for text in analyzed)
    checked = [
        run("trace", "check", command[3], "--against", folder / f"again-{name}" / name / "tokens.parquet")
        for name in ("model", "other")
    ]
    assert [one.exit_code for one in checked] == [0, 3]
    assert "Fault, overlap by chance" in checked[1].output and "Next:" not in checked[1].output


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
def test_both_are_split(tmp_path: Path) -> None:
    folder = served(tmp_path, "olmoe", rerouted=0.5, noise=0.2)
    table = measured(folder, batch_size=5)
    share = table.loc["mismatch_routing_share"]
    assert 0 < share["ci_low"] < share["value"] < share["ci_high"] < 1
    result = run(
        "trace", "mismatch", f"hf:{folder}/model", "--tokens", folder / "responses.jsonl", "--routing",
        folder / "served.parquet", "--out", folder / "r",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "over requests" in said and "image" not in said.replace("images.parquet", "")
    assert "where the model repeats the server's routing" in said and "routing accounts for" in said
    assert (folder / "r" / "figures" / "mismatch.png").read_bytes()[:4] == b"\x89PNG"
    written = pd.read_csv(folder / "r" / "table.csv").set_index("metric")["value"]
    assert np.allclose(written, table["value"][written.index])
    command = ("trace", "mismatch", f"hf:{folder}/model", "--tokens", folder / "responses.jsonl", "--routing")
    assert "There is no trace" in refused(*command, folder / "none.parquet")
    assert "holds no gates of layers.0" in refused(*command, folder / "served.parquet", "--gates", "replayed")
    assert "recomputed or replayed" in refused(*command, folder / "served.parquet", "--gates", "other")
    bare = folder / "bare.jsonl"
    lines = [json.loads(line) for line in (folder / "responses.jsonl").read_text().splitlines()]
    for line in lines:
        del line["choices"][0]["logprobs"]
    bare.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    command = ("trace", "mismatch", f"hf:{folder}/model", "--routing", folder / "served.parquet", "--tokens")
    assert "holds no log-probabilities of generated tokens" in refused(*command, bare)
    lines[0]["choices"][0]["logprobs"] = {"token_logprobs": [-1.0]}
    bare.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "r0 has 8 generated tokens, and 1 log-probabilities" in refused(*command, bare)
    for number in (1.0, -(10**400)):
        lines[0]["choices"][0]["logprobs"] = {"token_logprobs": [number] * 8}
        bare.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        assert "numbers up to 0, or null" in refused(*command, bare)
    lines[0]["choices"][0]["logprobs"] = {"token_logprobs": [-1.0] * 8}
    lines[0]["prompt_token_ids"][0] += 1
    bare.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "r0 has other tokens in" in refused(*command, bare)


def test_the_figure_shows_the_table_and_every_request(tmp_path: Path) -> None:
    folder = served(tmp_path, "olmoe", rerouted=0.5, noise=0.2)
    result = api.mismatch(
        f"hf:{folder}/model", tokens=folder / "responses.jsonl", routing=folder / "served.parquet"
    )
    (figure,) = result.plot().values()
    whole, k3, requests = figure.axes
    table = result.table.set_index("metric")
    for axes, name in ((whole, "mismatch"), (k3, "mismatch_k3")):
        bars: list[Any] = [vars(container)["lines"] for container in axes.containers]
        for (line, _, drawn), part in zip(bars, ("", "_routing", "_rest"), strict=True):
            row = table.loc[f"{name}{part}"]
            assert line.get_xdata()[0] == pytest.approx(row["value"])
            if row["flag"] == "few_carriers":
                assert not drawn and name == "mismatch_k3"
                continue
            (bar,) = drawn
            assert bar.get_segments()[0][:, 0] == pytest.approx([row["ci_low"], row["ci_high"]])
    points = np.ma.getdata(requests.collections[0].get_offsets())
    assert len(points) == REQUESTS
    # Requests are of one length, so that their mean is that of all tokens.
    assert points.mean(0).tolist() == pytest.approx(
        [table.loc[f"mismatch{part}", "value"] for part in ("", "_rest")]
    )
    assert (points[:, 1] < points[:, 0]).mean() > 0.6, "routing was planted"
    assert said(figure).startswith(f"{REQUESTS} requests; bars")
    images = result.images.to_pandas()
    images[MismatchAnalysis.signature] = images[MismatchAnalysis.signature].where(np.arange(REQUESTS) > 1, 0)
    few: Any = SimpleNamespace(table=result.table, images=images)
    (figure,) = draw(few).values()
    assert said(figure).startswith(f"{REQUESTS - 2} requests; 2 without a scored token are not shown; bars")


def said(figure: Figure) -> str:
    """What stands below a figure."""
    return figure.texts[-1].get_text().replace("\n", " ")


@pytest.mark.slow
@pytest.mark.promise
def test_a_batch_of_verl_says_what_responses_do(tmp_path: Path) -> None:
    folder = served(tmp_path, "olmoe", rerouted=0.5, noise=0.2)
    lines = [json.loads(line) for line in (folder / "responses.jsonl").read_text().splitlines()]
    left, right, batch = 2, 3, []
    for number, line in enumerate(lines):
        (choice,) = line["choices"]
        tokens = torch.tensor([0] * left + line["prompt_token_ids"] + choice["token_ids"] + [0] * right)
        experts = torch.from_numpy(
            np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)
        )
        routed = torch.zeros((len(tokens), *experts.shape[1:]), dtype=torch.uint8)
        routed[left : left + len(experts)] = experts
        mask = torch.zeros(len(tokens), dtype=torch.int64)
        mask[left : left + PROMPT + GENERATED] = 1
        scores = torch.tensor(choice["logprobs"]["token_logprobs"] + [float(-(number % 2))] * right)
        batch.append((routed, mask, tokens, tokens[left + PROMPT :], scores))
    names = ("routed_experts", "attention_mask", "input_ids", "responses", "rollout_log_probs")
    stacked = {
        name: torch.stack(columns) for name, columns in zip(names, zip(*batch, strict=True), strict=True)
    }
    torch.save(stacked, folder / "batch.pt")
    api.import_routed_experts(
        folder / "batch.pt", folder / "verl.parquet", model_config=folder / "model" / "config.json"
    )
    of_verl = api.mismatch(
        f"hf:{folder}/model", tokens=folder / "batch.pt", routing=folder / "verl.parquet"
    ).table.set_index("metric")["value"]
    of_server = measured(folder)["value"]
    assert of_server["mismatch_routing"] > 0.01
    np.testing.assert_allclose(of_verl, of_server[of_verl.index], atol=1e-6)


def test_log_probabilities_of_every_dialect(tmp_path: Path) -> None:
    from moeprobe.recordings.log_probs import read_log_probabilities

    values = [-0.5, -1.0]
    ids = {"prompt_token_ids": [3], "token_ids": [4, 5]}
    lines: list[dict[str, Any]] = [
        {"id": "a", "prompt_token_ids": [3], "choices": [
            {"token_ids": [4, 5], "logprobs": {"token_logprobs": values}}]},
        {"id": "b", "prompt_token_ids": [3], "choices": [
            {"token_ids": [4, 5], "logprobs": {"content": [{"token": "x", "logprob": one} for one in values]}}]},
        {"id": "c", "input_ids": [3], "output_ids": [4, 5],
         "meta_info": {"output_token_logprobs": [[one, 4, "x"] for one in values]}},
        {"id": "d", **ids, "logprobs": [None, -1.0]},
        {"id": "e", **ids},
        {"id": "f", "prompt_token_ids": [], "token_ids": [], "logprobs": []},
    ]  # fmt: skip
    (tmp_path / "r.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = read_log_probabilities(tmp_path / "r.jsonl")
    assert set(found) == set("abcd") and all(found[name].tolist() == values for name in "abc")
    assert np.isnan(found["d"][0]) and found["d"][1] == -1
    sample = {"index": 2, "tokens": [3, 4, 5], "response_length": 2, "rollout_log_probs": values,
              "rollout_routed_experts": None}  # fmt: skip
    torch.save({"rollout_id": 1, "samples": [sample]}, tmp_path / "r.pt")
    assert read_log_probabilities(tmp_path / "r.pt")["1/2"].tolist() == values
