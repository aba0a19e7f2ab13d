"""`fedlens demo` on 2,000 photos of one's own, as a command: with their features still to compute, and without.

The photos are scikit-learn's digits, enlarged, turned and dimmed by chance: real scans, in the size of a small photo.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from bench.row import Row, Sample, against_target, seconds

CLASSES, PER_CLASS = 10, 200
SIZE = (320, 240)
REPEATS = 3
MOST_BESIDE_S, MOST_S = 25.0, 90.0
FEDLENS = str(Path(sys.executable).with_name("fedlens"))


def measure(folder: Path) -> list[Row]:
    """A first demo, and further ones that find the photos' features where the first has left them."""
    photos = _write_photos(folder / "photos")
    demo = [FEDLENS, "demo", "--photos", str(photos), "--out", str(folder / "demo")]
    export = [FEDLENS, "export", "--model", "efficientnet_lite0", "--classes-from", str(photos)]
    first = Sample((_seconds(demo),))
    again = Sample(tuple(_seconds(demo) for _ in range(REPEATS)))
    exports = Sample(tuple(_seconds([*export, "--out", str(folder / f"bundle-{i}")]) for i in range(REPEATS)))
    name = f"demo on {CLASSES * PER_CLASS:,} photos of {SIZE[0]} x {SIZE[1]} pixels"
    return [
        against_target(
            f"{name}: time beside embedding", exports, again, MOST_BESIDE_S, "exporting alone", unit="s", digits=1
        ),
        against_target(
            f"{name}: in all", again, first, MOST_S, "the same, with all features there", unit="s", digits=1
        ),
    ]


def _seconds(command: list[str]) -> float:
    return seconds(lambda: subprocess.run(command, check=True, capture_output=True))


def _write_photos(folder: Path) -> Path:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # scikit-learn comes without types

    images, labels = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True)
        scans = images[labels == label].reshape(-1, 8, 8)
        for number in range(PER_CLASS):
            grey = scans[number % len(scans)] * (random.uniform(0.5, 1.0) * 255 / 16)
            picture = Image.fromarray(grey.astype(np.uint8)).convert("RGB").resize(SIZE, Image.Resampling.BICUBIC)
            picture.rotate(random.uniform(-15, 15)).save(folder / str(label) / f"{number:03}.jpg", quality=85)
    return folder
