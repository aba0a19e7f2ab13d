"""Photos of fleets and studies: a folder, or a public data set by name, written once as a folder of PNG."""

import os
import shutil
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from fedlens.digits import write_digits
from fedlens.errors import FedlensError

# Torchvision's classes of the data sets that it downloads.
_TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "fashion-mnist": "FashionMNIST"}
NAMES = ("digits", *_TORCHVISION)


class SourceUnavailable(FedlensError):
    """The photos cannot be had; the text says what to do."""


def default_cache() -> Path:
    """The default folder for data sets, in the user's cache."""
    found = os.environ.get("XDG_CACHE_HOME")
    return (Path(found) if found else Path.home() / ".cache") / "fedlens"


def photos_of(source: str, cache: Path) -> Path:
    """The folder or table of a source, for `PhotoPool.open`.

    Args:
        source: A folder, a table of files and clients (`.csv`), or one of `NAMES`; `./digits` is a folder.
        cache: Folder for data sets, created if needed.

    Raises:
        SourceUnavailable: The folder or table is missing, the data set cannot be downloaded or needs a package that is
            not installed, or the cache cannot be written.
    """
    if source not in NAMES:
        if Path(source).is_dir() or (source.lower().endswith(".csv") and Path(source).is_file()):
            return Path(source)
        raise SourceUnavailable(
            f"{source} is no folder; give one that has a sub-folder of photos for each class, a table (.csv) of files "
            f"and clients, or one of {', '.join(NAMES)}"
        )
    folder = cache / source
    if not folder.is_dir():
        try:
            _write_once(folder, write_digits if source == "digits" else lambda new: _write_set(source, new, cache))
        except ModuleNotFoundError as error:
            raise SourceUnavailable(
                f"{source} needs {error.name}, not installed here; run pip install 'fedlens[demo]', or give a folder"
            ) from error
        except OSError as error:
            raise SourceUnavailable(f"{source} cannot be written to {folder}: {error}") from error
    return folder


def _write_once(folder: Path, write: Callable[[Path], object]) -> None:
    """Write a folder completely or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        new = Path(temporary) / folder.name
        write(new)
        try:
            new.rename(folder)
        except OSError:
            # Another process has written the same in the meantime.
            if not folder.is_dir():
                raise


def _write_set(source: str, folder: Path, cache: Path) -> None:
    from torchvision import datasets  # type: ignore[import-untyped]  # torchvision comes without types

    kind = getattr(datasets, _TORCHVISION[source])
    downloads = cache / "downloads" / source
    downloads.mkdir(parents=True, exist_ok=True)
    Console(stderr=True).print(f"writing {source} to {cache / source}, once", highlight=False, soft_wrap=True)
    for side in ("train", "test"):
        try:
            photos = kind(downloads, train=side == "train", download=True)
        except (OSError, RuntimeError, HTTPException) as error:
            raise SourceUnavailable(
                f"{source} cannot be downloaded ({error}); without a network, put the files that torchvision's "
                f"{kind.__name__} downloads into {downloads}, or give a folder of photos"
            ) from error
        # One of Fashion-MNIST's classes is `T-shirt/top`.
        names = [name.replace("/", "-") for name in photos.classes]
        for name in names:
            (folder / side / name).mkdir(parents=True)
        for index, (picture, label) in enumerate(photos):
            picture.save(folder / side / names[label] / f"{index:05}.png")
    shutil.rmtree(downloads)
