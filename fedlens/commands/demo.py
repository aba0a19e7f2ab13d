"""`fedlens demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedlens.commands.options import ENGINE_HELP, MAX_SEED, EngineChoice

if TYPE_CHECKING:
    from rich.console import Console

    from fedlens.demo.demo import Shown


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("demo")(demo)


def demo(
    photos: Annotated[
        Path | None,
        typer.Option(
            help="Your own photos: a folder with a sub-folder per class, or with `train` and `test` of such, or with a "
            "sub-folder per person with a sub-folder per class; or a table (CSV) of files and people. Default: "
            "scikit-learn's digits."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo"),
    clients: Annotated[
        int | None,
        typer.Option(
            min=2, max=10_000, help="Clients, at most. Default: 20; one per person, up to 50, where photos tell people."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Rounds. Default: 20; 10 for the digits.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of the cameras, the weights and the task.")] = 1,
    side: Annotated[
        int | None,
        typer.Option(
            min=32, max=1024, help="Pixels a side that the backbone takes. Default: 224 for photos as large, else 160."
        ),
    ] = None,
    engine: Annotated[EngineChoice, typer.Option(help=ENGINE_HELP)] = EngineChoice.TORCH,
    most_photos: Annotated[int, typer.Option(min=10, help="Take no more of your photos.")] = 3000,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of the fleet. Default: one per core.")] = None,
) -> None:
    """Run a whole federation on this machine and write a report: export, server, fleet, evaluator.

    Your own photos train a small head on EfficientNet-Lite0's ImageNet features; the digits a whole LeNet-5.
    """
    from rich.console import Console

    from fedlens.admin_client import AdminError
    from fedlens.demo.demo import DemoConfig, DemoFailed, PartDied, run_demo
    from fedlens.demo.embedding import EmbeddingFailed
    from fedlens.demo.workplace import WorkplaceTaken
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
    try:
        check_installed(config.engine)
        shown = run_demo(config, console)
    except (AdminError, DemoFailed, EdgeClientError, EmbeddingFailed, ExportError, PartDied, WorkplaceTaken) as error:
        typer.echo(f"fedlens: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo("fedlens: the demo was stopped", err=True)
        raise typer.Exit(130) from error
    _summarise(console, shown)


def _summarise(console: "Console", shown: "Shown") -> None:
    from rich.table import Table

    from fedlens.demo.report import readable_bytes

    table = Table("round", "global model", "before", "after", "up", "down", "seconds", title="accuracy on test photos")
    for column in table.columns:
        column.justify = "right"
    for entry in shown.facts.rounds:
        shares = (f"{a.share:.1%}" if a else "-" for a in (entry.model, entry.before, entry.after))
        up, down = readable_bytes(entry.bytes_up), readable_bytes(entry.bytes_down)
        table.add_row(str(entry.number), *shares, up, down, f"{entry.seconds:.2f}")
    console.print(table)
    compared = shown.comparison
    if compared.pooled is not None:
        console.print(
            f"together {compared.together.share():.1%}; alone {compared.alone_share:.1%}, the mean client; "
            f"{compared.pooled.share():.1%} if all photos were sent to one server",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"the report is {shown.report}; the model is for `fedlens predict --model {shown.model} "
        f"--bundle {shown.bundle} PHOTO`",
        highlight=False,
        soft_wrap=True,
    )
