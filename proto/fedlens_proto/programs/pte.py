"""Cheap checks of a `.pte` file before ExecuTorch's runtime reads it: its format and its length.

    offset  bytes
    0       4      where the root table of the program stands
    4       4      "ET" and two digits, the version of the schema
    8       4      "eh" and two digits, the version of the header that follows
    12      4      length of that header, itself included
    16      8      length of the program
    24      8      where its segments begin; 0: it has none
    32      8      length of all segments; of headers of 32 bytes or more

Numbers are little-endian. A file that passes may still be damaged or hostile. The runtime trusts its files, so a
program from elsewhere is tried in a separate process.
"""

import re
from struct import Struct
from typing import NoReturn

from fedlens_proto.errors import ProgramRefused

MAX_BYTES = 1 << 30
METHOD = "forward"
"""The one method of each file."""

SEGMENT_BASE_AT = 24
_PREFIX = Struct("<I4s4sIQQ")
_SEGMENTS = Struct("<Q")
_LEAST_HEADER = _PREFIX.size - 8
_LARGER_HEADER = _LEAST_HEADER + _SEGMENTS.size
_MOST_HEADER = 1 << 10


def check(raw: bytes) -> None:
    """Check that a file can be a `.pte` and has the length that its header says.

    Raises:
        ProgramRefused: It is not, or has not; the text says what was found.
    """
    if len(raw) < _PREFIX.size or not re.fullmatch(rb"ET\d\d", raw[4:8]):
        _refuse(f"it begins with {raw[:8].hex() or 'nothing'}; no ExecuTorch program does")
    if len(raw) > MAX_BYTES:
        _refuse(f"it has {len(raw)} bytes; programs have at most {MAX_BYTES}")
    root, _, magic, header, program, base = _PREFIX.unpack_from(raw)
    if not re.fullmatch(rb"eh\d\d", magic) or not _LEAST_HEADER <= header <= _MOST_HEADER or 8 + header > len(raw):
        _refuse(f"it has no header that tells its length: found {magic!r} and {header} bytes")
    if not 8 + header <= program <= len(raw):
        _refuse(f"it is truncated: its program has {program} bytes, the file {len(raw)}")
    if not 8 + header <= root < program:
        _refuse(f"its root table stands at {root}, outside the program's {program} bytes")
    end = program
    if base:
        size = _SEGMENTS.unpack_from(raw, _PREFIX.size)[0] if header >= _LARGER_HEADER else 0
        if base < program:
            _refuse(f"its segments begin at {base}, inside the program's {program} bytes")
        end = base + size
    if end > len(raw):
        _refuse(f"it is truncated: its segments end at {end}, the file at {len(raw)}")


def _refuse(reason: str) -> NoReturn:
    raise ProgramRefused(f"program refused: {reason}")
