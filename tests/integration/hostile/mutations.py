"""Requests with faults, made from valid ones by a seeded generator: in messages, in heads, and in raw bytes."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fedlens_proto.wire import LENGTH, MEDIA_TYPE
from tests.integration.hostile.plain_server import Reply

# Of all requests, so that rounds and tasks go on under way; and of the faults of a request with a message.
VALID, CHANGED_ONLY_INSIDE = 0.4, 0.6
NUMBERS = (0, 1, 127, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
DOUBLES = (0.0, -0.0, -1.0, 5e-324, 1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    " ",
    "\0",
    "a" * 5000,
    "../../etc/passwd",
    "\u202e",
    "\ud7ff\uffff",
    "%s%n",
    "' OR 1=1 --",
    "1",
    "-1",
    "1e999",
)
# In paths and queries. Small numbers are left out: they might name the honest clients' task.
WORDS = (
    "-1",
    "0",
    "00",
    "9" * 18,
    "9" * 19,
    "9" * 5000,
    "1e309",
    "nan",
    "-inf",
    "%00",
    "%ff",
    "%F0%9F%92%A9",
    "..",
    "%2e%2e%2f",
    "\u0661",
)
JSON_VALUES: tuple[Any, ...] = (None, True, -1, 0, 1.5, 10**400, 1e308, "", "x" * 2000, [], [[]], {}, {"a": {"b": []}})
TYPES = (MEDIA_TYPE.upper(), "", "application/json", f"{MEDIA_TYPE}; charset=x", "text/plain\x0b", "a" * 9000)
RANGES = (
    "bytes=0-",
    "bytes=-1",
    "bytes=5-2",
    "bytes=0-0,5-6",
    "bytes=99999999999999999999-",
    "bytes=-0",
    "items=1-2",
    "bytes=a-b",
    "bytes=",
)
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "BREW", "A" * 300)
LENGTHS = ("-1", "0", "1", "7", "99999999999", "9" * 30, "0x10", "1, 1", "", " 5", "+5", "1e3")


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request as its parts.

    Attributes:
        side: Of `clients` or of `operators`.
        message: The body; None: `tail` alone is.
        framed: True if the message stands behind its length.
        tail: Raw bytes behind the message.
        learn: Told the answer, if nothing was changed.
    """

    side: str
    method: str
    path: str
    bearer: str = ""
    message: Message | None = None
    framed: bool = False
    tail: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    learn: Callable[[Reply], None] | None = None
    lines: tuple[bytes, ...] | None = None
    body: bytes | None = None
    whole: bytes | None = None
    changes: tuple[str, ...] = ()
    is_framed_rightly: bool = True

    @property
    def content(self) -> bytes:
        """The body."""
        if self.body is not None:
            return self.body
        raw = b"" if self.message is None else self.message.SerializeToString()
        return (LENGTH.pack(len(raw)) if self.framed else b"") + raw + self.tail

    @property
    def head(self) -> tuple[bytes, ...]:
        """The lines of the head: that of the request, then one a header."""
        if self.lines is not None:
            return self.lines
        given = {"Host": "x", "Authorization": self.bearer, "Content-Type": MEDIA_TYPE} | dict(self.headers)
        given["Content-Length"] = given.get("Content-Length", str(len(self.content)))
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if value)]
        return tuple(line.encode("utf-8", "surrogatepass") for line in lines)

    @property
    def raw(self) -> bytes:
        """The bytes to send."""
        if self.whole is not None:
            return self.whole
        return b"\r\n".join((*self.head, b"", b"")) + self.content


