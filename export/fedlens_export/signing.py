"""A publisher's keys, and statements that it signs with them.

Whoever has the private key can make programs that phones run: it belongs on no server, and on no build machine that
others use.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedlens_export.errors import NotSigned
from fedlens_proto.errors import StatementRefused
from fedlens_proto.manifest import Bundle
from fedlens_proto.programs import statements
from fedlens_proto.programs.statements import Publisher
from fedlens_proto.v1 import statement_pb2 as pb

PRIVATE, PUBLIC = ".key", ".pub"
DAYS = 90
FOR_NOBODY = "the bundle is for nobody: give --audience with the id of an application, or --any-app"
_DAY_S = 86_400


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a publisher says of a bundle; None: as in its statement before, else the value given here.

    Attributes:
        name: The bundle's name; of a new one, that of its model.
        serial: Greater for each later version; of a new one, the seconds since the epoch.
        floor: Least serial that clients take from now on; of a new one, 0.
        audience: Ids of applications and names of federations.
        any_app: Every application may run the bundle.
        days: Days from now on for which clients train with it.
    """

    name: str | None = None
    serial: int | None = None
    floor: int | None = None
    audience: Sequence[str] = ()
    any_app: bool = False
    days: int = DAYS


def new_key(name: Path) -> Publisher:
    """Make a key: `NAME.key`, which only its owner can read, and `NAME.pub`, which apps are given.

    Raises:
        NotSigned: The name is that of a folder, one of the files is there, or cannot be written.
    """
    if not name.name:
        raise NotSigned(f"{str(name)!r} names no file; give a name such as keys/publisher")
    private, public = statements.key_pair()
    files = {name.with_name(name.name + PUBLIC): (public, 0o644), name.with_name(name.name + PRIVATE): (private, 0o600)}
    for file in files:
        if file.exists():
            raise NotSigned(f"{file} is there already; a key is never replaced: choose another name")
    written: list[Path] = []
    try:
        for file, (content, mode) in files.items():
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
                written.append(file)
                stream.write(content)
    except OSError as error:
        for file in written:
            file.unlink()
        raise NotSigned(f"the key cannot be written: {error}") from error
    return Publisher.of_pem(public)


def private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """The private key in a file that `new_key` made.

    Raises:
        NotSigned: There is none.
    """
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds none in PEM form without a passphrase"
        raise NotSigned(f"{file} cannot be read as a private key: {why}; `fedlens keys new` makes one") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise NotSigned(f"{file} holds no key of ECDSA on P-256; `fedlens keys new` makes one")
    return key


def signed(statement: pb.Statement, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A serialised `SignedStatement`; the same statement and key give the same bytes (RFC 6979)."""
    content = statement.SerializeToString(deterministic=True)
    signature = key.sign(statements.CONTEXT + content, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
    return pb.SignedStatement(statement=content, signature=signature).SerializeToString(deterministic=True)


def stated(bundle: Bundle, key: ec.EllipticCurvePrivateKey, terms: Terms, now: float) -> bytes:
    """A signed statement about a bundle, for its `statement.pb`.

    Args:
        bundle: The bundle; what its present statement says holds on where `terms` are silent.
        key: The publisher's private key.
        terms: What to say.
        now: As `time.time`.

    Raises:
        NotSigned: The terms contradict each other, or name nobody who may run the bundle.
    """
    before = _before(bundle)
    if terms.any_app and terms.audience:
        raise NotSigned("found an audience and --any-app, must be one of them")
    serial = before.serial or int(now) if terms.serial is None else terms.serial
    floor = before.floor if terms.floor is None else terms.floor
    for name, number in (("serial", serial), ("floor", floor)):
        if not 0 <= number < 1 << 64:
            raise NotSigned(f"{name}: found {number}, must be a whole number of 64 bits")
    statement = pb.Statement(
        manifest=bundle.id,
        publisher=Publisher.of(key.public_key()).id,
        name=terms.name or before.name or bundle.manifest.model,
        serial=serial,
        floor=floor,
        audience=terms.audience or (() if terms.any_app else before.audience),
        any_app=terms.any_app or (before.any_app and not terms.audience),
        not_after=int(now) + terms.days * _DAY_S,
    )
    if not statement.audience and not statement.any_app:
        raise NotSigned(FOR_NOBODY)
    whole = signed(statement, key)
    try:
        statements.read(whole)
    except StatementRefused as error:
        raise NotSigned(str(error)) from error
    return whole


def _before(bundle: Bundle) -> pb.Statement:
    """The statement about this bundle that is there already, else an empty one."""
    try:
        found, _, _ = statements.read(bundle.statement)
    except StatementRefused:
        return pb.Statement()
    return found if found.manifest == bundle.id else pb.Statement()
