"""`fedlens export`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedlens.commands.options import MAX_SEED, reported
from fedlens.commands.publisher import AnyApp, Audience, signed_as

if TYPE_CHECKING:
    from rich.console import Console

    from fedlens_export.report import FileReport
    from fedlens_proto.manifest import Bundle

_MODELS = (
    "Trained as a whole: lenet5, lenet5_bn, fedns_cnn, small_plain, small_residual, small_separable, small_inception, "
    "vgg9, fedns_alexnet. Frozen backbones: resnet18, resnet50, shufflenet_v2, googlenet, alexnet, mobilenet_v3_small, "
    "mobilenet_v3_large, mobilenet_v2, efficientnet_b0, efficientnet_lite0; the first six trained as a whole: "
    "resnet18_whole and so on. "
    "Your own: MODULE:FUNCTION, imported from here or PYTHONPATH."
)


def export(
    model: Annotated[str, typer.Option(help=_MODELS)],
    classes_from: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder whose sub-folders name the classes, in sorted order.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the bundle.")] = Path("bundle"),
    input_size: Annotated[
        int | None, typer.Option(help="Side of the photos in pixels. Default: 224 for backbones, 32 for all others.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Photos in a training step.")] = 32,
    objective: Annotated[
        str,
        typer.Option(
            help="cross_entropy, proximal, classifier_proximal, supcon, supcon_raw, dynamic, moon, restricted_softmax, "
            "calibrated_logits, meta_fo, meta_hf, prototypes, distil, distil_probabilities, distil_scores, "
            "distil_scores_squared or generated, see docs/bundle.md; that of an installed package; or MODULE:NAME, "
            "imported from here or PYTHONPATH."
        ),
    ] = "cross_entropy",
    optimiser: Annotated[str, typer.Option(help="sgd or adam.")] = "sgd",
    head: Annotated[
        str | None,
        typer.Option(
            help="On a backbone: linear, or hidden (512 units). Default: linear. Of your own model: its FC layers that "
            "train, as in fc1,fc2. Default: all layers train."
        ),
    ] = None,
    normalise: Annotated[
        str | None,
        typer.Option(help="Normalisation of photos in 0..1 for your own model: none, imagenet or centred."),
    ] = None,
    backbone_weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="State dict of the backbone, or of your own model. Default: ImageNet's, for a backbone.",
        ),
    ] = None,
    pretrain: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Train the backbone on these public photos first.")
    ] = None,
    pretrain_epochs: Annotated[int, typer.Option(help="Epochs of pretraining.")] = 5,
    concatenated: Annotated[
        int,
        typer.Option(
            help="Export FedConcat's second bundle: one classifier on at most this number of extractors of the model."
        ),
    ] = 0,
    augmentation: Annotated[
        str | None,
        typer.Option(
            help="Train on augmented views of the photos: crop-flip, or contrast (crop, flip, colours). Default: "
            "contrast for supcon, none for the others."
        ),
    ] = None,
    stored_views: Annotated[
        int, typer.Option(help="On a backbone, with augmentation: number of views of each photo to embed.")
    ] = 8,
    candidates: Annotated[
        int, typer.Option(help="Add programs that compare and blend at most this number of models.")
    ] = 0,
    public: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Public photos for all clients; sub-folders named like classes label them."),
    ] = None,
    program: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further program, besides the objective's own: class_sums, class_means, predict_nearest, "
            "predictions, scores, norm_sums, norm_statistics, dual_update, or another as for --objective. May be given "
            "several times.",
        ),
    ] = None,
    display_names: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Names of the classes that apps show, by language: JSON such as "
            '{"de": {"cat": "Katze", "dog": "Hund"}}.',
        ),
    ] = None,
    target: Annotated[
        Literal["pt2", "pte"],
        typer.Option(help="pt2: programs for computers; pte: for phones too (ExecuTorch), of frozen backbones only."),
    ] = "pt2",
    onnx: Annotated[bool, typer.Option(help="Add programs that the server can run itself.")] = True,
    quantize: Annotated[
        str | None, typer.Option(metavar="int8", help="Compute the frozen backbone in int8; needs --calibrate.")
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Photos to calibrate int8; with a sub-folder for each class, prints the lost accuracy.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Print each program's difference to the model; too large a difference is refused in any case.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of random weights.", min=0, max=MAX_SEED)] = 0,
    sign: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sign the bundle with this .key file; see `fedlens sign`.")
    ] = None,
    audience: Audience = None,
    any_app: AnyApp = False,
) -> None:
    """Turn a model and a training objective into a bundle of programs that every client can run."""
    from rich.console import Console

    from fedlens_export.errors import ExportError, NotSigned
    from fedlens_export.signing import FOR_NOBODY, Terms, private_key
    from fedlens_proto.errors import ProtoError
    from fedlens_proto.manifest import STATEMENT_FILE
    from fedlens_proto.photos import class_folders

    console = Console(stderr=True)
    files: list[FileReport] = []
    with reported(ExportError, ProtoError, OSError):
        # What is wrong with a statement is told before minutes of work.
        terms = Terms(audience=tuple(audience or ()), any_app=any_app)
        if sign is not None:
            private_key(sign)
            if not (audience or any_app or (out / STATEMENT_FILE).is_file()):
                raise NotSigned(FOR_NOBODY)
        elif audience or any_app:
            raise NotSigned("--audience and --any-app are for a signed bundle: give --sign, too")
        names = tuple(folder.name for folder in class_folders(classes_from))
        # Late, because torch takes seconds to import and a wrong folder should be refused at once.
        from fedlens_export import display_names as named
        from fedlens_export.exporting import ExportSpec, export_bundle

        spec = ExportSpec(
            model=model,
            class_names=names,
            input_size=input_size,
            batch=batch,
            objective=objective,
            optimiser=optimiser,
            head=head,
            normalise=normalise,
            backbone_weights=backbone_weights,
            pretrain=pretrain,
            pretrain_epochs=pretrain_epochs,
            seed=seed,
            onnx=onnx,
            concatenated=concatenated,
            augmentation=augmentation,
            stored_views=stored_views,
            pte=target == "pte",
            quantise=quantize,
            calibrate=calibrate,
            candidates=candidates,
            public=public,
            programs=tuple(program or ()),
            display_names=named.read(display_names) if display_names else {},
        )
        with console.status(f"exporting {model}") as status:

            def show(stage: str) -> None:
                status.update(stage)
                if not console.is_terminal or stage.startswith("note: "):
                    console.print(stage, highlight=False, markup=False, soft_wrap=True)

            bundle = export_bundle(out, spec, on_stage=show, on_file=files.append)
        statement = [] if sign is None else signed_as(bundle, sign, terms)
    if check:
        _print_differences(Console(), files)
    _describe(Console(), bundle, files)
    for line in statement:
        Console().out(line)


def _print_differences(console: "Console", files: "Sequence[FileReport]") -> None:
    from rich.table import Table

    from fedlens.reports.bundle_report import format_name
    from fedlens_export.programs.parity import EPOCH_BATCHES

    table = Table("program", "format", "largest difference", f"after {EPOCH_BATCHES} steps", "allowed", box=None)
    for file in files:
        difference = "not compared" if file.difference is None else f"{file.difference:.1e}"
        after = "" if file.after_epoch is None else f"{file.after_epoch:.1e}"
        table.add_row(file.program, format_name(file.format), difference, after, file.allowed or "")
    console.print(table)
    console.out("differences are relative to the greatest value of an output, or to 1")


def _describe(console: "Console", bundle: "Bundle", files: "Sequence[FileReport]") -> None:
    from math import prod

    from rich.table import Table

    from fedlens.reports.blob_report import shape_text
    from fedlens.reports.bundle_report import tensor_values

    manifest = bundle.manifest
    table = Table("tensor", "shape", "kind", "role", box=None)
    for tensor in map(tensor_values, manifest.tensors):
        table.add_row(tensor["name"], shape_text(tensor["shape"]), tensor["kind"], tensor["role"])
    sizes = {part.sha256: part.size for part in manifest.parts}
    programs = ", ".join(f"{p.name} {sizes[p.files[0].sha256] / 1000:.0f} kB" for p in manifest.programs)
    frozen = f", frozen backbone {sizes[manifest.frozen] / 1000:.0f} kB" if manifest.frozen else ""
    console.print(table)
    print_plainly = console.out
    print_plainly(
        f"weights     {sum(prod(t.shape) for t in manifest.tensors)}, {sizes[manifest.initial] / 1000:.0f} kB"
    )
    print_plainly(f"programs    {programs}{frozen}")
    if manifest.HasField("public"):
        print_plainly(f"public      {manifest.public.rows} photos, {sizes[manifest.public.sha256] / 1000:.0f} kB")
    print_plainly(f"classes     {len(manifest.class_names)}: {', '.join(manifest.class_names)}")
    print_plainly(f"bundle id   {bundle.id.hex()}")
    print_plainly(f"folder      {bundle.folder}")
    for file in files:
        if file.delegation is not None:
            print_plainly(f"on phones   {file.program}, {file.size / 1000:.0f} kB: {file.delegation}")
