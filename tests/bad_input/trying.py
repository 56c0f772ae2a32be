"""Try many kinds of bad input on a reader: each is taken, or refused in one sentence."""

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from moeprobe.errors import UserError
from moeprobe.runtime.characters import in_one_line


@dataclass
class Tried:
    """Kinds that were refused, kinds that were taken, and kinds that ended otherwise, with how."""

    refused: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)

    def check(self, *, least: int) -> None:
        """Fail where one ended in something else than a sentence, or fewer were refused than there should be."""
        shown = "\n".join(f"{kind} -> {how}" for kind, how in list(self.wrong.items())[:30])
        assert not self.wrong, f"{len(self.wrong)} kinds:\n{shown}"
        assert len(self.refused) >= least, len(self.refused)


def tried(kinds: Iterable[tuple[str, Any]], read: Callable[[Any], object]) -> Tried:
    """Read each kind."""
    found = Tried()
    for kind, content in kinds:
        try:
            read(content)
        except UserError as error:
            said = in_one_line(error.sentence)
            if not 10 < len(said) < 3000 or not said.isprintable():
                found.wrong[kind] = f"said {said[:100]!r}"
            found.refused.append(kind)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-3:]
            where = " < ".join(
                f"{one.filename.rpartition('moeprobe/')[2]}:{one.lineno}" for one in reversed(last)
            )
            found.wrong[kind] = f"{type(error).__name__}: {str(error)[:80]} ({where})"
        else:
            found.taken.append(kind)
    return found
