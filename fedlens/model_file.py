"""Write a task's global model to a file: a blob, safetensors, or a program."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from fedlens.admin_client import AdminClient, AdminError
from fedlens.whole_file import replacing
from fedlens_proto.blob import Array, Blob
from fedlens_proto.errors import ManifestError
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2

SAFETENSORS = ".safetensors"


def fetch_model(client: AdminClient, task: str, out: Path) -> admin_pb2.TaskModelResponse:
    """Write the model of `task` to `out`, completely or not at all.

    The ending `.safetensors` gives that format, with `bundle`, `task`, `round` and `classes` (JSON) as metadata; any
    other ending gives the server's blob. A model on several extractors can only be written as safetensors, described in
    `fedlens_edge_client.storage.model_file`.

    Raises:
        AdminError: The server refuses or cannot be reached, or the file cannot be written.
    """
    found = client.model(task)
    if found.extractors and out.suffix != SAFETENSORS:
        raise AdminError(
            f"{out}: the model of {task} has {len(found.extractors)} extractors, which do not fit into a blob; "
            f"choose a name that ends in {SAFETENSORS}"
        )
    with _written(out) as partial:
        if out.suffix == SAFETENSORS:
            partial.write_bytes(_safetensors(client, task, found))
        else:
            with partial.open("wb") as file:
                client.fetch(found.blob_sha256, file)
    return found


def fetch_whole(
    client: AdminClient, task: str, bundle: Path, out: Path
) -> tuple[admin_pb2.TaskModelResponse, Mapping[str, str]]:
    """Write the model of `task` to `out` as one program from photos to logits, in the format of the file's ending.

    Args:
        client: Client of the server.
        task: Name or id.
        bundle: Folder of the task's bundle.
        out: File to write or replace.

    Returns:
        The server's response, and metadata for callers of the program.

    Raises:
        AdminError: As `fetch_model`; or torch is not installed, or the bundle is not the task's.
        ExportError: The model cannot be written in this format.
        ProtoError: As `open_bundle`, or the bundle cannot be used.
    """
    try:
        from fedlens_export.programs import composed, whole_model
    except ModuleNotFoundError as error:
        raise AdminError(
            f"a whole model needs {error.name}, which is not installed; run pip install 'fedlens[export]'"
        ) from error
    whole_model.check_form(out.suffix)
    opened = open_bundle(bundle)
    found = client.model(task)
    if found.bundle != opened.id:
        raise AdminError(
            f"the model of {task} was trained in bundle {found.bundle.hex()}, {bundle} is bundle {opened.id.hex()}; "
            "give the task's own bundle with --bundle"
        )
    extractors = [_fetch(client, one.blob_sha256) if one.blob_sha256 else None for one in found.extractors]
    trained = composed.Trained(opened, _fetch(client, found.blob_sha256), extractors)
    whole = whole_model.lower(trained, out.suffix, _origin(task, found))
    with _written(out) as partial:
        partial.write_bytes(whole.raw)
    return found, whole.metadata


def open_bundle(folder: Path) -> Bundle:
    """Open the bundle of the option `--bundle`.

    Raises:
        ManifestError: The folder holds no bundle; the text names the option.
    """
    try:
        return Bundle.open(folder)
    except ManifestError as error:
        raise ManifestError(f"{error}; name the folder that `fedlens export` wrote with --bundle") from error


def _safetensors(client: AdminClient, task: str, found: admin_pb2.TaskModelResponse) -> bytes:
    try:
        from safetensors.numpy import save
    except ModuleNotFoundError as error:
        raise AdminError("safetensors is not installed; `pip install safetensors`, or take another suffix") from error
    metadata = _origin(task, found) | {"classes": json.dumps(list(found.class_names))}
    tensors = _fetch(client, found.blob_sha256)
    if found.extractors:
        metadata["extractors"] = json.dumps([extractor.name for extractor in found.extractors])
    for extractor in found.extractors:
        if extractor.blob_sha256:
            inside = _fetch(client, extractor.blob_sha256)
            tensors |= {f"{extractor.name}/{name}": tensor for name, tensor in inside.items()}
    return save(tensors, metadata)


def _origin(task: str, found: admin_pb2.TaskModelResponse) -> dict[str, str]:
    return {"bundle": found.bundle.hex(), "task": task, "round": str(found.round)}


@contextmanager
def _written(out: Path) -> Iterator[Path]:
    try:
        with replacing(out) as partial:
            yield partial
    except OSError as error:
        raise AdminError(f"{out}: cannot be written: {error.strerror or error}") from error


def _fetch(client: AdminClient, digest: bytes) -> dict[str, Array]:
    raw = BytesIO()
    client.fetch(digest, raw)
    return dict(Blob.from_bytes(raw.getvalue()))
