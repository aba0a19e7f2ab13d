import ssl
from base64 import urlsafe_b64decode
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme
from typer.testing import Result

from fedlens_export.signing import new_key
from tests.fedlens.commands.cli import error_text, fedlens


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "trainer.token"
    path.write_text("abc-_123\n")
    return path


def link(server: str, token_file: Path, ca: Path | None = None) -> Result:
    return fedlens("link", "--server", server, "--token-file", token_file, *(["--ca", ca] if ca else []))


def test_a_link_is_the_servers_page_with_the_token_where_no_log_has_it(token_file: Path) -> None:
    printed = link("https://fl.example.org:8443/", token_file)

    assert printed.stdout == "https://fl.example.org:8443/join#token=abc-_123\n"


def test_a_link_carries_every_certificate_of_the_ca(tmp_path: Path, token_file: Path) -> None:
    authorities = [trustme.CA().cert_pem.bytes().decode() for _ in range(2)]
    (tmp_path / "ca.pem").write_text("two of them:\n" + "".join(authorities))

    printed = link("https://127.0.0.1:8443", token_file, tmp_path / "ca.pem")

    values = parse_qs(urlsplit(printed.stdout.strip()).fragment)
    carried = [urlsafe_b64decode(text + "=" * (-len(text) % 4)) for text in values["ca"]]
    assert carried == [ssl.PEM_cert_to_DER_cert(pem) for pem in authorities]


def test_a_link_that_no_qr_code_holds_is_refused(tmp_path: Path, token_file: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"".join(trustme.CA().cert_pem.bytes() for _ in range(9)))
    arguments = ("link", "--server", "https://a.org", "--token-file", token_file, "--ca", tmp_path / "ca.pem")

    drawn = fedlens(*arguments, "--qr")

    size = len(fedlens(*arguments).stdout.strip())
    assert f"the link has {size:,} characters; a QR code holds 2,953: leave --qr out" in error_text(drawn)


def test_a_link_carries_every_publisher_that_is_given(tmp_path: Path, token_file: Path) -> None:
    publishers = [new_key(tmp_path / name) for name in ("one", "next")]
    keys = [part for name in ("one", "next") for part in ("--publisher", tmp_path / f"{name}.pub")]

    printed = fedlens("link", "--server", "https://a.org", "--token-file", token_file, *keys)

    carried = parse_qs(urlsplit(printed.stdout.strip()).fragment)["publisher"]
    assert [urlsafe_b64decode(text + "=" * (-len(text) % 4)) for text in carried] == [each.der for each in publishers]


def test_a_link_says_who_runs_the_server_and_what_for(token_file: Path) -> None:
    texts = ("--operator", "Zoo & Söhne", "--purpose", "To tell cats from dogs + emus.")

    printed = fedlens("link", "--server", "https://a.org", "--token-file", token_file, *texts)

    # A plus is no space in a link.
    assert printed.stdout.endswith(
        "&operator=Zoo%20%26%20S%C3%B6hne&purpose=To%20tell%20cats%20from%20dogs%20%2B%20emus.\n"
    )


@pytest.mark.parametrize("text", ["", " ", "a\nb", "x" * 101])
def test_a_name_that_no_screen_shows_well_is_refused(text: str, token_file: Path) -> None:
    printed = fedlens("link", "--server", "https://a.org", "--token-file", token_file, "--operator", text)

    assert "operator: found" in error_text(printed) and "must be 1 to 100 printable characters" in error_text(printed)


def test_what_serve_init_wrote_makes_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    fedlens("serve", "--init", folder)

    printed = link("https://127.0.0.1:8443", folder / "trainer.token", folder / "ca.pem")

    values = parse_qs(urlsplit(printed.stdout.strip()).fragment)
    assert values["token"] == [(folder / "trainer.token").read_text().strip()]
    # What a QR code holds in its largest version with the least correction.
    assert len(values["ca"]) == 1 and len(printed.stdout) < 2953


@pytest.mark.parametrize(
    "server",
    [
        *("fl.example.org", "http://fl.example.org", "https://me@fl.example.org"),
        *("https://fl.example.org?a=b", "https://fl.example.org#a", "https://", "https://[", "https://h:99999"),
    ],
)
def test_an_address_that_no_phone_would_join_is_refused(server: str, token_file: Path) -> None:
    printed = link(server, token_file)

    assert error_text(printed).startswith(f"fedlens: server: found {server!r}, must look like https://")
    assert printed.stdout == ""


def test_a_file_without_what_it_is_to_hold_is_named(tmp_path: Path, token_file: Path) -> None:
    (tmp_path / "empty").write_text("\n")

    (tmp_path / "two").write_text("abc\nhttps://a.org/join#token=abc\n")
    (tmp_path / "binary").write_bytes(b"\xd0\xff")

    for name in ("empty", "two"):
        assert f"{name} holds no enrolment token, which is one line of" in error_text(
            link("https://a.org", tmp_path / name)
        )
    told = error_text(link("https://a.org", token_file, tmp_path / "binary"))
    assert "--ca: " in told
    assert "binary cannot be read as a certificate (PEM): it is no text" in told
    assert "cannot be read as an enrolment token" in error_text(link("https://a.org", tmp_path / "gone"))
    assert "holds no certificate" in error_text(link("https://a.org", token_file, tmp_path / "empty"))
    assert "gone.pem" in error_text(link("https://a.org", token_file, tmp_path / "gone.pem"))
    keyless = fedlens("link", "--server", "https://a.org", "--token-file", token_file, "--publisher", token_file)
    assert "no public key in PEM form" in error_text(keyless)
