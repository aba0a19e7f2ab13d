"""TLS as it is served."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

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


def test_an_encrypted_key_is_refused_instead_of_asking_for_its_passphrase(tmp_path: Path) -> None:
    initialise(tmp_path)
    key = serialization.load_pem_private_key((tmp_path / "server.key").read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"passphrase")
    encrypted = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    (tmp_path / "server.key").write_bytes(encrypted)

    with pytest.raises(ConfigError, match=r"server\.keyfile: .*server\.key is encrypted"):
        tls(tmp_path / "server.pem", tmp_path / "server.key")
