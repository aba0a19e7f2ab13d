"""scikit-learn's digits as photos: 1,797 small pictures of ten classes that come with the library."""

from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 32
TEST_EVERY = 5
_BRIGHTEST = 16.0


def write_digits(folder: Path) -> Path:
    """Write the digits as PNG into a new folder, every fifth for tests: `train/0/001.png`; returns `folder`."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # scikit-learn comes without types

    images, labels = load_digits(return_X_y=True)
    for label in range(10):
        for side in ("train", "test"):
            (folder / side / str(label)).mkdir(parents=True)
    seen = [0] * 10
    for pixels, label in zip(images.reshape(-1, 8, 8), labels, strict=True):
        side = "test" if seen[label] % TEST_EVERY == 0 else "train"
        grey = np.round(pixels * (255 / _BRIGHTEST)).astype(np.uint8)
        picture = Image.fromarray(grey).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        picture.save(folder / side / str(label) / f"{seen[label]:03}.png")
        seen[label] += 1
    return folder
