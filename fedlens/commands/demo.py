"""`fedlens demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedlens.commands.options import MAX_SEED

if TYPE_CHECKING:
    from rich.console import Console

    from fedlens.demo.results import TaskFacts


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("demo")(demo)


def demo(
    photos: Annotated[
        Path | None,
        typer.Option(
            help="Folder with a sub-folder of photos per class, or with `train` and `test` of such. "
            "Default: scikit-learn's digits."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo"),
    clients: Annotated[int, typer.Option(min=2, max=10_000, help="Clients, at most.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, max=10_000, help="Rounds.")] = 10,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of the cameras, the weights and the task.")] = 1,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of the fleet. Default: one per core.")] = None,
) -> None:
    """Run a whole federation on this machine and write a report: export, server, fleet, evaluator."""
    from rich.console import Console

    from fedlens.admin_client import AdminError
    from fedlens.demo.demo import DemoConfig, DemoFailed, PartDied, run_demo
    from fedlens.demo.workplace import WorkplaceTaken
    from fedlens_edge_client.errors import EdgeClientError

    console = Console()
    config = DemoConfig(photos=photos, out=out, clients=clients, rounds=rounds, seed=seed, workers=workers)
    try:
        facts, report = run_demo(config, console)
    except (AdminError, DemoFailed, EdgeClientError, PartDied, WorkplaceTaken) as error:
        typer.echo(f"fedlens: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo("fedlens: the demo was stopped", err=True)
        raise typer.Exit(130) from error
    _summarise(console, facts, report)


def _summarise(console: "Console", facts: "TaskFacts", report: Path) -> None:
    from rich.table import Table

    from fedlens.demo.report import readable_bytes

    table = Table("round", "global model", "before", "after", "up", "down", "seconds", title="accuracy on test photos")
    for column in table.columns:
        column.justify = "right"
    for entry in facts.rounds:
        shares = (f"{a.share:.1%}" if a else "-" for a in (entry.model, entry.before, entry.after))
        up, down = readable_bytes(entry.bytes_up), readable_bytes(entry.bytes_down)
        table.add_row(str(entry.number), *shares, up, down, f"{entry.seconds:.2f}")
    console.print(table)
    console.print(f"the report is {report}", highlight=False, soft_wrap=True)
