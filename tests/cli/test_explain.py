"""What a name means, in the terminal."""

import functools
import json
import time

import pytest
from typer.main import get_command

from moeprobe.cli.app import app
from moeprobe.cli.front.glossary import explanations, names
from moeprobe.metrics import registry
from moeprobe.runtime.catalog import ADAPTERS, ROUTERS, VIEWS
from tests.commands import refused, run

PROGRAM = get_command(app)
# What is asked for -> what is printed, in this order.
MEANINGS = {
    "churn": ["churn, metric", "Of the tokens that an expert processes", "better", "less", "churn, analysis"],
    "churn_kappa": ["κ of churn", "κ = 1 − value / chance", "more", "the analysis churn", "match-ratio"],
    "top1_match_kappa": [
        "κ = (value − chance) / (1 − chance)",
        "same first expert",
        "position: the same at each",
    ],
    "top9_set_match": ["top-9 match, any order", "choose the same 9 experts"],
    "switches_above_{x}": ["metrics, such as switches_above_0.01"],
    "step_seconds": ["Median time of a training step", "less", "seconds"],
    "image": ["chance level", "another patch of the same image"],
    "collapsed": [
        "column of moeprobe compare",
        "who has collapsed",
        "word of the column flag",
        "chance is 1",
    ],
    "sim_low": ["column of moeprobe compare", "lower end of the simultaneous 95 % interval"],
    "gaussian_noise": ["gaussian_noise, view", "its own steps: 0, 0.05", "clip", "default True"],
    "softmax_expert_choice": ["router", "given by the model", "noise_std", "default 1.0"],
    "prc": ["objective", "diagonal_weight"],
    "digits": ["data set", "Handwritten digits"],
    "match-ratio": ["command", "Example:", "--view"],
    "import vmoe": ["command", "PREFIX"],
    "kappa": [
        "kappa, term",
        "κ = (value − chance) / (1 − chance)",
        "also κ",
        "docs/concepts/match-and-chance.md",
    ],
    "κ": ["kappa, term"],
    "noise": ["noise, term", "gaussian_noise", "also sigma, σ"],
    "sigma": ["noise, term"],
    "gate": ["gate, term", "softmax"],
    "robust": ["stable, term", "κ is higher"],
    "pooled": ["pooled, chance level", "a κ without another name is about it."],
    "blocks.1": ["blocks.1, name of a layer", "blocks.1 is the second block", "moeprobe inspect"],
    "drift": ["trace drift, command"],
    "analyze": ["trace analyze, command"],
    "chance": ["chance, term", "if the two sides were unrelated"],
    "CLS": ["prefix tokens, term", "BOS"],
    "prefix": ["prefix tokens, term"],
    "confidence interval": ["term", "under 20 images there is none"],
    "severity": ["term", "column of tables", "option of overlay"],
    "draw": ["term", "column of tables"],
    "position null": ["position, chance level"],
    "κ, within image": ["image, chance level"],
    "no significant difference": ["word of the column verdict", "at 80 % power"],
    "TOP1_MATCH": ["top1_match, metric", "same first expert"],
    "top-1 match": ["top1_match, metric", "same first expert"],
    "Match Ratio": ["match-ratio, command"],
    "--limit": ["--limit, option of", "a seeded random subset", "match-ratio"],
    "group-images": ["--group-images, option of"],
    "--plugins": ["option of moeprobe"],
    "vmoe": ["vmoe, adapter", "model ", "a VisionTransformer", "group_images"],
    "randaugment": ["view", "as released", "magnitude"],
}


@pytest.mark.parametrize("name", MEANINGS)
def test_a_name_is_explained(name: str) -> None:
    result = run("explain", name)
    assert result.exit_code == 0, result.output
    at = -1
    for text in MEANINGS[name]:
        at = result.output.replace("\n", " ").find(text, at + 1)
        assert at >= 0, (text, result.output)


@pytest.mark.parametrize("name", [*ADAPTERS.names(), "randaugment", "softmax_expert_choice"])
def test_no_section_of_a_docstring_is_printed_as_it_is(name: str) -> None:
    printed = run("explain", name).output
    assert not {"Args:", "Raises:", "Returns:", "Attributes:"} & {*printed.split()}
    assert "``" not in printed


def test_all_that_is_named_can_be_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of every metric it is asked for every kind of run, which looks at the files of all analyses each time.
    monkeypatch.setattr(registry, "measured_by", functools.cache(registry.measured_by))
    known = names(PROGRAM)
    assert {"churn", "top{k}_match", "severity", "few_images", "pooled", "fewshot", "kappa", "--limit"} <= {
        *known
    }
    assert {*VIEWS.names(), *ROUTERS.names(), *registry.names()} <= {*known}
    for name in known:
        found = list(explanations(name, PROGRAM))
        assert found and all(one.text or one.title for one in found), name


def test_several_words_need_no_quotes() -> None:
    assert "import vmoe, command" in run("explain", "import", "vmoe").output
    assert refused("explain", "churn", "--jsn").startswith("Error: Nothing is called 'churn --jsn'.")


def test_json_holds_every_meaning() -> None:
    found = json.loads(run("explain", "churn_kappa", "--json").output)
    assert [(one["kind"], one["facts"]["better"]) for one in found] == [("metric", "more")]
    assert [one["kind"] for one in json.loads(run("explain", "confidence", "--json").output)] == [
        "analysis",
        "command",
    ]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    result = run("explain", "chrun")
    assert result.exit_code == 2
    assert "Did you mean 'churn'?" in result.stderr


def test_a_name_of_many_letters_is_refused_at_once_in_a_short_sentence() -> None:
    started = time.perf_counter()
    said = refused("explain", "x" * 100_000)
    assert time.perf_counter() - started < 10
    assert said.startswith("Error: Nothing is called 'xxx") and len(said) < 500


def test_metrics_are_listed() -> None:
    listed = json.loads(run("list", "metrics", "--json").output)
    assert list(listed) == list(registry.names())
    assert listed["churn"].startswith("of the tokens that an expert processes")
