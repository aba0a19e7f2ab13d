"""Links by which phones join: read, and refused for each reason that there is."""

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedlens_proto.programs.statements import Publisher
from fedlens_server.enrolment_link import enrolment_link
from tests.vectors.forms import Files, document
from tests.vectors.statements import KEYS

SERVER, TOKEN = "https://fl.example.org:8443", "abc-_123"
PINS = ["sha256/" + "A" * 43 + "=", "sha256/" + "+" * 42 + "8="]
PUBLISHERS = [Publisher.of(key.public_key()) for key in KEYS.values()]


def files() -> Files:
    """The one file."""
    authorities = [_authority(name) for name in ("one", "two")]
    pem = "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in authorities)
    ca = [each.public_bytes(serialization.Encoding.DER) for each in authorities]
    keys = "".join(f"&publisher={_base64url(each.der)}" for each in PUBLISHERS)
    percent = SERVER.replace(":", "%3A").replace("/", "%2F")
    pins = "".join(f"&pin={pin}" for pin in PINS)
    bare = f"fedlens://enrol?server={SERVER}&token={TOKEN}"
    links = [
        # As `fedlens link` prints them.
        _link("server and token", enrolment_link(SERVER, TOKEN)),
        _link("certificates", enrolment_link(f"{SERVER}/", TOKEN, pem), ca=ca),
        _link("keys of publishers", enrolment_link(SERVER, TOKEN, None, PUBLISHERS), publishers=PUBLISHERS),
        _link("all of it", enrolment_link(SERVER, TOKEN, pem, PUBLISHERS), ca=ca, publishers=PUBLISHERS),
        _link(
            "who and why",
            enrolment_link(SERVER, TOKEN, operator="Zoo & Söhne", purpose="Cats + dogs."),
            operator="Zoo & Söhne",
            purpose="Cats + dogs.",
        ),
        # As others write them, and as they arrive.
        _link("not encoded", bare),
        _link("a slash behind the address", f"fedlens://enrol/?server={percent}%2F&token={TOKEN}"),
        _link("another order", f"fedlens://enrol?{keys[1:]}&token={TOKEN}&server={percent}", publishers=PUBLISHERS),
        _link("broken by a chat", f"  {bare[:30]}\n{bare[30:44]} \t{bare[44:]}\r\n"),
        _link("upper case", bare.replace("fedlens://enrol", "FedLens://Enrol")),
        _link("of a later version", f"{bare}&colour=green&flag&&"),
        _link("two operators", f"{bare}&operator=a&operator=b"),
        _link("a text of two lines", f"{bare}&operator=%20a%0A%0Db%20", operator="a b"),
        _link(
            "texts that are too long",
            f"{bare}&operator={'a' * 101}&purpose={'b' * 501}",
            operator="a" * 100,
            purpose="b" * 500,
        ),
        _link("pins", bare + pins, pins=PINS),
        _link("encoded pins", bare + pins.replace("/", "%2F").replace("+", "%2B").replace("A=", "A%3D"), pins=PINS),
        _link("padded base64url", f"{bare}&ca={_base64url(ca[0], '=')}", ca=ca[:1]),
        _link("own machine", bare.replace(SERVER, "http://localhost:8443"), server="http://localhost:8443"),
        _link("its number", bare.replace(SERVER, "http://127.0.0.1:8443"), server="http://127.0.0.1:8443"),
        _link("a path", bare.replace(SERVER, "https://a.org/fl/"), server="https://a.org/fl"),
        _link("an IPv6 address", bare.replace(SERVER, "https://[2001:db8::1]:1"), server="https://[2001:db8::1]:1"),
    ]
    return {"links.json": document({"links": links, "refused": _refused(ca[0])})}


