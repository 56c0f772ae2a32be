"""What holds for every probe of the catalog; a new one is tested the moment its folder exists."""

import dataclasses
import inspect
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import pytest

from moeprobe import api
from moeprobe.api.making import function_for
from moeprobe.cli.commands.probe_command import probe_command
from moeprobe.cli.commands.standalone_command import standalone_command
from moeprobe.declarations import Agreement, Arg, Kind, Layout, Probe, Views, registry
from moeprobe.declarations.fields import arg_of, fields_of, flag_of
from moeprobe.declarations.kinds import resolve
from moeprobe.declarations.options import Keywords, Options
from moeprobe.declarations.question import Question, check_fields
from moeprobe.declarations.recording_probe import TRACES, Files, RecordingProbe
from moeprobe.errors import UserError
from moeprobe.inputs.data.digits import Digits
from moeprobe.inputs.views.base import STANDARD_DEVIATION
from moeprobe.metrics.analyses.load import LoadAnalysis
from moeprobe.metrics.registry import analyses_of
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run import prepare
from moeprobe.probes.margins import Margins
from moeprobe.probes.noise_sweep import NoiseSweep
from moeprobe.recorded.drift import Drift
from moeprobe.routing.pass_precision import precision_of
from moeprobe.runtime.catalog import ANALYSES, PROBES, RECORDED
from tests.routing.routings import checkpoint

KINDS = {kind.name: kind for kind in registry.kinds()}
ASKED = {kind.name: kind for kind in registry.probes()}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
EVERY_PROBE = pytest.mark.parametrize("kind", ASKED.values(), ids=ASKED)


def test_names_are_unique() -> None:
    assert len(KINDS) == len(PROBES.names()) + len(RECORDED.names())


@EVERY_KIND
def test_a_kind_says_what_it_is(kind: type[Kind]) -> None:
    assert kind.title and kind.title[0].isupper() and not kind.title.endswith(".")
    assert set(kind.analyses) <= set(ANALYSES.names())
    declared = registry.of_kind(kind.kind)
    assert declared is not None and declared.kind == kind.kind and declared.title == kind.title


@EVERY_KIND
def test_its_headlines_are_measured_by_it(kind: type[Kind]) -> None:
    for headline in kind.headlines:
        assert headline.at in ("only", "weakest", "strongest", "mean")
        if isinstance(headline, Agreement):
            continue
        # Attribution is added to a sweep by its option.
        assert set(analyses_of(headline.metric)) & {*kind.analyses, "attribution"}


@EVERY_KIND
def test_what_works_draws_and_concludes_can_be_imported(kind: type[Kind]) -> None:
    names = ("work", "drawn_by", "concluded_by", "concluded_with")
    assert all(callable(resolve(reference)) for name in names if (reference := getattr(kind, name, "")))


@EVERY_PROBE
def test_a_probe_is_a_frozen_dataclass_whose_docstring_is_the_help(kind: type[Probe[Any]]) -> None:
    assert dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    text = inspect.getdoc(kind) or ""
    assert re.search(rf"Example: `moeprobe {kind.name} checkpoints/\S+ .*`", text, re.DOTALL)
    assert isinstance(kind.layout, Layout)  # each of which is printed
    for name in fields_of(kind):
        assert arg_of(kind, name).help.endswith((".", "?")), f"{name} is not explained"


@EVERY_PROBE
def test_options_of_a_probe_are_its_own(kind: type[Probe[Any]]) -> None:
    shared = {flag_of(Options, name) for name in fields_of(Options)} | {
        "--json",
        "--dry-run",
        "--data",
        "--full",
    }
    own = [flag_of(kind, name) for name in fields_of(kind)]
    assert len(set(own)) == len(own) and not shared & set(own)
    assert set(kind.defaults) | set(kind.option_help) <= set(fields_of(Options))
    Options(**kind.defaults)


# What a probe needs beyond one model and digits; clips, which no data of the package have, are in the tests of frames.
NEEDS: dict[str, dict[str, Any]] = {
    "sweep": {"view": "affine"},
    "fewshot": {"shots": (1,), "draws": 1},
}


