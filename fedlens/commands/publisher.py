"""`fedlens keys` and `fedlens sign`: the keys of those who publish bundles, and what they sign."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedlens.commands.options import reported

if TYPE_CHECKING:
    from fedlens_export.signing import Terms
    from fedlens_proto.manifest import Bundle

keys_app = typer.Typer(help="Make the keys with which a publisher signs bundles.", no_args_is_help=True)

Audience = Annotated[
    list[str] | None,
    typer.Option(metavar="ID", help="Application or federation that may run the bundle. May be given several times."),
]
AnyApp = Annotated[bool, typer.Option("--any-app", help="Every application may run the bundle.")]


@keys_app.command()
def new(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Writes NAME.key, the secret, and NAME.pub, for apps.")],
) -> None:
    """Make a publisher's key, and print its id."""
    from fedlens_export.errors import ExportError
    from fedlens_export.signing import new_key

    with reported(ExportError):
        publisher = new_key(name)
        typer.echo(f"publisher {publisher.id.hex()}")
        typer.echo(f"{name}.key signs bundles: keep it secret, and a copy of it elsewhere")
        typer.echo(f"{name}.pub verifies them: give it to apps and servers")


@keys_app.command()
def show(file: Annotated[Path, typer.Argument(metavar="FILE", help="A .pub file.")]) -> None:
    """Print the id of a publisher."""
    from fedlens_proto.errors import ProtoError
    from fedlens_proto.programs.statements import Publisher

    with reported(ProtoError, OSError):
        typer.echo(f"publisher {Publisher.of_file(file).id.hex()}")


def sign(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The publisher's .key file.")],
    audience: Audience = None,
    any_app: AnyApp = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the bundle. Default: as before, or that of its model.")
    ] = None,
    serial: Annotated[
        int | None,
        typer.Option(min=1, max=2**63 - 1, help="Default: as before, or the seconds since 1970, so that it grows."),
    ] = None,
    floor: Annotated[
        int | None,
        typer.Option(min=0, max=2**63 - 1, help="Least serial that clients take from then on. Default: as before."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days from now on for which clients train with it.")] = 90,
) -> None:
    """Sign a bundle, or sign it anew before its statement ends; what is not given stays as it was."""
    from fedlens_export.errors import ExportError
    from fedlens_export.signing import Terms
    from fedlens_proto.errors import ProtoError
    from fedlens_proto.manifest import Bundle

    terms = Terms(name=name, serial=serial, floor=floor, audience=tuple(audience or ()), any_app=any_app, days=days)
    with reported(ExportError, ProtoError, OSError):
        for line in signed_as(Bundle.open(bundle), key, terms):
            typer.echo(line)


def signed_as(bundle: "Bundle", key: Path, terms: "Terms") -> list[str]:
    """Sign a bundle; returns lines that say how. Errors as of `sign_bundle`."""
    from fedlens.publishing import sign_bundle
    from fedlens.reports.statement_report import statement_lines, statement_values

    values = statement_values(sign_bundle(bundle, key, terms), bundle.id)
    return [f"{heading:<16}{text}" for heading, text in statement_lines(values)]
