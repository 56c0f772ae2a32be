"""What a notebook shows of results: short tables and figures, and where long work is."""

import html
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from matplotlib.figure import Figure

from moeprobe import api
from moeprobe.results.folder import Result
from moeprobe.results.layouts.cells import Table, TableCell
from moeprobe.results.layouts.page import fragment
from moeprobe.results.numbers import interval
from moeprobe.results.showing import Figures
from moeprobe.runtime.progress import NotebookBar, Progress, progress_of
from tests.commands import run

Trained = dict[str, Path]


@pytest.fixture(scope="module")
def matched(trained: Trained) -> Result:
    return api.match_ratio(list(trained.values()), limit=25, seed=3)


def test_a_result_shows_its_headlines(matched: Result) -> None:
    assert repr(matched) == f"Result(kind=match-ratio, checkpoints=baseline+prc, rows={len(matched.table)})"
    short = matched.summary()
    assert list(short.columns) == [
        "layer", "tokens", "metric", "baseline", "prc", "prc − baseline", "images", "trials",
    ]  # fmt: skip
    row = matched.table.query(
        "checkpoint == 'prc' and layer == 'blocks.3' and metric == 'top1_match' and tokens == 'patch'"
    )
    line = short.query("layer == 'blocks.3' and metric == 'top-1 match'")
    assert line["prc"].item() == interval(row.iloc[0])
    assert line["prc − baseline"].item()[0] in "+-"
    assert len(short) < len(matched.table) / 10
    page = matched._repr_html_()
    assert (
        "match-ratio: 25 images of digits test; view random_crop; seed 3; 95 % intervals over images;" in page
    )
    assert all(part in page for part in line["prc"].item().split(" ", maxsplit=1))


def test_a_sweep_shows_its_severities(trained: Trained) -> None:
    swept = api.noise_sweep(trained["prc"], sigmas=[0, 0.2], limit=6)
    short = swept.summary()
    assert set(short["severity"]) == {"0", "0.2"}
    page = swept._repr_html_()
    assert (
        "6 images of digits test; view gaussian_noise; seed 0; no intervals: they need at least 20 images"
        in page
    )
    assert {"output", "blocks.1", "blocks.3"} == set(short["layer"])
    assert set(swept.plot()) == {"routing", "output"}


def sentences_on(page: str) -> list[str]:
    return [html.unescape(item) for item in re.findall("<li>(.*?)</li>", page)]


@pytest.mark.parametrize(
    ("call", "command", "number"),
    [
        (lambda models: api.match_ratio(models, limit=25), "match-ratio --limit 25", 2),
        pytest.param(
            lambda models: api.noise_sweep(models, sigmas=[0, 0.2], limit=25),
            "noise-sweep --sigmas 0,0.2 --limit 25", 2,
            marks=[pytest.mark.slow, pytest.mark.promise],
        ),
        (lambda models: api.contagion(models, limit=8), "contagion --limit 8", 2),
        pytest.param(
            lambda models: api.precision(models, formats=["int8"], limit=8), "precision --formats int8 --limit 8", 2,
            marks=[pytest.mark.slow, pytest.mark.promise],
        ),
        (lambda models: api.evaluate(models, limit=25), "eval --limit 25", 0),
    ],
    ids=["side by side", "along severity", "with a conclusion", "by view", "tables alone"],
)  # fmt: skip
def test_it_begins_as_in_the_terminal(
    call: Callable[[list[Path]], Result], command: str, number: int, trained: Trained
) -> None:
    models = list(trained.values())
    sentences = sentences_on(call(models)._repr_html_())
    assert len(sentences) == number
    assert run(*command.split(), *models).output.startswith("".join(f"{line}\n" for line in sentences))


@pytest.mark.parametrize("severities", [[0.1], [0.1, 0.3]], ids=["side by side", "along severity"])
def test_recorded_routing_begins_as_in_the_terminal(
    severities: list[float], trained: Trained, tmp_path: Path
) -> None:
    recorded = api.record(
        trained["prc"], view="gaussian_noise", severities=severities, limit=20, out=tmp_path / "trace"
    )
    analyzed = api.analyze_trace(recorded.files, names=["mine"])
    sentences = sentences_on(analyzed._repr_html_())
    assert "the first MoE layer" in sentences[0] and "mine" in sentences[0] and analyzed.plot()
    printed = run("trace", "analyze", *recorded.files, "--names", "mine").output
    assert printed.startswith("".join(f"{line}\n" for line in sentences))


