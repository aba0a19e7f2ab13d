"""Reading a bundle: a folder with `manifest.pb` and `parts/<sha256>`.

A manifest contains no file names: parts are found by their digest alone, and other files are ignored.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest, sha256
from math import isfinite, prod
from pathlib import Path
from re import fullmatch
from typing import Self

from google.protobuf.message import DecodeError

from fedlens_proto import slots
from fedlens_proto.blob import Blob, Layout, TensorSpec
from fedlens_proto.errors import BlobError, ManifestError
from fedlens_proto.layout import is_printable
from fedlens_proto.v1 import assignment_pb2, blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

FORMAT = 1
MANIFEST_FILE = "manifest.pb"
STATEMENT_FILE = "statement.pb"
PARTS_FOLDER = "parts"
DIGEST_BYTES = 32
MAX_MANIFEST_BYTES = 1 << 20
MAX_SIDE = 4096
MAX_BATCH = 65536
MAX_VIEWS = 16
MAX_STORED_VIEWS = 64
MAX_CONCATENATED = 64
MAX_LANGUAGES = 64
MAX_DISPLAY_NAME_BYTES = 200
# Reserved name of a downloaded set: the initial weights of each client's own bundle. The server adds it if a local plan
# names it and the method's download does not have it.
INITIAL = "initial"


@dataclass(frozen=True)
class Bundle:
    """A checked manifest and the folder of its parts."""

    manifest: pb.Manifest
    raw: bytes
    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read a bundle's folder and check the digest of every part.

        Raises:
            ManifestError: There is no bundle, it is damaged, or of another version; the text names the part.
        """
        bundle = cls.described(folder)
        for _, reason in bundle.damaged_parts():
            raise ManifestError(f"bundle {folder}: {reason}")
        return bundle

    @classmethod
    def described(cls, folder: Path) -> Self:
        """A bundle whose parts are not checked; otherwise errors as in `open`."""
        path = folder / MANIFEST_FILE
        if not path.is_file():
            raise ManifestError(f"{folder} is no bundle: it has no {MANIFEST_FILE}")
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ManifestError(f"{path} has more than {MAX_MANIFEST_BYTES} bytes")
        raw = path.read_bytes()
        try:
            return cls(manifest=parse(raw), raw=raw, folder=folder)
        except ManifestError as error:
            raise ManifestError(f"bundle {folder}: {error}") from error

    def damaged_parts(self) -> Iterator[tuple[bytes, str]]:
        """The digest and the fault of each part that is missing or has another digest; this reads all files."""
        for part in self.manifest.parts:
            file = self.part(part.sha256)
            if not file.is_file():
                yield part.sha256, f"part {part.sha256.hex()} is missing"
                continue
            with file.open("rb") as stream:
                found = file_digest(stream, "sha256").digest()
            if found != part.sha256:
                yield part.sha256, f"part {part.sha256.hex()} is damaged (digest differs)"

    @cached_property
    def id(self) -> bytes:
        """SHA-256 of the manifest's bytes."""
        return sha256(self.raw).digest()

    @property
    def statement(self) -> bytes:
        """The signed statement in the folder, a serialised `SignedStatement` as it stands; empty: there is none.

        Raises:
            ManifestError: The file cannot be read.
        """
        try:
            return (self.folder / STATEMENT_FILE).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise ManifestError(f"{error.filename} cannot be read: {error.strerror}") from error

    def part(self, digest: bytes) -> Path:
        """The file of a part."""
        return self.folder / PARTS_FOLDER / digest.hex()

    def program_file(self, name: str, kind: pb.ProgramFormat) -> Path:
        """The file of a program in one format.

        Raises:
            ManifestError: The bundle has no such program or format.
        """
        return self.part(program_part(self.manifest, name, kind))

    def initial(self) -> Blob:
        """The initial weights."""
        return Blob.open(self.part(self.manifest.initial), self.manifest.initial)


def parse(raw: bytes) -> pb.Manifest:
    """Read and check the bytes of a manifest.

    Raises:
        ManifestError: A field is missing, out of range, or contradicts another.
    """
    try:
        manifest = pb.Manifest.FromString(raw)
    except DecodeError as error:
        raise ManifestError(f"the manifest is damaged: {error}") from error
    _check(manifest)
    return manifest


def initial_set(manifest: pb.Manifest) -> assignment_pb2.BlobSet:
    """The initial weights as a set that a client can download."""
    size = next(part.size for part in manifest.parts if part.sha256 == manifest.initial)
    return assignment_pb2.BlobSet(name=INITIAL, sha256=manifest.initial, size=size)


