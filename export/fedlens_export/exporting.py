"""A bundle from a model: by name with `export_bundle`, or from any module with one of the two below it.

from fedlens_export.exporting import ExportSpec, export_bundle

bundle = export_bundle(Path("bundle"), ExportSpec(model="lenet5", class_names=("cat", "dog")))
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from fedlens_export import (
    backbones,
    bundle,
    concatenated,
    lowering,
    models,
    objectives,
    onnx_program,
    optimisers,
    parity,
    pretrain,
    programs,
    pte_program,
    view,
)
from fedlens_export.errors import NotExportable, UnknownChoice
from fedlens_export.hyper import Hyper
from fedlens_export.network import CENTRED, IMAGENET, Network, Normalisation
from fedlens_export.programs import ProgramSource
from fedlens_proto import blob
from fedlens_proto.manifest import FORMAT, MAX_BATCH, MAX_CONCATENATED, MAX_SIDE, MAX_STORED_VIEWS, Bundle
from fedlens_proto.photos import PREPROCESSING_VERSION
from fedlens_proto.v1 import manifest_pb2 as pb

Progress = Callable[[str], None]

MODELS = (*models.MODELS, *backbones.BACKBONES)
"""Every model that can be exported by name."""


def _silent(_stage: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a bundle trains, whatever its model.

    Attributes:
        class_names: In label order, at least two.
        batch: Rows of a step.
        objective: Of `objectives.OBJECTIVES`.
        optimiser: Of `optimisers.OPTIMISERS`.
        onnx: Whether the server gets programs that it can run itself; they cost a second or two.
        concatenated: Most extractors whose outputs one classifier takes side by side; 0: an ordinary bundle.
        seed: Of that classifier's weights.
        stored_views: Of a frozen backbone, for an objective over views: how many augmentations of a photo are embedded
            when it arrives.
        pte: Whether phones get programs too; of frozen backbones only.
    """

    class_names: tuple[str, ...]
    batch: int = 32
    objective: str = "cross_entropy"
    optimiser: str = "sgd"
    onnx: bool = False
    concatenated: int = 0
    seed: int = 0
    stored_views: int = 8
    pte: bool = False


@dataclass(frozen=True, kw_only=True)
class ExportSpec:
    """What to export by name.

    Attributes:
        model: Of `MODELS`.
        class_names: In label order, at least two, each once.
        input_size: Side of the photos in pixels; None: the model's usual one.
        batch: Rows of a step.
        objective: As in `Training`.
        optimiser: As in `Training`.
        head: `linear` or `hidden`; of frozen backbones only. None: `linear`.
        backbone_weights: A file with the backbone's weights. None, and no `pretrain`: torchvision's, downloaded.
        pretrain: A folder of public photos, one sub-folder a class, to train the backbone on first.
        pretrain_epochs: How often it sees each of them.
        seed: Of all weights that are drawn, and of pretraining.
        onnx: As in `Training`.
        concatenated: As in `Training`.
        stored_views: As in `Training`.
        pte: As in `Training`.
    """

    model: str
    class_names: tuple[str, ...]
    input_size: int | None = None
    batch: int = 32
    objective: str = "cross_entropy"
    optimiser: str = "sgd"
    head: str | None = None
    backbone_weights: Path | None = None
    pretrain: Path | None = None
    pretrain_epochs: int = 5
    seed: int = 0
    onnx: bool = False
    concatenated: int = 0
    stored_views: int = 8
    pte: bool = False


def export_bundle(folder: Path, spec: ExportSpec, on_stage: Progress = _silent) -> Bundle:
    """Export a model by name to `folder`; the same spec gives the same bytes.

    Args:
        folder: Must not exist, be empty, or hold exactly this bundle.
        spec: What to export.
        on_stage: Told what is being done, one line a stage.

    Raises:
        ExportError: Any of its kinds; nothing was written.
    """
    training = Training(
        class_names=spec.class_names,
        batch=spec.batch,
        objective=spec.objective,
        optimiser=spec.optimiser,
        onnx=spec.onnx,
        concatenated=spec.concatenated,
        seed=spec.seed,
        stored_views=spec.stored_views,
        pte=spec.pte,
    )
    # Told before anything that takes time.
    _check_training(training)
    bundle.check_target(folder)
    classes = len(spec.class_names)
    if spec.model in models.MODELS:
        if spec.head:
            raise NotExportable(f"{spec.model} has no head to choose: its last FC layer is the classifier")
        if spec.backbone_weights or spec.pretrain:
            raise NotExportable(f"{spec.model} has no backbone: it is trained as a whole, from its initial weights")
        _check_no_pte(training)
        side = _side(spec.input_size or 32)
        module = models.build(spec.model, classes, side, spec.seed)
        return whole_model_bundle(folder, module, training, side, name=spec.model, on_stage=on_stage)
    if spec.model not in backbones.BACKBONES:
        raise UnknownChoice(f"model {spec.model!r} is unknown; there are {', '.join(MODELS)}")
    head_name = spec.head or backbones.HEADS[0]
    backbones.check_head(head_name)
    if objectives.by_name(spec.objective).needs_features and head_name != "hidden":
        raise NotExportable(
            f"objective {spec.objective!r} compares features, which head {head_name!r} has not; take head 'hidden'"
        )
    side = _side(spec.input_size or 224)
    backbone = backbones.build(spec.model, side, spec.seed)
    if spec.backbone_weights and spec.pretrain:
        raise NotExportable("a backbone is either read from a file or trained on photos, not both")
    if spec.pretrain:
        pretrain.train(backbone, spec.pretrain, side, epochs=spec.pretrain_epochs, seed=spec.seed, on_stage=on_stage)
    elif spec.backbone_weights:
        backbones.load_weights(spec.model, backbone, spec.backbone_weights)
    else:
        on_stage("fetching the backbone's weights")
        backbones.download_weights(spec.model, backbone)
    features = programs.feature_count(backbone, (3, side, side))
    head = backbones.build_head(head_name, features, classes, spec.seed)
    return frozen_backbone_bundle(
        folder, backbone, head, training, side, name=spec.model, normalisation=IMAGENET, on_stage=on_stage
    )


