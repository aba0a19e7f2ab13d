import gzip
import pickle
import struct
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from hashlib import md5
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from torchvision import datasets  # type: ignore[import-untyped]  # torchvision comes without types

from fedlens.sources import NAMES, SourceUnavailable, default_cache, photos_of
from fedlens_edge_client.emulation.partitions import PhotoPool

PER_BATCH = 4


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which its files can be downloaded."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def pictures(seed: int, *shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.fixture
def cifar(
    monkeypatch: pytest.MonkeyPatch, mirror: tuple[Path, str], request: pytest.FixtureRequest
) -> dict[str, NDArray[np.uint8]]:
    """A small archive in CIFAR's format on the mirror, which torchvision expects, checksums and all.

    Returns:
        The pixels of each batch, uint8 [photos, 3 * 32 * 32].
    """
    folder, address = mirror
    kind = getattr(request, "param", datasets.CIFAR10)
    content: dict[str, bytes] = {}
    pixels: dict[str, NDArray[np.uint8]] = {}
    prefix, key, classes = ("fine_", "fine_label_names", 100) if kind is datasets.CIFAR100 else ("", "label_names", 10)
    for number, (name, _) in enumerate(kind.train_list + kind.test_list):
        pixels[name] = pictures(number, PER_BATCH, 3 * 32 * 32)
        labels = [(PER_BATCH * number + i) % classes for i in range(PER_BATCH)]
        content[name] = pickle.dumps({"data": pixels[name], f"{prefix}labels": labels}, protocol=2)
    content[kind.meta["filename"]] = pickle.dumps({key: [f"class {i}" for i in range(classes)]}, protocol=2)
    with tarfile.open(folder / kind.filename, "w:gz") as archive:
        for name, data in content.items():
            entry = tarfile.TarInfo(f"{kind.base_folder}/{name}")
            entry.size = len(data)
            archive.addfile(entry, BytesIO(data))
    sums = {name: md5(data).hexdigest() for name, data in content.items()}
    monkeypatch.setattr(kind, "url", address + kind.filename)
    monkeypatch.setattr(kind, "tgz_md5", md5((folder / kind.filename).read_bytes()).hexdigest())
    monkeypatch.setattr(kind, "train_list", [[name, sums[name]] for name, _ in kind.train_list])
    monkeypatch.setattr(kind, "test_list", [[name, sums[name]] for name, _ in kind.test_list])
    monkeypatch.setattr(kind, "meta", kind.meta | {"md5": sums[kind.meta["filename"]]})
    return pixels


def pixels_of(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture)


def test_a_folder_is_its_own_source(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").touch()

    assert photos_of(str(tmp_path), tmp_path / "cache") == tmp_path
    assert photos_of(str(tmp_path / "clients.csv"), tmp_path / "cache") == tmp_path / "clients.csv"
    assert not (tmp_path / "cache").exists()


def test_a_source_that_is_not_there_is_told_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"nowhere is no folder; .* or one of digits, cifar10, cifar100, fash"):
        photos_of(str(tmp_path / "nowhere"), tmp_path)


def test_digits_are_written_once(tmp_path: Path) -> None:
    folder = photos_of("digits", tmp_path / "cache")
    written = folder.stat().st_mtime_ns

    again = photos_of("digits", tmp_path / "cache")

    assert again == folder == tmp_path / "cache" / "digits"
    assert folder.stat().st_mtime_ns == written
    assert sum(map(len, PhotoPool.open(folder).train)) > 1400
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["digits"]


def test_cifar10_becomes_a_folder_of_its_pixels(tmp_path: Path, cifar: dict[str, NDArray[np.uint8]]) -> None:
    folder = photos_of("cifar10", tmp_path / "cache")

    # Five batches of four to train on, one to test with; photo i of all is of class i mod 10.
    assert len(list(folder.glob("train/*/*.png"))) == 20
    assert len(list(folder.glob("test/*/*.png"))) == 4
    # Photo 13 is the second one of the fourth batch; on disk come all red values first, then green and blue ones.
    expected = cifar["data_batch_4"][1].reshape(3, 32, 32).transpose(1, 2, 0)
    np.testing.assert_array_equal(pixels_of(folder / "train" / "class 3" / "00013.png"), expected)
    assert [path.name for path in (tmp_path / "cache" / "downloads").iterdir()] == []


