"""The responses of several files, as the readers of these files put their lines together."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.readers.base import Reader
from moeprobe.recordings.responses import responses
from moeprobe.runtime.files import absolute
from moeprobe.runtime.short_paths import shortest_ends


def gather(
    sources: Sequence[Path], reader_of: Callable[[Any], Reader], *, progress: Callable[[int], None]
) -> Iterator[tuple[Path, str, Any, str]]:
    """Yield each response with its file, the place where it stands, and a label that tells files apart.

    Files that are one recording come last, together. A single file, and a single recording, has an empty label.

    Args:
        sources: different files.
        reader_of: returns the reader of a file by its first response; raises ``Fault`` where there is none.
        progress: called with the bytes read since the last call.

    Raises:
        UserError: a file cannot be read, or its lines do not go together.
    """
    labels = shortest_ends([absolute(source) for source in sources], each=True)
    joined: dict[Reader, list[tuple[Path, str, Iterator[tuple[str, Any]]]]] = {}
    for source, end in zip(sources, labels, strict=True):
        label = end if len(sources) > 1 else ""
        lines = responses(source, progress=progress)
        if (first := next(lines, None)) is None:
            continue
        gathered: Iterator[tuple[str, Any]] = chain([first], lines)
        try:
            reader = reader_of(first[1])
        except Fault:  # what is wrong is said where the line is read
            pass
        else:
            if reader.joins_files:
                joined.setdefault(reader, []).append((source, label, gathered))
                continue
            gathered = reader.gathered(gathered, source)
        for where, response in gathered:
            yield source, where, response, label
    for reader, files in joined.items():
        label_of = {source: label for source, label, _ in files}
        for source, where, response in reader.joined([(source, lines) for source, _, lines in files]):
            yield source, where, response, "" if len(files) == len(sources) else label_of[source]
