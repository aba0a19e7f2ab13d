"""A task's global model as a file: FedLens' own blob, or safetensors; written whole or not at all."""

import json
from io import BytesIO
from pathlib import Path

from fedlens.admin_client import AdminClient, AdminError
from fedlens.whole_file import replacing
from fedlens_proto.blob import Array, Blob
from fedlens_proto.v1 import admin_pb2

SAFETENSORS = ".safetensors"


def fetch_model(client: AdminClient, task: str, out: Path) -> admin_pb2.TaskModelResponse:
    """Write the model of `task` to `out`; a file that is there is replaced once the new one is complete.

    A name in `.safetensors` gives that format, its metadata holding `bundle`, `task`, `round` and `classes` (JSON);
    any other name the blob as the server has it. A model that stands on several extractors is written as safetensors
    alone, in the form that `fedlens_edge_client.model_file` describes.

    Raises:
        AdminError: The server refuses or cannot be reached, or the file cannot be written.
    """
    found = client.model(task)
    if found.extractors and out.suffix != SAFETENSORS:
        raise AdminError(
            f"{out}: the model of {task} stands on {len(found.extractors)} extractors, which a blob has no room for; "
            f"take a name in {SAFETENSORS}"
        )
    try:
        with replacing(out) as partial:
            if out.suffix == SAFETENSORS:
                partial.write_bytes(_safetensors(client, task, found))
            else:
                with partial.open("wb") as file:
                    client.fetch(found.blob_sha256, file)
    except OSError as error:
        raise AdminError(f"{out}: cannot be written: {error.strerror or error}") from error
    return found


def _safetensors(client: AdminClient, task: str, found: admin_pb2.TaskModelResponse) -> bytes:
    try:
        from safetensors.numpy import save
    except ModuleNotFoundError as error:
        raise AdminError("safetensors is not installed; `pip install safetensors`, or take another suffix") from error
    metadata = {
        "bundle": found.bundle.hex(),
        "task": task,
        "round": str(found.round),
        "classes": json.dumps(list(found.class_names)),
    }
    tensors = _fetch(client, found.blob_sha256)
    if found.extractors:
        metadata["extractors"] = json.dumps([extractor.name for extractor in found.extractors])
    for extractor in found.extractors:
        if extractor.blob_sha256:
            inside = _fetch(client, extractor.blob_sha256)
            tensors |= {f"{extractor.name}/{name}": tensor for name, tensor in inside.items()}
    return save(tensors, metadata)


def _fetch(client: AdminClient, digest: bytes) -> dict[str, Array]:
    raw = BytesIO()
    client.fetch(digest, raw)
    return dict(Blob.from_bytes(raw.getvalue()))
