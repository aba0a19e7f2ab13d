"""Small bundles with programs for phones, and bundles whose programs are something else."""

from collections import OrderedDict
from hashlib import sha256
from pathlib import Path

from PIL import Image
from torch import nn

from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models.classified import Classified
from fedlens_export.network import Normalisation
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb

SIDE = 8
FEATURES = 12
BATCH = 4
PUBLIC_ROWS = 6
CLASSES = ("cat", "dog", "emu")
NOTHING = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def linear_bundle(folder: Path, classes: tuple[str, ...] = CLASSES, batch: int = BATCH) -> Bundle:
    """8 x 8 photos become 12 features; the head is one layer."""
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    head = nn.Linear(FEATURES, len(classes))
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    training = Training(class_names=classes, batch=batch, pte=True)
    return frozen_backbone_bundle(
        folder,
        backbone,
        nn.Sequential(OrderedDict(classifier=head)),
        training,
        SIDE,
        name="phone",
        normalisation=NOTHING,
    )


def deriving_bundle(folder: Path, *, pte: bool = True) -> Bundle:
    """8 x 8 photos become 3 features, the means of their colours; FC 3, ReLU, FC 2, all weights 0, and public photos.

    It has every kind of program: three candidates are compared and blended, a teacher is distilled from, class means
    and predictions are derived, and prototypes predict.
    """
    public = folder / "public"
    public.mkdir(parents=True)
    for i in range(PUBLIC_ROWS):
        Image.new("RGB", (SIDE, SIDE), (i, 2 * i, 255)).save(public / f"{i}.png")
    head = Classified(nn.Linear(3, 3), nn.Linear(3, 2))
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    training = Training(
        class_names=CLASSES[:2],
        batch=BATCH,
        pte=pte,
        objective="distil",
        candidates=3,
        public=public,
        programs=("class_sums", "class_means", "predict_nearest", "dual_update"),
    )
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return frozen_backbone_bundle(folder / "bundle", backbone, head, training, SIDE, normalisation=NOTHING)


def pte_of(bundle: Bundle, program: str) -> bytes:
    """The bytes of a program for phones."""
    return bundle.program_file(program, pb.PROGRAM_FORMAT_PTE).read_bytes()


def with_pte(bundle: Bundle, program: str, raw: bytes, folder: Path) -> Bundle:
    """A bundle in `folder` that says that `raw` is the `.pte` of `program`; that is the only part that is there."""
    manifest = pb.Manifest.FromString(bundle.raw)
    digest = sha256(raw).digest()
    (found,) = (each for each in manifest.programs if each.name == program)
    (file,) = (each for each in found.files if each.format == pb.PROGRAM_FORMAT_PTE)
    file.sha256 = digest
    manifest.parts.add(sha256=digest, size=max(1, len(raw)))
    changed = Bundle(manifest, manifest.SerializeToString(deterministic=True), folder)
    changed.part(digest).parent.mkdir(parents=True, exist_ok=True)
    changed.part(digest).write_bytes(raw)
    return changed