def whole_model_bundle(
    folder: Path,
    model: nn.Module,
    training: Training,
    input_size: int,
    *,
    name: str = "",
    normalisation: Normalisation = CENTRED,
    on_stage: Progress = _silent,
) -> Bundle:
    """Export any module from photos to logits; all its layers train. Errors as in `export_bundle`.

    Args:
        folder: As in `export_bundle`.
        model: From normalised photos [N, 3, input_size, input_size] to logits [N, classes], made of FC, convolution
            and norm layers that have names. Its present weights become the initial ones.
        training: How it trains.
        input_size: Side of the photos in pixels.
        name: For people.
        normalisation: What comes before the module, inside the programs.
        on_stage: As in `export_bundle`.
    """
    _check_no_pte(training)
    network = Network(model, (3, input_size, input_size), normalisation)
    draft = _Draft(network, training, on_stage)
    return draft.write(folder, pb.BUNDLE_CLASS_WHOLE_MODEL, name, input_size)


def frozen_backbone_bundle(
    folder: Path,
    backbone: nn.Module,
    head: nn.Module,
    training: Training,
    input_size: int,
    *,
    name: str = "",
    normalisation: Normalisation = CENTRED,
    on_stage: Progress = _silent,
) -> Bundle:
    """Export any backbone with any head; only the head trains. Errors as in `export_bundle`.

    Args:
        folder: As in `export_bundle`.
        backbone: From normalised photos [N, 3, input_size, input_size] to features [N, F]; may have no weights at all.
        head: From features [N, F] to logits [N, classes]. Its present weights become the initial ones.
        training: How the head trains.
        input_size: Side of the photos in pixels.
        name: For people.
        normalisation: What comes before the backbone, inside `embed`.
        on_stage: As in `export_bundle`.
    """
    shape = (3, input_size, input_size)
    network = Network(head, (programs.feature_count(backbone, shape),))
    draft = _Draft(network, training, on_stage)
    embed = programs.embed(backbone, normalisation, shape)
    frozen = programs.frozen_tensors(backbone)
    draft.add(embed, frozen)
    if frozen:
        draft.frozen = draft.parts.add(blob.encode({key: tensor.numpy() for key, tensor in frozen.items()}))
    return draft.write(folder, pb.BUNDLE_CLASS_FROZEN_BACKBONE, name, input_size)


