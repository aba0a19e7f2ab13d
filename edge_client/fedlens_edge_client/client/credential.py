"""How a secret stands in a request."""

from base64 import urlsafe_b64encode


def authorization(secret: bytes) -> str:
    """The value of the Authorization header: base64url of the secret, without padding."""
    return "Bearer " + urlsafe_b64encode(secret).rstrip(b"=").decode()