@pytest.mark.parametrize("cifar", [datasets.CIFAR100], indirect=True)
def test_cifar100_has_its_fine_classes(tmp_path: Path, cifar: dict[str, NDArray[np.uint8]]) -> None:
    folder = photos_of("cifar100", tmp_path / "cache")

    assert len(list((folder / "train").iterdir())) == 100
    # The only test batch comes after one train batch of four.
    expected = cifar["test"][2].reshape(3, 32, 32).transpose(1, 2, 0)
    np.testing.assert_array_equal(pixels_of(folder / "test" / "class 6" / "00002.png"), expected)


def test_fashion_mnist_becomes_a_folder_of_grey_pixels(
    tmp_path: Path, mirror: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = mirror
    images = {"train": pictures(0, 5, 28, 28), "t10k": pictures(1, 3, 28, 28)}
    for side, pixels in images.items():
        # The format's magic numbers: unsigned bytes (8) in three dimensions, or in one.
        content = struct.pack(">4I", 0x0803, *pixels.shape) + pixels.tobytes()
        (folder / f"{side}-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
        labels = struct.pack(">2I", 0x0801, len(pixels)) + bytes(range(len(pixels)))
        (folder / f"{side}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    resources = [(name, md5((folder / name).read_bytes()).hexdigest()) for name, _ in datasets.FashionMNIST.resources]
    monkeypatch.setattr(datasets.FashionMNIST, "mirrors", [address])
    monkeypatch.setattr(datasets.FashionMNIST, "resources", resources)

    written = photos_of("fashion-mnist", tmp_path / "cache")

    # Class 0 is called T-shirt/top, which is no name for a folder; class 2 is Pullover.
    np.testing.assert_array_equal(pixels_of(written / "train" / "T-shirt-top" / "00000.png"), images["train"][0])
    np.testing.assert_array_equal(pixels_of(written / "test" / "Pullover" / "00002.png"), images["t10k"][2])
    assert len(PhotoPool.open(written).class_names) == 10


@pytest.mark.usefixtures("cifar")
def test_a_damaged_download_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", "0" * 32)

    with pytest.raises(SourceUnavailable, match="cifar10 cannot be downloaded"):
        photos_of("cifar10", tmp_path / "cache")
    assert not (tmp_path / "cache" / "cifar10").exists()


def test_without_a_network_people_learn_where_to_put_the_files(
    tmp_path: Path, mirror: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "url", mirror[1] + "not-there.tar.gz")

    with pytest.raises(SourceUnavailable, match=r"404.* that torchvision's CIFAR10 downloads into .*downloads/cifar10"):
        photos_of("cifar10", tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["downloads"]


@pytest.mark.usefixtures("cifar")
def test_files_that_a_person_has_put_there_are_taken(tmp_path: Path, mirror: tuple[Path, str]) -> None:
    downloads = tmp_path / "cache" / "downloads" / "cifar10"
    downloads.mkdir(parents=True)
    (mirror[0] / datasets.CIFAR10.filename).rename(downloads / datasets.CIFAR10.filename)

    assert len(list(photos_of("cifar10", tmp_path / "cache").glob("train/*/*.png"))) == 20


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")

    with pytest.raises(SourceUnavailable, match=r"digits cannot be written to .*cache"):
        photos_of("digits", tmp_path / "cache")


def test_without_scikit_learn_the_digits_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)

    with pytest.raises(SourceUnavailable, match=r"digits needs sklearn.datasets, .* run pip install 'fedlens\[demo\]'"):
        photos_of("digits", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_data_sets_are_kept_where_the_system_keeps_what_may_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/fedlens")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "fedlens"


def test_the_documentation_names_every_source() -> None:
    text = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text(encoding="utf-8")

    assert all(f"| `{name}` |" in text for name in NAMES)
