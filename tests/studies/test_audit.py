"""The audit: its verdicts on models whose truth is known, its plan, its folder and its page."""

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.declarations import AuditEntry, Headline, Probe, Property
from moeprobe.errors import FinishedError, UserError
from moeprobe.inputs.modality import TEXT
from moeprobe.judging import properties, scales
from moeprobe.judging.properties import PropertyNumbers
from moeprobe.judging.words import IDENTICAL, NO_DIFFERENCE
from moeprobe.probes.flips import Flips
from moeprobe.probes.match_ratio import MatchRatio
from moeprobe.runtime.catalog import VIEWS
from moeprobe.studies.audit.result import scope
from moeprobe.studies.audit.sentences import lines_of, short_references, value_text
from tests.adapters.tiny_texts import olmoe, texts
from tests.commands import refused, run

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "checkpoints" / "reference" / "digits-baseline-k2-seed0"
# One layer of few images, and no noise floors: what is tested are the verdicts.
FEW: dict[str, Any] = {"limit": 20, "layers": "blocks.1", "data": "digits", "figures": False}
QUICK = ("match-ratio", "confidence")


def verdict(result: api.AuditResult, name: str, *, reference: bool = False) -> str:
    """The verdict on a property of the last model, or of the pair."""
    rows = result.verdicts[result.verdicts["property"] == name]
    rows = rows[(rows["reference"] != "") == reference]
    return str(rows["judgement" if reference else "verdict"].iloc[-1])


def collapsed_model() -> api.Checkpoint:
    """A model whose router gives every token the same gates, so that all choose the first experts."""
    model = api.load_model(MODEL)
    for weight in model.model.weights():  # type: ignore[attr-defined]
        if weight.part == "router":
            weight.parameter.data.zero_()
    return dataclasses.replace(model, name="collapsed")


def test_a_collapsed_router_is_called_so() -> None:
    result = api.audit([api.load_model(MODEL), collapsed_model()], probes=QUICK, **FEW)
    assert verdict(result, "crops") == "collapsed"
    assert verdict(result, "collapse") == "collapsed"
    assert verdict(result, "crops", reference=True).startswith("worse (collapsed")
    assert verdict(result, "dead") == "some"
    dead = result.verdicts[(result.verdicts["property"] == "dead") & (result.verdicts["reference"] == "")]
    assert list(dead["value"]) == [0, 6] and list(dead["experts"]) == [8, 8]
    # The other model is none of that.
    first = result.verdicts[result.verdicts["checkpoint"] == result.models[0]].set_index("property")
    assert first.loc["collapse", "verdict"] == "no" and first.loc["dead", "verdict"] == "none"


@pytest.mark.slow
@pytest.mark.promise
def test_language_models_are_audited_with_views_of_texts(tmp_path: Path) -> None:
    for name, seed in {"one": 0, "two": 1}.items():
        olmoe(tmp_path / name, seed=seed, spread=0.3 * seed)
    (tmp_path / "texts.txt").write_text("\n".join(texts(24)), encoding="utf-8")
    models = [f"hf:{tmp_path / name}" for name in ("one", "two")]
    probes = ("match-ratio", "sweep", "confidence")
    result = api.audit(models, data=f"text:{tmp_path / 'texts.txt'}", probes=probes, figures=False)
    lines = {line.name: line for line in lines_of(result.verdicts)}
    assert lines["crops"].title == "Routing under dropped tokens" and lines["crops"].difference is not None
    assert not [line.title for line in lines.values() if short_references(line)]  # known ones saw images
    named = [match[1] for line in lines.values() if (match := re.search(r"--view (\w+)", line.command))]
    assert named == ["token_dropout", "embedding_noise"]
    assert {VIEWS.get(name).modality for name in named} == {TEXT}


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
def test_an_audit_of_a_language_model_draws_its_texts(tmp_path: Path) -> None:
    olmoe(tmp_path / "one", seed=0)
    (tmp_path / "texts.txt").write_text("\n".join(texts(24)), encoding="utf-8")
    out = tmp_path / "audit"
    data = f"text:{tmp_path / 'texts.txt'}"
    api.audit(f"hf:{tmp_path / 'one'}", data=data, probes=("confidence", "overlay"), out=out)
    assert (out / "overlay" / "tokens.csv").is_file()
    assert "overlay/figures/overlay-layers.0.png" in (out / "audit.md").read_text(encoding="utf-8")


