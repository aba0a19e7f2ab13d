"""Decoding of photos to the inputs of programs, by version 1 of the rule in `docs/preprocessing.md`.

It needs Pillow, which the server does not have.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from struct import error as StructError
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from fedlens_proto.errors import PhotoUnreadable

PREPROCESSING_VERSION = 1
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
HEIC_SUFFIXES = frozenset({".heic", ".heif"})

# Pillow reads far more formats, and starts other programs for some. MPO, which several phones write as `.jpg`, is part
# of its JPEG format.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
# Pillow prints warnings for programmers about photos that are large or have damaged EXIF data, and reads them all the
# same. Set once and not around each call, because `catch_warnings` is not safe in threads.
warnings.filterwarnings("ignore", module=r"PIL\.")
# Operations that turn a photo upright, by the orientation in its EXIF data.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Pillow's exceptions for damaged files.
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, TypeError, StructError)


class Skipped(StrEnum):
    """Reasons for not using a directory entry among the photos; the text is for people."""

    HEIC = "HEIC photos, which cannot be read here (export them as JPEG)"
    OTHER_SUFFIX = "no photos by their suffix"
    FOLDER = "folders inside a class folder"
    NO_FILE = "no files, such as pipes"


@dataclass(frozen=True)
class PhotoListing:
    """The content of a class folder.

    Attributes:
        photos: Files to load, sorted by name; loading may still show that a file cannot be decoded.
        skipped: Entries left out, sorted by name, for each reason that occurs, without hidden entries.
    """

    photos: tuple[Path, ...]
    skipped: dict[Skipped, tuple[Path, ...]]


def load(source: Path | BinaryIO, height: int, width: int) -> NDArray[np.uint8]:
    """Decode a photo, turn it upright, crop its central square and scale that.

    Args:
        source: A file, or a seekable stream with its content.
        height: Pixels, at least 1.
        width: Pixels, at least 1.

    Returns:
        uint8 [3, height, width], red, green, blue; `as_input` makes it the input of a program.

    Raises:
        PhotoUnreadable: Not a photo of a known format, damaged, truncated, or too many pixels.
        FileNotFoundError: There is no such file, or no longer.
    """
    with _opened(source) as opened:
        upright = _upright(opened)
        side = min(upright.size)
        left, top = (upright.width - side) // 2, (upright.height - side) // 2
        square = _to_rgb(upright.crop((left, top, left + side, top + side)))
        # Columns first, as the rule has it: in one call Pillow takes rows first for some sizes.
        wide = square.resize((width, side), Image.Resampling.BILINEAR)
        scaled = wide.resize((width, height), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(scaled).transpose(2, 0, 1))


def readable(files: Iterable[Path], side: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Those files that can be loaded as squares of `side` pixels, each with its place in `files`."""
    for place, file in enumerate(files):
        try:
            found = load(file, side, side)
        except (PhotoUnreadable, FileNotFoundError):
            continue
        yield place, found


def shorter_side(source: Path | BinaryIO) -> int:
    """Pixels of a photo's shorter side, read without decoding the photo. Errors as in `load`."""
    with _opened(source) as opened:
        return min(opened.size)


def as_input(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The input of a program: pixels / 255, float32 of the same shape, in 0..1."""
    return pixels.astype(np.float32) / np.float32(255)


def class_folders(root: Path) -> list[Path]:
    """The sub-folders of `root`, one a class, sorted by name, without hidden ones.

    Raises:
        NotADirectoryError: `root` is no folder.
    """
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is no folder; give one that has a sub-folder of photos for each class")
    return sorted((p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")), key=lambda p: p.name)


def list_photos(folder: Path) -> PhotoListing:
    """The photos directly in `folder`, by suffix in any case, without opening them."""
    photos: list[Path] = []
    skipped: dict[Skipped, list[Path]] = {}
    for entry in sorted(folder.iterdir(), key=lambda p: p.name):
        if entry.name.startswith("."):
            continue
        reason = Skipped.FOLDER if entry.is_dir() else skipped_for(entry)
        if reason is None and entry.exists() and not entry.is_file():
            reason = Skipped.NO_FILE  # to read from a pipe may never end
        if reason is None:
            photos.append(entry)
        else:
            skipped.setdefault(reason, []).append(entry)
    return PhotoListing(tuple(photos), {reason: tuple(paths) for reason, paths in skipped.items()})


def skipped_for(file: Path) -> Skipped | None:
    """The reason why a file is no photo by its suffix, in any case; None if it may be one."""
    suffix = file.suffix.lower()
    if suffix in SUFFIXES:
        return None
    return Skipped.HEIC if suffix in HEIC_SUFFIXES else Skipped.OTHER_SUFFIX


@contextmanager
def _opened(source: Path | BinaryIO) -> Iterator[Image.Image]:
    try:
        with Image.open(source, formats=_FORMATS) as opened:
            yield opened
    except FileNotFoundError:
        raise
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise PhotoUnreadable(f"{_name(source)} has more than {most:,} pixels: scale it down") from error
    except _DAMAGE as error:
        raise PhotoUnreadable(f"{_name(source)} cannot be read as a photo: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is no JPEG, PNG, WebP or BMP, or damaged; save it anew as JPEG, or leave it out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"it is damaged or cut short ({error}); copy it anew, or leave it out"


def _upright(opened: Image.Image) -> Image.Image:
    """The photo turned by its EXIF data alone; Pillow's own function also reads XMP and the text of a PNG."""
    opened.load()  # in a PNG, EXIF data may stand behind the pixels
    exif = Image.Exif()
    # Pillow also takes a PNG's text of the name `exif` for it.
    is_text = "exif" in getattr(opened, "text", ())
    exif.load(b"" if is_text else opened.info.get("exif", b""))
    turn = _TURNS.get(exif.get(ExifTags.Base.Orientation, 1))
    return opened if turn is None else opened.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow would clip 16-bit grey to 255 instead of scaling it.
        return Image.fromarray((np.asarray(image) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB")


def _name(source: Path | BinaryIO) -> str:
    return source.name if isinstance(source, Path) else "the photo"
