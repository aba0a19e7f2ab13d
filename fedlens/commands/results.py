"""`fedlens results`."""

from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.options import reported


def results(
    studies: Annotated[
        list[Path], typer.Argument(metavar="STUDY...", help="Folders of studies of the same photos, or results.json.")
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to show, such as personal_accuracy; may be given several times. Default: all there are."
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Method that the others are compared with, seed by seed.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write results.csv, differences.csv and rounds.csv to.")
    ] = None,
) -> None:
    """Show the results of finished studies, or of finished runs of one that goes on."""
    from rich.console import Console
    from rich.markdown import Markdown

    from fedlens.compare import kept
    from fedlens.compare.columns import Column
    from fedlens.compare.report import exports, tables
    from fedlens.compare.study import StudyError, with_baseline
    from fedlens.errors import FedlensError

    with reported(FedlensError):
        found = kept.load_all(studies)
        if not found.runs:
            raise StudyError(f"{', '.join(map(str, studies))}: no run has ended; `fedlens compare` goes on with them")
        columns: list[Column] = [kept.column(name) for name in column or ()]
        study = found.study if baseline is None else with_baseline(found.study, baseline)
        console = Console()
        text = tables.markdown(study, found.summaries, columns)
        console.print(Markdown(text) if console.is_terminal else text, soft_wrap=True, markup=False, highlight=False)
        if csv is not None:
            exports.write_csv_files(csv, study, found.runs, found.summaries)
