"""Names for the cached values of a photo: digests of everything that the values depend on besides the photo."""

from hashlib import sha256

from fedlens_proto import manifest as manifests
from fedlens_proto.v1 import manifest_pb2


def space(manifest: manifest_pb2.Manifest, form: manifest_pb2.ProgramFormat) -> bytes:
    """The name, 32 bytes, of a photo's features or pixels.

    It covers the preprocessing rule with its size and, with a frozen backbone, the weights and the program in the
    format that runs: engines differ in the last digits, and features must not depend on the clients of a shared cache.
    """
    rule = manifest.preprocessing
    parts = [b"fedlens/features/v1", *(n.to_bytes(4, "little") for n in (rule.version, rule.height, rule.width))]
    if manifest.bundle_class == manifest_pb2.BUNDLE_CLASS_FROZEN_BACKBONE:
        parts += [_part(manifest, "embed", form), manifest.frozen]
    return sha256(b"".join(parts)).digest()


def stored_views_space(manifest: manifest_pb2.Manifest, form: manifest_pb2.ProgramFormat) -> bytes:
    """As `space`, for the concatenated features of a photo's stored views."""
    program = _part(manifest, "view", form)
    count = manifest.stored_views.to_bytes(4, "little")
    return sha256(b"".join([b"fedlens/stored-views/v1", space(manifest, form), program, count])).digest()


def extracted_space(manifest: manifest_pb2.Manifest, form: manifest_pb2.ProgramFormat, extractor: bytes) -> bytes:
    """As `space`, for the outputs of program `extract` with the extractor whose blob has this digest."""
    program = _part(manifest, "extract", form)
    return sha256(b"".join([b"fedlens/extracted/v1", space(manifest, form), program, extractor])).digest()


def _part(manifest: manifest_pb2.Manifest, program: str, form: manifest_pb2.ProgramFormat) -> bytes:
    """The digest of a program's file in this format, or of another file if it has none and cannot run."""
    files = manifests.program(manifest, program).files
    return next((file.sha256 for file in files if file.format == form), min(file.sha256 for file in files))