class _Draft:
    """A bundle that gathers its parts; everything is checked before anything is written."""

    def __init__(self, network: Network, training: Training, on_stage: Progress) -> None:
        _check_training(training)
        self.network = network
        self.training = training
        self.on_stage = on_stage
        self.parts = bundle.Parts()
        self.programs: list[pb.Program] = []
        self.frozen = b""
        self.objective = objectives.by_name(training.objective)
        if self.objective.needs_features:
            network.check_features()
        self.optimiser = optimisers.by_name(training.optimiser)
        self.hyper: dict[str, Hyper] = {h.name: h for h in (*self.optimiser.hyper, *self.objective.hyper)}

    def add(self, source: ProgramSource, known: Mapping[str, Tensor]) -> None:
        """Lower a program, compare it with its source, take it in."""
        self.on_stage(f"lowering {source.name}")
        traced = lowering.trace(source.name, source.function, parity.examples(source, known, self.hyper, seed=0))
        raw = lowering.save(source.name, traced)
        self.on_stage(f"comparing {source.name} with the model")
        parity.check(source, raw, known, self.hyper)
        files = [pb.ProgramFile(format=pb.PROGRAM_FORMAT_PT2, sha256=self.parts.add(raw))]
        if self.training.onnx and source.name in onnx_program.PROGRAMS:
            self.on_stage(f"lowering {source.name} for the server")
            raw = onnx_program.lower(source.name, traced)
            onnx_program.check(source, raw, known, self.hyper)
            files.append(pb.ProgramFile(format=pb.PROGRAM_FORMAT_ONNX, sha256=self.parts.add(raw)))
        if self.training.pte:
            self.on_stage(f"lowering {source.name} for phones")
            raw, delegation = pte_program.lower(source.name, pte_program.bind(source, traced, known))
            self.on_stage(f"comparing {source.name} for phones with the model; {delegation}")
            pte_program.check(source, raw, known, self.hyper)
            files.append(pb.ProgramFile(format=pb.PROGRAM_FORMAT_PTE, sha256=self.parts.add(raw)))
        self.programs.append(pb.Program(name=source.name, inputs=source.inputs, outputs=source.outputs, files=files))

    def write(self, folder: Path, bundle_class: pb.BundleClass, name: str, input_size: int) -> Bundle:
        """Add `step`, `predict` and the initial weights, and write the whole."""
        training, network = self.training, self.network
        classes = len(training.class_names)
        network.describe()  # refuses what cannot be exchanged before anything is called
        _check_logits(network, classes)
        if training.concatenated:
            given = {**network.weights, **network.buffers}
            self.add(concatenated.extract(network, training.batch), given)
            network = concatenated.classifier(network, training.concatenated, training.seed)
        tensors = network.describe()
        initial = {**network.weights, **network.buffers}
        hyper = tuple(self.hyper.values())
        views, is_frozen = self.objective.views, bundle_class == pb.BUNDLE_CLASS_FROZEN_BACKBONE
        if views:
            self.add(view.view((3, input_size, input_size), 1 if is_frozen else training.batch), {})
        self.add(programs.step(network, self.objective, self.optimiser, hyper, training.batch, classes), initial)
        self.add(programs.predict(network, training.batch, classes), initial)
        self.on_stage("writing the bundle")
        manifest = pb.Manifest(
            format=FORMAT,
            bundle_class=bundle_class,
            model=name,
            preprocessing=pb.Preprocessing(version=PREPROCESSING_VERSION, height=input_size, width=input_size),
            class_names=training.class_names,
            batch=training.batch,
            tensors=tensors,
            objective=self.objective.name,
            optimiser=self.optimiser.name,
            hyper_parameters=[h.message() for h in hyper],
            references=[
                pb.Reference(name=reference.name, tensors=programs.referred(network, reference))
                for reference in self.objective.references
            ],
            last_batch=pb.LAST_BATCH_FILLED if network.has_batch_norm else pb.LAST_BATCH_MASKED,
            programs=self.programs,
            initial=self.parts.add(blob.encode({key: tensor.numpy() for key, tensor in initial.items()})),
            frozen=self.frozen,
            tools=_tools(training),
            concatenated=training.concatenated,
            views=views,
            stored_views=training.stored_views if views and is_frozen else 0,
        )
        manifest.parts.extend(self.parts.messages())
        return bundle.write(folder, manifest, self.parts.contents)


def _check_training(training: Training) -> None:
    names: Sequence[str] = training.class_names
    if len(names) < 2 or len(set(names)) != len(names):
        raise NotExportable(f"two or more classes are needed, each once; found {', '.join(names) or 'none'}")
    if not 1 <= training.batch <= MAX_BATCH:
        raise NotExportable(f"batch {training.batch} is not allowed; 1 to {MAX_BATCH} are")
    if not 0 <= training.concatenated <= MAX_CONCATENATED:
        raise NotExportable(
            f"{training.concatenated} extractors cannot be concatenated; 1 to {MAX_CONCATENATED} can, 0 is for none"
        )
    views = objectives.by_name(training.objective).views
    if views and training.concatenated:
        raise NotExportable(f"objective {training.objective!r} takes views, and concatenated extractors have none")
    if views and not views <= training.stored_views <= MAX_STORED_VIEWS:
        allowed = f"{views}, what a step takes, to {MAX_STORED_VIEWS} are"
        raise NotExportable(f"{training.stored_views} stored views are not allowed; {allowed}")
    optimisers.by_name(training.optimiser)
    if training.pte:
        pte_program.check_installed()


def _check_no_pte(training: Training) -> None:
    if training.pte:
        raise NotExportable(
            "phones train FC layers only: ExecuTorch takes about 100 times as long as torch to train a whole CNN; take "
            "a frozen backbone, or leave out --target pte"
        )


def _check_logits(network: Network, classes: int) -> None:
    try:
        with torch.no_grad():
            logits, _ = network(network.weights, network.buffers, torch.zeros(2, *network.input_shape), training=False)
    except Exception as error:  # whatever a foreign model raises
        shape = [2, *network.input_shape]
        raise NotExportable(f"the model cannot take its input, float32{shape}: {error}") from error
    if tuple(logits.shape) != (2, classes):
        raise NotExportable(
            f"the model gives {list(logits.shape)} for two rows; for {classes} classes it must be [2, {classes}]"
        )


def _side(side: int) -> int:
    if not 1 <= side <= MAX_SIDE:
        raise NotExportable(f"an input size of {side} pixels is not allowed; up to {MAX_SIDE} are")
    return side


def _tools(training: Training) -> list[pb.ToolVersion]:
    names = ("fedlens", "torch", *(("executorch",) if training.pte else ()))
    # Without the build's suffix (+cpu, +cu130): the programs are the same.
    return [pb.ToolVersion(name=name, version=version(name).partition("+")[0]) for name in names]
