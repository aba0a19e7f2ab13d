"""Photos from files to numbers, where `tests/vectors` has no file that shows it."""

import os
import struct
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from fedlens_proto import photos
from fedlens_proto.errors import PhotoUnreadable

VECTORS = Path(__file__).parent.parent / "vectors" / "photos"
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
# The left third red, the middle third green, the right third blue.
STRIPES = Image.fromarray(np.repeat(np.array([[RED, GREEN, BLUE]], np.uint8), 10, axis=1).repeat(30, axis=0))
TURNED = Image.Exif()
TURNED[0x0112] = 6  # upright after a quarter turn clockwise, so that the left column becomes the top row
XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
)


def png_texts() -> PngInfo:
    """Orientation 6 where other programs put it: in XMP, and in EXIF data that are written as text."""
    raw, texts = TURNED.tobytes(), PngInfo()
    texts.add_itxt("XML:com.adobe.xmp", XMP.decode())
    texts.add_text("exif", raw)
    texts.add_text("Raw profile type exif", f"\nexif\n    {len(raw)}\n{raw.hex()}\n")
    return texts


@pytest.mark.parametrize("suffix", ["jpg", "webp", "png"])
def test_an_orientation_that_stands_elsewhere_than_in_exif_is_not_applied(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    more: dict[str, Any] = {"pnginfo": png_texts()} if suffix == "png" else {"xmp": XMP, "lossless": True}
    STRIPES.save(path, **more)
    with Image.open(path) as opened:
        assert opened.getexif()[0x0112] == 6  # Pillow itself finds one

    pixels = photos.load(path, 30, 30).astype(int)

    assert pixels[0, 15, 2] > 200 and pixels[2, 15, 27] > 200  # red is still on the left, blue on the right


def test_exif_data_behind_the_pixels_of_a_png_count(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    STRIPES.save(path)
    raw = path.read_bytes()
    chunk = b"eXIf" + TURNED.tobytes().removeprefix(b"Exif\0\0")
    framed = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", crc32(chunk))
    path.write_bytes(raw[:-12] + framed + raw[-12:])  # the end of a PNG has 12 bytes

    assert tuple(photos.load(path, 30, 30)[:, 0, 15]) == RED


def test_bytes_that_decoders_pass_over_change_nothing() -> None:
    photo = (VECTORS / "colour.jpg").read_bytes()
    scan, end = photo.index(b"\xff\xda"), len(photo) - 2
    escaped = photo.index(b"\xff\x00", scan)

    # `OddPhotos.kt` has them too.
    for at, odd in [(scan, b"junk"), (scan, b"\xff\x00"), (scan, b"\xff\xff"), (end, b"junk"), (escaped, b"\xff")]:
        pixels = photos.load(BytesIO(photo[:at] + odd + photo[at:]), 8, 8)
        assert (pixels == photos.load(BytesIO(photo), 8, 8)).all(), (at, odd)


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "white").convert("CMYK").save(tmp_path / "a.jpg")

    assert photos.load(tmp_path / "a.jpg", 2, 2).min() >= 254


def test_a_stream_gives_what_its_file_gives(tmp_path: Path) -> None:
    path = tmp_path / "a.bmp"
    STRIPES.save(path)

    from_stream = photos.load(BytesIO(path.read_bytes()), 6, 6)

    np.testing.assert_array_equal(from_stream, photos.load(path, 6, 6))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cut-short.jpg", "damaged or cut short .*; copy it anew, or leave it out"),
        ("empty.jpg", "no JPEG, PNG, WebP or BMP, or damaged; save it anew as JPEG, or leave it out"),
        ("text.jpg", "no JPEG, PNG, WebP or BMP, or damaged; save it anew as JPEG, or leave it out"),
        ("eps.jpg", "no JPEG, PNG, WebP or BMP"),  # of a format for which Pillow runs another program
    ],
)
def test_a_damaged_photo_is_refused_with_cause_and_cure_but_without_its_folder_and_pillows_words(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "eps.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n")
    folder = tmp_path if name == "eps.jpg" else VECTORS / "refused"

    for source, called in ((folder / name, name), (BytesIO((folder / name).read_bytes()), "the photo")):
        with pytest.raises(PhotoUnreadable, match=f"^{called} cannot be read as a photo: it is {reason}") as refused:
            photos.load(source, 8, 8)
        assert "identify" not in str(refused.value)


def test_a_photo_with_damaged_exif_data_is_read_without_a_word_of_pillows(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    # A table of three entries, of which there is not one.
    STRIPES.save(path, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x03")
    script = f"from pathlib import Path; from fedlens_proto import photos; photos.load(Path({str(path)!r}), 3, 3)"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_photo_that_is_gone_is_told_apart_from_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        photos.load(tmp_path / "gone.jpg", 8, 8)


def test_class_folders_are_sorted_and_hidden_ones_left_out(tmp_path: Path) -> None:
    for name in ("dog", "Cat", ".cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").touch()

    assert [folder.name for folder in photos.class_folders(tmp_path)] == ["Cat", "dog"]


def test_a_file_in_place_of_the_folder_of_classes_is_named(tmp_path: Path) -> None:
    (tmp_path / "photos.zip").touch()

    with pytest.raises(NotADirectoryError, match=r"photos\.zip is no folder"):
        photos.class_folders(tmp_path / "photos.zip")


def test_what_is_not_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.webp", "c.heic", "d.HEIF", "e.txt", ".DS_Store"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    os.mkfifo(tmp_path / "f.png")

    listing = photos.list_photos(tmp_path)

    assert [path.name for path in listing.photos] == ["a.webp", "b.JPG"]
    assert {reason: [p.name for p in paths] for reason, paths in listing.skipped.items()} == {
        photos.Skipped.HEIC: ["c.heic", "d.HEIF"],
        photos.Skipped.OTHER_SUFFIX: ["e.txt"],
        photos.Skipped.FOLDER: ["more"],
        photos.Skipped.NO_FILE: ["f.png"],
    }


def test_files_that_cannot_be_read_are_passed_over_and_the_others_keep_their_places(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("gone.png", "good.png", "text.png", "also.png")]
    files[0].symlink_to(tmp_path / "nowhere")
    files[2].write_text("no photo")
    for file in files[1::2]:
        Image.new("RGB", (6, 4)).save(file)

    found = list(photos.readable(files, 3))

    assert [place for place, _ in found] == [1, 3]
    assert all(image.shape == (3, 3, 3) for _, image in found)
