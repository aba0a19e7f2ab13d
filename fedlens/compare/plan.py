"""The runs of a study, one for each method and seed."""

import json
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path

from fedlens.compare.bundles import WEIGHTS_FILE, BackboneSpec, BundleSpec
from fedlens.compare.columns import FORM
from fedlens.compare.photos import StudyPhotos
from fedlens.compare.study import Study, StudyError
from fedlens_edge_client.emulation.fleet.config import MADE_PHOTOS, FleetConfig

# A study has nothing to hide; with a fixed key it has the same clients everywhere.
FLEET_KEY = sha256(b"fedlens/study/fleet-key").digest()
RUNS, FEATURES, RESULT_FILE = "runs", "features", "result.json"
DEFAULT_SIDE = 32


@dataclass(frozen=True)
class RunPlan:
    """One run.

    Attributes:
        label: Label of the method.
        settings: Settings of the task, as JSON.
        photos: Digest of the study's photos.
        bundles: Bundles of the task, in order.
        folder: The run's folder, with its result after the run.
        fingerprint: Digest of everything that the result depends on.
    """

    label: str
    seed: int
    settings: str
    photos: str
    fleet: FleetConfig
    bundles: tuple[BundleSpec, ...]
    folder: Path
    fingerprint: str

    @property
    def name(self) -> str:
        """A name for people."""
        return f"{self.label}, seed {self.seed}"

    @property
    def result(self) -> Path:
        """The file of the result, written completely or not at all."""
        return self.folder / RESULT_FILE

    @property
    def is_done(self) -> bool:
        """True if the folder has the result of exactly this run."""
        try:
            found = json.loads(self.result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and found.get("fingerprint") == self.fingerprint


@dataclass(frozen=True)
class StudyPlan:
    """All runs of a study, and the backbones and bundles that they need."""

    folder: Path
    backbones: tuple[BackboneSpec, ...]
    bundles: tuple[BundleSpec, ...]
    runs: tuple[RunPlan, ...]


def plan(study: Study, photos: StudyPhotos, out: Path) -> StudyPlan:
    """Plan a study without carrying anything out.

    Raises:
        StudyError: A setting is wrong.
        EdgeClientError: The photos cannot serve the partition.
    """
    most = max(map(study.clients_of, study.methods))
    if absent := [entry.client for entry in study.faults.fault if entry.client >= most]:
        raise StudyError(f"faults.fault: found client {absent[0]}, must be 0 to {most - 1}: no method has more clients")
    models = dict.fromkeys(model for label in study.methods for model in study.models_of(label))
    backbones = {model: spec for model in models if (spec := _backbone(study, photos, model)) is not None}
    weights = _digest(study.model.backbone_weights)
    runs = []
    for seed in study.seeds:
        for label in study.methods:
            clients, partition = study.clients_of(label), study.partition_of(label, seed)
            bundles = tuple(_bundles(study, label, seed, photos, backbones, weights, out))
            settings = study.task_settings(label, seed)
            names = study.models_of(label)
            folder = out / RUNS / label / f"seed-{seed}"
            fleet = FleetConfig(
                server="",
                clients=clients,
                pool=photos.pool,
                partition=partition,
                plan=study.faults,
                key=FLEET_KEY,
                state=folder,
                workers=1,
                token="trainer",
                evaluator_token="evaluator" if study.evaluator else None,
                models=names if len(names) > 1 else (),
                shares_downloads=False,
                made_photos=out / MADE_PHOTOS,
            )
            # Without defaults: a kind of fault that is new and not wanted changes no run.
            faults = study.faults.model_dump_json(exclude_defaults=True)
            described = (settings, partition.summary, clients, study.evaluator, faults)
            made_of = (photos.digest, names, [bundle.folder for bundle in bundles])
            fingerprint = sha256(json.dumps([FORM, described, made_of]).encode()).hexdigest()
            runs.append(RunPlan(label, seed, settings, photos.digest, fleet, bundles, folder, fingerprint))
    needed = dict.fromkeys(bundle for run in runs for bundle in run.bundles)
    return StudyPlan(out, tuple(backbones.values()), tuple(needed), tuple(runs))


def _backbone(study: Study, photos: StudyPhotos, model: str) -> BackboneSpec | None:
    if photos.pretraining is None:
        return None
    if study.model.backbone_weights is not None:
        raise StudyError("model.backbone_weights: found a file with photos.pretrain_classes; set one of them")
    return BackboneSpec(
        model=model,
        photos=photos.pretraining.folder,
        photos_digest=photos.pretraining.digest,
        side=study.model.input_size or DEFAULT_SIDE,
        epochs=study.model.pretrain_epochs,
    )


def _digest(weights: Path | None) -> str | None:
    """The digest of a file of weights."""
    if weights is None:
        return None
    try:
        with weights.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StudyError(f"model.backbone_weights: found {weights}, which cannot be read: {error.strerror}") from error


def _bundles(
    study: Study,
    label: str,
    seed: int,
    photos: StudyPhotos,
    backbones: dict[str, BackboneSpec],
    weights: str | None,
    out: Path,
) -> list[BundleSpec]:
    method, model, wanted = study.methods[label], study.model, study.bundles_of(label)
    if wanted.public and photos.public is None:
        raise StudyError(
            f"photos.public_per_class: found 0, must be 1 or more for methods.{label}, which trains on public photos"
        )

    def bundle(name: str, concatenated: int) -> BundleSpec:
        trained = backbones.get(name)
        return BundleSpec(
            model=name,
            class_names=photos.pool.class_names,
            batch=model.batch,
            # The classifier of concatenated extractors has no features, and no other models to be compared with.
            objective=(method.objective or "cross_entropy") if concatenated else wanted.objective,
            optimiser=method.optimiser or model.optimiser,
            seed=seed,
            input_size=model.input_size or (DEFAULT_SIDE if trained else None),
            head=method.head or model.head,
            backbone_weights=out / trained.folder / WEIGHTS_FILE if trained else model.backbone_weights,
            onnx=method.onnx and not concatenated,
            concatenated=concatenated,
            augmentation=None if concatenated else method.augmentation or model.augmentation,
            stored_views=model.stored_views,
            candidates=0 if concatenated else wanted.candidates,
            programs=() if concatenated else wanted.programs,
            public=photos.public.folder if photos.public and wanted.public and not concatenated else None,
            public_digest=photos.public.digest if photos.public and wanted.public and not concatenated else None,
            weights=trained.folder if trained else weights,
        )

    names = study.models_of(label)
    ordinary = [bundle(name, 0) for name in dict.fromkeys(names)]
    return [*ordinary, *([bundle(names[0], method.concatenated)] if method.concatenated else [])]