def program(manifest: pb.Manifest, name: str) -> pb.Program:
    """A program by name.

    Raises:
        ManifestError: The bundle has no program of that name.
    """
    for candidate in manifest.programs:
        if candidate.name == name:
            return candidate
    known = ", ".join(p.name for p in manifest.programs)
    raise ManifestError(f"the bundle has no program {name!r}; it has {known}")


def objective(manifest: pb.Manifest) -> str:
    """What program `step` minimises."""
    return program(manifest, "step").objective


def takes_views(found: pb.Program, manifest: pb.Manifest) -> bool:
    """True if the program trains on augmented views of photos instead of rows as `predict` takes them."""
    given, plain = slots.input_of(found), slots.input_of(program(manifest, "predict"))
    return given is not None and plain is not None and len(given.shape) > len(plain.shape)


def program_part(manifest: pb.Manifest, name: str, kind: pb.ProgramFormat) -> bytes:
    """The digest of a program's file in one format.

    Raises:
        ManifestError: The bundle has no such program or format.
    """
    for file in program(manifest, name).files:
        if file.format == kind:
            return file.sha256
    raise ManifestError(f"the bundle has program {name!r}, but not as {pb.ProgramFormat.Name(kind)}")


def select(
    tensors: Iterable[pb.ExchangeableTensor], selector: assignment_pb2.TensorSelector
) -> list[pb.ExchangeableTensor]:
    """The tensors that match every list of `selector` that is set, in the manifest's order."""
    return [
        tensor
        for tensor in tensors
        if (not selector.names or tensor.name in selector.names)
        and (not selector.kinds or tensor.kind in selector.kinds)
        and (not selector.roles or tensor.role in selector.roles)
    ]


def specs(
    tensors: Iterable[pb.ExchangeableTensor], floats: blob_pb2.Dtype = blob_pb2.DTYPE_FLOAT32
) -> list[TensorSpec]:
    """Names, stored types and shapes of these tensors in a blob that stores floats as `floats`."""
    return [
        TensorSpec.of_float(t.name, tuple(t.shape), floats)
        if t.dtype == blob_pb2.DTYPE_FLOAT32
        else TensorSpec(t.name, t.dtype, tuple(t.shape))
        for t in tensors
    ]


def check_display_names(manifest: pb.Manifest) -> None:
    """Check the display names against the class names; nothing else need be set.

    Raises:
        ManifestError: They break a rule.
    """
    languages = [each.language for each in manifest.display_names]
    _need(len(languages) <= MAX_LANGUAGES, f"display names in {len(languages)} languages; allowed are {MAX_LANGUAGES}")
    _need(languages == sorted(set(languages)), f"display names must be sorted by language, each once: {languages}")
    for each in manifest.display_names:
        where = f"display names in {each.language!r}"
        # RFC 5646, section 2.1: language, script, region; in the letter case that its section 2.1.1 recommends.
        is_tag = fullmatch(r"[a-z]{2,3}(-[A-Z][a-z]{3})?(-([A-Z]{2}|[0-9]{3}))?", each.language)
        _need(is_tag is not None, f"{where}: not a language tag such as 'de' or 'pt-BR'")
        count = len(manifest.class_names)
        _need(len(each.names) == count, f"{where}: {len(each.names)} names of {count} classes")
        _need(len(set(each.names)) == count, f"{where}: two classes have the same name: {list(each.names)}")
        for name in each.names:
            size = len(name.encode(errors="replace"))
            _need(bool(name), f"{where}: a name is empty")
            _need(
                size <= MAX_DISPLAY_NAME_BYTES, f"{where}: a name of {size} bytes; allowed are {MAX_DISPLAY_NAME_BYTES}"
            )
            _need(is_printable(name), f"{where}: a name has a control character or one that turns text: {name!r}")


