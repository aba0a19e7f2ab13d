"""The link by which a phone joins a federation; docs/android.md describes it."""

import re
import ssl
from base64 import urlsafe_b64encode
from urllib.parse import urlencode, urlsplit

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")


def enrolment_link(server: str, token: str, ca: str | None = None) -> str:
    """The link that says where to enrol, with what, and by which certificates the server is recognised.

    Args:
        server: Address as phones call it, beginning with https://.
        token: Enrolment token.
        ca: Certificates (PEM) to trust instead of the phone's. None: the phone's.

    Raises:
        ValueError: `server` is no address that a phone would join, `token` is none, or `ca` holds no certificate.
    """
    address = urlsplit(server)
    if address.scheme != "https" or not address.hostname or "@" in address.netloc or address.query or address.fragment:
        raise ValueError(f"server: found {server!r}, must look like https://fl.example.org:8443")
    if not re.fullmatch("[!-~]+", token):
        raise ValueError("token: must be printable ASCII without spaces, and not empty")
    return "fedlens://enrol?" + urlencode(
        {"server": server.rstrip("/"), "token": token, "ca": _encoded(ca)}, doseq=True
    )


def _encoded(ca: str | None) -> list[str]:
    if ca is None:
        return []
    blocks = _CERTIFICATE.findall(ca)
    if not blocks:
        raise ValueError("ca: it holds no certificate (PEM)")
    return [urlsafe_b64encode(ssl.PEM_cert_to_DER_cert(block)).decode().rstrip("=") for block in blocks]
