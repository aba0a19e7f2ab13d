"""The bundles of a study: each exported once and kept in the study's folder."""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedlens.jobs import Report
from fedlens.whole_file import replacing
from fedlens_proto.manifest import MANIFEST_FILE

WEIGHTS_FILE = "weights.pt"
_IDENTIFYING = ("weights", "public_digest")
# Only these programs change a bundle's name, so that a bundle without them has the name that it always had.
_ADDED = ("candidates", "programs", "public")


@dataclass(frozen=True, kw_only=True)
class BackboneSpec:
    """A backbone to train before it is frozen.

    Attributes:
        model: Name of the backbone.
        photos: Folder of public photos, which no client has, with a sub-folder for each class.
        photos_digest: Digest of these photos.
        side: Side of the backbone's input, in pixels.
        epochs: Passes over the photos.
    """

    model: str
    photos: Path
    photos_digest: str
    side: int
    epochs: int

    @property
    def folder(self) -> str:
        """The folder of its weights, relative to the study's folder."""
        key = (self.model, self.photos_digest, self.side, self.epochs)
        return f"backbones/{self.model}-{_short(key)}"


@dataclass(frozen=True, kw_only=True)
class BundleSpec:
    """A bundle to export; `ExportSpec` describes the other attributes.

    Attributes:
        weights: Identifies the contents of `backbone_weights` in any folder.
        public_digest: Identifies the photos in `public` likewise.
    """

    model: str
    class_names: tuple[str, ...]
    batch: int
    objective: str
    optimiser: str
    seed: int
    input_size: int | None = None
    head: str | None = None
    backbone_weights: Path | None = None
    onnx: bool = False
    concatenated: int = 0
    augmentation: str | None = None
    stored_views: int = 8
    candidates: int = 0
    programs: tuple[str, ...] = ()
    public: Path | None = None
    weights: str | None = None
    public_digest: str | None = None

    @property
    def folder(self) -> str:
        """The bundle's folder, relative to the study's folder."""
        return f"bundles/{self.name}"

    @property
    def name(self) -> str:
        """A name for people, which identifies all settings."""
        concatenated = f"-x{self.concatenated}" if self.concatenated else ""
        named = self.settings | {"backbone_weights": self.weights, "public": self.public_digest}
        key = {name: str(value) for name, value in named.items() if value or name not in _ADDED}
        return f"{self.model}-{self.objective}{concatenated}-s{self.seed}-{_short(sorted(key.items()))}"

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `ExportSpec`."""
        return {name: value for name, value in asdict(self).items() if name not in _IDENTIFYING}


def export(study_folder: Path, spec: BundleSpec, on_stage: Report) -> None:
    """Export a bundle into a study's folder, unless it is there.

    Raises:
        ExportError: The bundle cannot be exported.
    """
    folder = study_folder / spec.folder
    if (folder / MANIFEST_FILE).is_file():
        return
    from fedlens_export.exporting import ExportSpec, export_bundle

    export_bundle(folder, ExportSpec(**spec.settings), on_stage)


def pretrain(study_folder: Path, spec: BackboneSpec, on_stage: Report) -> None:
    """Train a backbone into a study's folder, unless its weights are there.

    Raises:
        ExportError: The backbone cannot be trained.
    """
    weights = study_folder / spec.folder / WEIGHTS_FILE
    if weights.is_file():
        return
    import torch

    from fedlens_export.models import backbones
    from fedlens_export.models import pretrain as pretraining

    torch.set_num_threads(1)
    backbone = backbones.build(spec.model, spec.side, seed=0)
    normalisation = backbones.normalisation(spec.model)
    pretraining.train(backbone, spec.photos, spec.side, normalisation, epochs=spec.epochs, seed=0, on_stage=on_stage)
    weights.parent.mkdir(parents=True, exist_ok=True)
    with replacing(weights) as partial:
        torch.save(backbone.state_dict(), partial)


def _short(key: object) -> str:
    return sha256(json.dumps(key, default=str).encode()).hexdigest()[:10]
