"""`fedlens fleet`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.options import MAX_SEED, TOKEN_VARIABLE, enrolment_token


class RegimeChoice(StrEnum):
    """The regimes' names, without importing what carries them out."""

    CAMERA_IID = "camera-iid"
    CAMERA_NONIID = "camera-noniid"
    ALBUM = "album"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("fleet")(fleet)


def fleet(
    server: Annotated[str, typer.Option(help="Address of the server, such as https://127.0.0.1:8443.")],
    photos: Annotated[
        Path, typer.Option(help="Folder with a sub-folder of photos per class, or with `train` and `test` of such.")
    ],
    clients: Annotated[int, typer.Option(min=1, max=100_000, help="How many clients to emulate.")] = 20,
    regime: Annotated[RegimeChoice, typer.Option(help="How photos come to the cameras.")] = RegimeChoice.CAMERA_NONIID,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of the cameras and of the clients' identities.")] = 1,
    per_class: Annotated[
        int, typer.Option(min=1, help="n of the regime: photos of each class in a round, on average.")
    ] = 10,
    test_per_class: Annotated[
        int | None, typer.Option(min=1, help="Test photos of each class and client. Default: a fifth of n.")
    ] = None,
    faults: Annotated[Path | None, typer.Option(help="Fault plan (TOML): who misbehaves in which round.")] = None,
    state: Annotated[
        Path, typer.Option(help="Folder for what must outlive the fleet: secrets, outboxes, caches.")
    ] = Path("fleet-state"),
    ca: Annotated[Path | None, typer.Option(help="Certificate (PEM) to trust instead of the system's.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the trainers' enrolment token. Default: ${TOKEN_VARIABLE}.")
    ] = None,
    evaluator_token_file: Annotated[
        Path | None, typer.Option(help="File with an evaluator's token: one client more, with all test photos.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one per core.")] = None,
    task: Annotated[int | None, typer.Option(min=1, help="Take work of the task with this id alone.")] = None,
) -> None:
    """Run many emulated clients on this machine, each a whole client over real HTTP.

    Ctrl-C ends every client after the step in which it is; the same command goes on from there.
    """
    from rich.console import Console

    from fedlens_edge_client.errors import EdgeClientError
    from fedlens_edge_client.faults import FaultPlan
    from fedlens_edge_client.fleet.config import FleetConfig, default_workers, fleet_key
    from fedlens_edge_client.fleet.session import run_session
    from fedlens_edge_client.regimes import PhotoPool, Regime, RegimeName

    try:
        pool = PhotoPool.open(photos)
        chosen = Regime(name=RegimeName(regime), seed=seed, per_class=per_class, test_per_class=test_per_class)
        chosen.album(pool, 0)
        config = FleetConfig(
            server=server,
            clients=clients,
            pool=pool,
            regime=chosen,
            plan=FaultPlan() if faults is None else FaultPlan.load(faults),
            key=fleet_key(state),
            state=state,
            workers=workers or default_workers(clients),
            token=enrolment_token(token_file),
            evaluator_token=None if evaluator_token_file is None else enrolment_token(evaluator_token_file),
            ca=ca,
            task=task,
        )
        status = run_session(config, Console())
    except EdgeClientError as error:
        typer.echo(f"fedlens: {error}", err=True)
        raise typer.Exit(1) from error
    raise typer.Exit(status)
