"""The bundles of a study: each exported once and kept in the study's folder."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedlens_proto.manifest import MANIFEST_FILE

WEIGHTS_FILE = "weights.pt"


@dataclass(frozen=True, kw_only=True)
class BackboneSpec:
    """A backbone to train before it is frozen.

    Attributes:
        model: Its name.
        photos: Folder of photos, a sub-folder a class, of which no client has any.
        photos_digest: Of those photos' digests.
        side: Of a photo, in pixels.
        epochs: How often it sees each of them.
    """

    model: str
    photos: Path
    photos_digest: str
    side: int
    epochs: int

    @property
    def folder(self) -> str:
        """Where in a study's folder its weights are."""
        key = (self.model, self.photos_digest, self.side, self.epochs)
        return f"backbones/{self.model}-{_short(key)}"


@dataclass(frozen=True, kw_only=True)
class BundleSpec:
    """A bundle to export, as `ExportSpec` has it.

    Attributes:
        weights: Names what is in `backbone_weights`, wherever that file is.
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
    stored_views: int = 8
    weights: str | None = None

    @property
    def folder(self) -> str:
        """Where in a study's folder it is."""
        concatenated = f"-x{self.concatenated}" if self.concatenated else ""
        named = self.settings | {"backbone_weights": self.weights}
        key = {name: str(value) for name, value in named.items()}
        return f"bundles/{self.model}-{self.objective}{concatenated}-s{self.seed}-{_short(sorted(key.items()))}"

    @property
    def settings(self) -> dict[str, Any]:
        """What `ExportSpec` takes."""
        return {name: value for name, value in asdict(self).items() if name != "weights"}


def export(study_folder: Path, spec: BundleSpec, on_stage: Callable[[str], None]) -> None:
    """Have a bundle in a study's folder.

    Raises:
        ExportError: It cannot be exported.
    """
    folder = study_folder / spec.folder
    if (folder / MANIFEST_FILE).is_file():
        return
    from fedlens_export.exporting import ExportSpec, export_bundle

    export_bundle(folder, ExportSpec(**spec.settings), on_stage)


def pretrain(study_folder: Path, spec: BackboneSpec, on_stage: Callable[[str], None]) -> None:
    """Have a backbone's weights in a study's folder.

    Raises:
        ExportError: It cannot be trained.
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
    unfinished = weights.with_suffix(f".{os.getpid()}")
    torch.save(backbone.state_dict(), unfinished)
    unfinished.replace(weights)


def _short(key: object) -> str:
    return sha256(json.dumps(key, default=str).encode()).hexdigest()[:10]
