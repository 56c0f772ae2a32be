"""Names of classes in files of ``torch.save``: checked before torch reads them.

Where torch refuses a name it searches its own message for a pattern, in a time that grows with the square of the
longest word. A name of 100,000 characters took more than 20 seconds, one of a million half an hour.
"""

import pickle
import pickletools
import re
import zipfile
from pathlib import Path
from typing import IO

# No name of a class is as long. Pickles without a word of that length hold no such name, and are not gone through.
_LONGEST = 10_000
_LONG_WORD = re.compile(rb"\S{%d}" % _LONGEST)
# Before its tensors the older format has: magic number, version, system, object, keys of its tensors.
_PICKLES = 5


def check_names(path: Path) -> None:
    """Raise ``pickle.UnpicklingError`` where a file names a class at absurd length, or is no pickle.

    Args:
        path: a file of either format of ``torch.save``; any other is left to torch.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if Path(member.filename).name != "data.pkl":
                    continue
                if member.compress_type != zipfile.ZIP_STORED:
                    raise pickle.UnpicklingError("data.pkl is packed, which torch.save never does")
                if _LONG_WORD.search(archive.read(member)):
                    with archive.open(member) as stream:
                        _check(stream)
        return
    with path.open("rb") as file:
        if file.read(1) != pickle.PROTO:
            return
        file.seek(0)
        for _ in range(_PICKLES):
            _check(file)


def _check(stream: IO[bytes]) -> None:
    """Go through one pickle, of which nothing is run."""
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name == "GLOBAL" and len(str(argument)) > _LONGEST:
                raise pickle.UnpicklingError(f"a name of {len(str(argument)):,} characters")
    except ValueError as error:
        raise pickle.UnpicklingError(f"no pickle of torch.save ({str(error)[:100]})") from None
