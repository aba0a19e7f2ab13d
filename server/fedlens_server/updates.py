"""What members of a round send: what is expected of them, and what has come."""

from dataclasses import dataclass

from fedlens_proto.blob import TensorSpec
from fedlens_proto.v1 import update_pb2
from fedlens_server.store import StoredBlob


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What a member's update must look like; known before its body is read."""

    specs: tuple[TensorSpec, ...] | None  # for `blob.Checker`; None: no blob is uploaded
    blob_size: int  # exact bytes of the blob; 0 where none is uploaded
    bundle: bytes
    phase: int
    base: bytes | None = None  # for `blob.Checker`


@dataclass(frozen=True, kw_only=True)
class ReceivedUpdate:
    """An update whose body has been read and whose blob, where there is one, is well-formed and expected."""

    header: update_pb2.UpdateHeader
    body_sha256: bytes
    body_size: int  # bytes of the whole body
    blob: StoredBlob | None = None
