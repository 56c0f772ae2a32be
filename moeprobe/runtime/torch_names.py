"""Files of ``torch.save`` that torch would refuse in a message which takes it minutes: refused before it reads them.

torch searches its own message for a pattern, in a time that grows with the square of the longest word. The message
holds the name of a class that it does not know, or what a file calls in place of one: 100,000 characters took more than
20 seconds, a million would take half an hour.
"""

import io
import pickle
import pickletools
import re
import zipfile
from pathlib import Path
from typing import IO, Any

# No name of a class is as long. Large pickles without a word of that length are not gone through, which for millions of
# numbers takes as long as to load them.
_LONGEST, _SMALL = 10_000, 2**22
_LONG_WORD = re.compile(rb"\S{%d}" % _LONGEST)
# Before its tensors the older format has: magic number, version, system, object, keys of its tensors.
_PICKLES = 5


def check_names(path: Path) -> None:
    """Raise ``pickle.UnpicklingError`` where a file names a class at absurd length, calls none, or is no pickle.

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
                content = archive.read(member)
                if len(content) <= _SMALL or _LONG_WORD.search(content):
                    _check(io.BytesIO(content))
        return
    with path.open("rb") as file:
        if file.read(1) != pickle.PROTO:
            return
        file.seek(0)
        for _ in range(_PICKLES):
            _check(file)


def _check(stream: IO[bytes]) -> None:
    """Go through one pickle, of which nothing is run: it calls what it names, and nothing else."""
    # Of each object on the stack, and of those that are looked up again, whether it is a class; a mark is None.
    stack: list[bool | None] = []
    memo: dict[Any, bool | None] = {}
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name == "GLOBAL" and len(str(argument)) > _LONGEST:
                raise pickle.UnpicklingError(f"a name of {len(str(argument)):,} characters")
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
                continue
            size = len(opcode.stack_before)
            if pickletools.markobject in opcode.stack_before:
                while stack.pop() is not None:
                    pass
                size = opcode.stack_before.index(pickletools.markobject)
            operands = [stack.pop() for _ in range(size)]
            if opcode.name in ("REDUCE", "NEWOBJ") and not operands[-1]:
                raise pickle.UnpicklingError("it calls what is no class")
            for kind in opcode.stack_after:
                is_looked_up = opcode.name in ("GET", "BINGET", "LONG_BINGET")
                is_class = memo[argument] if is_looked_up else opcode.name == "GLOBAL"
                stack.append(None if kind is pickletools.markobject else is_class)
    except (ValueError, LookupError) as error:
        raise pickle.UnpicklingError(f"no pickle of torch.save ({str(error)[:100]})") from None