def _check(manifest: pb.Manifest) -> None:
    _need(manifest.format == FORMAT, f"manifest format {manifest.format or 'unset'}; this version reads {FORMAT}")
    _need(manifest.bundle_class != pb.BUNDLE_CLASS_UNSPECIFIED, "bundle_class is unset")
    _need(manifest.preprocessing.version != 0, "preprocessing.version is unset")
    for side in (manifest.preprocessing.height, manifest.preprocessing.width):
        _need(1 <= side <= MAX_SIDE, f"photo side of {side} pixels; allowed are 1 to {MAX_SIDE}")
    names = list(manifest.class_names)
    _need(len(names) >= 2 and len(set(names)) == len(names), f"class names must be two or more, each once: {names}")
    check_display_names(manifest)
    _need(1 <= manifest.batch <= MAX_BATCH, f"batch {manifest.batch}; allowed are 1 to {MAX_BATCH}")
    _need(manifest.last_batch != pb.LAST_BATCH_UNSPECIFIED, "last_batch is unset")
    _check_tensors(manifest)
    parts = {part.sha256 for part in manifest.parts}
    _need(len(parts) == len(manifest.parts), "a part occurs twice")
    _need(all(len(digest) == DIGEST_BYTES for digest in parts), f"a part's digest does not have {DIGEST_BYTES} bytes")
    _need(all(part.size > 0 for part in manifest.parts), "a part has no size")
    _need(manifest.initial in parts, "initial is not among the parts")
    _need(not manifest.frozen or manifest.frozen in parts, "frozen is not among the parts")
    _check_scalars(manifest)
    _check_programs(manifest, parts)
    slots.check_programs(manifest)
    _check_public(manifest, parts)


def _check_tensors(manifest: pb.Manifest) -> None:
    names = [t.name for t in manifest.tensors]
    _need(bool(names) and names == sorted(set(names)), "exchangeable tensors are needed, sorted by name, each once")
    for tensor in manifest.tensors:
        allowed = (blob_pb2.DTYPE_FLOAT32, blob_pb2.DTYPE_INT64)
        _need(tensor.dtype in allowed, f"tensor {tensor.name!r} is neither float32 nor int64")
        _need(tensor.kind != pb.TENSOR_KIND_UNSPECIFIED, f"tensor {tensor.name!r} has no kind")
        _need(tensor.role != pb.TENSOR_ROLE_UNSPECIFIED, f"tensor {tensor.name!r} has no role")
        _need(0 < prod(tensor.shape) < 1 << 40, f"tensor {tensor.name!r} has shape {list(tensor.shape)}")
    try:
        Layout.of(specs(manifest.tensors))
    except BlobError as error:
        raise ManifestError(f"no blob can hold the exchangeable tensors: {error}") from error


def _check_scalars(manifest: pb.Manifest) -> None:
    hypers = [h.name for h in manifest.hyper_parameters]
    _need(all(hypers) and len(set(hypers)) == len(hypers), f"hyper-parameters need a name, each once: {hypers}")
    for hyper in manifest.hyper_parameters:
        low, value, high = hyper.minimum, hyper.default_value, hyper.maximum
        in_order = isfinite(low) and isfinite(high) and low <= value <= high
        _need(in_order, f"hyper-parameter {hyper.name!r}: default {value} is not within {low} to {high}")


def _check_programs(manifest: pb.Manifest, parts: set[bytes]) -> None:
    programs = [p.name for p in manifest.programs]
    _need(len(set(programs)) == len(programs), "a program occurs twice")
    needed = {"step", "predict"} | (
        {"embed"} if manifest.bundle_class == pb.BUNDLE_CLASS_FROZEN_BACKBONE else set[str]()
    )
    _need(needed <= set(programs), f"programs {sorted(needed)} are needed, found {programs}")
    _check_concatenated(manifest)
    _check_views(manifest)
    weights = {t.name: t for t in manifest.tensors}
    hypers = {h.name for h in manifest.hyper_parameters}
    for item in manifest.programs:
        _need(bool(item.files), f"program {item.name!r} has no file")
        _need(bool(item.inputs) and bool(item.outputs), f"program {item.name!r} has no inputs or no outputs")
        for file in item.files:
            _need(file.sha256 in parts, f"a file of program {item.name!r} is not among the parts")
            _need(file.format != pb.PROGRAM_FORMAT_UNSPECIFIED, f"a file of program {item.name!r} has no format")
        for slot in (*item.inputs, *item.outputs):
            where = f"program {item.name!r}, slot {slot.name!r}"
            _need(slot.kind != pb.SLOT_KIND_UNSPECIFIED, f"{where}: no kind")
            _need(slot.dtype in (blob_pb2.DTYPE_FLOAT32, blob_pb2.DTYPE_INT64), f"{where}: dtype {slot.dtype}")
            if slot.kind == pb.SLOT_KIND_WEIGHT:
                weight = weights.get(slot.name)
                is_like = weight is not None and (weight.dtype, weight.shape) == (slot.dtype, slot.shape)
                _need(is_like, f"{where}: no exchangeable tensor like it")
            if slot.kind == pb.SLOT_KIND_EXTRACTOR:
                _need(item.name == "extract" and bool(slot.name), f"{where}: extractors belong to `extract`, by name")
            if slot.kind == pb.SLOT_KIND_FROZEN:
                _need(bool(manifest.frozen), f"{where}: the bundle has no frozen tensors")
            if slot.kind == pb.SLOT_KIND_HYPER:
                _need(slot.name in hypers, f"{where}: no hyper-parameter of that name")


