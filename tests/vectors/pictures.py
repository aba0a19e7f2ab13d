"""Photos in every form that a client must read, with what programs take of them."""

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedlens_proto import photos
from tests.vectors.forms import Files, document, refusal

Pixels = NDArray[np.uint8]

_GREY, _RGB, _PALETTE, _GREY_ALPHA, _RGBA = 0, 2, 3, 4, 6
_LOSSLESS = "exact"
_JPEG = "within 3/255, and on average within 0.5/255"


def _scene(height: int, width: int, channels: int = 3) -> Pixels:
    """Slopes, edges and noise; no row, column or channel is like another one."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    slope = 255 * ((c + 1) * x / width + (3 - c) * y / height) / (channels + 2)
    edge = np.where((x * 3 > width) & (y * 2 > height), 60, 0)
    noise = (x * 7919 + y * 104729 + c * 1299709) % 41
    found: Pixels = np.clip(slope + edge + noise - 20, 0, 255).astype(np.uint8)
    return found


def _smooth(height: int, width: int) -> Pixels:
    """Slopes alone, as JPEG keeps them well."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    return (255 * ((c + 1) * x / width + (3 - c) * y / height) / 5).astype(np.uint8)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(
    pixels: NDArray[Any], colour: int, bits: int = 8, *, orientation: int = 0, extra: tuple[bytes, ...] = ()
) -> bytes:
    """A PNG file that is not compressed, so that its bytes depend on no library.

    Args:
        pixels: [H, W] or [H, W, C], below 2^bits; 16 bits are written as two bytes.
        colour: PNG's colour type.
        bits: 1, 8 or 16.
        orientation: In an eXIf chunk; 0: there is none.
        extra: Chunks before the data.
    """
    height, width = pixels.shape[:2]
    lines = pixels.reshape(height, -1)
    if bits == 1:
        raw = np.packbits(lines.astype(np.uint8), axis=1)
    else:
        raw = lines.astype(">u2" if bits == 16 else np.uint8).view(np.uint8)
    data = b"".join(b"\0" + line.tobytes() for line in raw)
    stored = b"\x78\x01\x01" + struct.pack("<HH", len(data), len(data) ^ 0xFFFF) + data
    exif = [_chunk(b"eXIf", _exif(orientation))] if orientation else []
    chunks = [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)),
        *extra,
        *exif,
        _chunk(b"IDAT", stored + struct.pack(">I", zlib.adler32(data))),
        _chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _exif(orientation: int) -> bytes:
    """A TIFF block, big-endian, with one entry: tag 0x0112, type SHORT."""
    return b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def _saved(pixels: Pixels, kind: str, **options: Any) -> bytes:
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


def _jpeg(pixels: Pixels, orientation: int = 0, **options: Any) -> bytes:
    exif = {"exif": b"Exif\0\0" + _exif(orientation)} if orientation else {}
    return _saved(pixels, "JPEG", quality=95, subsampling=0, **exif, **options)


def _two_frames() -> bytes:
    second = Image.fromarray(255 - _smooth(16, 16))
    return _saved(_smooth(16, 16), "MPO", save_all=True, append_images=[second], quality=95)


def _photos() -> dict[str, tuple[bytes, tuple[tuple[int, int], ...]]]:
    """By file name: the file, and heights and widths to scale it to."""
    palette = _scene(1, 6)[0]
    indices = (np.add.outer(np.arange(9), np.arange(12)) % 6).astype(np.uint8)
    plte = _chunk(b"PLTE", palette.tobytes())
    grey16 = _scene(11, 9, 1)[..., 0].astype(np.uint16) * 257 + np.arange(9, dtype=np.uint16) * 13
    found: dict[str, tuple[bytes, tuple[tuple[int, int], ...]]] = {
        "same-size.png": (png(_scene(8, 8), _RGB), ((8, 8),)),
        "down-odd.png": (png(_scene(23, 37), _RGB), ((8, 8), (7, 5), (1, 1))),
        "down-flat.png": (png(_scene(24, 20), _RGB), ((3, 12), (5, 17))),
        "down-tall.png": (png(_scene(40, 21), _RGB), ((8, 8), (20, 20), (5, 9))),
        "up.png": (png(_scene(5, 7), _RGB), ((8, 8), (13, 13))),
        "one-pixel.png": (png(_scene(1, 1), _RGB), ((4, 4),)),
        "one-row.png": (png(_scene(1, 9), _RGB), ((3, 3),)),
        "grey.png": (png(_scene(9, 12, 1), _GREY), ((8, 8),)),
        "grey-16-bit.png": (png(np.minimum(grey16, 65535), _GREY, 16), ((8, 8),)),
        "grey-alpha.png": (png(_scene(9, 12, 2), _GREY_ALPHA), ((8, 8),)),
        "black-and-white.png": (png(indices % 2, _GREY, 1), ((4, 4),)),
        "alpha.png": (png(_scene(12, 9, 4), _RGBA), ((8, 8),)),
        "palette.png": (png(indices, _PALETTE, extra=(plte,)), ((8, 8),)),
        "palette-transparent.png": (png(indices, _PALETTE, extra=(plte, _chunk(b"tRNS", b"\x00\x80"))), ((8, 8),)),
        "picture.bmp": (_saved(_scene(9, 11), "BMP"), ((8, 8),)),
        "lossless.webp": (_saved(_scene(9, 11), "WEBP", lossless=True), ((8, 8),)),
        "colour.jpg": (_jpeg(_smooth(24, 32)), ((8, 8), (24, 24), (30, 30))),
        "grey.jpg": (_jpeg(_smooth(16, 16)[..., 1]), ((8, 8),)),
        "progressive.jpg": (_jpeg(_smooth(24, 17), progressive=True), ((8, 8),)),
        "two-frames.jpg": (_two_frames(), ((8, 8),)),
    }
    for orientation in range(1, 9):
        found[f"orientation-{orientation}.png"] = (png(_scene(10, 15), _RGB, orientation=orientation), ((6, 6),))
        found[f"orientation-{orientation}.jpg"] = (_jpeg(_smooth(16, 24), orientation), ((6, 6),))
    return found


def _refused() -> dict[str, bytes]:
    whole = _jpeg(_scene(24, 24))
    flat = png(_scene(8, 8), _RGB)
    return {
        "empty.jpg": b"",
        "text.jpg": b"hello, this is no photo",
        "cut-short.jpg": whole[: len(whole) // 2],
        "cut-short.png": flat[: len(flat) // 2],
        "another-format.jpg": _saved(_scene(4, 4), "GIF"),
    }


def files() -> Files:
    """`photos.json`, the photos and the numbers that programs take."""
    found: Files = {}
    listed = []
    for name, (raw, sizes) in _photos().items():
        found[f"photos/{name}"] = raw
        for height, width in sizes:
            pixels = photos.load(BytesIO(raw), height, width)
            expected = f"{name}.{height}x{width}.f32"
            found[f"photos/{expected}"] = photos.as_input(pixels).astype("<f4").tobytes()
            listed.append(
                {
                    "photo": name,
                    "height": height,
                    "width": width,
                    "expected": expected,
                    "shape": [3, height, width],
                    "tolerance": _JPEG if name.endswith(".jpg") else _LOSSLESS,
                }
            )
    for name, raw in _refused().items():
        found[f"photos/refused/{name}"] = raw
        refusal(photos.load, BytesIO(raw), 4, 4)
    found["photos/photos.json"] = document(
        {"version": photos.PREPROCESSING_VERSION, "photos": listed, "refused": sorted(_refused())}
    )
    return found
