"""Publishers' statements about bundles: taken, and refused for each reason that there is."""

from base64 import b64encode
from hashlib import sha256

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedlens_export.signing import signed
from fedlens_proto.programs.statements import CLOCK_S, MAX_NAME_CHARACTERS, MAX_STATEMENT_BYTES, Publisher
from fedlens_proto.v1 import statement_pb2 as pb
from tests.vectors.forms import Files, document

KEYS = {name: ec.derive_private_key(number, ec.SECP256R1()) for name, number in (("ann", 17), ("bob", 18))}
BUNDLE, OTHER = sha256(b"a bundle").digest(), sha256(b"another bundle").digest()
CAMERA, NOTES = "org.example.camera", "org.example.notes"
ENDS = 1_800_000_000


def statement(**changed: object) -> pb.Statement:
    """Ann's statement about `BUNDLE` for the app `CAMERA`, with changes."""
    given = {
        "manifest": BUNDLE,
        "publisher": Publisher.of(KEYS["ann"].public_key()).id,
        "name": "digits",
        "serial": 7,
        "floor": 5,
        "audience": [CAMERA, "a federation"],
        "not_after": ENDS,
    }
    return pb.Statement(**(given | changed))  # type: ignore[arg-type]


def files() -> Files:
    """All files, and their index."""
    taken, malformed, forged = _taken(), _malformed(), _forged()
    publishers = {name: key.public_key() for name, key in KEYS.items()}
    ann = _pem(publishers["ann"])
    index = {
        "publishers": {name: _pem(key) for name, key in publishers.items()},
        "ids": {name: Publisher.of(key).id.hex() for name, key in publishers.items()},
        "not_publishers": [
            "",
            "ann",
            _pem(ec.derive_private_key(19, ec.SECP384R1()).public_key()),
            ann.replace("PUBLIC", "PRIVATE"),
            ann.replace("M", "N"),
            _pem(ec.derive_private_key(19, ec.SECP256K1()).public_key()),
            _off_the_curve(KEYS["ann"].public_key()),
        ],
        "cases": [
            _case("good", "good", "taken"),
            _case("by the name of a federation", "good", "taken", audience=["a federation"]),
            _case("for every application", "for-all", "taken", audience=[]),
            _case("of the second publisher", "of-bob", "taken", publishers=["ann", "bob"]),
            _case("the greatest numbers", "largest", "taken", floor=2**63 - 1),
            _case("of the floor", "good", "taken", floor=7),
            _case("a clock that is a day fast", "good", "taken", now=ENDS + CLOCK_S),
            _case("ended", "good", "expired", now=ENDS + CLOCK_S + 1),
            _case("below the floor", "good", "serial", floor=8),
            _case("another application", "good", "audience", audience=[NOTES, "org.example"]),
            _case("a nameless application", "good", "audience", audience=[]),
            _case("another bundle", "good", "bundle", manifest=OTHER.hex()),
            _case("another publisher", "of-bob", "publisher"),
            _case("a publisher who is trusted no more", "good", "publisher", publishers=[]),
            *(_case(name, name, "malformed") for name in malformed),
            *(_case(name, name, "signature", publishers=["ann", "bob"]) for name in forged),
        ],
    }
    found = {f"statements/{name}.bin": content for name, content in (taken | malformed | forged).items()}
    return {"statements/statements.json": document(index), **found}


def _off_the_curve(key: ec.EllipticCurvePublicKey) -> str:
    """A key whose point has another y, with which readers that do not look verify signatures wrongly."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    text = b64encode(der[:-1] + bytes([der[-1] ^ 1])).decode()
    return f"-----BEGIN PUBLIC KEY-----\n{text[:64]}\n{text[64:]}\n-----END PUBLIC KEY-----\n"


def _taken() -> Files:
    bob = Publisher.of(KEYS["bob"].public_key())
    greatest = {"serial": 2**63 - 1, "floor": 2**63 - 1, "not_after": 2**63 - 1}
    return {
        "good": signed(statement(), KEYS["ann"]),
        "for-all": signed(statement(audience=(), any_app=True), KEYS["ann"]),
        "largest": signed(statement(**greatest), KEYS["ann"]),
        "of-bob": signed(statement(publisher=bob.id), KEYS["bob"]),
    }


def _malformed() -> Files:
    broken: dict[str, dict[str, object]] = {
        "no-audience": {"audience": ()},
        "two-audiences": {"any_app": True},
        "nameless-audience": {"audience": [CAMERA, ""]},
        "no-name": {"name": ""},
        "long-name": {"name": "a" * (MAX_NAME_CHARACTERS + 1)},
        "no-serial": {"serial": 0, "floor": 0},
        "too-great-serial": {"serial": 2**63},
        "floor-above-serial": {"floor": 8},
        "too-great-floor": {"floor": 2**63},
        "no-end": {"not_after": 0},
        "too-late-end": {"not_after": 2**63},
        "short-digest": {"manifest": BUNDLE[:31]},
        "no-publisher": {"publisher": b""},
    }
    return {
        "cut-short": signed(statement(), KEYS["ann"])[:-1],
        "no-protobuf": b"\xff" * 40,
        "empty": b"",
        "too-long": _with_signature(bytes(MAX_STATEMENT_BYTES)),
        **{name: signed(statement(**changed), KEYS["ann"]) for name, changed in broken.items()},
    }


def _forged() -> Files:
    good = pb.SignedStatement.FromString(signed(statement(), KEYS["ann"])).signature
    later = statement(serial=8).SerializeToString(deterministic=True)
    algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    content = statement().SerializeToString(deterministic=True)
    return {
        "other-key": signed(statement(), KEYS["bob"]),
        "other-context": _with_signature(KEYS["ann"].sign(b"fedlens/bundle/v2" + content, algorithm)),
        "changed": pb.SignedStatement(statement=later, signature=good).SerializeToString(deterministic=True),
        "no-signature": _with_signature(b""),
        "damaged-signature": _with_signature(good[:-1] + bytes([good[-1] ^ 1])),
        "cut-signature": _with_signature(good[:-1]),
    }


def _with_signature(signature: bytes) -> bytes:
    content = statement().SerializeToString(deterministic=True)
    return pb.SignedStatement(statement=content, signature=signature).SerializeToString(deterministic=True)


def _case(name: str, file: str, outcome: str, **given: object) -> dict[str, object]:
    """A client that trusts Ann, is the app `CAMERA`, and has seen the floor 5; at the statement's end."""
    usual = {"publishers": ["ann"], "manifest": BUNDLE.hex(), "audience": [CAMERA], "floor": 5, "now": ENDS}
    return {"name": name, "file": f"{file}.bin", "outcome": outcome, **(usual | given)}


def _pem(key: ec.EllipticCurvePublicKey) -> str:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form).decode()
