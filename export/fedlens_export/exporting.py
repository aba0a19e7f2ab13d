"""Exporting a bundle: `export_bundle` takes a model by name, `whole_model_bundle` and `frozen_backbone_bundle` modules.

A name with a colon is a function that makes the user's own model, see `own_model`.

from fedlens_export.exporting import ExportSpec, export_bundle

bundle = export_bundle(Path("bundle"), ExportSpec(model="lenet5", class_names=("cat", "dog")))
"""

from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fedlens_export import bundle, objectives
from fedlens_export.draft import Draft
from fedlens_export.errors import NotExportable, check_choice
from fedlens_export.models import backbones, explaining, own_model, pretrain, whole_models
from fedlens_export.network import CENTRED, Network, Normalisation
from fedlens_export.programs import calibration, quantisation, steps
from fedlens_export.report import FileReport, OnFile, OnStage, unheard
from fedlens_export.training import Training, check_training
from fedlens_proto import blob
from fedlens_proto.manifest import MAX_SIDE, Bundle
from fedlens_proto.v1 import manifest_pb2 as pb

__all__ = [
    "MODELS",
    "ExportSpec",
    "FileReport",
    "Training",
    "export_bundle",
    "frozen_backbone_bundle",
    "whole_model_bundle",
]

MODELS = (*whole_models.MODELS, *backbones.BACKBONES)
"""Every model that can be exported by name."""


@dataclass(frozen=True, kw_only=True)
class ExportSpec(Training):
    """A model by name and how it trains.

    Attributes:
        model: Of `MODELS`, or `module:function`.
        input_size: Side of the photos in pixels; None: the model's usual one.
        head: For a frozen backbone, `linear` or `hidden`; None: `linear`. For an own model, names of the FC layers that
            train, separated by commas; None: all layers train.
        normalise: For an own model, one of `own_model.NORMALISATIONS`; None: `none`.
        backbone_weights: A file with the backbone's weights, or with all weights of an own model. None: ImageNet's,
            downloaded or from an installed package, unless `pretrain` is set; for an own model, its initial weights.
        pretrain: A folder of public photos, one sub-folder a class, to train the backbone on first.
        pretrain_epochs: Passes over these photos.
        seed: Seed of all weights that are drawn, and of pretraining.
    """

    model: str
    input_size: int | None = None
    head: str | None = None
    normalise: str | None = None
    backbone_weights: Path | None = None
    pretrain: Path | None = None
    pretrain_epochs: int = 5


def export_bundle(folder: Path, spec: ExportSpec, on_stage: OnStage = unheard, on_file: OnFile = unheard) -> Bundle:
    """Export a model by name to `folder`; the same spec gives the same bytes.

    Args:
        folder: Must not exist, be empty, or hold exactly this bundle.
        spec: The model and how it trains.
        on_stage: Receives one line for each stage of the work.
        on_file: Receives a report on each file that passed its comparison with the model.

    Raises:
        ExportError: Any of its kinds; nothing was written.
    """
    check_spec(spec)
    bundle.check_target(folder)
    classes = len(spec.class_names)
    if ":" in spec.model:
        return _own_bundle(folder, spec, on_stage, on_file)
    if spec.model in whole_models.MODELS:
        side = _side(spec.input_size, 32)
        module = whole_models.build(spec.model, classes, side, spec.seed)
        return whole_model_bundle(folder, module, spec, side, name=spec.model, on_stage=on_stage, on_file=on_file)
    side = _side(spec.input_size, 224)
    backbone = backbones.build(spec.model, side, spec.seed)
    normalisation = backbones.normalisation(spec.model)
    if spec.pretrain:
        pretrain.train(
            backbone,
            spec.pretrain,
            side,
            normalisation,
            epochs=spec.pretrain_epochs,
            seed=spec.seed,
            on_stage=on_stage,
        )
    elif spec.backbone_weights:
        backbones.load_weights(spec.model, backbone, spec.backbone_weights)
    else:
        on_stage("fetching the backbone's weights")
        backbones.load_pretrained(spec.model, backbone)
    features = steps.feature_count(backbone, (3, side, side))
    head = backbones.build_head(spec.head or backbones.HEADS[0], features, classes, spec.seed)
    return frozen_backbone_bundle(
        folder,
        backbone,
        head,
        spec,
        side,
        name=spec.model,
        normalisation=normalisation,
        on_stage=on_stage,
        on_file=on_file,
    )


def check_spec(spec: ExportSpec) -> None:
    """Find what is wrong in a spec without building a model.

    Raises:
        UnknownChoice: There is no model, head, objective, optimiser or augmentation of that name.
        NotExportable: Settings are out of range, or contradict each other.
    """
    check_training(spec)
    if ":" in spec.model:
        return
    check_choice("model", spec.model, MODELS)
    if spec.normalise:
        raise NotExportable(f"{spec.model} has its own normalisation; --normalise is for models of your own")
    if spec.model in whole_models.MODELS:
        if spec.head:
            raise NotExportable(f"{spec.model} has no head to choose: its last FC layer is the classifier")
        if spec.backbone_weights or spec.pretrain:
            raise NotExportable(f"{spec.model} has no backbone: it is trained as a whole, from its initial weights")
        _check_no_pte(spec)
        return
    head = spec.head or backbones.HEADS[0]
    check_choice("head", head, backbones.HEADS)
    if objectives.by_name(spec.objective).needs_features and head != "hidden":
        raise NotExportable(
            f"objective {spec.objective!r} compares features, and head {head!r} has none; take head 'hidden'"
        )
    if spec.backbone_weights and spec.pretrain:
        raise NotExportable("a backbone is either read from a file or trained on photos; give one of both")