@EVERY_PROBE
def test_passes_are_of_another_precision_or_it_says_why_not(kind: type[Probe[Any]]) -> None:
    options = Options(precision="bfloat16", limit=8)
    probe = kind(**NEEDS.get(kind.name, {}))
    classes = Digits(split="test").class_names or ()
    names = ("a", "b") if kind.name in ("align", "agree") else ("a",)
    models = [dataclasses.replace(checkpoint(), name=name, class_names=classes) for name in names]
    if kind.refuses_precision:
        with pytest.raises(UserError, match=f"{re.escape(kind.refuses_precision)}; leave precision out"):
            prepare(probe, models, data="digits", options=options)
    elif kind.name == "frames":
        with pytest.raises(UserError, match="holds no clips"):
            prepare(probe, models, data="digits", options=options)
    else:
        work = prepare(probe, models, data="digits", options=options)
        assert work.request["precision"] == "bfloat16"
        assert {precision_of(model.model) for model in work.models} == {"bfloat16"}
        assert "precision" not in prepare(probe, models, data="digits", options=Options(limit=8)).request
        inputs = list(work.floor_inputs(work.models[0]))
        assert sum(map(len, inputs)) == min(8, len(work.spec.indices))


@EVERY_PROBE
def test_a_field_of_another_type_is_refused(kind: type[Probe[Any]]) -> None:
    for name, annotation in fields_of(kind).items():
        if annotation is not str:
            given = {"view": "affine"} if "view" in fields_of(kind) else {}
            with pytest.raises(UserError, match=" takes "):
                kind(**(given | {name: object()}))


def test_keywords_are_the_fields_of_options() -> None:
    """One list: what a function takes by keyword, and what the command line offers, are the same names."""
    assert list(get_type_hints(Keywords)) == list(fields_of(Options))
    assert all(arg_of(Options, name).help.endswith(".") for name in fields_of(Options))


def test_declarations_are_light() -> None:
    names = [f"moeprobe.probes.{name}" for name in PROBES.names()]
    names += [f"moeprobe.recorded.{name}" for name in RECORDED.names()]
    code = (
        f"import sys; import {', '.join(names)}, moeprobe.declarations.registry, moeprobe.probes.engine.run\n"
        "heavy = {'torch', 'scipy', 'pandas', 'matplotlib', 'pyarrow'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.promise
def test_what_measures_draws_nothing_yet() -> None:
    package = Path(registry.__file__).parents[1]
    files = [file for part in ("probes", "recorded") for file in (package / part).glob("*/measure.py")]
    modules = [f"moeprobe.{file.parent.parent.name}.{file.parent.name}.measure" for file in files]
    assert len(modules) > 15
    code = f"import sys; import {', '.join(modules)}\nassert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@dataclass(frozen=True, kw_only=True)
class Plain(Probe[Any]):
    """A probe of pairs whose fields say nothing about requests.

    Example: `moeprobe plain checkpoints/demo-prc --out reports/plain`
    """

    name: ClassVar[str] = "plain"
    title: ClassVar[str] = "Plain"
    analyses: ClassVar[tuple[str, ...]] = ("load",)
    views: ClassVar[Views] = Views.PAIRS

    view: Annotated[str, Arg("A view.")] = "random_crop"
    more: Annotated[int, Arg("More.")] = 3


def test_a_field_that_the_request_has_already_is_not_said_twice() -> None:
    asked: Measurement[Any] = Measurement(Plain(), [checkpoint()], "digits", Options(limit=4))
    assert asked.request["view"]["name"] == "random_crop" and asked.request["more"] == 3
    other: Measurement[Any] = Measurement(Plain(view="prc_crops"), [checkpoint()], "digits", Options(limit=4))
    assert other.request["view"]["name"] == "prc_crops"


@dataclass(frozen=True, kw_only=True)
class Clashing(Plain):
    """A probe with a field that all probes have."""

    name: ClassVar[str] = "clashing"
    limit: Annotated[int, Arg("Another limit.")] = 3


def test_a_field_called_as_a_shared_option_is_refused() -> None:
    with pytest.raises(UserError, match="The field limit of the probe Clashing is called as an option"):
        probe_command(Clashing)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("options", "called as an option that all commands have"),
        ("watcher", "called as an option that all commands have"),
        ("models", "called as what declarations say of themselves"),
        ("function", "called as what declarations say of themselves"),
        ("common", "called as what declarations say of themselves"),
        ("needs_routing", "called as what declarations say of themselves"),
    ],
)
def test_a_field_that_would_hide_what_is_declared_is_refused(name: str, said: str) -> None:
    made: Any = dataclasses.make_dataclass(
        "Hiding", [(name, int, 3)], bases=(Plain,), frozen=True, kw_only=True, namespace={"name": "hiding"}
    )
    for make in (probe_command, function_for):
        with pytest.raises(UserError, match=f"The field {name} of the probe Hiding is {said}"):
            make(made)
    # So that the other functions are found all the same.
    assert isinstance(made.function_name(), str)


