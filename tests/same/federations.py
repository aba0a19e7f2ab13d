"""The federations of the record: a study of all ten methods, and five tasks over HTTP."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from tests.same import names, own_model
from tests.same.tree import Tree

HERE = Path(__file__).parent
CLIENTS, PHOTOS = 3, 24
_KEY, _KOTLIN_SECRET = bytes(range(32)), bytes(range(32, 64))
_RATES = "--hyper lr_extractor=0.05 --hyper lr_classifier=0.05"

Arguments = list[str | Path]


@dataclass(frozen=True)
class Entry:
    """One line of the record: `text` is a digest, a number as `repr` gives it, or why there is none."""

    name: str
    text: str


def record(tree: Tree, folder: Path, *, kotlin: bool) -> Iterator[Entry]:
    """The record of one tree, made in the empty `folder`; without `kotlin` the Kotlin client is left out."""
    photos = folder / "photos"
    _write_photos(photos)
    yield from _study(tree, folder)
    shutil.copy(own_model.__file__, folder / "own_model.py")
    yield from _over_http(tree, folder, photos, kotlin=kotlin)


def _study(tree: Tree, folder: Path) -> Iterator[Entry]:
    file, out = folder / "same.toml", folder / "study"
    text = (HERE / "study.toml").read_text(encoding="utf-8")
    file.write_text(names.study_for(text, tree.fedlens("fleet", "--help")), encoding="utf-8")
    tree.fedlens("compare", file, "--out", out, "--cache", folder / "cache", "--workers", "2")
    for values in json.loads((out / "results.json").read_text(encoding="utf-8"))["runs"]:
        label = values["label"]
        model = out / "runs" / label / f"seed-{values['seed']}" / "model.blob"
        yield from _entries(tree, f"study/{label}", values, model if model.exists() else None)


def _over_http(tree: Tree, folder: Path, photos: Path, *, kotlin: bool) -> Iterator[Entry]:
    """Tasks one after another on one server; fleets are the same clients each time, the last one has a phone more."""
    whole, concatenated, frozen = folder / "lenet5", folder / "concatenated", folder / "frozen"
    classes: Arguments = ["--classes-from", photos, "--batch", "16"]
    lenet5: Arguments = ["--model", "lenet5_bn", "--input-size", "16", *classes]
    tree.fedlens("export", *lenet5, "--out", whole)
    tree.fedlens("export", *lenet5, "--concatenated", "2", "--out", concatenated)
    own = f"--model own_model:model --head fc1,fc2 --input-size {own_model.SIDE} --target pte --normalise none"
    tree.fedlens("export", *own.split(), "--out", frozen, *classes, cwd=folder)
    clusters = "--rounds 4 --set options.clusters=2 --set options.extractor_rounds=2 --set options.classifier_rounds=1"
    tasks: dict[str, tuple[list[Path], str]] = {
        "fedavg": ([whole], "--codec f16 --rounds 3 --evaluate-every 1"),
        "pfedsim": ([whole], "--rounds 4 --set options.warm_up=0.5 --personal-evaluation"),
        "fedconcat": ([whole, concatenated], clusters),
        "executorch": ([frozen], "--rounds 2 --personal-evaluation"),
        "kotlin": ([frozen], "--rounds 2 --codec int8 --difference"),
    }
    for name, (bundles, options) in tasks.items():
        if name == "kotlin" and not kotlin:
            yield Entry("http/kotlin", "left out: there is no Maven, npm or JDK")
            continue
        # A server of its own, as a task waits for everybody that ever enrolled.
        with tree.server(folder / name) as url:
            given: Arguments = [part for bundle in bundles for part in ("--bundle", bundle)]
            yield from _task(tree, folder / name, url, photos, name, [*given, *options.split()])


def _task(tree: Tree, folder: Path, url: str, photos: Path, name: str, options: Arguments) -> Iterator[Entry]:
    clients = CLIENTS + (name == "kotlin")
    admin: Arguments = ["--admin", folder / "admin.toml"]
    method = name if name in ("pfedsim", "fedconcat") else "fedavg"
    numbers = f"--population {clients} --min-reports {clients} --epochs 1 --deadline 600 {_RATES}"
    named = [name, "--method", method, "--seed", sha256(name.encode()).hexdigest()]
    tree.fedlens("task", "create", *named, *numbers.split(), *options, *admin)
    state = folder / "fleet"
    state.mkdir()
    (state / "fleet.key").write_text(_KEY.hex() + "\n", encoding="ascii")
    access: Arguments = ["--server", url, "--ca", folder / "ca.pem", "--token-file", folder / "trainer.token"]
    more: dict[str, Arguments] = {
        "executorch": ["--engine", "executorch,torch"],
        "fedavg": ["--evaluator-token-file", folder / "evaluator.token"],
    }
    fleet: Arguments = ["--photos", photos, *f"--clients {CLIENTS} --per-class 4 --workers 1".split(), "--state", state]
    phone = _start_phone(tree, folder, photos, access) if name == "kotlin" else None
    tree.fedlens("fleet", *access, *fleet, *more.get(name, []))
    if phone is not None and phone.wait():
        raise AssertionError(f"the Kotlin client ended with status {phone.returncode}")
    values = json.loads(tree.fedlens("task", "show", name, "--json", *admin))
    left_out = [member for each in values["rounds"] for member in each["members"] if member["state"] != "reported"]
    if left_out:
        raise AssertionError(f"{name}: a client did not report: {left_out[0]}")
    model = folder / "final.safetensors"
    if name != "pfedsim":
        tree.fedlens("task", "model", name, "--out", model, *admin)
    yield from _entries(tree, f"http/{name}", values, model if model.exists() else None)


def _start_phone(tree: Tree, folder: Path, photos: Path, access: Arguments) -> "subprocess.Popen[bytes]":
    secret = folder / "secret"
    secret.write_bytes(_KOTLIN_SECRET)
    options = [*access, "--album", photos, "--state", folder / "phone", "--secret-file", secret]
    return subprocess.Popen([*tree.kotlin(), *map(str, options)], stdout=subprocess.DEVNULL)


def _entries(tree: Tree, name: str, values: object, model: Path | None) -> Iterator[Entry]:
    """Every number, and the digest of the model's tensors: their names, types, shapes and elements."""
    if model is None:
        yield Entry(f"{name}/model", "none")
    else:
        tensors = model.with_suffix(".safetensors")
        if tensors != model:
            tree.fedlens("blob", "convert", model, tensors)
        digest = sha256()
        for tensor, array in sorted(load_file(tensors).items()):
            digest.update(f"{tensor} {array.dtype} {array.shape} ".encode() + array.tobytes())
        yield Entry(f"{name}/model", digest.hexdigest())
    yield from (Entry(f"{name}/{place}", repr(value)) for place, value in names.numbers(values))


def _write_photos(folder: Path) -> None:
    """Digits of scikit-learn as PNG files of 16 x 16 pixels, a folder for each class."""
    images, labels = load_digits(return_X_y=True)
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
        for index in np.flatnonzero(labels == label)[:PHOTOS]:
            pixels = np.kron(images[index].reshape(8, 8) * 15, np.ones((2, 2))).astype(np.uint8)
            Image.fromarray(pixels).convert("RGB").save(folder / str(label) / f"{index:04}.png")
