"""What every view of texts must keep, whichever it is: the list of tests is the catalog."""

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moeprobe.errors import UserError
from moeprobe.inputs.modality import TEXT
from moeprobe.inputs.spans import align
from moeprobe.inputs.texts import TextFraming, TextSample
from moeprobe.inputs.views.text import TextView
from moeprobe.runtime.catalog import VIEWS
from moeprobe.runtime.seeds import generator
from tests.adapters.modalities import TEXT_VIEWS
from tests.adapters.tiny_texts import SENTENCE, texts


class Pieces:
    """A tokenizer of pieces of up to three letters, with a special token at either end."""

    def __call__(self, text: str, *, max_length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cut each word into pieces; a piece's id is made of its letters."""
        spans, start = [], 0
        for word in text.split(" "):
            spans += [(start + at, start + min(at + 3, len(word))) for at in range(0, len(word), 3)]
            start += len(word) + 1
        spans = spans[: max_length - 2]
        ids = [1, *(sum(map(ord, text[first:last])) % 997 + 3 for first, last in spans), 2]
        return (
            np.array(ids),
            np.array([(0, 0), *spans, (0, 0)]).reshape(-1, 2),
            np.array([True, *[False] * len(spans), True]),
        )


FRAMING = TextFraming(Pieces(), width=4)
EVERY = pytest.mark.parametrize("name", TEXT_VIEWS)
words = st.text(st.characters(codec="utf-8", exclude_characters=" \n"), min_size=1, max_size=9)
sources = st.lists(words, min_size=1, max_size=12).map(" ".join)


@pytest.fixture(scope="module")
def synonyms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synonyms") / "sets.txt"
    path.write_text("lazy, idle, bone idle\nlarge, big\nsmall, little, tiny\ndog, hound\nnumber, figure\n")
    return path


@pytest.fixture
def view(name: str, synonyms: Path) -> TextView:
    made: TextView = VIEWS.get(name)(**({"location": str(synonyms)} if name == "synonyms" else {}))
    return made


def sweep(view: TextView, text: str, severities: list[float], draw: int = 0) -> list[TextSample]:
    return view.perturb(text, framing=FRAMING, severities=severities, rng=generator(0, "contract", draw=draw))


def same(one: TextSample, two: TextSample) -> bool:
    if (one.noise is None) != (two.noise is None):
        return False
    noise = one.noise is None or two.noise is None or bool((one.noise == two.noise).all())
    return (
        one.ids.tolist() == two.ids.tolist()
        and np.array_equal(one.spans, two.spans)
        and (noise and one.sigma == two.sigma)
    )


@EVERY
def test_a_view_is_a_frozen_described_dataclass_of_texts(view: TextView) -> None:
    assert view.modality is TEXT
    assert dataclasses.is_dataclass(view) and type(view).__dataclass_params__.frozen
    assert type(view).__doc__ and view.unit
    assert list(view.severities) == sorted(set(view.severities)) and view.severities[0] == 0


@EVERY
def test_severity_zero_is_the_clean_text(view: TextView) -> None:
    for number, text in enumerate([*texts(6), SENTENCE, "Łódź ß İ ﬁ 1\u0301 🦊"]):
        (first,) = sweep(view, text, [0.0], draw=number)
        clean = FRAMING.clean(text)
        assert first.sigma == 0 and same(dataclasses.replace(first, noise=None), clean)
        assert align(first.spans, clean.spans)[~clean.special].tolist() == list(
            np.flatnonzero(~clean.special)
        )


@EVERY
def test_a_sweep_is_nested_and_knows_only_its_own_severity(view: TextView) -> None:
    steps = list(view.severities)
    for draw, text in enumerate(texts(4)):
        whole = sweep(view, text, steps, draw)
        assert sweep(view, text, [], draw) == []
        for severity, sample in zip(steps, whole, strict=True):
            assert same(sweep(view, text, [severity], draw)[0], sample)
        assert all(map(same, sweep(view, text, steps[::-1], draw)[::-1], whole))


@EVERY
def test_more_changes_with_more_severity(view: TextView) -> None:
    """Of many texts; and a strong sweep changes something."""
    changed = np.zeros(len(view.severities))
    for draw in range(20):
        clean, *rest = sweep(view, SENTENCE, list(view.severities), draw)
        for step, sample in enumerate(rest, start=1):
            changed[step] += sample.sigma or len(set(clean.ids.tolist()) ^ set(sample.ids.tolist()))
    assert (np.diff(changed) > 0).all()


@EVERY
def test_a_pair_is_two_draws_of_its_generator(view: TextView) -> None:
    one, other = view.pair(SENTENCE, framing=FRAMING, rng=generator(3, "pair"))
    again = view.pair(SENTENCE, framing=FRAMING, rng=generator(3, "pair"))
    assert same(one, again[0]) and same(other, again[1])
    assert any(
        not same(*view.pair(SENTENCE, framing=FRAMING, rng=generator(3, "pair", draw=draw)))
        for draw in range(9)
    )


@EVERY
def test_a_view_travels_to_another_process(view: TextView) -> None:
    copy = pickle.loads(pickle.dumps(view))
    assert copy == view
    assert all(map(same, sweep(copy, SENTENCE, [0.3, 0.9]), sweep(view, SENTENCE, [0.3, 0.9])))


@EVERY
@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_severities_that_are_no_amounts_are_refused(view: TextView, wrong: float) -> None:
    with pytest.raises(UserError, match="got"):
        sweep(view, SENTENCE, [0.0, wrong])


@EVERY
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=sources, severity=st.floats(0, 1), draw=st.integers(0, 99))
def test_tokens_lie_in_the_source_and_what_is_untouched_keeps_its_partner(
    view: TextView, text: str, severity: float, draw: int
) -> None:
    (sample,) = sweep(view, text, [severity], draw)
    clean = FRAMING.clean(text)
    assert len(sample.ids) == len(sample.spans) == len(sample.special) >= 3
    assert (sample.spans[:, 0] <= sample.spans[:, 1]).all()
    assert (sample.spans >= 0).all() and (sample.spans <= len(text)).all()
    assert (sample.spans[sample.special] == 0).all() and sample.num_prefix_tokens == 1
    partner = align(clean.spans, sample.spans)
    assert (partner[clean.special] == -1).all()
    # A token of the version that stands for the very same characters is the partner.
    where = {tuple(span): number for number, span in enumerate(sample.spans) if not sample.special[number]}
    for token, span in enumerate(clean.spans):
        if not clean.special[token] and tuple(span) in where:
            assert partner[token] == where[tuple(span)]


