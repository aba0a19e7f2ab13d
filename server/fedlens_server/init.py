"""`fedlens serve --init DIR`: a ready config with tokens, an empty state and, on loopback, a certificate."""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import trustme

from fedlens_proto.programs.statements import key_pair
from fedlens_proto.v1 import admission_pb2
from fedlens_proto.wire import is_loopback
from fedlens_server.clock import SystemClock
from fedlens_server.config import ConfigError
from fedlens_server.engine.operators import tokens
from fedlens_server.errors import StoreUnusable, Unavailable
from fedlens_server.store import StateAddress, Store, Transaction
from fedlens_server.store.database import check_access, holds_state

CONFIG = "fedlens.toml"
DATA = "data"
PROFILE = "admin.toml"
PUBLISHER_KEY, PUBLISHER = "publisher.key", "publisher.pub"
_ROLES = {"trainer": admission_pb2.TOKEN_ROLE_TRAINER, "evaluator": admission_pb2.TOKEN_ROLE_EVALUATOR}
_SECRET = 0o600
_PUBLIC = 0o644
_PUBLISHERS = f"""
# New tasks take bundles that this key's owner signed. Beside the server, {PUBLISHER_KEY} guards against mistakes alone:
# keep it where bundles are made.
publishers = ["{PUBLISHER}"]
"""
_TEMPLATE = """\
# Written by `fedlens serve --init`. docs/operate.md lists all keys. Relative paths are relative to this file.

[server]
host = {host}
port = {port}
certfile = "server.pem"
keyfile = "server.key"
data = "{data}"
{publishers}
[admin]
host = "127.0.0.1"
port = {admin_port}
token_sha256 = "{admin}"

# Clients enrol with tokens that are in the database, not here: `fedlens token` shows, makes and revokes them.
"""


def initialise(
    folder: Path, host: str = "127.0.0.1", port: int = 8443, admin_port: int = 8444, *, publisher: bool = False
) -> list[Path]:
    """Write a config, tokens, an admin profile and an empty state; for a loopback `host` also a certificate.

    Writes all files or none. Returns their paths, the config first and the folder of the state last. With `publisher`
    there is a key that signs bundles, and the server takes no others.

    Raises:
        ConfigError: A file or a state exists already, or the folder cannot be written.
    """
    new = {name: secrets.token_urlsafe(32) for name in ("admin", *_ROLES)}
    admin = tokens.hashed(new["admin"])
    config = _TEMPLATE.format(
        host=json.dumps(host),
        port=port,
        admin_port=admin_port,
        data=DATA,
        admin=admin,
        publishers=_PUBLISHERS if publisher else "",
    )
    if port == admin_port != 0:
        raise ConfigError(f"--admin-port: found {admin_port}, the same as --port; clients and operators need two")
    profile = f'url = "https://127.0.0.1:{admin_port}"\n'
    files = {CONFIG: (config.encode(), _PUBLIC)}
    files |= {f"{name}.token": (f"{token}\n".encode(), _SECRET) for name, token in new.items()}
    if publisher:
        private, public = key_pair()
        files |= {PUBLISHER_KEY: (private, _SECRET), PUBLISHER: (public, _PUBLIC)}
    if is_loopback(host):
        files |= _certificate(host)
        profile += 'ca = "ca.pem"\n'
    files[PROFILE] = (f'{profile}token_file = "admin.token"\n'.encode(), _PUBLIC)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = _write_all(folder, files)
    except FileExistsError as error:
        raise ConfigError(f"{error.filename}: exists already; choose another folder, or remove it first") from error
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from error
    try:
        make_data(folder / DATA, {name: new[name] for name in _ROLES})
    except ConfigError:
        for path in written:
            path.unlink()
        raise
    return [*written, folder / DATA]


def make_data(
    state: Path | StateAddress, enrolment: Mapping[str, str] | None = None, max_uses: int = tokens.DEFAULT_USES
) -> None:
    """Create an empty state, for `server.data`, `server.database` and `server.blobs`.

    Args:
        state: Its address.
        enrolment: By role, `trainer` or `evaluator`, a token with which clients can enrol.
        max_uses: Number of clients that can enrol with each, also within a minute.

    Raises:
        ConfigError: There is a state already, it cannot be written, or the folder's parent folder is missing.
    """
    address = StateAddress.of(state)
    folder = address.folder
    try:
        check_access(folder)
        if holds_state(address):
            place = folder if address.database is None else address.open_database().place
            raise ConfigError(f"{place}: holds a server's state already; move it away first, or choose another place")
        if any((folder / "blobs").glob("[0-9a-f]" * 64)):
            raise ConfigError(
                f"{folder / 'blobs'}: holds blobs of a state, whose database is missing or empty; restore the "
                "database or a backup, or choose another folder"
            )
        if not folder.parent.is_dir():
            raise ConfigError(f"{folder}: there is no folder {folder.parent}; mount its disk, or create the folder")
        with closing(Store.open(address)) as store:
            store.submit(partial(_write_tokens, enrolment or {}, max_uses)).result()
    except (StoreUnusable, Unavailable) as error:
        raise ConfigError(str(error)) from error


def _write_tokens(enrolment: Mapping[str, str], max_uses: int, transaction: Transaction) -> None:
    for word, token in enrolment.items():
        now, role = SystemClock().now(), _ROLES[word]
        tokens.write(transaction, token, name=f"{word}s", role=role, now=now, max_uses=max_uses, per_minute=max_uses)


def _certificate(host: str) -> dict[str, tuple[bytes, int]]:
    authority = trustme.CA(organization_name="FedLens", organization_unit_name="made by fedlens serve --init")
    issued = authority.issue_cert(*dict.fromkeys([host, "127.0.0.1", "localhost"]))
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    return {
        "ca.pem": (authority.cert_pem.bytes(), _PUBLIC),
        "server.pem": (chain, _PUBLIC),
        "server.key": (issued.private_key_pem.bytes(), _SECRET),
    }


def _write_all(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> list[Path]:
    written: list[Path] = []
    try:
        for name, (content, mode) in files.items():
            path = folder / name
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                written.append(path)
                file.write(content)
    except OSError:
        for path in written:
            path.unlink()
        raise
    return written
