"""TLS as it is served."""

import ssl
from pathlib import Path

import pytest

from fedlens_server.config import ConfigError
from fedlens_server.init import initialise
from fedlens_server.listening import tls


def test_tls_older_than_1_2_is_refused(tmp_path: Path) -> None:
    initialise(tmp_path)

    context = tls(tmp_path / "server.pem", tmp_path / "server.key")

    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    initialise(tmp_path / "one")
    initialise(tmp_path / "two")

    with pytest.raises(ConfigError, match="are no certificate with its key"):
        tls(tmp_path / "one" / "server.pem", tmp_path / "two" / "server.key")
