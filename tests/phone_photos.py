"""Photos with what Pillow makes of them: what a decoder in another language is held against.

    python -m tests.phone_photos FOLDER

`FOLDER/photos.json` lists photos with the sizes to scale them to and the file of the expected pixels, uint8 [3, H, W].
30 of the photos are of CIFAR-10, if that lies beside the repository; 24 are drawn, as large as phones take them and in
all formats and orientations. Takes a quarter of a minute.
"""

import json
import sys
import tarfile
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedlens_proto import photos

CIFAR10 = Path(__file__).parents[2] / "shared" / "data" / "cifar10-images.tar.xz"
REAL = 30
# Photos of CIFAR-10 have 32 x 32 pixels: they are scaled up and down.
SIZES = ((224, 224), (96, 96), (16, 16))
_ORIENTATION = 274


def drawn() -> dict[str, bytes]:
    """24 photos of scenes that are smooth in most places, by file name."""
    found = {}
    for tag in range(1, 9):
        # As phones write them: colours at half the resolution.
        found[f"jpeg-{tag}.jpg"] = _saved(_scene(tag, 900, 1200), "JPEG", tag, quality=90)
        lossy = tag % 2 == 0
        name = f"webp-{tag}-{'lossy' if lossy else 'lossless'}.webp"
        found[name] = _saved(_scene(20 + tag, 480, 640), "WEBP", tag, quality=90, lossless=not lossy)
    for tag in (1, 3, 6):
        found[f"png-{tag}.png"] = _saved(_scene(30 + tag, 500, 333), "PNG", tag)
    found["large.jpg"] = _saved(_scene(40, 3000, 4000), "JPEG", 6, quality=88)
    found["progressive.jpg"] = _saved(_scene(41, 1000, 800), "JPEG", 8, quality=85, progressive=True)
    found["full-colour.jpg"] = _saved(_scene(42, 777, 555), "JPEG", 1, quality=95, subsampling=0)
    found["grey.jpg"] = _saved(_scene(43, 600, 600)[..., 0], "JPEG", 5, quality=90)
    found["sideways.png"] = _saved(_scene(44, 1500, 2000), "PNG", 5)
    return found


def real() -> dict[str, bytes]:
    """The first photos of each class of CIFAR-10, by file name; none if it is not there."""
    found = first_of_each_class(REAL // 10) if CIFAR10.is_file() else {}
    return {f"{folder}-{name}": raw for folder, some in found.items() for name, raw in some.items()}


def first_of_each_class(count: int) -> dict[str, dict[str, bytes]]:
    """So many test photos of CIFAR-10 a class: by class, in the archive's order, and file name."""
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(CIFAR10) as archive:
        for member in takewhile(lambda member: member.name.startswith("test"), archive):
            content, path = archive.extractfile(member), Path(member.name)
            if content is not None and len(some := found.setdefault(path.parent.name, {})) < count:
                some[path.name] = content.read()
    return found


def _scene(seed: int, height: int, width: int) -> NDArray[np.uint8]:
    """Fields of colour that flow into each other, a few edges, and a little noise."""
    generator = np.random.Generator(np.random.PCG64(seed))
    coarse = Image.fromarray(generator.integers(0, 256, (7, 9, 3), np.uint8))
    scene = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    for _ in range(6):
        top, left = int(generator.integers(0, height)), int(generator.integers(0, width))
        patch = scene[top : top + height // 3, left : left + width // 4]
        patch += generator.integers(-70, 71, 3, np.int16)
    scene += generator.integers(-4, 5, scene.shape, np.int16)
    return np.clip(scene, 0, 255).astype(np.uint8)


def _saved(pixels: NDArray[np.uint8], kind: str, orientation: int, **options: Any) -> bytes:
    image, stream = Image.fromarray(pixels), BytesIO()
    exif = image.getexif()
    exif[_ORIENTATION] = orientation
    image.save(stream, kind, exif=exif, **options)
    return stream.getvalue()


def main(folder: Path) -> None:
    """Write everything."""
    listed = []
    for name, raw in (real() | drawn()).items():
        (folder / name).write_bytes(raw)
        for height, width in SIZES:
            expected = f"{name}.{height}x{width}.u8"
            (folder / expected).write_bytes(photos.load(BytesIO(raw), height, width).tobytes())
            listed.append({"photo": name, "height": height, "width": width, "expected": expected})
    (folder / "photos.json").write_text(json.dumps({"photos": listed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
