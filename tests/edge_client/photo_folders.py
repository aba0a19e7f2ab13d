"""Folders of small photos: cats are reddish, dogs bluish."""

from pathlib import Path

import numpy as np
from PIL import Image

_COLOURS = {"cat": (200, 60, 60), "dog": (60, 60, 200)}


def add_photos(root: Path, label: str, count: int, seed: int = 0, side: int = 6) -> list[Path]:
    """Write `count` PNGs of one class into `root/label`; the same arguments give the same bytes."""
    generator = np.random.default_rng([seed, *label.encode()])
    folder = root / label
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index in range(count):
        noise = generator.integers(-40, 40, (side, side, 3))
        pixels = np.clip(np.array(_COLOURS.get(label, (90, 90, 90))) + noise, 0, 255).astype(np.uint8)
        paths.append(folder / f"{seed}-{index:03}.png")
        Image.fromarray(pixels).save(paths[-1])
    return paths


def make_album(root: Path, count: int = 10) -> Path:
    """A folder with `count` cats and as many dogs."""
    add_photos(root, "cat", count)
    add_photos(root, "dog", count)
    return root


def write_files(root: Path, counts: dict[str, int]) -> Path:
    """A folder with so many files of each class, for what looks at names and bytes only: they are no images."""
    for label, count in counts.items():
        (root / label).mkdir(parents=True)
        for index in range(count):
            (root / label / f"{index:04}.png").write_bytes(f"{root.name} {label} {index}".encode())
    return root


def write_clients(root: Path, counts: dict[str, dict[str, int]]) -> Path:
    """Folders CLIENT/CLASS with so many files each; no two files are equal."""
    for client, of_classes in counts.items():
        write_files(root / client, of_classes)
    return root
