"""A second implementation of what the vectors show, from their README alone, with struct and hashlib.

It shares nothing with the packages, so that a vector and its description cannot be wrong together; photos' files and
certificates are the only things that it does not decode itself.
"""

import re
import ssl
import struct
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable, Sequence
from hashlib import sha256
from math import floor, prod
from typing import Any
from urllib.parse import unquote, urlsplit

SIZES = {1: 4, 2: 2, 3: 1, 4: 8}
FORMATS = {1: "f", 2: "e", 3: "b", 4: "q"}
F32, F16, INT8, I64 = 1, 2, 3, 4


def f32(value: float) -> float:
    """The float32 nearest to a number."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def varint(value: int) -> bytes:
    """protobuf's form of a number that is not negative."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def fields(raw: bytes) -> list[tuple[int, Any]]:
    """The fields of a message that has numbers and lengths only."""
    found: list[tuple[int, Any]] = []
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(raw):
        tag = number()
        if tag & 7 == 0:
            found.append((tag >> 3, number()))
        else:
            length = number()
            found.append((tag >> 3, raw[at : at + length]))
            at += length
    return found


def decode_blob(raw: bytes) -> tuple[dict[str, tuple[int, list[int], bytes]], bytes]:
    """By name: stored type, shape and the decoded elements as little-endian float32 or int64; and the base's digest."""
    magic, version, length = struct.unpack_from("<8sII", raw)
    assert (magic, version) == (b"FEDLENS\0", 1)
    tensors: dict[str, tuple[int, list[int], bytes]] = {}
    base = b""
    end = 16 + length
    for number, value in fields(raw[16:end]):
        if number == 2:
            base = value
            continue
        parts = fields(value)
        name = next(v for n, v in parts if n == 1).decode()
        dtype = next(v for n, v in parts if n == 2)
        packed = next((v for n, v in parts if n == 3), b"")
        shape = [v for _, v in fields(b"".join(b"\x08" + one for one in _split_varints(packed)))]
        start = -(-end // 64) * 64
        scales: tuple[float, ...] = ()
        if dtype == INT8:
            scales = struct.unpack_from(f"<{shape[0]}f", raw, start)
        values = struct.unpack_from(f"<{prod(shape)}{FORMATS[dtype]}", raw, start + 4 * len(scales))
        if dtype == INT8:
            columns = prod(shape[1:])
            values = tuple(value * scales[i // columns] for i, value in enumerate(values))
        end = start + 4 * len(scales) + len(values) * SIZES[dtype]
        tensors[name] = dtype, shape, struct.pack(f"<{len(values)}{'q' if dtype == I64 else 'f'}", *values)
    assert end == len(raw)
    return tensors, base


def _split_varints(packed: bytes) -> list[bytes]:
    found = [b""]
    for byte in packed:
        found[-1] += bytes([byte])
        if byte < 128:
            found.append(b"")
    return found[:-1]


def encode_blob(tensors: dict[str, tuple[str, list[int], bytes]], codec: int, base: bytes = b"") -> bytes:
    """The blob of tensors given by type (`float32` or `int64`), shape and little-endian elements."""
    header, data = b"", []
    for name in sorted(tensors, key=str.encode):
        kind, shape, raw = tensors[name]
        stored = I64 if kind == "int64" else F32 if codec == INT8 and len(shape) < 2 else codec
        packed = b"".join(map(varint, shape))
        dims = b"\x1a" + varint(len(packed)) + packed if shape else b""
        one = b"\x0a" + varint(len(name.encode())) + name.encode() + b"\x10" + varint(stored) + dims
        header += b"\x0a" + varint(len(one)) + one
        values = struct.unpack(f"<{prod(shape)}{'q' if stored == I64 else 'f'}", raw)
        data.append(
            _int8(values, shape[0]) if stored == INT8 else struct.pack(f"<{len(values)}{FORMATS[stored]}", *values)
        )
    header += b"\x12" + varint(len(base)) + base if base else b""
    out = struct.pack("<8sII", b"FEDLENS\0", 1, len(header)) + header
    for one in data:
        out += bytes(-len(out) % 64) + one
    return out


def _int8(values: Sequence[float], rows: int) -> bytes:
    columns = len(values) // rows
    scales, elements = [], []
    for row in range(rows):
        here = values[row * columns : (row + 1) * columns]
        scale = f32(max(map(abs, here)) / 127)
        scales.append(scale)
        # Python rounds halves to even.
        elements += [max(-127, min(127, round(f32(x / scale)))) if scale else 0 for x in here]
    return struct.pack(f"<{rows}f", *scales) + struct.pack(f"<{len(elements)}b", *elements)


def order(seed: bytes, stage: int, epoch: int, entries: Sequence[tuple[bytes, int]]) -> list[int]:
    """The photos of an epoch, as indices into `entries`."""
    head = b"fedlens/order/v1" + seed + struct.pack("<II", stage, epoch)
    ranks = [sha256(head + photo + struct.pack("<I", copy)).digest() for photo, copy in entries]
    return sorted(range(len(entries)), key=ranks.__getitem__)


def words(seed: bytes, photo: bytes, view: int, count: int) -> list[int]:
    """The 32-bit words from which a view is drawn."""
    head = b"fedlens/view/v1" + seed + photo + struct.pack("<I", view)
    stream = b"".join(sha256(head + struct.pack("<I", block)).digest() for block in range(-(-count // 8)))
    return list(struct.unpack_from(f"<{count}I", stream))


def choice(seed: bytes, photo: bytes, stored: int, count: int) -> list[int]:
    """Choose some of a photo's stored views for local training."""
    places = list(range(stored))
    for i, word in enumerate(words(seed, photo, 0, count)):
        j = i + word % (stored - i)
        places[i], places[j] = places[j], places[i]
    return places[:count]


Plane = list[list[int]]

_UPRIGHT: dict[int, Callable[[Plane], Plane]] = {
    1: lambda rows: rows,
    2: lambda rows: [row[::-1] for row in rows],
    3: lambda rows: [row[::-1] for row in rows[::-1]],
    4: lambda rows: rows[::-1],
    5: lambda rows: [list(column) for column in zip(*rows, strict=True)],
    6: lambda rows: [list(column)[::-1] for column in zip(*rows, strict=True)],
    7: lambda rows: [list(column) for column in zip(*rows[::-1], strict=True)][::-1],
    8: lambda rows: [list(column) for column in zip(*rows, strict=True)][::-1],
}


def prepared(plane: Plane, orientation: int, height: int, width: int) -> Plane:
    """One colour of a photo, turned upright, cropped and scaled."""
    rows = _UPRIGHT[orientation](plane)
    side = min(len(rows), len(rows[0]))
    top, left = (len(rows) - side) // 2, (len(rows[0]) - side) // 2
    square = [row[left : left + side] for row in rows[top : top + side]]
    across = [_scaled(row, width) for row in square]
    down = [_scaled(list(column), height) for column in zip(*across, strict=True)]
    return [list(row) for row in zip(*down, strict=True)]


def _scaled(line: list[int], size: int) -> list[int]:
    if len(line) == size:
        return line
    ratio = len(line) / size
    reach = max(ratio, 1.0)
    found = []
    for place in range(size):
        centre = (place + 0.5) * ratio
        first = max(0, floor(centre - reach + 0.5))
        last = min(len(line), floor(centre + reach + 0.5))
        weights = [max(0.0, 1 - abs((i - centre + 0.5) / reach)) for i in range(first, last)]
        total = sum(weights)
        fixed = [floor(0.5 + weight / total * (1 << 22)) for weight in weights]
        value = (1 << 21) + sum(f * pixel for f, pixel in zip(fixed, line[first:last], strict=True)) >> 22
        found.append(max(0, min(255, value)))
    return found


# SubjectPublicKeyInfo of a point on P-256, up to its two coordinates of 32 bytes.
_KEY = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")


def link(typed: str) -> dict[str, Any]:
    """The content of a link; a LookupError holds the code of the refusal."""
    text = re.sub(r"\s", "", typed)
    page, _, fragment = text.partition("#")
    address, question, _ = page.partition("?")
    _need(text != "", "empty")
    _need("://" in address, "not-a-link")
    _need(re.search("/join/*$", address) is not None, "other-link")
    values: dict[str, list[str]] = {"token": [], "pin": [], "ca": [], "publisher": [], "operator": [], "purpose": []}
    for part in fragment.split("&"):
        name, _, value = part.partition("=")
        values.get(unquote(name), []).append(unquote(value))
    _need(len(values["token"]) <= 1, "given-twice")
    scheme, colon, rest = re.sub("/+join/*$", "", address).partition(":")
    server, token = scheme.lower() + colon + rest, "".join(values["token"])
    _need_address(server)
    _need(question == "", "server-with-more")
    _need(token != "", "token-missing")
    _need(re.fullmatch("[!-~]+", token) is not None, "token-with-spaces")
    for pin in values["pin"]:
        _need(re.fullmatch("sha256/[A-Za-z0-9+/]{43}=", pin) is not None, "pin-unreadable")
        assert len(b64decode(pin[7:])) == 32
    certificates = [_base64url(text, "ca-unreadable") for text in values["ca"]]
    keys = [_base64url(text, "publisher-unreadable") for text in values["publisher"]]
    for certificate in certificates:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificate)
        except (ssl.SSLError, ValueError):
            _need(False, "ca-unreadable")
    for key in keys:
        _need(key.startswith(_KEY) and len(key) == 91, "publisher-unreadable")
    return {
        "server": server,
        "token": token,
        "pins": values["pin"],
        "ca": [certificate.hex() for certificate in certificates],
        "publishers": [sha256(key).hexdigest() for key in keys],
        "operator": _text(values["operator"], 100),
        "purpose": _text(values["purpose"], 500),
    }


def _text(found: list[str], most: int) -> str:
    return re.sub("[\\x00-\\x20\\x7f-\\xa0]+", " ", found[0]).strip(" ")[:most] if len(found) == 1 else ""


def _need_address(server: str) -> None:
    try:
        address = urlsplit(server)
    except ValueError:
        raise LookupError("server-unreadable") from None
    _need(bool(address.scheme and address.hostname), "server-unreadable")
    own_machine = address.scheme == "http" and address.hostname in ("localhost", "127.0.0.1")
    _need(address.scheme == "https" or own_machine, "server-not-secure")
    _need(not address.username, "server-with-more")


def _base64url(text: str, code: str) -> bytes:
    _need(re.fullmatch("[A-Za-z0-9_-]+={0,2}", text) is not None, code)
    return urlsafe_b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4))


def _need(condition: bool, code: str) -> None:
    if not condition:
        raise LookupError(code)
