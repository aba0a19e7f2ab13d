"""`fedlens client`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedlens.commands.options import ENGINE_HELP, TOKEN_VARIABLE, EngineChoice, enrolment_token, reported

if TYPE_CHECKING:
    from fedlens.reports.client_report import ClientReport
    from fedlens_edge_client.client.client import EdgeClient, Outcome

MAX_VERSION = (1 << 32) - 1


def client(
    context: typer.Context,
    server: Annotated[
        str, typer.Option(help="Address of the server, such as https://127.0.0.1:8443. Required.", show_default=False)
    ] = "",
    photos: Annotated[
        Path,
        typer.Option(
            help="Folder with a sub-folder of photos for each class; photos may come and go. Required.",
            show_default=False,
        ),
    ] = Path(),
    state: Annotated[
        Path, typer.Option(help="Folder for the client's state: secret, outbox, caches. Required.", show_default=False)
    ] = Path(),
    publisher: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="The .pub file of somebody whose signed bundles may run here; may be given several times.",
        ),
    ] = None,
    trust_server: Annotated[
        bool, typer.Option("--trust-server", help="Instead of publishers: run every bundle that the server names.")
    ] = False,
    audience: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Application or federation for which bundles are meant here; may be given several times."
        ),
    ] = None,
    floors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Remembers what publishers withdrew, for all servers. Default: floors.sqlite3 in a folder of this "
            "user's.",
            show_default=False,
        ),
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificate (PEM) to trust instead of the system's.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the enrolment token, needed the first time and after a change of models, tables or engine; "
            f"or set ${TOKEN_VARIABLE}."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Name of a model to train; may be given several times. Default: any."),
    ] = None,
    allow_table: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a table that the server may learn, or state/NAME of client state that may be part of what it "
            "gets; may be given several times. Default: none."
        ),
    ] = None,
    engine: Annotated[EngineChoice, typer.Option(help=ENGINE_HELP)] = "torch",
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process", help="Run programs in this process instead of one without network, files and secret."
        ),
    ] = False,
    client_version: Annotated[
        int,
        typer.Option(min=0, max=MAX_VERSION, help="Version of the app, for tasks that require a minimum one."),
    ] = 0,
    once: Annotated[bool, typer.Option("--once", help="End after one round.")] = False,
    task: Annotated[int | None, typer.Option(min=1, help="Id of the only task to take part in. Default: all.")] = None,
) -> None:
    """Take part in a federation with the photos of a folder, until every task has ended.

    Ctrl-C ends it cleanly; the same command goes on from there and sends unsent updates. The commands below are for
    operators: they show and ban the clients of a server.
    """
    if context.invoked_subcommand is not None:
        return
    for option, given in (("--server", server), ("--photos", photos), ("--state", state)):
        if given in ("", Path()):
            raise typer.BadParameter(f"Missing option '{option}'.")
    if bool(publisher) == trust_server:
        raise typer.BadParameter("Give --publisher FILE, or --trust-server to run every bundle that the server names.")
    import asyncio

    from rich.console import Console

    from fedlens.reports.client_report import ClientReport
    from fedlens_edge_client.client.client import EdgeClient
    from fedlens_edge_client.client.events import RoundFailed, RoundRefused
    from fedlens_edge_client.engines.choice import EngineName, check_installed
    from fedlens_edge_client.errors import AlbumError, EdgeClientError
    from fedlens_edge_client.policy import Policy
    from fedlens_edge_client.storage.floors import FLOORS_FILE
    from fedlens_edge_client.storage.folder_album import FolderAlbum
    from fedlens_edge_client.trust import TRUST_SERVER
    from fedlens_proto.errors import ProtoError
    from fedlens_proto.programs.statements import Publisher

    console = Console(highlight=False)
    with reported(
        EdgeClientError, ProtoError, OSError, interrupted="stopped; nothing is lost, the same command goes on from here"
    ):
        check_installed(EngineName(engine), in_process=in_process)
        publishers = [Publisher.of_file(file) for file in publisher or ()]
        album = FolderAlbum(photos)
        snapshot = album.photos(0)
        report = ClientReport(console, photos, EngineName(engine))
        report.skipped(snapshot.skipped)
        if not snapshot.photos:
            raise AlbumError(f"{photos} holds no photo: put photos (jpg, png, webp, bmp) into one sub-folder per class")
        with report:
            member = EdgeClient(
                server,
                state,
                album,
                publishers=publishers or TRUST_SERVER,
                audience=audience or (),
                floors=floors or Path(typer.get_app_dir("fedlens"), FLOORS_FILE),
                enrolment_token=enrolment_token(token_file),
                ca=ca,
                task=task,
                models=model or (),
                client_version=client_version,
                policy=Policy(tables=frozenset(allow_table or ())),
                engine=EngineName(engine),
                in_process=in_process,
                on_event=report.happened,
            )
            outcome = asyncio.run(_take_part(member, report, once))
    if isinstance(outcome, RoundFailed | RoundRefused):
        raise typer.Exit(1)


async def _take_part(member: "EdgeClient", report: "ClientReport", once: bool) -> "Outcome":
    import asyncio

    from fedlens_edge_client.client.unattended import take_part

    looking = asyncio.create_task(report.look_on())
    try:
        async with member:
            return await take_part(member, once=once)
    finally:
        looking.cancel()
