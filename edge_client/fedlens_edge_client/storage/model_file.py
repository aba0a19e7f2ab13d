"""Files written by `fedlens task model`: a blob, or safetensors.

A model on several extractors side by side is one safetensors file: the bundle's tensors by name, the tensors of each
extractor as `EXTRACTOR/TENSOR`, and metadata `extractors`, a JSON list of the extractors' names in order. An extractor
listed there without tensors is absent.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from fedlens_edge_client.errors import ModelError
from fedlens_proto import manifest as manifests
from fedlens_proto.blob import Array, Blob
from fedlens_proto.errors import BlobError
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Model:
    """Tensors for `prediction.predict`.

    Attributes:
        weights: Every exchangeable tensor of the bundle.
        extractors: If the bundle concatenates extractors, the tensors of each in order, None for an absent one.
    """

    weights: Mapping[str, Array]
    extractors: tuple[Mapping[str, Array] | None, ...] = ()


def read_model(path: Path, bundle: Bundle) -> Model:
    """Read the model in a file.

    Args:
        path: A `.safetensors` file; any other suffix is read as a blob.
        bundle: The bundle in which the weights were trained.

    Raises:
        ModelError: The file holds no model, or a model of another bundle.
    """
    try:
        model = _safetensors(path, bundle) if path.suffix == SUFFIX else Model(_blob(path))
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {path}") from error
    except (OSError, BlobError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read as a model: {error}") from error
    manifest = bundle.manifest
    _check(path, bundle, model.weights, manifest.tensors, "tensor")
    if len(model.extractors) != manifest.concatenated:
        raise ModelError(
            f"{path} is no model of bundle {bundle.folder}: it has {len(model.extractors)} extractors, "
            f"the bundle takes {manifest.concatenated} side by side; give the task's own bundle"
        )
    if model.extractors:
        inputs = manifests.program(manifest, "extract").inputs
        taken = [slot for slot in inputs if slot.kind == manifest_pb2.SLOT_KIND_EXTRACTOR]
        for place, extractor in enumerate(model.extractors, start=1):
            if extractor is not None:
                _check(path, bundle, extractor, taken, f"extractor {place}, tensor")
    return model


def _check(
    path: Path,
    bundle: Bundle,
    tensors: Mapping[str, Array],
    specs: Iterable[manifest_pb2.ExchangeableTensor | manifest_pb2.Slot],
    what: str,
) -> None:
    """Compare names and shapes with the bundle's."""
    wanted = {spec.name: tuple(spec.shape) for spec in specs}
    found = {name: tuple(tensors[name].shape) for name in tensors}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ModelError(
                f"{path} is no model of bundle {bundle.folder}: {what} {name!r} has shape "
                f"{_shape(found.get(name))}, the bundle has {_shape(wanted.get(name))}; give the task's own bundle"
            )


def _blob(path: Path) -> Blob:
    blob = Blob.open_checked(path)
    if blob.layout.base is not None:
        raise BlobError(f"it holds the difference to blob {blob.layout.base.hex()}; a model must hold whole weights")
    return blob


def _safetensors(path: Path, bundle: Bundle) -> Model:
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        trained_in = metadata.get("bundle")
        if trained_in != bundle.id.hex():
            raise ModelError(
                f"{path} was trained in bundle {trained_in or 'unknown'}, {bundle.folder} is bundle "
                f"{bundle.id.hex()}; give the task's own bundle"
            )
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    extractors = []
    for name in _names(path, metadata.get("extractors", "[]")):
        prefix = f"{name}/"
        inside = [key for key in tensors if key.startswith(prefix)]
        extractors.append({key.removeprefix(prefix): tensors.pop(key) for key in inside} or None)
    return Model(tensors, tuple(extractors))


def _names(path: Path, text: str) -> list[str]:
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{path} cannot be read as a model: extractors: found {text[:100]!r}, must be a list of names")
    return names


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))