def test_what_has_no_headline_shows_what_it_has(trained: Trained) -> None:
    spread = api.contagion(trained["prc"], limit=8)
    assert "batch contagion" in set(spread.summary()["metric"])
    assert spread.plot()


def test_figures_are_drawn_and_not_written(
    matched: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    figures = matched.plot()
    assert repr(figures) == "Figures(match-ratio)"
    assert isinstance(figures["match-ratio"], Figure)
    assert figures._repr_html_().count("data:image/png;base64,iVBOR") == 1
    assert not list(tmp_path.iterdir())


def test_every_result_draws_itself(trained: Trained) -> None:
    overlaid = api.overlay(trained["prc"], count=1)
    assert set(overlaid.plot()) == {"overlay-blocks.1", "overlay-blocks.3"}
    paired = api.correspond(data="digits", count=1)
    assert set(paired.plot()) == {"correspond"}
    compared = api.compare(list(trained.values()), limit=20)
    assert set(compared.plot()) == {"forest"}
    assert "Verdicts: 20 images of digits test; view random_crop; seed 0;" in compared._repr_html_()
    assert compared.verdicts["sentence"].iloc[0].split()[0] in compared._repr_html_()
    for result in (overlaid, paired, compared):
        assert len(repr(result)) < 100
        assert "<" in result._repr_html_()


def test_a_trace_and_a_report_are_short(trained: Trained, tmp_path: Path) -> None:
    _, routing = api.trace(trained["prc"], torch.zeros(2, 3, 32, 32))
    assert repr(routing) == (
        "RoutingTrace(blocks.1: 2 x 17 tokens, 8 experts, k = 2; blocks.3: 2 x 17 tokens, 8 experts, k = 2)"
    )
    api.confidence(trained["prc"], limit=20, out=tmp_path / "run", figures=False)
    document = api.report(tmp_path / "run")
    assert len(repr(document)) < 100
    frame = document._repr_html_()
    assert frame.startswith("<iframe srcdoc=")
    # The page ends where its attribute ends.
    assert '"' not in re.fullmatch(r'<iframe srcdoc="(.*)" sandbox="allow-scripts".*', frame, re.DOTALL)[1]  # type: ignore[index]


def test_long_tables_say_how_much_is_left_out() -> None:
    long = Table("x & y", ["a <b>"], [[TableCell(str(line))] for line in range(100)], note="All of it.")
    page = fragment("<i>", [long])
    assert "… 40 more lines. All of it." in page and "<td>59</td>" in page and "<td>60</td>" not in page
    assert "a &lt;b&gt;" in page and "x &amp; y" in page and "&lt;i&gt;" in page
    assert Figures()._repr_html_() == ""


def test_a_bar_in_notebooks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(progress_of(None)) is Progress
    own = Progress()
    assert progress_of(own) is own
    shown: list[Any] = []

    class Handle:
        def update(self, bar: NotebookBar) -> None:
            shown.append(bar._repr_html_())

    def display(bar: NotebookBar, display_id: bool) -> Handle:
        assert display_id
        shown.append(repr(bar))
        return Handle()

    notebook: Any = types.ModuleType("IPython")
    notebook.get_ipython = lambda: types.SimpleNamespace(kernel=None)
    notebook.display = types.ModuleType("IPython.display")
    notebook.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook.display)
    bar = progress_of(None)
    assert isinstance(bar, NotebookBar)
    bar.start("eval: <a>", 1000)
    bar.advance(999)
    bar.advance(1)
    assert shown[0] == "eval: <a> 0/1,000"
    assert shown[-1] == "<progress value='1000' max='1000'></progress> eval: &lt;a&gt; 1,000/1,000"
    # An ordinary terminal with IPython is no notebook.
    notebook.get_ipython = object
    assert type(progress_of(None)) is Progress


def test_a_notebook_shows_a_figure_that_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself it shows none before ``%matplotlib``."""

    class Formatter:
        printers: ClassVar[dict[type, Any]] = {}

        def lookup_by_type(self, kind: type) -> Any:
            return self.printers[kind]

        def for_type(self, kind: type, printer: Any) -> None:
            self.printers[kind] = printer

    formatters = types.SimpleNamespace(formatters={"image/png": Formatter()})
    notebook: Any = types.ModuleType("IPython")
    notebook.get_ipython = lambda: types.SimpleNamespace(kernel=None, display_formatter=formatters)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    figure = Figures(one=Figure())["one"]
    assert Formatter.printers[Figure](figure).startswith(b"\x89PNG")
    # Whoever asked for vector graphics keeps them.
    Formatter.printers[Figure] = str
    Figures(one=Figure())
    assert Formatter.printers == {Figure: str}
