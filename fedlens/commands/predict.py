"""`fedlens predict`."""

from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.options import ENGINE_HELP, AsJson, EngineChoice, print_json, reported


def predict(
    photos: Annotated[list[Path], typer.Argument(metavar="PHOTO...", help="Photos to classify.")],
    model: Annotated[Path, typer.Option(help="File of `fedlens task model`: a blob, or .safetensors.")],
    bundle: Annotated[Path, typer.Option(help="Folder of the model's bundle.")] = Path("bundle"),
    engine: Annotated[EngineChoice, typer.Option(help=ENGINE_HELP)] = "torch",
    as_json: AsJson = False,
) -> None:
    """Classify photos: print the most likely class of each, and its probability.

    Names unreadable photos, classifies the others, and exits with status 1.
    """
    from fedlens.model_file import open_bundle
    from fedlens_edge_client.engines.choice import EngineName, make_engine
    from fedlens_edge_client.errors import EdgeClientError
    from fedlens_edge_client.storage.model_file import read_model
    from fedlens_edge_client.training.prediction import predict as classify
    from fedlens_proto.errors import PhotoUnreadable, ProtoError

    results: list[dict[str, object]] = []
    failed = False
    with reported(EdgeClientError, ProtoError):
        opened = open_bundle(bundle)
        found = read_model(model, opened)
        runner = make_engine(EngineName(engine), opened)
        for photo in photos:
            try:
                probabilities = classify(runner, found.weights, photo, found.extractors)
            except (PhotoUnreadable, OSError) as error:
                failed = True
                # The error's own text has the file's name alone, of which there may be many.
                reason = f"there is no file {photo}" if isinstance(error, FileNotFoundError) else f"{photo}: {error}"
                typer.echo(f"fedlens: {reason}", err=True)
                continue
            best = max(probabilities, key=probabilities.__getitem__)
            highest = probabilities[best]
            results.append({"photo": str(photo), "class": best, "probability": highest, "probabilities": probabilities})
            if not as_json:
                typer.echo(f"{photo}: {best} ({highest:.1%})")
    if as_json:
        print_json(results)
    if failed:
        raise typer.Exit(1)
