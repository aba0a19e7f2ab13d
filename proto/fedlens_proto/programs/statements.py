"""Statements about bundles: who made one, for which apps, how new it is, and until when; signed by its publisher.

The signature is ECDSA on P-256 with SHA-256 over `CONTEXT` and the statement's bytes. It says who made a bundle; it
does not say what weights, learning rate or batch a server gives to the programs in it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError

from fedlens_proto.errors import StatementRefused
from fedlens_proto.v1 import statement_pb2 as pb

CONTEXT = b"fedlens/bundle/v1"
MAX_STATEMENT_BYTES = 16 << 10
MAX_NAME_CHARACTERS = 200
# The clock of a phone may be so wrong.
CLOCK_S = 86_400.0
_END = 1 << 63  # of numbers that every language and database can hold


@dataclass(frozen=True)
class Publisher:
    """A publisher's public key: SubjectPublicKeyInfo, DER."""

    der: bytes

    @classmethod
    def of(cls, key: ec.EllipticCurvePublicKey) -> Self:
        """The publisher whose statements this key verifies."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return cls(key.public_bytes(serialization.Encoding.DER, form))

    @classmethod
    def of_pem(cls, pem: bytes) -> Self:
        """The publisher in a PEM file.

        Raises:
            StatementRefused: It holds no public key of P-256; the code is `key`.
        """
        try:
            key = serialization.load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm) as error:
            text = "this is no public key in PEM form; give the .pub file that `fedlens keys new` wrote"
            raise StatementRefused("key", text) from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise StatementRefused("key", "the key is none of ECDSA on P-256; make one with `fedlens keys new`")
        return cls.of(key)

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """The publisher whose `.pub` file this is; errors as of `of_pem`, with the file's name, and OSError."""
        try:
            return cls.of_pem(path.read_bytes())
        except StatementRefused as error:
            raise StatementRefused(error.code, f"{path}: {error}") from error

    @cached_property
    def id(self) -> bytes:
        """SHA-256 of the key, which statements name."""
        return sha256(self.der).digest()

    def has_signed(self, statement: bytes, signature: bytes) -> bool:
        """Tell whether the signature is this publisher's, of these bytes of a statement."""
        key = serialization.load_der_public_key(self.der)
        assert isinstance(key, ec.EllipticCurvePublicKey)
        try:
            key.verify(signature, CONTEXT + statement, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


def key_pair() -> tuple[bytes, bytes]:
    """A new private key of a publisher, which nothing protects, and its public key, both in PEM form."""
    key = ec.generate_private_key(ec.SECP256R1())
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)


def verified(signed: bytes, manifest: bytes, publishers: Iterable[Publisher]) -> pb.Statement:
    """The statement about a bundle, if one of these publishers signed it.

    Args:
        signed: A serialised `SignedStatement`.
        manifest: SHA-256 of the bundle's manifest.
        publishers: Those who are trusted.

    Raises:
        StatementRefused: With the code `malformed`, `publisher` (another one, or none), `signature` (a wrong one) or
            `bundle` (it is about another one).
    """
    statement, content, signature = read(signed)
    by_id = {publisher.id: publisher for publisher in publishers}
    publisher = by_id.get(statement.publisher)
    if publisher is None:
        trusted = ", ".join(each.hex()[:12] for each in by_id) or "nobody"
        raise StatementRefused(
            "publisher", f"the bundle is published by {statement.publisher.hex()[:12]}, trusted is {trusted}"
        )
    if not publisher.has_signed(content, signature):
        raise StatementRefused("signature", "the signature is not that of the publisher who is named")
    _check_about(statement, manifest)
    return statement


def about(signed: bytes, manifest: bytes) -> pb.Statement:
    """The statement about a bundle, as `verified`, whoever signed it: for those who trust no publisher in particular.

    Raises:
        StatementRefused: With the code `malformed` or `bundle`.
    """
    statement, _, _ = read(signed)
    _check_about(statement, manifest)
    return statement


def read(signed: bytes) -> tuple[pb.Statement, bytes, bytes]:
    """A statement, its bytes and its signature, which is not verified.

    Raises:
        StatementRefused: With the code `malformed`.
    """
    if len(signed) > MAX_STATEMENT_BYTES:
        raise StatementRefused("malformed", f"a statement has at most {MAX_STATEMENT_BYTES} bytes, not {len(signed)}")
    try:
        outer = pb.SignedStatement.FromString(signed)
        statement = pb.Statement.FromString(outer.statement)
    except DecodeError as error:
        raise StatementRefused("malformed", f"no readable statement: {error}") from error
    if (fault := _fault(statement)) is not None:
        raise StatementRefused("malformed", f"the statement is not whole: {fault}")
    return statement, outer.statement, outer.signature


def check(statement: pb.Statement, audience: Collection[str], floor: int) -> None:
    """Check that a statement is for these ids of applications and names of federations, and new enough.

    Args:
        statement: One that is verified.
        audience: Ids and names of the client.
        floor: The greatest `floor` of the publisher's statements about bundles of that name that the client has seen.

    Raises:
        StatementRefused: With the code `audience` or `serial`.
    """
    if not statement.any_app and not set(statement.audience) & set(audience):
        wanted, found = ", ".join(statement.audience), ", ".join(sorted(audience)) or "nameless"
        raise StatementRefused("audience", f"the bundle is for {wanted}; this client is {found}")
    if statement.serial < floor:
        withdrawn = f"its publisher withdrew those below {floor}"
        raise StatementRefused("serial", f"bundle {statement.name!r} has serial {statement.serial}; {withdrawn}")


def check_time(statement: pb.Statement, now: float) -> None:
    """Check that a client may still train with the bundle, as far as its clock can be believed; `now` as `time.time`.

    Raises:
        StatementRefused: With the code `expired`.
    """
    if now > statement.not_after + CLOCK_S:
        days = (now - statement.not_after) / 86_400
        raise StatementRefused("expired", f"the publisher's statement about the bundle ended {days:.0f} days ago")


def _check_about(statement: pb.Statement, manifest: bytes) -> None:
    if statement.manifest != manifest:
        raise StatementRefused(
            "bundle", f"the statement is about bundle {statement.manifest.hex()[:12]}, not {manifest.hex()[:12]}"
        )


def _fault(statement: pb.Statement) -> str | None:
    digests = len(statement.manifest) == len(statement.publisher) == 32
    faults = {
        "the digests of manifest and publisher have 32 bytes": digests,
        f"a name has 1 to {MAX_NAME_CHARACTERS} characters": 0 < len(statement.name) <= MAX_NAME_CHARACTERS,
        "the serial is 1 to 2^63 - 1": 0 < statement.serial < _END,
        "the floor is at most the serial": statement.floor <= statement.serial,
        "there is either an audience or `any_app`": bool(statement.audience) != statement.any_app,
        "the audience has names": all(statement.audience),
        "it has an end, below 2^63": 0 < statement.not_after < _END,
    }
    return next((rule for rule, holds in faults.items() if not holds), None)