def _refused(certificate: bytes) -> list[dict[str, str]]:
    def given(server: str = SERVER, token: str = TOKEN, more: str = "") -> str:
        return f"fedlens://enrol?server={server}&token={token}{more}"

    ann = PUBLISHERS[0].der
    other_curve = ec.derive_private_key(19, ec.SECP384R1()).public_key()
    faults = [
        ("nothing", "", "empty"),
        ("spaces alone", " \n\t ", "empty"),
        ("a word", "hello", "not-a-link"),
        ("a page", "https://fl.example.org?token=t", "other-link"),
        ("another action", "fedlens://leave?token=t", "other-link"),
        ("a longer action", given().replace("enrol", "enrolled"), "other-link"),
        ("two servers", given(more=f"&server={SERVER}"), "given-twice"),
        ("two tokens", given(more="&token=u"), "given-twice"),
        ("no values", "fedlens://enrol", "server-missing"),
        ("no server", f"fedlens://enrol?token={TOKEN}", "server-missing"),
        ("an empty server", given(server=""), "server-missing"),
        ("no scheme", given(server="fl.example.org"), "server-unreadable"),
        ("no host", given(server="https://"), "server-unreadable"),
        ("half a bracket", given(server="https://a[b"), "server-unreadable"),
        ("plain HTTP", given(server="http://fl.example.org"), "server-not-secure"),
        ("almost the own machine", given(server="http://localhost.example.org"), "server-not-secure"),
        ("a file", given(server="ftp://fl.example.org"), "server-not-secure"),
        ("a user", given(server="https://me@fl.example.org"), "server-with-more"),
        ("a query", given(server="https://fl.example.org%3Fa=b"), "server-with-more"),
        ("a fragment", given(server="https://fl.example.org%23a"), "server-with-more"),
        ("no token", f"fedlens://enrol?server={SERVER}", "token-missing"),
        ("an empty token", given(token=""), "token-missing"),
        ("an encoded space", given(token="%20x"), "token-with-spaces"),
        ("a letter beyond ASCII", given(token="caf%C3%A9"), "token-with-spaces"),
        ("another hash", given(more=f"&pin=sha1/{PINS[0][7:]}"), "pin-unreadable"),
        ("a short pin", given(more="&pin=sha256/abcd"), "pin-unreadable"),
        ("a good pin and no pin", given(more=f"&pin={PINS[0]}&pin=sha256/%25"), "pin-unreadable"),
        ("a certificate cut short", given(more=f"&ca={_base64url(certificate[:-1])}"), "ca-unreadable"),
        ("a key as certificate", given(more=f"&ca={_base64url(ann)}"), "ca-unreadable"),
        ("a certificate in no base64", given(more="&ca=%25"), "ca-unreadable"),
        ("an empty certificate", given(more="&ca="), "ca-unreadable"),
        ("a key cut short", given(more=f"&publisher={_base64url(ann[:-1])}"), "publisher-unreadable"),
        (
            "a key of another curve",
            given(more=f"&publisher={_base64url(_der(other_curve))}"),
            "publisher-unreadable",
        ),
        ("a certificate as key", given(more=f"&publisher={_base64url(certificate)}"), "publisher-unreadable"),
        ("a key in base64", given(more=f"&publisher={b64encode(ann).decode()}"), "publisher-unreadable"),
        ("an empty key", given(more="&publisher="), "publisher-unreadable"),
        (
            "a good key and no key",
            given(more=f"&publisher={_base64url(ann)}&publisher=%25"),
            "publisher-unreadable",
        ),
    ]
    return [{"name": name, "link": link, "code": code} for name, link, code in faults]


def _link(
    name: str,
    link: str,
    server: str = SERVER,
    *,
    pins: Sequence[str] = (),
    ca: Sequence[bytes] = (),
    publishers: Sequence[Publisher] = (),
    operator: str = "",
    purpose: str = "",
) -> dict[str, object]:
    return {
        "name": name,
        "link": link,
        "server": server,
        "token": TOKEN,
        "pins": [*pins],
        "ca": [each.hex() for each in ca],
        "publishers": [each.id.hex() for each in publishers],
        "operator": operator,
        "purpose": purpose,
    }


def _authority(name: str) -> x509.Certificate:
    """A certificate of which every byte follows from its name."""
    key = ec.derive_private_key(len(name) * 1000 + ord(name[0]), ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1)
    builder = builder.not_valid_before(datetime(2026, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2036, 1, 1, tzinfo=UTC)
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True)


def _der(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _base64url(raw: bytes, padding: str = "") -> str:
    text = urlsafe_b64encode(raw).decode()
    return text if padding else text.rstrip("=")
