"""Settings of training that do not depend on the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedlens_export import display_names, objectives, public_photos
from fedlens_export.errors import NotExportable, check_choice
from fedlens_export.hyper import Hyper
from fedlens_export.programs import (
    calibration,
    derivations,
    onnx_program,
    optimisers,
    pte_program,
    quantisation,
    steps,
    view,
)
from fedlens_export.programs.derivations import OF_CANDIDATES
from fedlens_export.programs.derivations.derivation import Derivation
from fedlens_proto.manifest import MAX_BATCH, MAX_CONCATENATED, MAX_STORED_VIEWS

MAX_CANDIDATES = 64


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of training that do not depend on the model.

    Attributes:
        class_names: In label order, at least two, each once.
        batch: Rows of a step.
        objective: One of `objectives.OBJECTIVES`, or a plug-in.
        optimiser: One of `optimisers.OPTIMISERS`.
        onnx: Also make programs that the server can run; this takes a second or two.
        concatenated: Largest number of extractors whose outputs one classifier takes side by side; 0: an ordinary
            bundle.
        seed: Seed of that classifier's weights.
        augmentation: One of `view.AUGMENTATIONS`, for the views that a step takes: as many as the objective compares,
            else one. None: `contrast` for an objective over views, else photos as they are.
        stored_views: For a frozen backbone, the number of augmentations of a photo that a client embeds when the photo
            arrives.
        pte: Also make programs for phones; for frozen backbones only.
        quantise: One of `quantisation.SCHEMES`, for the frozen backbone on phones; needs `pte`. None: float32.
        calibrate: A folder of photos to take ranges from, best with a sub-folder for each class.
        candidates: Largest number of models that a client compares and blends, as IFCA, FedSoft and FedFomo need; 0: no
            programs for that.
        public: A folder of photos that all clients get, best with a sub-folder for each class. None: no public photos.
        programs: Further programs, of `derivations.DERIVATIONS` or plug-ins.
        display_names: For each language, as a tag such as `de`, the name of each class that apps show.
    """

    class_names: tuple[str, ...]
    batch: int = 32
    objective: str = "cross_entropy"
    optimiser: str = "sgd"
    onnx: bool = False
    concatenated: int = 0
    seed: int = 0
    augmentation: str | None = None
    stored_views: int = 8
    pte: bool = False
    quantise: str | None = None
    calibrate: Path | None = None
    candidates: int = 0
    public: Path | None = None
    programs: tuple[str, ...] = ()
    display_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])

    @property
    def derivations(self) -> tuple[Derivation, ...]:
        """The programs that derive, and further ones that predict, each once."""
        named = dict.fromkeys((*objectives.by_name(self.objective).programs, *self.programs))
        return (*(OF_CANDIDATES if self.candidates else ()), *map(derivations.by_name, named))

    @property
    def hyper(self) -> dict[str, Hyper]:
        """The hyper-parameters of all programs, by name.

        Raises:
            NotExportable: Two programs differ in one of that name.
        """
        found = steps.hyper(objectives.by_name(self.objective), optimisers.by_name(self.optimiser))
        for derivation in self.derivations:
            for hyper in derivation.hyper:
                if found.setdefault(hyper.name, hyper) != hyper:
                    raise NotExportable(
                        f"program {derivation.name!r} and objective {self.objective!r} each have a hyper-parameter "
                        f"{hyper.name!r}; take one of both"
                    )
        return found

    @property
    def views(self) -> int:
        """The number of views of each photo in a step; 0: photos as they are."""
        return objectives.by_name(self.objective).views or (1 if self.augmentation else 0)


def check_training(training: Training) -> None:
    """Check the settings before any work that takes time.

    Raises:
        NotExportable: A setting is out of range, two hyper-parameters clash, or a package is needed and not installed.
        UnknownChoice: There is no objective, augmentation, optimiser or quantisation of that name.
    """
    names: Sequence[str] = training.class_names
    if len(names) < 2 or len(set(names)) != len(names):
        raise NotExportable(f"two or more classes are needed, each once; found {', '.join(names) or 'none'}")
    for name in names:
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise NotExportable(f"class {name!r} has no name in UTF-8; rename its folder")
    display_names.check(training.display_names, names)
    if not 1 <= training.batch <= MAX_BATCH:
        raise NotExportable(f"batch {training.batch} is not allowed; 1 to {MAX_BATCH} are")
    if not 0 <= training.concatenated <= MAX_CONCATENATED:
        raise NotExportable(
            f"{training.concatenated} extractors cannot be concatenated; 1 to {MAX_CONCATENATED} can, 0 is for none"
        )
    if training.augmentation is not None:
        check_choice("augmentation", training.augmentation, view.AUGMENTATIONS)
    views = training.views
    if views and training.concatenated:
        what = (
            f"augmentation {training.augmentation!r}" if training.augmentation else f"objective {training.objective!r}"
        )
        raise NotExportable(f"{what} takes views, and concatenated extractors have none")
    if training.concatenated and objectives.by_name(training.objective).needs_features:
        raise NotExportable(
            f"objective {training.objective!r} needs the features of one model, and the classifier of concatenated "
            "extractors has none; take another objective for this bundle"
        )
    if views and not views <= training.stored_views <= MAX_STORED_VIEWS:
        raise NotExportable(
            f"{training.stored_views} stored views are not allowed; {views} (as many as a step takes) to "
            f"{MAX_STORED_VIEWS} are"
        )
    _ = training.hyper  # refuses names that clash
    if not 0 <= training.candidates <= MAX_CANDIDATES:
        raise NotExportable(
            f"{training.candidates} candidates cannot be compared; 1 to {MAX_CANDIDATES} can, 0 is for none"
        )
    _check_public(training)
    if training.onnx and (missing := onnx_program.missing()):
        raise NotExportable(
            f"programs for the server need {' and '.join(missing)}, not installed here; run pip install "
            "'fedlens[export]', or leave them out with --no-onnx"
        )
    if training.pte:
        pte_program.check_installed()
    if training.quantise:
        check_choice("quantisation", training.quantise, quantisation.SCHEMES)
        if not training.pte:
            raise NotExportable("only programs for phones are quantised; add --target pte, or leave out --quantize")
        if not training.calibrate:
            raise NotExportable("quantising takes ranges from photos; give a folder of photos with --calibrate DIR")
        calibration.check(training.calibrate)
    elif training.calibrate:
        raise NotExportable("--calibrate is for quantising; add --quantize int8, or leave it out")


def _check_public(training: Training) -> None:
    over_public = [derivation.name for derivation in training.derivations if derivation.over_public]
    if over_public and not training.public:
        raise NotExportable(
            f"program {over_public[0]!r} runs over public photos; give a folder of them with --public DIR"
        )
    if training.public and training.concatenated:
        raise NotExportable("a bundle that concatenates extractors has no public photos; leave out --public")
    if training.public:
        public_photos.check(training.public)
