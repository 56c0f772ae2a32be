"""Errors of plug-ins that are raised while they run."""

from pathlib import Path

import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing
from moeprobe.runtime import catalog, plugins
from moeprobe.runtime.catalog import blame
from tests.commands import refused, run
from tests.runtime.test_plugins import OTHERS, VIEW

SWEEP = ("sweep", "toy_zoo:4", "--view", "toy_contrast", "--data", "digits", "--limit", 4, "--device", "cpu")


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``use_plugins`` does to this process ends with the test."""
    monkeypatch.setenv(plugins.VARIABLE, "")


@pytest.mark.parametrize(
    ("good", "bad", "who", "what", "more"),
    [
        ("gray = clean.pixels.mean()", "gray = 1 // 0", "view 'toy_contrast'", "ZeroDivisionError: ", ()),
        ("gray = clean.pixels.mean()", "gray = {}['no\\ngray']", "view 'toy_contrast'", "KeyError: ", ()),
        (
            "gray = clean.pixels.mean()",
            "gray = 1 // 0",
            "view 'toy_contrast'",
            "ZeroDivisionError: ",
            ("--workers", 1),
        ),
        (
            'first = pair.view.selected[:, pair.view.num_prefix_tokens :, 0]',
            'raise OSError("no\\nfirst.")',
            "analysis 'toy_share'",
            "OSError: no.",
            (),
        ),
        ("gates = self.gate(patches - 0.5)", "gates = self.gate(images)", "plug-in mine.py", "RuntimeError: ", ()),
    ],
)  # fmt: skip
def test_the_sentence_names_plugin_file_line_and_error(
    tmp_path: Path, good: str, bad: str, who: str, what: str, more: tuple[object, ...]
) -> None:
    path = tmp_path / "mine.py"
    content = VIEW + OTHERS
    assert good in content
    path.write_text(content.replace(good, bad))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if bad in text)
    said = refused("--plugins", path, *SWEEP, *more)
    assert f"{who}" in said and f"({path}, line {line}) raised {what}" in said


def test_what_lies_further_inside_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(VIEW.replace("framing.clean(image)", "framing.clean(None)"))
    catalog.use_plugins([path])
    view = catalog.VIEWS.get("toy_contrast")()
    with pytest.raises(AttributeError) as caught:
        view.perturb(None, framing=Framing(32), severities=[0.0], rng=None)
    said = blame(caught.value)
    assert said is not None and "view 'toy_contrast' of the plug-in mine.py" in said.sentence
    assert "(in " in said.sentence and said.sentence.endswith(").")


def test_an_error_without_a_plugin_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.py"
    path.write_text(VIEW)
    monkeypatch.setattr("moeprobe.cli.front.early.check_checkpoints", lambda *_: 1 // 0)
    monkeypatch.setattr("moeprobe.cli.commands.inspect.check_checkpoints", lambda *_: 1 // 0)
    result = run("--plugins", path, "inspect", "none")
    assert isinstance(result.exception, ZeroDivisionError)
    assert not isinstance(result.exception, UserError)
