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
    pins = "".join(f"&pin={pin}" for pin in PINS)
    bare = f"{SERVER}/join#token={TOKEN}"
    own, number, v6 = "http://localhost:8443", "http://127.0.0.1:8443", "https://[2001:db8::1]:1"
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
        _link("another order", f"{SERVER}/join#{keys[1:]}&token={TOKEN}", publishers=PUBLISHERS),
        _link("an encoded name", f"{SERVER}/join#%74oken=%61bc-_123"),
        _link("a slash behind the address", f"{SERVER}/join/#token={TOKEN}"),
        _link("slashes before the page", f"{SERVER}//join#token={TOKEN}"),
        _link("broken by a chat", f"  {bare[:20]}\n{bare[20:34]} \t{bare[34:]}\r\n"),
        _link("upper case", bare.replace("https", "HTTPS")),
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
        _link("own machine", bare.replace(SERVER, own), server=own),
        _link("its number", bare.replace(SERVER, number), server=number),
        _link("a path", bare.replace(SERVER, "https://a.org/fl"), server="https://a.org/fl"),
        _link("a path of that name", bare.replace(SERVER, "https://a.org/join"), server="https://a.org/join"),
        _link("an IPv6 address", bare.replace(SERVER, v6), server=v6),
    ]
    return {"links.json": document({"links": links, "refused": _refused(ca[0])})}


def _refused(certificate: bytes) -> list[dict[str, str]]:
    def given(server: str = SERVER, token: str = TOKEN, more: str = "") -> str:
        return f"{server}/join#token={token}{more}"

    ann = PUBLISHERS[0].der
    other_curve = ec.derive_private_key(19, ec.SECP384R1()).public_key()
    faults = [
        ("nothing", "", "empty"),
        ("spaces alone", " \n\t ", "empty"),
        ("a word", "hello", "not-a-link"),
        ("no scheme", given(server="fl.example.org"), "not-a-link"),
        ("an address in a value", f"fl.example.org/join#token={TOKEN}&server={SERVER}", "not-a-link"),
        ("an address in a query", f"fl.example.org/join?{SERVER}#token={TOKEN}", "not-a-link"),
        ("the address alone", f"{SERVER}#token={TOKEN}", "other-link"),
        ("another page", f"{SERVER}/leave#token={TOKEN}", "other-link"),
        ("a longer page", f"{SERVER}/joined#token={TOKEN}", "other-link"),
        ("a page that ends with the word", f"{SERVER}/rejoin#token={TOKEN}", "other-link"),
        ("another case", f"{SERVER}/Join#token={TOKEN}", "other-link"),
        ("the page in the fragment", f"{SERVER}#/join#token={TOKEN}", "other-link"),
        ("a scheme of an app", f"fedlens://enrol?server={SERVER}&token={TOKEN}", "other-link"),
        ("two tokens", given(more="&token=u"), "given-twice"),
        ("no host", given(server="https://"), "server-unreadable"),
        ("a port alone", given(server="https://:8443"), "server-unreadable"),
        ("half a bracket", given(server="https://a[b"), "server-unreadable"),
        ("plain HTTP", given(server="http://fl.example.org"), "server-not-secure"),
        ("almost the own machine", given(server="http://localhost.example.org"), "server-not-secure"),
        ("a file", given(server="ftp://fl.example.org"), "server-not-secure"),
        ("a user", given(server="https://me@fl.example.org"), "server-with-more"),
        ("a query", f"{SERVER}/join?a=b#token={TOKEN}", "server-with-more"),
        ("a query for a fragment", f"{SERVER}/join?token={TOKEN}", "server-with-more"),
        ("a query before the page", given(server=f"{SERVER}?a=b"), "other-link"),
        ("no values", f"{SERVER}/join", "token-missing"),
        ("no token", f"{SERVER}/join#operator=a", "token-missing"),
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
