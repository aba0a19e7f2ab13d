"""Styles and scripts of the pages, named by their content so that browsers may keep them for ever."""

import gzip
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from aiohttp import hdrs, web

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class _File(NamedTuple):
    digest: str
    content_type: str
    raw: bytes
    packed: bytes


@cache
def _all() -> dict[str, _File]:
    found = {}
    for path in Path(__file__).with_name("static").iterdir():
        if path.suffix in _TYPES:
            raw, kind = path.read_bytes(), _TYPES[path.suffix]
            found[path.name] = _File(sha256(raw).hexdigest()[:16], kind, raw, gzip.compress(raw, mtime=0))
    return found


def address(name: str) -> str:
    """The path of a file below that of the dashboard."""
    return f"static/{_all()[name].digest}/{name}"


async def send(request: web.Request) -> web.Response:
    """`GET /static/{digest}/{name}`: a file."""
    found = _all().get(request.match_info["name"])
    if found is None or found.digest != request.match_info["digest"]:
        raise web.HTTPNotFound
    headers = {hdrs.CACHE_CONTROL: "public, max-age=31536000, immutable", hdrs.VARY: hdrs.ACCEPT_ENCODING}
    body = found.raw
    if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        body, headers[hdrs.CONTENT_ENCODING] = found.packed, "gzip"
    return web.Response(body=body, content_type=found.content_type, charset="utf-8", headers=headers)
