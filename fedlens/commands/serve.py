"""`fedlens serve`: run a server, or write its files."""

import gc
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedlens.commands.options import HOUR_LASTS_HELP, HOUR_S, reported

# As `telemetry.log_lines.LogFormat`, without importing the server.
LogFormatChoice = Literal["human", "json"]


def serve(
    config: Annotated[Path | None, typer.Option(help="Configuration of the server. Default: ./fedlens.toml.")] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a configuration, tokens, a publisher's key, an empty state and, for loopback, a certificate "
            "into DIR, and exit.",
        ),
    ] = None,
    new_data: Annotated[
        bool, typer.Option("--new-data", help="Make an empty state in the configuration's server.data, and exit.")
    ] = False,
    host: Annotated[str | None, typer.Option(help="With --init: address for clients, else 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="With --init: port for clients, else 8443.")
    ] = None,
    admin_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="With --init: port for operators, else 8444.")
    ] = None,
    log_format: Annotated[
        LogFormatChoice, typer.Option(help="Form of the lines of the log, which is on standard error.")
    ] = "human",
    hour_lasts: Annotated[float, typer.Option(min=0.1, max=HOUR_S, help=HOUR_LASTS_HELP)] = HOUR_S,
) -> None:
    """Serve clients and operators until SIGTERM or Ctrl-C."""
    from fedlens_server.config import ConfigError

    with reported(ConfigError):
        if init is None and not (host is None and port is None and admin_port is None):
            raise ConfigError(
                "--host, --port and --admin-port go with --init; without it, set them in the configuration"
            )
        if init is None and new_data:
            _make_data(config or Path("fedlens.toml"))
        elif init is None:
            _serve(config or Path("fedlens.toml"), log_format, hour_lasts)
        elif config is not None or new_data:
            raise ConfigError("--init and --config, --init and --new-data exclude each other")
        else:
            ports = (8443 if port is None else port, 8444 if admin_port is None else admin_port)
            _initialise(init, host or "127.0.0.1", *ports)


def _serve(path: Path, log_format: LogFormatChoice, hour_lasts_s: float) -> None:
    import asyncio

    from fedlens_server.clock import FastClock
    from fedlens_server.config import ConfigError, load
    from fedlens_server.daemon import serve as serve_until_signal
    from fedlens_server.errors import StoreUnusable
    from fedlens_server.telemetry.log_lines import log_to

    # There is little garbage in cycles; to look for it every 700 new objects took 12 % of a server's processor time.
    gc.set_threshold(10_000, 10, 10)
    log_to(sys.stderr, log_format)
    clock = None if hour_lasts_s == HOUR_S else FastClock(hour_lasts_s)
    try:
        # Flushed, because a parent process may wait for this line.
        asyncio.run(serve_until_signal(load(path), partial(print, flush=True), clock=clock))
    except StoreUnusable as error:
        raise ConfigError(str(error)) from error


def _make_data(path: Path) -> None:
    from fedlens_server.config import load
    from fedlens_server.init import make_data

    state = load(path).server.state
    make_data(state)
    typer.echo(f"made an empty state in {state.open_database().place}; next: fedlens serve --config {path}")


def _initialise(folder: Path, host: str, port: int, admin_port: int) -> None:
    from fedlens_proto.wire import is_loopback
    from fedlens_server.init import initialise

    written = initialise(folder, host, port, admin_port, publisher=True)
    typer.echo("wrote " + ", ".join(str(path) for path in written))
    if not is_loopback(host):
        typer.echo(
            f"{host} is reached from outside: put a certificate for its name into {folder / 'server.pem'} and its key "
            f"into {folder / 'server.key'}, or set server.behind_proxy = true and remove both keys"
        )
    typer.echo(f"next: fedlens serve --config {written[0]}")