def _own_bundle(folder: Path, spec: ExportSpec, on_stage: OnStage, on_file: OnFile) -> Bundle:
    if spec.pretrain:
        raise NotExportable("only backbones by name are pretrained here; give trained weights of your model in a file")
    if not spec.head:
        _check_no_pte(spec, "name its FC layers with --head, so that the rest is a frozen backbone")
    classes, side = len(spec.class_names), _side(spec.input_size, 224 if spec.head else 32)
    normalisation = own_model.normalisation(spec.normalise)
    model = own_model.build(spec.model, classes, side, spec.seed)
    layers = own_model.head_layers(model, spec.head) if spec.head else {}
    if spec.backbone_weights and (initial := own_model.load_weights(model, spec.backbone_weights, layers)):
        on_stage(
            f"note: {spec.backbone_weights.name} has no {', '.join(initial)} of the head in this shape; they keep "
            "their initial values"
        )
    if layers and not spec.backbone_weights and _is_drawn(spec, model, layers, side):
        on_stage(
            "note: the frozen backbone has random weights and never trains, so its features say little about photos; "
            "give trained weights with --backbone-weights FILE"
        )
    export = partial(
        frozen_backbone_bundle if layers else whole_model_bundle,
        training=spec,
        input_size=side,
        name=spec.model,
        normalisation=normalisation,
        on_stage=on_stage,
        on_file=on_file,
    )
    modules: tuple[nn.Module, ...]
    with explaining.explained(model, side):
        if layers:
            divided = own_model.divide(model, layers, side, classes)
            modules, left_out = (divided.backbone, divided.head), divided.left_out
        else:
            modules, left_out = (model,), own_model.without_dropout(model, side)
        if left_out:
            on_stage(f"note: trained without the dropout of {', '.join(left_out)}")
        return export(folder, *modules)


def _is_drawn(spec: ExportSpec, model: nn.Module, layers: Container[str], side: int) -> bool:
    """True if weights outside the head depend on the seed of torch's generator, so that they are untrained."""
    other = own_model.build(spec.model, len(spec.class_names), side, spec.seed + 1).state_dict()
    return any(
        not torch.equal(weight, other[name])
        for name, weight in model.named_parameters()
        if name.rpartition(".")[0] not in layers
    )


def whole_model_bundle(
    folder: Path,
    model: nn.Module,
    training: Training,
    input_size: int,
    *,
    name: str = "",
    normalisation: Normalisation = CENTRED,
    on_stage: OnStage = unheard,
    on_file: OnFile = unheard,
) -> Bundle:
    """Export any module from photos to logits; all its layers train. Errors as in `export_bundle`.

    Args:
        folder: As in `export_bundle`.
        model: From normalised photos [N, 3, input_size, input_size] to logits [N, classes], made of FC, Conv2d
            and BatchNorm layers that have names. Its present weights become the initial ones.
        training: Settings of its training.
        input_size: Side of the photos in pixels.
        name: Name of the model, for people.
        normalisation: Normalisation of photos, inside the programs.
        on_stage: As in `export_bundle`.
        on_file: As in `export_bundle`.
    """
    _check_no_pte(training)
    network = Network(model, (3, input_size, input_size), normalisation)
    draft = Draft(network, training, on_stage, on_file)
    draft.add_public(input_size)
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
    on_stage: OnStage = unheard,
    on_file: OnFile = unheard,
) -> Bundle:
    """Export any backbone with any head; only the head trains. Errors as in `export_bundle`.

    Args:
        folder: As in `export_bundle`.
        backbone: From normalised photos [N, 3, input_size, input_size] to features [N, F]; may have no weights at all.
        head: From features [N, F] to logits [N, classes]. Its present weights become the initial ones.
        training: Settings of the head's training.
        input_size: Side of the photos in pixels.
        name: Name of the model, for people.
        normalisation: Normalisation of photos, inside `embed`.
        on_stage: As in `export_bundle`.
        on_file: As in `export_bundle`.
    """
    shape = (3, input_size, input_size)
    network = Network(head, (steps.feature_count(backbone, shape),))
    draft = Draft(network, training, on_stage, on_file)
    for_phones = None
    if training.calibrate:
        on_stage("quantising the backbone")
        photos = calibration.load(training.calibrate, input_size)
        if photos.unreadable:
            on_stage(f"note: left out of the calibration photos, because unreadable: {photos.unreadable}")
        quantised = quantisation.quantise(backbone, photos.observed(normalisation))
        on_stage(f"note: int8: {calibration.cost(backbone, quantised.emulated, photos, normalisation, on_stage)}")
        integers = quantised.program(normalisation, shape)
        for_phones = quantisation.ForPhones(integers, backbone.eval(), normalisation)
        backbone = quantised.emulated
    embed = steps.embed(backbone, normalisation, shape)
    frozen = steps.frozen_tensors(backbone)
    draft.add(embed, frozen, for_phones=for_phones)
    draft.add_public(input_size, lambda photo: embed.function(*frozen.values(), photo)[0])
    if frozen:
        draft.frozen = draft.add_part(blob.encode({key: tensor.numpy() for key, tensor in frozen.items()}))
    return draft.write(folder, pb.BUNDLE_CLASS_FROZEN_BACKBONE, name, input_size)


def _check_no_pte(training: Training, advice: str = "take a frozen backbone") -> None:
    if training.pte:
        raise NotExportable(
            "phones train FC layers only: ExecuTorch takes about 100 times as long as torch to train a whole CNN; "
            f"{advice}, or leave out --target pte"
        )


def _side(chosen: int | None, usual: int) -> int:
    side = usual if chosen is None else chosen
    if not 1 <= side <= MAX_SIDE:
        raise NotExportable(f"an input size of {side} pixels is not allowed; 1 to {MAX_SIDE} are")
    return side
