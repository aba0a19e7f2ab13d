from struct import pack

import pytest

from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pte

PROGRAM, SEGMENTS = 96, 32


def file(program: int = PROGRAM, base: int = 128, segments: int = SEGMENTS, root: int = 60, header: int = 32) -> bytes:
    """A `.pte` of 160 bytes with this header, and nothing that means anything behind it."""
    start = pack("<I4s4sIQQQ", root, b"ET12", b"eh00", header, program, base, segments)
    return start + bytes(128 + SEGMENTS - len(start))


def test_a_file_as_long_as_its_header_says_passes() -> None:
    pte.check(file())
    # Without segments its program is all there is.
    pte.check(file(program=160, base=0))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "it begins with nothing"),
        (b"PK\x03\x04" * 40, "it begins with 504b0304504b0304; no ExecuTorch program does"),
        (file()[:20], "no ExecuTorch program does"),
        (file()[:-1], "it is truncated: its segments end at 160, the file at 159"),
        (file()[:90], "it is truncated: its program has 96 bytes, the file 90"),
        (file(program=1 << 40), "it is truncated: its program has 1099511627776 bytes"),
        (file(segments=(1 << 64) - 1), "its segments end at"),
        (file(base=40), "its segments begin at 40, inside the program's 96 bytes"),
        (file(root=4), "its root table stands at 4, outside"),
        (file(root=1000), "its root table stands at 1000, outside"),
        (file(header=8), "no header that tells its length: found b'eh00' and 8 bytes"),
        (file().replace(b"eh00", b"xx00"), "no header that tells its length: found b'xx00'"),
    ],
)
def test_anything_else_is_refused_with_what_was_found(raw: bytes, reason: str) -> None:
    with pytest.raises(ProgramRefused, match=reason):
        pte.check(raw)
