"""The link that lets a phone join a federation; docs/android.md describes it."""

import re
import ssl
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from urllib.parse import quote, urlencode, urlsplit

from fedlens_proto.programs.statements import Publisher
from fedlens_proto.wire import is_token

JOIN = "/join"
MAX_OPERATOR_CHARACTERS = 100
MAX_PURPOSE_CHARACTERS = 500
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")


def enrolment_link(
    server: str,
    token: str,
    ca: str | None = None,
    publishers: Sequence[Publisher] = (),
    operator: str | None = None,
    purpose: str | None = None,
) -> str:
    """The page `/join` of the server, and in its fragment the enrolment token, certificates to trust and publishers.

    Browsers send no fragment, so that no log has the token.

    Args:
        server: Address for phones, beginning with https://.
        token: Enrolment token.
        ca: Certificates (PEM) to trust instead of the phone's; None: the phone's.
        publishers: Those whose signed bundles the phone may run.
        operator: Name of whoever runs the server, for people who are asked to join.
        purpose: What the models are for, in a sentence or two.

    Raises:
        ValueError: `server` is not an HTTPS address, `token` is not printable ASCII, `ca` holds no certificate, or a
            text is empty, too long, or not printable.
    """
    try:
        address = urlsplit(server)
        _ = address.port  # an error where it is above 65535
    except ValueError:
        address = urlsplit("")  # refused below
    if address.scheme != "https" or not address.hostname or "@" in address.netloc or address.query or address.fragment:
        raise ValueError(f"server: found {server!r}, must look like https://fl.example.org:8443")
    if not is_token(token):
        raise ValueError("token: must be printable ASCII without spaces, and not empty")
    certificates = [] if ca is None else _certificates(ca)
    texts = {"operator": (operator, MAX_OPERATOR_CHARACTERS), "purpose": (purpose, MAX_PURPOSE_CHARACTERS)}
    for name, (text, most) in texts.items():
        if text is not None and not (text.strip() and text.isprintable() and len(text) <= most):
            raise ValueError(f"{name}: found {text!r}, must be 1 to {most} printable characters")
    values = {
        "token": token,
        "ca": [_encoded(certificate) for certificate in certificates],
        "publisher": [_encoded(publisher.der) for publisher in publishers],
        **{name: text for name, (text, _) in texts.items() if text is not None},
    }
    # Not `+` for a space: in a link it is a plus.
    return f"{server.rstrip('/')}{JOIN}#" + urlencode(values, doseq=True, quote_via=quote, safe="")


def _encoded(der: bytes) -> str:
    return urlsafe_b64encode(der).decode().rstrip("=")


def _certificates(ca: str) -> list[bytes]:
    blocks = _CERTIFICATE.findall(ca)
    if not blocks:
        raise ValueError("ca: it holds no certificate (PEM)")
    return [ssl.PEM_cert_to_DER_cert(block) for block in blocks]