def _check_public(manifest: pb.Manifest, parts: set[bytes]) -> None:
    if not manifest.HasField("public"):
        return
    _need(manifest.public.sha256 in parts, "public is not among the parts")
    _need(manifest.public.rows > 0, "public has no rows")
    _need(not manifest.concatenated, "a bundle that concatenates extractors cannot have public rows")


def _check_concatenated(manifest: pb.Manifest) -> None:
    """Check that `step` and `predict` take the outputs of all runs of `extract` side by side."""
    count = manifest.concatenated
    if not count:
        return
    _need(count <= MAX_CONCATENATED, f"{count} concatenated extractors; allowed are 1 to {MAX_CONCATENATED}")
    found = {p.name: p for p in manifest.programs}
    _need("extract" in found, "a bundle that concatenates extractors needs program 'extract'")
    extract = found["extract"]
    _need(any(slot.kind == pb.SLOT_KIND_EXTRACTOR for slot in extract.inputs), "'extract' takes no extractor")
    shapes = [list(slot.shape) for slot in extract.outputs if slot.kind == pb.SLOT_KIND_FEATURES]
    _need(
        len(shapes) == len(extract.outputs) == 1 and len(shapes[0]) == 2 and shapes[0][0] == manifest.batch,
        f"'extract' must give features [{manifest.batch}, d], found {shapes}",
    )
    wanted = [manifest.batch, count * shapes[0][1]]
    for name in ("step", "predict"):
        inputs = [list(slot.shape) for slot in found[name].inputs if slot.kind == pb.SLOT_KIND_INPUT]
        _need(inputs == [wanted], f"program {name!r} takes {inputs}, {count} extractors side by side give {wanted}")


def _check_views(manifest: pb.Manifest) -> None:
    """Check the shapes of `view`, and that `step` takes the manifest's number of views."""
    views, stored = manifest.views, manifest.stored_views
    found = {p.name: p for p in manifest.programs}
    if not views:
        _need(not stored, f"{stored} stored views of a bundle without views")
        return
    _need(views <= MAX_VIEWS, f"{views} views of a photo; allowed are 1 to {MAX_VIEWS}")
    _need("view" in found, "a bundle with views needs program 'view'")
    frozen = manifest.bundle_class == pb.BUNDLE_CLASS_FROZEN_BACKBONE
    if frozen:
        allowed = f"allowed are {views}, as many as a step takes, to {MAX_STORED_VIEWS}"
        _need(views <= stored <= MAX_STORED_VIEWS, f"{stored} stored views; {allowed}")
    else:
        _need(not stored, f"{stored} stored views of a bundle that trains all layers")
    photos = [1 if frozen else manifest.batch, 3, manifest.preprocessing.height, manifest.preprocessing.width]
    program = found["view"]
    slots = (*program.inputs, *program.outputs)
    kinds = [pb.SLOT_KIND_INPUT, pb.SLOT_KIND_UNIFORM, pb.SLOT_KIND_PHOTO]
    _need([slot.kind for slot in slots] == kinds, "'view' must make a photo of a photo and uniform random numbers")
    for slot in (slots[0], slots[2]):
        _need(list(slot.shape) == photos, f"'view' has photos {list(slot.shape)}, the bundle {photos}")
    uniforms = list(slots[1].shape)
    _need(len(uniforms) == 2 and uniforms[0] == photos[0] and uniforms[1] > 0, f"'view' takes uniforms {uniforms}")
    (given,) = ([list(s.shape) for s in found["predict"].inputs if s.kind == pb.SLOT_KIND_INPUT] or [[]])[:1]
    taken = [list(s.shape) for s in found["step"].inputs if s.kind == pb.SLOT_KIND_INPUT]
    _need(
        taken == [[manifest.batch, views, *given[1:]]],
        f"'step' takes {taken}, which is not {views} views of the input of 'predict', {given}",
    )


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise ManifestError(message)