@dataclass
class Mutator:
    """A source of faults; the same generator gives the same ones."""

    random: Random
    others: tuple[str, ...] = ()  # credentials of others
    _log: list[str] = field(default_factory=list)

    def mutated(self, request: Request) -> Request:
        """The request, perhaps with one to three faults in its message and head, or with damaged bytes."""
        if self.random.random() < VALID:
            return request
        changes = []
        for _ in range(self.random.choice((1, 1, 2, 3))):
            inside = request.message is not None and self.random.random() < CHANGED_ONLY_INSIDE
            change = self.random.choice(_OF_MESSAGES if inside else _OF_HEADS)
            request = change(self, request)
            changes.append(change.__name__.strip("_"))
        return replace(request, changes=tuple(changes))

    # Messages.

    def _with_field(self, request: Request) -> Request:
        if request.message is None:
            return request
        changed = type(request.message)()
        changed.CopyFrom(request.message)
        self._change_field(changed)
        return replace(request, message=changed)

    def _change_field(self, message: Message) -> None:
        found = self.random.choice(message.DESCRIPTOR.fields) if message.DESCRIPTOR.fields else None
        if found is None:
            return
        is_message = found.type == FieldDescriptor.TYPE_MESSAGE
        value = getattr(message, found.name)
        if found.is_repeated:
            what = self.random.randrange(3)
            if what == 0:
                message.ClearField(found.name)
            elif what == 1 and is_message:
                self._change_field(self.random.choice(value) if value else value.add())
            else:
                for _ in range(self.random.choice((1, 2, 300))):
                    if is_message:
                        self._change_field(value.add())
                    else:
                        value.append(self._scalar(found, None))
        elif is_message:
            self._change_field(value)
        elif self.random.random() < 0.2:
            message.ClearField(found.name)
        else:
            setattr(message, found.name, self._scalar(found, value))

    def _scalar(self, found: FieldDescriptor, value: Any) -> Any:
        kind = found.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if found.type == FieldDescriptor.TYPE_BYTES:
                return self.random.randbytes(self.random.choice((0, 1, 31, 32, 33, 1000)))
            is_object = found.name == "settings_json" and value and value.startswith("{") and value.endswith("}")
            return self._json(value) if is_object else self.random.choice(TEXTS)
        if kind == FieldDescriptor.CPPTYPE_DOUBLE:
            return self.random.choice(DOUBLES)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self.random.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self.random.choice((0, 1, 2, 3, 4, 99, 2**31 - 1, -1))
        fits = 2**64 if kind == FieldDescriptor.CPPTYPE_UINT64 else 2**32
        return self.random.choice([number for number in NUMBERS if number < fits])

    def _json(self, text: str) -> str:
        """Settings with another value of a key, of a type that it need not have, or text that is no JSON."""
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):  # it has been changed before
            return text[1:]
        key = self.random.choice([*given, "options", "dp", "eligible", "hyper", "rounds", "unheard-of", "\ud800"])
        shapes = (
            "[" * 30_000,
            text[:-1],
            text + "}",
            "null",
            "NaN",
            '"' + "a" * 100 + '"',
            text.replace(":", ": -", 1),
        )
        if self.random.random() < 0.2:
            return self.random.choice(shapes)
        return json.dumps(given | {key: self.random.choice((*JSON_VALUES, float("nan"), float("inf")))})

    def _with_wire_fields(self, request: Request) -> Request:
        """Fields behind the message: unknown, of a wrong type, with huge numbers, or deeply nested."""
        number = self.random.choice((1, 2, 3, 4, 5, 6, 7, 15, 16, 2047, 2**29 - 1))
        varint = self.random.choice((b"\x00", b"\x01", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\xff" * 300))
        body = self.random.choice((b"", b"\xff" * 20, self.random.randbytes(32)))
        added = self.random.choice(
            (
                _varint(number << 3) + varint,
                _varint(number << 3 | 1) + self.random.randbytes(8),
                _varint(number << 3 | 2) + _varint(len(body)) + body,
                _varint(number << 3 | 2) + varint,
                _varint(number << 3 | 5) + self.random.randbytes(4),
                _varint(number << 3 | 3) * self.random.choice((1, 99, 101, 500)),
                _varint(number << 3 | 6),
                _nested(number, self.random.choice((10, 99, 101, 400))),
            )
        )
        if request.message is None:
            return request
        raw = request.message.SerializeToString() + added
        return replace(request, body=(LENGTH.pack(len(raw)) if request.framed else b"") + raw + request.tail)

    def _with_other_bytes(self, request: Request) -> Request:
        """Flipped, missing or further bytes of the body, whose length is told rightly."""
        return replace(request, body=self._damaged(request.content))

    def _damaged(self, raw: bytes) -> bytes:
        damaged = bytearray(raw)
        what = self.random.randrange(3)
        if what == 0 and damaged:
            for _ in range(self.random.choice((1, 1, 4, 20))):
                damaged[self.random.randrange(len(damaged))] ^= 1 << self.random.randrange(8)
        elif what == 1:
            del damaged[self.random.randrange(len(damaged) + 1) :]
        else:
            damaged += self.random.randbytes(self.random.choice((1, 4, 64, 5000)))
        return bytes(damaged)

    # Heads.

    def _with_method(self, request: Request) -> Request:
        method = self.random.choice(METHODS)
        return replace(request, method=method, is_framed_rightly=False)

    def _with_path(self, request: Request) -> Request:
        path, _, query = request.path.partition("?")
        parts = path.split("/")
        at = self.random.randrange(1, len(parts))
        word = self.random.choice(WORDS)
        what = self.random.randrange(4)
        if what == 0 or (what == 1 and not query):
            parts[at] = word
        elif what == 1:
            query = re.sub("=[^&]*", f"={word}", query, count=self.random.randrange(3))
        elif what == 2:
            parts.insert(at, self.random.choice((word, "", "v1", "admin")))
        else:
            query += f"&{self.random.choice(('limit', 'after', 'before', 'within_s', 'seen_within_s', 'x'))}={word}"
        return replace(request, path="/".join(parts) + (f"?{query}" if query else ""))

    def _with_headers(self, request: Request) -> Request:
        """Another credential, media type, range or encoding."""
        name, value = self.random.choice(
            (
                (
                    "Authorization",
                    self.random.choice(
                        ("", "Bearer", "Basic eDp5", "Bearer \xe4\xff", "Bearer " + "A" * 43, *self.others)
                    ),
                ),
                ("Content-Type", self.random.choice(TYPES)),
                ("Range", self.random.choice(RANGES)),
                ("Content-Encoding", self.random.choice(("gzip", "identity", "br", "zstd, gzip"))),
                ("X-Request-ID", "x" * 7000),
                ("If-Range", "x"),
                ("If-Modified-Since", self.random.choice(("Thu, 01 Jan 1970 00:00:00 GMT", "x", "9" * 99))),
                ("If-None-Match", '"x", *'),
                ("If-Match", "*"),
            )
        )
        return replace(request, headers=(*request.headers, (name, value)))

    def _with_framing(self, request: Request) -> Request:
        """A wrong length, chunks, an expectation, or an upgrade."""
        name, value = self.random.choice(
            (
                *(("Content-Length", each) for each in LENGTHS),
                ("Transfer-Encoding", self.random.choice(("chunked", "gzip, chunked", "identity", "x"))),
                ("Expect", self.random.choice(("100-continue", "x"))),
                ("Upgrade", "websocket"),
                ("Connection", self.random.choice(("close", "upgrade", "keep-alive, x"))),
            )
        )
        return replace(request, headers=(*request.headers, (name, value)), is_framed_rightly=False)

    def _with_lines(self, request: Request) -> Request:
        """A line of the head that is missing, there twice, or damaged."""
        lines = list(request.head)
        at = self.random.randrange(len(lines))
        what = self.random.randrange(4)
        if what == 0:
            del lines[at]
        elif what == 1:
            lines.insert(at, lines[at])
        elif what == 2:
            lines[at] = self._damaged(lines[at])
        else:
            lines.insert(
                1, self.random.choice((b"X: \xff\xfe\x00", b": x", b"X" * 9000 + b": 1", b"X:1\r\n Y", b"\xf0\x9f: 1"))
            )
        return replace(request, lines=tuple(lines), body=request.content, is_framed_rightly=False)

    def _with_raw_damage(self, request: Request) -> Request:
        """Any byte of the whole request damaged."""
        return replace(request, whole=self._damaged(request.raw), is_framed_rightly=False)


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def _nested(number: int, depth: int) -> bytes:
    raw = b""
    for _ in range(depth):
        raw = _varint(number << 3 | 2) + _varint(len(raw)) + raw
    return raw


_OF_MESSAGES = (
    *(Mutator._with_field,) * 4,
    Mutator._with_wire_fields,
    Mutator._with_other_bytes,
)
_OF_HEADS = (
    Mutator._with_method,
    *(Mutator._with_path,) * 2,
    *(Mutator._with_headers,) * 3,
    Mutator._with_other_bytes,
    Mutator._with_framing,
    Mutator._with_lines,
    Mutator._with_raw_damage,
)