@EVERY_KIND
def test_no_field_hides_what_is_declared(kind: type[Kind]) -> None:
    if issubclass(kind, Question):
        check_fields(kind)


def test_what_is_no_probe_is_refused_from_python() -> None:
    for given in (None, 3, Drift(traces=["a", "b"])):
        with pytest.raises(UserError, match="A probe is named by its command, or made"):
            api.probe(given, "checkpoints/x")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"Drift: missing a required argument: 'traces'"):
        Drift()  # type: ignore[call-arg]
    with pytest.raises(UserError, match="Drift: too many positional arguments"):
        Drift(["a", "b"])  # type: ignore[arg-type,call-arg]


@dataclass(frozen=True, kw_only=True)
class Twin(Plain):
    """A probe with the command of another one."""

    name: ClassVar[str] = "match-ratio"


class Joining(LoadAnalysis):
    """An analysis that joins what measures in its own way."""

    joins = ("contagion", "match-ratio")


def test_plugins_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        known = PROBES.names()
        patch.setattr(PROBES, "names", lambda: [*known, "twin"])
        get = PROBES.get
        patch.setattr(PROBES, "get", lambda name: Twin if name == "twin" else get(name))
        with pytest.raises(UserError, match="The probe Twin of a plug-in is called 'match-ratio'"):
            registry.probe_named("eval")
    known, get = ANALYSES.names(), ANALYSES.get
    monkeypatch.setattr(ANALYSES, "names", lambda: [*known, "joining"])
    monkeypatch.setattr(ANALYSES, "get", lambda name: Joining if name == "joining" else get(name))
    assert registry.measured_by(ASKED["match-ratio"])[-1] == "joining"
    with pytest.raises(UserError, match="'joining' joins contagion, which measures in its own way"):
        registry.measured_by(ASKED["contagion"])


def test_a_class_is_no_probe() -> None:
    with pytest.raises(UserError, match=r"Fewshot\(\.\.\.\)"):
        api.probe(ASKED["fewshot"], [checkpoint()])  # type: ignore[arg-type]


def test_ranges_of_noise_are_those_of_its_views() -> None:
    assert STANDARD_DEVIATION.low == 0
    for kind in (Margins, NoiseSweep):
        arg = arg_of(kind, "severities")
        assert (arg.low, arg.high, arg.keyword) == (0, STANDARD_DEVIATION.high, "sigmas")
    assert (arg_of(Margins, "small").above, arg_of(Margins, "small").high) == (0, STANDARD_DEVIATION.high)


@pytest.mark.parametrize(
    ("arg", "admitted", "refused"),
    [
        (Arg("", low=1), (1, 10**9), (0, -1, math.nan, math.inf)),
        (Arg("", low=1, high=5), (1, 5, [1, 5]), (0, 6, [1, 6])),
        (Arg("", above=0, below=1), (0.5, [0.1]), (0, 1, math.nan, [0.5, 1])),
        (Arg("", above=0, high=10), (10, 1e-9), (0, 10.1)),
        (Arg("", words=("a", "b")), ("a", ["a", "b"]), ("c", ["a", "c"])),
        (Arg(""), (math.inf, -1, "x"), ()),
    ],
)
def test_a_range_admits_what_it_says(arg: Arg, admitted: Sequence[Any], refused: Sequence[Any]) -> None:
    assert all(arg.admits(value) for value in admitted)
    assert not any(arg.admits(value) for value in refused)


def test_a_plain_question_to_recordings_is_declared_once(tmp_path: Path) -> None:
    """Its command, its function and their arguments follow from the class alone."""

    @dataclass(frozen=True, kw_only=True)
    class Longest(RecordingProbe[Any]):
        """Which input is longest?"""

        name = "trace longest"
        title = "Longest input"
        traces: Annotated[Files, TRACES]
        least: Annotated[int, Arg("Tokens, comma-separated, as --limit.", low=2)] = 2

    function = function_for(Longest)
    parameters = inspect.signature(function).parameters
    assert list(parameters)[:4] == ["traces", "least", "options", "watcher"]
    assert parameters["traces"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert "least: Tokens, as ``limit``." in (function.__doc__ or "")
    with pytest.raises(UserError, match=r"least takes a whole number from 2 up; got 1\."):
        function("x.parquet", least=1)
    with pytest.raises(UserError, match="Name at least one trace"):
        function([])
    command = standalone_command(Longest).make()  # type: ignore[attr-defined]
    assert {"traces", "least", "layers", "seed", "out", "json"} <= set(inspect.signature(command).parameters)
