"""The link that lets a phone join a federation; docs/android.md describes it."""

import re
import ssl
from base64 import urlsafe_b64encode
from urllib.parse import urlencode, urlsplit

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")


def enrolment_link(server: str, token: str, ca: str | None = None) -> str:
    """The link with the server's address, the enrolment token and the certificates to trust.

    Args:
        server: Address for phones, beginning with https://.
        token: Enrolment token.
        ca: Certificates (PEM) to trust instead of the phone's; None: the phone's.

    Raises:
        ValueError: `server` is not an HTTPS address, `token` is not printable ASCII, or `ca` holds no certificate.
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