def test_typos_change_one_place_of_a_word() -> None:
    from moeprobe.inputs.views.typos import Typos

    seen = set()
    for draw in range(200):
        pieces = Typos().rewrite("stream", generator(0, "slip", draw=draw))
        word = "".join(piece[0] for piece in pieces)
        kind = len(word) - 6
        assert word != "stream" and kind in (-1, 0, 1)
        seen.add((kind, sorted(word) == sorted("stream")))
    # Left out; doubled; swapped; the key beside.
    assert seen == {(-1, False), (1, False), (0, True), (0, False)}


def test_every_slip_changes_the_word() -> None:
    from moeprobe.inputs.views.typos import Typos

    for word in ("aa", "aab", "been", "ßß", "AAa"):
        for draw in range(60):
            pieces = Typos().rewrite(word, generator(0, "slip", draw=draw))
            assert "".join(piece[0] for piece in pieces) != word


def test_letter_case_knows_letters_that_grow() -> None:
    from moeprobe.inputs.views.letter_case import LetterCase

    made = sweep(LetterCase(), "Straße OK 日本 7", [1.0])[0]
    assert made.spans[1:-1].max() == len("Straße OK 日本 7")
    assert LetterCase().words("Straße OK 日本 7") == [(0, 6), (7, 9)]
    assert "".join(piece[0] for piece in LetterCase().rewrite("Straße", generator(0, "x"))) == "STRASSE"
    assert "".join(piece[0] for piece in LetterCase().rewrite("OK", generator(0, "x"))) == "ok"


def test_synonyms_keep_capitals_and_know_their_file(synonyms: Path, tmp_path: Path) -> None:
    view = VIEWS.get("synonyms")(location=str(synonyms))
    rng = generator(0, "x")
    assert {view.rewrite("Large", rng)[0][0], view.rewrite("LARGE", rng)[0][0]} == {"Big", "BIG"}
    assert view.words("A lazy dog's Dog") == [(2, 6), (13, 16)]
    asked = dataclasses.asdict(view)
    assert set(asked) == {"location", "sha256"} and len(asked["sha256"]) == 64
    (tmp_path / "none.txt").write_text("alone\n\n")
    for path, reason in (("none.txt", "holds no synonyms"), ("missing.txt", "Cannot read")):
        with pytest.raises(UserError, match=reason):
            VIEWS.get("synonyms")(location=str(tmp_path / path))


def test_dropout_never_leaves_nothing() -> None:
    view = VIEWS.get("token_dropout")()
    for draw in range(5):
        sample = sweep(view, SENTENCE, [1.0], draw)[0]
        assert sample.special.tolist() == [True, False, True]


def test_truncated_tokens_have_no_partner() -> None:
    short = dataclasses.replace(FRAMING, max_length=6)
    clean, cut = FRAMING.clean(SENTENCE), short.clean(SENTENCE)
    assert len(cut.ids) == 6
    partner = align(clean.spans, cut.spans)
    assert partner[1:5].tolist() == [1, 2, 3, 4] and (partner[5:] == -1).all()
