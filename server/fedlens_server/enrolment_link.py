"""The link that lets a phone join a federation; docs/android.md describes it."""

import re
import ssl
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from urllib.parse import urlencode, urlsplit

from fedlens_proto.programs.statements import Publisher

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")


def enrolment_link(server: str, token: str, ca: str | None = None, publishers: Sequence[Publisher] = ()) -> str:
    """The link with the server's address, the enrolment token, the certificates to trust and keys of publishers.

    Args:
        server: Address for phones, beginning with https://.
        token: Enrolment token.
        ca: Certificates (PEM) to trust instead of the phone's; None: the phone's.
        publishers: Those whose signed bundles the phone may run.

    Raises:
        ValueError: `server` is not an HTTPS address, `token` is not printable ASCII, or `ca` holds no certificate.
    """
    address = urlsplit(server)
    if address.scheme != "https" or not address.hostname or "@" in address.netloc or address.query or address.fragment:
        raise ValueError(f"server: found {server!r}, must look like https://fl.example.org:8443")
    if not re.fullmatch("[!-~]+", token):
        raise ValueError("token: must be printable ASCII without spaces, and not empty")
    certificates = [] if ca is None else _certificates(ca)
    values = {
        "server": server.rstrip("/"),
        "token": token,
        "ca": [_encoded(certificate) for certificate in certificates],
        "publisher": [_encoded(publisher.der) for publisher in publishers],
    }
    return "fedlens://enrol?" + urlencode(values, doseq=True)


def _encoded(der: bytes) -> str:
    return urlsafe_b64encode(der).decode().rstrip("=")


def _certificates(ca: str) -> list[bytes]:
    blocks = _CERTIFICATE.findall(ca)
    if not blocks:
        raise ValueError("ca: it holds no certificate (PEM)")
    return [ssl.PEM_cert_to_DER_cert(block) for block in blocks]
