"""The boundary of files that moeprobe wrote itself: one that was changed or damaged since is one sentence.

Such files come from other people, other versions and failing disks. Their JSON is validated by schemas; what a
library raises while it decodes one of them is caught by ``reading``, and nowhere else.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from moeprobe.errors import UserError, first_line, option
from moeprobe.runtime.characters import is_unicode
from moeprobe.runtime.files import display_path, resolve
from moeprobe.runtime.schema import lower_first

# What most files are mended by.
REPEAT = f"run its command again with {option('overwrite')}"
_LONGEST_PROBLEM = 300  # characters
# Of a schema: values have exactly the types that are declared, and later versions may have added entries.
STRICT = ConfigDict(extra="allow", strict=True)


def _inner_name(name: str) -> str:
    if name in ("", ".", "..") or set(name) & {"/", "\\", "\0"} or not is_unicode(name):
        raise ValueError("it is no name of a folder inside")
    return name


# The name of a run inside a folder; a path could lead out of it.
RunName = Annotated[str, AfterValidator(_inner_name)]
S = TypeVar("S", bound=BaseModel)


def validate(schema: type[S], content: Any, path: Path, *, mend: str = REPEAT) -> S:
    """Return the content of a JSON file by its schema.

    Args:
        schema: what moeprobe writes.
        content: of the file.
        path: the file, for the sentence.
        mend: what to do about a damaged file, as the end of the sentence.

    Raises:
        UserError: an entry is missing or has another type.
    """
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        location = ".".join(str(part) for part in problem["loc"])
        message = lower_first(problem["msg"].removeprefix("Value error, "))
        if problem["type"] == "model_type":  # pydantic would name the class of the schema
            message = "expected an object"
        raise not_as_written(path, f"{location}: {message}" if location else message, mend=mend) from None


def not_as_written(path: Path, problem: str, *, mend: str = REPEAT) -> UserError:
    """Return the error of a file that moeprobe did not write like this."""
    return UserError(
        f"{display_path(path)} is not as moeprobe wrote it ({problem[:_LONGEST_PROBLEM]}); {mend}."
    )


@contextlib.contextmanager
def reading(path: Path, *, mend: str = REPEAT) -> Iterator[None]:
    """Turn what a library raises while it decodes a file into a ``UserError``; only the decoding belongs inside."""
    # Without pyarrow nothing can have raised an error of its own; most of them are also of Python's kinds.
    arrow = sys.modules.get("pyarrow")
    foreign = (arrow.ArrowException,) if arrow else ()
    try:
        yield
    except (UserError, MemoryError):  # a sentence already; full memory says nothing about the file
        raise
    except (*foreign, OSError, LookupError, TypeError, ArithmeticError, UnicodeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk, and not what the file holds
            raise UserError(f"Cannot read {display_path(path)}: {error.strerror or error}.") from error
        raise not_as_written(path, first_line(error), mend=mend) from error


def run_inside(folder: Path, name: str) -> Path:
    """Return the folder of a run inside another folder.

    Raises:
        UserError: it is a link that leads out.
    """
    path = folder / name
    if not resolve(path).is_relative_to(resolve(folder)):
        raise UserError(
            f"{path} leads out of {folder}, whose runs are inside; put the folder of the run there."
        )
    return path