def test_the_scope_names_verdicts_that_read_the_first_layer_alone() -> None:
    result = api.audit(MODEL, probes=("confidence",), **FEW)
    assert "hold for all layers and variants that it reads at once." in scope(result)
    of_first = result.verdicts.assign(of_layers="first", layers=2)
    assert "at once, and one on the first layer reads that layer alone." in scope(
        dataclasses.replace(result, verdicts=of_first)
    )


def test_between_two_copies_of_a_model_there_is_no_difference() -> None:
    model = api.load_model(MODEL)
    copy = dataclasses.replace(api.load_model(MODEL), name="copy")
    result = api.audit([model, copy], probes=QUICK, **FEW)
    differences = result.verdicts[result.verdicts["reference"] != ""]
    assert {"crops", "dead", "load"} <= set(differences["property"])
    assert all(word == IDENTICAL or word.startswith(NO_DIFFERENCE) for word in differences["judgement"])


def test_two_forms_are_judged_as_agree_judges_them(tmp_path: Path) -> None:
    """The other form has two experts exchanged in its first router, so that it routes otherwise."""
    forms = [dataclasses.replace(api.load_model(MODEL), name=name) for name in ("first", "second")]
    weights = dict(forms[1].model.model.named_parameters())  # type: ignore[attr-defined]
    router = weights["blocks.1.mlp.router.gate.weight"]
    router.data[[2, 5]] = router.data[[5, 2]]
    # Of both layers, so that the interval is one of two.
    out = tmp_path / "audit"
    asked: dict[str, Any] = {"limit": 24, "data": "digits", "figures": False}
    result = api.audit(forms, probes=("agree",), out=out, **asked)
    agreed = api.agree(forms, **asked)
    assert verdict(result, "forms") == "no" and list(result.verdicts["checkpoint"]) == ["second"]
    page = " ".join((out / "audit.md").read_text(encoding="utf-8").replace("\\", "").split())
    said = agreed.leading(agreed)
    # The same sentences, and so the same interval.
    assert said[0].startswith("second does not route like first") and all(text in page for text in said)
    assert value_text(result.verdicts.iloc[0].to_dict()).removeprefix("κ ") in said[0]
    assert "second — routes like the first model: no (κ " in page
    # A form that is the same changes nothing.
    same = api.audit([forms[0], dataclasses.replace(forms[0], name="same")], probes=("agree",), **asked)
    assert verdict(same, "forms") == "no change seen"


@pytest.mark.parametrize("other", [(), (ROOT / "checkpoints" / "reference" / "digits-prc-k1-seed0",)])
def test_models_that_are_no_two_forms_have_no_such_verdict(other: tuple[Path, ...]) -> None:
    plan = api.plan_audit([MODEL, *other], probes=("confidence", "agree"), **FEW)
    assert [step.name for step in plan.steps] == ["confidence"]
    reason = "forms of one model have the same" if other else "Name at least two forms"
    assert reason in plan.left_out["agree"]


@pytest.mark.slow
@pytest.mark.promise
def test_prices_margins_corruptions_and_experts_are_judged(tmp_path: Path) -> None:
    """Of two models; each run has a section with its sentences."""
    models = [MODEL, MODEL.with_name("digits-prc-k2-seed0")]
    probes = ("margins", "flips", "corruptions", "experts", "align")
    result = api.audit(models, probes=probes, out=tmp_path / "audit", names=["plain", "prc"], **FEW)
    assert not result.left_out
    lines = {line.name: line for line in lines_of(result.with_names().verdicts)}
    assert list(lines) == ["margins", "flips", "corruptions", "experts", "align"]
    assert [row["checkpoint"] for row in lines["align"].values] == ["prc"], "it is about both"
    assert verdict(result, "align") in ("no", "in part to no", "in part")
    # Of the worst corruption; only the audit's own are judged, and no mean over them.
    assert {row["view"] for row in lines["corruptions"].values} == {"fog"}
    difference = lines["corruptions"].difference
    assert difference is not None and "mean over 4 views" in difference["beside"]
    assert result.models == [path.name for path in models]
    page = (tmp_path / "audit" / "audit.md").read_text(encoding="utf-8")
    assert "blocks.1: aligned experts agree with κ" in page and "prc, κ in blocks.1: lowest under fog" in page
    assert "prc, blocks.1: 8 of 8 experts are not judged, since few images carry" in page
    # Prices of experts are of images, whose draws are no patches.
    [of_experts] = [line for line in page.splitlines() if line.startswith("* prc") and "with experts" in line]
    assert " images, " in of_experts and " trials)" in of_experts


