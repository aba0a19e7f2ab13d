"""`fedlens demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedlens.commands.options import ENGINE_HELP, MAX_SEED, EngineChoice, reported

if TYPE_CHECKING:
    from rich.console import Console

    from fedlens.demo.demo import DemoResult


def demo(
    photos: Annotated[
        Path | None,
        typer.Option(
            help="Your own photos: a folder with a sub-folder per class, with two such folders `train` and `test`, or "
            "with one such folder per person; or a table (CSV) of files and people. Default: scikit-learn's digits."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo"),
    clients: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=10_000,
            help="Maximum number of clients. Default: 20; with photos of several people one per person, up to 50.",
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Rounds. Default: 20; 10 for the digits.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Seed of the partition, the weights and the task.")
    ] = 1,
    side: Annotated[
        int | None,
        typer.Option(
            min=32, max=1024, help="Side of the backbone's input in pixels. Default: 224 for large photos, else 160."
        ),
    ] = None,
    engine: Annotated[EngineChoice, typer.Option(help=ENGINE_HELP)] = "torch",
    most_photos: Annotated[int, typer.Option(min=10, help="Maximum number of your photos to use.")] = 3000,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of the fleet. Default: one per core.")] = None,
) -> None:
    """Run a whole federation on this machine, with server, clients and evaluator, and write a report.

    Your own photos train a small head on EfficientNet-Lite0's ImageNet features; the digits train a whole LeNet-5.
    """
    from rich.console import Console

    from fedlens.demo.demo import DemoConfig, run_demo
    from fedlens.errors import FedlensError
    from fedlens_edge_client.engines.choice import EngineName, check_installed
    from fedlens_edge_client.errors import EdgeClientError
    from fedlens_export.errors import ExportError

    console = Console()
    config = DemoConfig(
        photos=photos,
        out=out,
        clients=clients,
        rounds=rounds,
        seed=seed,
        side=side,
        engine=EngineName(engine),
        most_photos=most_photos,
        workers=workers,
    )
    with reported(EdgeClientError, ExportError, FedlensError, interrupted="the demo was stopped"):
        check_installed(config.engine)
        _summarise(console, run_demo(config, console))


def _summarise(console: "Console", result: "DemoResult") -> None:
    from rich.table import Table

    from fedlens.reports.tables import readable_bytes
    from fedlens_edge_client.emulation.fleet.display import say

    table = Table("round", "global model", "before", "after", "up", "down", "seconds", title="accuracy on test photos")
    for column in table.columns:
        column.justify = "right"
    for entry in result.facts.rounds:
        accuracies = (f"{a.ratio:.1%}" if a else "-" for a in (entry.model, entry.before, entry.after))
        up, down = readable_bytes(entry.bytes_up), readable_bytes(entry.bytes_down)
        table.add_row(str(entry.number), *accuracies, up, down, f"{entry.seconds:.2f}")
    console.print(table)
    compared = result.comparison
    if compared.pooled is not None:
        say(
            console,
            f"together {compared.together.accuracy():.1%}; alone {compared.alone_accuracy:.1%}, the mean client; "
            f"{compared.pooled.accuracy():.1%} if all photos were sent to one server",
        )
    say(
        console,
        f"the report is {result.report}; the model is for `fedlens predict --model {result.model} "
        f"--bundle {result.bundle} PHOTO`",
    )
