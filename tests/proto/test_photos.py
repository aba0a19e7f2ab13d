"""Photos from files to numbers."""

import struct
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from fedlens_proto import photos
from fedlens_proto.errors import PhotoUnreadable

VECTORS = Path(__file__).parent.parent / "vectors" / "photos"
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def stripes(width: int, height: int) -> Image.Image:
    """Left third red, middle third green, right third blue."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 3] = RED
    pixels[:, width // 3 : 2 * width // 3] = GREEN
    pixels[:, 2 * width // 3 :] = BLUE
    return Image.fromarray(pixels)


def colours(pixels: NDArray[np.uint8]) -> set[tuple[int, ...]]:
    return {tuple(row) for row in pixels.reshape(3, -1).T.tolist()}


def test_the_central_square_is_kept(tmp_path: Path) -> None:
    # A 30x10 picture: its central square is columns 10 to 19, all green.
    path = tmp_path / "a.png"
    stripes(30, 10).save(path)

    pixels = photos.load(path, 4, 4)

    assert pixels.shape == (3, 4, 4)
    assert pixels.dtype == np.uint8
    assert colours(pixels) == {GREEN}


def test_a_tall_photo_is_cropped_above_and_below(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    stripes(30, 10).transpose(Image.Transpose.ROTATE_90).save(path)

    assert colours(photos.load(path, 5, 5)) == {GREEN}


def test_scaling_down_averages_over_all_pixels(tmp_path: Path) -> None:
    # Columns alternate 0 and 255. Without antialiasing a sample hits one of them; with it, everything is near 127.
    path = tmp_path / "a.png"
    columns = np.tile(np.array([0, 255], np.uint8), 32)
    Image.fromarray(np.tile(columns, (64, 1))).save(path)

    pixels = photos.load(path, 8, 8)[:, :, 1:-1].astype(int)

    assert np.abs(pixels - 127).max() <= 8


def test_the_orientation_in_exif_is_applied(tmp_path: Path) -> None:
    # Orientation 6: the camera was turned; to be shown upright the stored picture is turned by 90 degrees clockwise,
    # so its left column (red) becomes the top row.
    path = tmp_path / "a.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    stripes(30, 30).save(path, exif=exif)

    pixels = photos.load(path, 30, 30)

    assert tuple(pixels[:, 0, 15]) == RED
    assert tuple(pixels[:, 29, 15]) == BLUE


XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
)


def png_texts() -> PngInfo:
    """Orientation 6 where other programs put it: in XMP, and in EXIF data that are written as text."""
    exif = Image.Exif()
    exif[0x0112] = 6
    texts = PngInfo()
    texts.add_itxt("XML:com.adobe.xmp", XMP.decode())
    texts.add_text("Raw profile type exif", f"\nexif\n    {len(exif.tobytes())}\n{exif.tobytes().hex()}\n")
    return texts


@pytest.mark.parametrize("suffix", ["jpg", "webp", "png"])
def test_an_orientation_that_stands_elsewhere_than_in_exif_is_not_applied(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    more: dict[str, dict[str, Any]] = {
        "jpg": {"xmp": XMP},
        "webp": {"xmp": XMP, "lossless": True},
        "png": {"pnginfo": png_texts()},
    }
    stripes(30, 30).save(path, **more[suffix])
    with Image.open(path) as opened:
        assert opened.getexif()[0x0112] == 6  # Pillow itself finds one

    pixels = photos.load(path, 30, 30).astype(int)

    assert pixels[0, 15, 2] > 200 and pixels[2, 15, 27] > 200  # red is still on the left, blue on the right


def test_exif_data_behind_the_pixels_of_a_png_count(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    stripes(30, 30).save(path)
    raw = path.read_bytes()
    chunk = b"eXIf" + exif.tobytes().removeprefix(b"Exif\0\0")
    framed = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", crc32(chunk))
    path.write_bytes(raw[:-12] + framed + raw[-12:])  # the end of a PNG has 12 bytes

    assert tuple(photos.load(path, 30, 30)[:, 0, 15]) == RED


def test_height_and_width_are_not_mixed_up(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    stripes(30, 30).save(path)

    assert photos.load(path, 7, 9).shape == (3, 7, 9)


def test_bytes_that_decoders_pass_over_change_nothing() -> None:
    photo = (VECTORS / "colour.jpg").read_bytes()
    scan, end = photo.index(b"\xff\xda"), len(photo) - 2
    escaped = photo.index(b"\xff\x00", scan)

    # `OddPhotos.kt` has them too.
    for at, odd in [(scan, b"junk"), (scan, b"\xff\x00"), (scan, b"\xff\xff"), (end, b"junk"), (escaped, b"\xff")]:
        pixels = photos.load(BytesIO(photo[:at] + odd + photo[at:]), 8, 8)
        assert (pixels == photos.load(BytesIO(photo), 8, 8)).all(), (at, odd)


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "LA", "CMYK", "I;16"])
def test_every_colour_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    white = Image.new(mode, (8, 8), 65535) if mode == "I;16" else Image.new("RGB", (8, 8), "white").convert(mode)
    white.save(path)

    assert photos.load(path, 2, 2).min() >= 254


def test_of_a_picture_with_several_frames_the_first_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    first, second = Image.new("RGB", (8, 8), "white"), Image.new("RGB", (8, 8), "black")
    first.save(path, "MPO", save_all=True, append_images=[second])

    assert photos.load(path, 2, 2).min() >= 250


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("P", (4, 4)).save(path, transparency=b"\x00\x80")

    assert photos.load(path, 2, 2).shape == (3, 2, 2)


def test_a_stream_gives_what_its_file_gives(tmp_path: Path) -> None:
    path = tmp_path / "a.bmp"
    stripes(21, 14).save(path)

    from_stream = photos.load(BytesIO(path.read_bytes()), 6, 6)

    np.testing.assert_array_equal(from_stream, photos.load(path, 6, 6))


def test_a_program_takes_pixels_over_255_in_float32() -> None:
    values = photos.as_input(np.array([0, 51, 255], np.uint8))

    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, np.array([0, 51, 255], np.float32) / np.float32(255))


def damaged(tmp_path: Path, name: str) -> Path:
    whole = BytesIO()
    stripes(60, 60).save(whole, "JPEG")
    raw = {"truncated.jpg": whole.getvalue()[:400], "empty.png": b"", "text.jpg": b"hello, this is no photo"}[name]
    path = tmp_path / name
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("name", ["truncated.jpg", "empty.png", "text.jpg"])
def test_a_damaged_photo_is_refused_by_name_and_without_its_folder(tmp_path: Path, name: str) -> None:
    path = damaged(tmp_path, name)

    with pytest.raises(PhotoUnreadable, match=name) as refused:
        photos.load(path, 8, 8)

    assert str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("truncated.jpg", "damaged or cut short .*; copy it anew, or leave it out"),
        ("empty.png", "no JPEG, PNG, WebP or BMP, or damaged; save it anew as JPEG, or leave it out"),
        ("text.jpg", "no JPEG, PNG, WebP or BMP, or damaged; save it anew as JPEG, or leave it out"),
    ],
)
def test_a_damaged_photo_is_refused_with_cause_and_cure_and_without_pillows_words(
    tmp_path: Path, name: str, reason: str
) -> None:
    path = damaged(tmp_path, name)

    for source in (path, BytesIO(path.read_bytes())):
        with pytest.raises(PhotoUnreadable, match=reason) as refused:
            photos.load(source, 8, 8)
        assert "identify" not in str(refused.value)


def test_a_photo_with_damaged_exif_data_is_read_without_a_word_of_pillows(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    # A table of three entries, of which there is not one.
    stripes(9, 9).save(path, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x03")
    script = f"from pathlib import Path; from fedlens_proto import photos; photos.load(Path({str(path)!r}), 3, 3)"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_formats_that_run_other_programs_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n")

    with pytest.raises(PhotoUnreadable, match=r"picture\.jpg"):
        photos.load(path, 8, 8)


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

    listing = photos.list_photos(tmp_path)

    assert [path.name for path in listing.photos] == ["a.webp", "b.JPG"]
    assert {reason: [p.name for p in paths] for reason, paths in listing.skipped.items()} == {
        photos.Skipped.HEIC: ["c.heic", "d.HEIF"],
        photos.Skipped.OTHER_SUFFIX: ["e.txt"],
        photos.Skipped.FOLDER: ["more"],
    }
