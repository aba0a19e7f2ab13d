"""The server's certificate, read again when its files change."""

import logging
import ssl
from datetime import datetime
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedlens_server.clock import Clock
from fedlens_server.config import ConfigError
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

LOOK_EVERY_S = 60.0
_log = logging.getLogger(__name__)


class Certificate:
    """A certificate with its key: that of the files, or the last one that could be used."""

    def __init__(self, certfile: Path, keyfile: Path) -> None:
        """Read both files; errors as in `tls`."""
        self._files = (certfile, keyfile)
        self._stamps = self._look()
        self._current, self.expires = self._read()
        # To listen with, for good: each handshake asks it for the certificate in use.
        self.context = self._current
        self.context.sni_callback = self._choose

    def read_again(self) -> None:
        """Use what the files hold now, or log why that cannot be used."""
        self._stamps = self._look()
        try:
            self._current, self.expires = self._read()
        except ConfigError as error:
            events.note(Event.CERTIFICATE_UNUSABLE, reason=str(error), in_use_until=self.expires.isoformat())
        else:
            events.note(Event.CERTIFICATE_READ, expires=self.expires.isoformat())

    async def follow(self, clock: Clock) -> None:
        """Read the files again whenever they have changed, until cancelled."""
        while True:
            await clock.sleep_until(clock.elapsed() + LOOK_EVERY_S)
            try:
                if self._look() != self._stamps:
                    self.read_again()
            except Exception:  # the pair in use stays, and the next one is found
                _log.exception("the certificate could not be read; next try when its files change")

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        # Loading a pair that does not match into a live context would leave that without a key.
        connection.context = self._current

    def _read(self) -> tuple[ssl.SSLContext, datetime]:
        context, certfile = tls(*self._files), self._files[0]
        try:
            return context, x509.load_pem_x509_certificate(certfile.read_bytes()).not_valid_after_utc
        except (ValueError, OSError, x509.InvalidVersion) as error:
            raise ConfigError(f"server.certfile: {certfile} cannot be read: {error}") from error

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._files]


def tls(certfile: Path, keyfile: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate.

    Raises:
        ConfigError: A file cannot be read, the files are no certificate with its key, or the key is encrypted.
    """

    def refuse() -> str:
        # Without it OpenSSL would ask on the terminal, and a service would never get past this line.
        raise ConfigError(f"server.keyfile: {keyfile} is encrypted; give a key without a passphrase (mode 0600)")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certfile, keyfile, password=refuse)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(_fault(certfile, keyfile, error)) from error
    return context


def _fault(certfile: Path, keyfile: Path, error: OSError) -> str:
    """What is wrong with one of the files, else with the pair."""
    for key, path, what, read in (
        ("certfile", certfile, "certificate", x509.load_pem_x509_certificate),
        ("keyfile", keyfile, "private key", partial(load_pem_private_key, password=None)),
    ):
        try:
            read(path.read_bytes())
        except OSError as unread:
            return f"server.{key}: {path} cannot be read: {unread.strerror}"
        except (TypeError, ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
            return f"server.{key}: {path} holds no {what} (PEM) that can be read"
    return f"server.certfile, server.keyfile: {certfile} and {keyfile} are no certificate with its key: {error}"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
