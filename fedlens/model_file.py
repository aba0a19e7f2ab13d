"""A task's global model as a file: FedLens' own blob, or safetensors; written whole or not at all."""

import json
import os
from pathlib import Path

from fedlens.admin_client import AdminClient, AdminError
from fedlens_proto.blob import Blob
from fedlens_proto.v1 import admin_pb2

SAFETENSORS = ".safetensors"


def fetch_model(client: AdminClient, task: str, out: Path) -> admin_pb2.TaskModelResponse:
    """Write the model of `task` to `out`; a file that is there is replaced once the new one is complete.

    A name in `.safetensors` gives that format, its metadata holding `bundle`, `task`, `round` and `classes` (JSON);
    any other name the blob as the server has it.

    Raises:
        AdminError: The server refuses or cannot be reached, or the file cannot be written.
    """
    found = client.model(task)
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            client.fetch(found.blob_sha256, file)
        if out.suffix == SAFETENSORS:
            _to_safetensors(partial, task, found)
        partial.replace(out)
    except OSError as error:
        raise AdminError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return found


def _to_safetensors(path: Path, task: str, found: admin_pb2.TaskModelResponse) -> None:
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
    tensors = dict(Blob.from_bytes(path.read_bytes()))
    path.write_bytes(save(tensors, metadata))