def test_what_takes_too_long_is_not_even_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def timing(work: Any) -> Any:
        raise AssertionError(f"{work.probe.name} was timed")

    monkeypatch.setattr("moeprobe.probes.experts.measure.ExpertsMeasurement.passes", 10**9)
    monkeypatch.setattr("moeprobe.probes.experts.measure.ExpertsMeasurement.plan", timing)
    plan = api.plan_audit(MODEL, probes=("confidence", "experts", "align"), **FEW)
    assert [step.name for step in plan.steps] == ["confidence"]
    assert "--minutes" in plan.left_out["experts"] and "two models" in plan.left_out["align"]


def test_what_is_left_out_calls_models_as_the_user_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is a sentence about a model, which has no router that could be left out otherwise."""

    def cannot(name: str, *_: Any) -> None:
        raise UserError(f"{name} cannot replay a routing.")

    monkeypatch.setattr("moeprobe.probes.engine.outputs.check_replayable", cannot)
    plan = api.plan_audit(MODEL, probes=("confidence", "experts"), names="mine", **FEW)
    assert plan.left_out["experts"] == "mine cannot replay a routing."


def test_a_plan_says_what_would_run_and_fits_the_time() -> None:
    wide = api.plan_audit(MODEL, probes=("match-ratio", "confidence"), **FEW)
    assert [step.name for step in wide.steps] == ["match-ratio", "confidence"]
    assert {step.images for step in wide.steps} == {20} and wide.seconds < 60 * wide.minutes
    narrow = api.plan_audit(MODEL, minutes=0.001, probes=("match-ratio", "confidence"), **FEW)
    assert [step.name for step in narrow.steps] == ["match-ratio"]
    # Those minutes are enough, and the reason adds up.
    enough = re.fullmatch(
        r"takes about \d+ s, and with the probes before it more than 0.001 minutes; add --minutes (\d+).",
        narrow.left_out["confidence"],
    )
    assert enough is not None
    assert (
        "confidence"
        not in api.plan_audit(
            MODEL, minutes=float(enough[1]), probes=("match-ratio", "confidence"), **FEW
        ).left_out
    )
    printed = run("audit", MODEL, "--data", "digits", "--limit", 24, "--probes", "confidence", "--dry-run")
    assert printed.exit_code == 0, printed.output
    assert (
        "confidence: 24 images x 1 forward passes" in printed.output
        and "Nothing was written" in printed.output
    )


@pytest.mark.pictures
def test_a_folder_holds_the_page_and_a_finished_audit_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "audit"
    arguments = (
        "audit", MODEL, "--data", "digits", "--limit", 24, "--layers", "blocks.1", "--probes", "match-ratio,eval",
        "--out", out,
    )  # fmt: skip
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    assert "Routing under crops" in first.output and "audit.html" in first.output
    assert len(first.output.splitlines()) < 25
    page = (out / "audit.html").read_text(encoding="utf-8")
    assert page.count("<summary>Tails: the share of patches that change experts</summary>") == 1
    assert "default-src 'none'" in page and "<script" not in page and not re.search(r'(src|href)="http', page)
    assert "hash router 0.09" in page, "the reference values stand beside the number"
    assert "data:image/png" in page
    text = (out / "audit.md").read_text(encoding="utf-8")
    assert (
        "match-ratio/figures/match-ratio.png" in text
        and (out / "match-ratio/figures/match-ratio.png").is_file()
    )
    # Nothing is run again, and the same is printed.
    monkeypatch.setattr("moeprobe.studies.audit.run.engine.run", _unwanted)
    monkeypatch.setattr("moeprobe.studies.audit.run.make_plan", _unwanted)
    again = run(*arguments)
    assert again.exit_code == 0 and again.output == first.output
    for other in (("--allow-not-finite",), ("--masks", tmp_path)):
        assert "holds a finished run of something else" in refused(*arguments, *other)
    # An interrupted audit goes on with the runs that are finished.
    (out / "table.json").unlink()
    (out / "audit.html").unlink()
    monkeypatch.undo()
    before = (out / "match-ratio" / "table.json").stat().st_mtime_ns
    content = json.loads(run(*arguments, "--json").output)
    assert {row["property"] for row in content["verdicts"]} == {"crops", "collapse", "accuracy"}
    assert (out / "audit.html").is_file()
    assert (out / "match-ratio" / "table.json").stat().st_mtime_ns == before


def _unwanted(*_: object, **__: object) -> None:
    raise AssertionError("nothing is to be run")


def test_recorded_routing_is_audited_without_its_model(tmp_path: Path) -> None:
    record: dict[str, Any] = {"data": "digits", "limit": 20, "layers": "blocks.1"}
    api.record(MODEL, out=tmp_path / "a", view="gaussian_noise", severities=(0, 0.1), **record)
    traces = sorted((tmp_path / "a").rglob("*.parquet"))
    alone = api.audit(traces[0])
    assert verdict(alone, "recording") == "no known fault" and verdict(alone, "dead") == "none"
    assert "recorded" not in set(alone.verdicts["property"]) and "accuracy" in alone.left_out
    pair = api.audit(traces[:2], out=tmp_path / "audit")
    recorded = pair.verdicts.set_index("property").loc["recorded"]
    assert 0 < recorded["value"] < 1 and recorded["ci_low"] < recorded["value"] < recorded["ci_high"]
    page = (tmp_path / "audit" / "audit.html").read_text(encoding="utf-8")
    assert "analyze-trace/table.csv" in page and "trace analyze" in page
    again = api.audit(traces[:2], out=tmp_path / "audit")
    pd.testing.assert_frame_equal(again.verdicts, pair.verdicts, check_dtype=False)
    traces[1].write_bytes(traces[0].read_bytes())
    with pytest.raises(UserError, match="holds a finished run of something else"):
        api.audit(traces[:2], out=tmp_path / "audit")


def test_a_model_without_a_hash_is_never_taken_for_an_earlier_one(tmp_path: Path) -> None:
    def audited(model: api.Checkpoint) -> api.AuditResult:
        provenance = {**model.provenance, "sha256": None}
        model = dataclasses.replace(model, name="mine", provenance=provenance)
        return api.audit(model, probes=QUICK, out=tmp_path / "audit", **FEW)

    assert verdict(audited(api.load_model(MODEL)), "crops") != "collapsed"
    with pytest.raises(FinishedError):
        audited(collapsed_model())
    (tmp_path / "audit" / "table.json").unlink()
    assert verdict(audited(collapsed_model()), "crops") == "collapsed"


def test_a_probe_joins_by_its_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Toy(Probe[Any]):
        """How sure are toys?"""

        name: ClassVar[str] = "toy"
        title: ClassVar[str] = "Toys"
        analyses: ClassVar[tuple[str, ...]] = ("confidence",)
        audit: ClassVar[AuditEntry | None] = AuditEntry(
            order=9, properties=(Property("toys", "Toys", (Headline("gate_highest"),), "confidence"),)
        )

    monkeypatch.setattr("moeprobe.declarations.registry.probes", lambda: [MatchRatio, Toy])
    monkeypatch.setattr("moeprobe.declarations.registry.kinds", lambda: [MatchRatio, Toy])
    result = api.audit(MODEL, probes=("toy",), **FEW)
    assert lines_of(result.verdicts)[0].title == "Toys"
    assert verdict(result, "toys") in ("low", "medium", "high", "medium to low", "low to medium")


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path: Path) -> None:
    assert "one model, or of two" in refused("audit", MODEL, MODEL, MODEL)
    assert "--minutes takes" in refused("audit", MODEL, "--minutes", 0)
    assert "probe of an audit" in refused("audit", MODEL, "--probes", "crops", "--data", "digits")
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(UserError, match="audit two recordings"):
        api.audit([tmp_path / "a.parquet", MODEL])


def test_layers_where_no_flip_moves_the_loss_are_not_the_worst() -> None:
    """A mean fall of the loss is less than 0, which is the price where nothing can move."""
    shared = {
        "checkpoint": "a",
        "metric": "flip_price_runner_up",
        "null": "",
        "view": "noise",
        "severity": 0.4,
    }
    shared |= {"tokens": "patch", "images": 40, "trials": 80, "flag": "", "expert": None}
    moved = shared | {"layer": "blocks.1", "value": -0.001, "ci_low": -0.004, "ci_high": 0.0002}
    still = shared | {"layer": "blocks.3", "value": 0.0, "ci_low": 0.0, "ci_high": 0.0}
    costly = moved | {"layer": "blocks.5", "value": 0.2, "ci_low": 0.15, "ci_high": 0.25}
    late = [still | {"layer": "blocks.1"}, moved | {"layer": "blocks.3"}, costly]
    said = {}
    for name, rows in {"both": [moved, still], "still": [still], "late": late}.items():
        table = pd.DataFrame(rows)
        [item] = Flips.audit.properties if Flips.audit else ()
        numbers = PropertyNumbers(item, list(item.numbers), table)  # type: ignore[arg-type]
        [said[name]] = properties.verdicts(numbers, table, run="flips", classes=10, command="", models=["a"])
    assert said["both"]["layer"] == "blocks.1" and said["both"]["verdict"] == "negligible"
    assert said["both"]["beside"] == "exactly 0 in blocks.3, where no flip moved the loss"
    assert said["still"]["verdict"] == "none: no flip moved the loss" and not said["still"]["beside"]
    assert value_text(said["still"]) == "rise of the loss exactly 0"
    # The first layer is named as it is, be it moved or not.
    assert (said["late"]["layer"], said["late"]["first_layer"]) == ("blocks.5", "blocks.1")


@pytest.mark.parametrize(
    ("low", "high", "word", "grade"),
    [
        (0.85, 0.95, "stable", "good"),
        (0.75, 0.95, "stable to moderately stable", "fair"),
        (0.55, 0.6, "moderately stable", "fair"),
        (0.3, 0.55, "moderately stable to unstable", "poor"),
        (0.1, 0.2, "unstable", "poor"),
    ],
)
def test_an_interval_decides_and_not_the_point(low: float, high: float, word: str, grade: str) -> None:
    scale = scales.SCALES["agreement"]
    bands = scale.bands(low, high)
    assert (scale.word(bands), scale.grade(bands)) == (word, grade)


@pytest.mark.parametrize(("low", "word"), [(0.071, "at chance"), (0.099, "at chance"), (0.1, "above chance")])
def test_an_accuracy_that_may_be_chance_is_at_chance(low: float, word: str) -> None:
    scale = scales.SCALES["accuracy"]
    assert scale.word(scale.bands(low, 0.132, unit=1 / 10)) == word


def test_scales_have_a_word_per_band() -> None:
    for name, scale in scales.SCALES.items():
        assert len(scale.words) == len(scale.edges) + 1, name
        assert list(scale.edges) == sorted(scale.edges), name


def test_reference_values_are_those_of_the_committed_reports() -> None:
    """Of V-MoE with and without PRC; unlearned routers are means of three seeds in reports/routers/digits."""
    routers = pd.read_csv(ROOT / "reports" / "routers" / "digits" / "table.csv.gz", keep_default_na=False)
    routers = routers[(routers["layer"] == "blocks.1") & (routers["null"] == "pooled")]
    unlearned = {"hash router": "hash-k2-", "random gate": "random_fixed-k2-"}
    names = {"V-MoE": "digits-baseline-k2-seed0", "V-MoE + PRC": "digits-prc-k2-seed0"}
    for (name, metric, view), known in scales.REFERENCES.items():
        run_name = {"crops": "match-ratio", "noise": "noise-sweep"}[name]
        table = pd.read_csv(ROOT / "reports" / "digits" / run_name / "table.csv", keep_default_na=False)
        rows = table[(table["metric"] == metric) & (table["null"] == "pooled") & (table["tokens"] == "patch")]
        rows = rows[(rows["layer"] == "blocks.1") & (rows["view"] == view)]
        if name == "noise":
            rows = rows[rows["severity"].astype(str) == "0.2"]
        values = rows.set_index("checkpoint")["value"]
        of_cell = routers[(routers["metric"] == metric) & (routers["view"] == view)]
        if name == "noise":
            of_cell = of_cell[of_cell["severity"].astype(str) == "0.2"]
        for model, prefix in unlearned.items():
            of_router = of_cell[of_cell["checkpoint"].str.startswith(prefix)]
            assert len(of_router) == 3
            assert abs(of_router["value"].astype(float).mean() - known[model]) <= 0.0051, model
        for model, checkpoint in names.items():
            assert abs(values[checkpoint] - known[model]) <= 0.0051, (name, model)
