"""Reading a model that `fedlens task model` wrote: a blob, or safetensors."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from fedlens_edge_client.errors import ModelError
from fedlens_proto.blob import Array, Blob, Checker
from fedlens_proto.errors import BlobError
from fedlens_proto.manifest import Bundle

SUFFIX = ".safetensors"


def read_model(path: Path, bundle: Bundle) -> Mapping[str, Array]:
    """The weights in a file, for this bundle.

    Args:
        path: A name in `.safetensors` is read as that, anything else as a blob.
        bundle: The bundle that the weights were trained in.

    Raises:
        ModelError: The file is no model, or one of another bundle.
    """
    try:
        tensors = _safetensors(path, bundle) if path.suffix == SUFFIX else _blob(path)
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {path}") from error
    except (OSError, BlobError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read as a model: {error}") from error
    wanted = {tensor.name: tuple(tensor.shape) for tensor in bundle.manifest.tensors}
    found = {name: tuple(tensors[name].shape) for name in tensors}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ModelError(
                f"{path} is no model of bundle {bundle.folder}: tensor {name!r} has shape "
                f"{_shape(found.get(name))}, the bundle has {_shape(wanted.get(name))}; give the task's own bundle"
            )
    return tensors


def _blob(path: Path) -> Blob:
    checker = Checker()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checker.feed(chunk)
    checker.finish()
    return Blob.open(path, checker.digest)


def _safetensors(path: Path, bundle: Bundle) -> dict[str, Array]:
    with safe_open(path, framework="numpy") as file:
        trained_in = (file.metadata() or {}).get("bundle")
        if trained_in != bundle.id.hex():
            raise ModelError(
                f"{path} was trained in bundle {trained_in or 'unknown'}, {bundle.folder} is bundle "
                f"{bundle.id.hex()}; give the task's own bundle"
            )
        return {name: file.get_tensor(name) for name in file.keys()}


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))
