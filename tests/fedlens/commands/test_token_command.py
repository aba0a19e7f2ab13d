"""`fedlens token` and `fedlens audit` against a server in this process."""

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

from fedlens_export.signing import new_key
from fedlens_server.engine.operators import audit
from tests.fedlens.commands.cli import error_text, fedlens
from tests.fedlens.commands.conftest import Command
from tests.server.http.running import READ_TOKEN, Server

pytestmark = pytest.mark.usefixtures("administered")


async def test_a_new_token_is_printed_alone_and_lets_a_client_in(administered: Server, operate: Command) -> None:
    made = await operate("token", "new", "phones", "--role", "trainer", "--uses", 1)

    assert made.exit_code == 0, made.output
    secret = made.stdout.removesuffix("\n")
    assert made.stderr == "token 'phones' is made; it cannot be shown again\n"
    await administered.client(1, secret)
    listed = json.loads((await operate("token", "list", "--json")).stdout)
    values = next(each for each in listed if each["name"] == "phones")
    assert (values["role"], values["uses"], values["max_uses"], values["per_minute"]) == ("trainer", 1, 1, 100)
    shown = (await operate("token", "list")).output + (await operate("audit")).output
    assert "phones" in shown and secret not in shown


async def test_a_revoked_token_lets_nobody_in(administered: Server, operate: Command) -> None:
    secret = (await operate("token", "new", "phones", "--role", "trainer")).stdout.strip()

    revoked = await operate("token", "revoke", "phones")

    assert revoked.stdout == "revoked token 'phones'\n"
    with pytest.raises(AssertionError, match="403"):
        await administered.client(1, secret)


async def test_with_the_servers_address_a_link_is_printed_and_drawn(tmp_path: Path, operate: Command) -> None:
    (tmp_path / "ca.pem").write_bytes(trustme.CA().cert_pem.bytes())
    new_key(tmp_path / "publisher")
    given = ("--ca", tmp_path / "ca.pem", "--publisher", tmp_path / "publisher.pub")
    place = ("--server", "https://fl.example.org", *given)

    made = await operate("token", "new", "phones", "--role", "evaluator", *place, "--qr")
    told = json.loads((await operate("token", "new", "more", "--role", "trainer", *place, "--json")).stdout)

    secret, link, *code = made.stdout.splitlines()
    assert parse_qs(urlsplit(link).fragment)["token"] == [secret]
    assert parse_qs(urlsplit(link).fragment).keys() == {"token", "ca", "publisher"}
    assert len(code) > 20 and set("".join(code)) <= set("\x1b[0;7m49m\u2580\u2584\u2588 ")
    assert parse_qs(urlsplit(told["link"]).fragment)["token"] == [told["secret"]]


async def test_a_link_that_no_qr_code_holds_is_refused_before_a_token_is_made(tmp_path: Path, operate: Command) -> None:
    (tmp_path / "ca.pem").write_bytes(b"".join(trustme.CA().cert_pem.bytes() for _ in range(9)))
    place = ("--server", "https://fl.example.org", "--ca", tmp_path / "ca.pem")

    refused = await operate("token", "new", "phones", "--role", "trainer", *place, "--qr")

    assert "a QR code holds 2,953" in error_text(refused)
    assert "phones" not in (await operate("token", "list")).stdout


async def test_operators_with_tokens_of_their_own_are_known_by_name(operate: Command) -> None:
    ann = (await operate("token", "new", "ann", "--role", "operate", "--expires", "30d")).stdout.strip()

    made = await operate("token", "new", "bob", "--role", "read", token=ann)

    assert made.exit_code == 0, made.output
    entries = json.loads((await operate("audit", "--since", "1h", "--json")).stdout)
    assert [(entry["operator"], entry["action"], entry["subject"], entry["detail"]) for entry in entries] == [
        ("ann", "token new", "bob", "read"),
        ("admin", "token new", "ann", "operate"),
    ]
    table = (await operate("audit")).stdout
    assert "2023-11-14 22:13:20Z" in table and "token new" in table


async def test_who_may_only_read_sees_everything_and_changes_nothing(operate: Command) -> None:
    seen = await operate("token", "list", token=READ_TOKEN)
    refused = await operate("token", "new", "phones", "--role", "trainer", token=READ_TOKEN)

    assert "onlooker" in seen.stdout
    assert "operator 'onlooker' has the role read; this request needs the role operate" in error_text(refused)


async def test_a_long_log_is_listed_whole(
    administered: Server, tmp_path: Path, operate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_LISTED", 2)
    for number in range(5):
        await operate("token", "new", f"token {number}", "--role", "trainer")

    listed = json.loads((await operate("audit", "--json")).stdout)

    assert [entry["subject"] for entry in listed] == [f"token {number}" for number in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("new", "a", "--role", "trainer", "--expires", "soon"), "--expires: found 'soon', must be a length of time"),
        (("new", "a", "--role", "trainer", "--expires", "0d"), "--expires: found '0d'"),
        (("new", "a", "--role", "trainer", "--qr"), "name the server's address for phones with --server"),
        (("new", "a", "--role", "trainer", "--server", "http://a"), "server: found 'http://a', must look like"),
        (("new", "trainers", "--role", "trainer"), "there is or was a token 'trainers'"),
        (("new", "a", "--role", "read", "--uses", "3"), "leave both out for the roles read and operate"),
        (("revoke", "nobody's"), 'there is no token "nobody\'s"'),
    ],
)
async def test_what_cannot_be_is_refused_by_name_and_makes_no_token(
    operate: Command, arguments: tuple[str, ...], said: str
) -> None:
    assert said in error_text(await operate("token", *arguments))
    assert "'a'" not in (await operate("audit")).output


@pytest.mark.parametrize("role", ["read", "operate"])
async def test_an_operators_token_is_no_link_for_phones(operate: Command, role: str) -> None:
    refused = await operate("token", "new", "kim", "--role", role, "--server", "https://fl.example.org")

    assert f"a token of role {role} lets none; leave it out" in error_text(refused)
    assert "kim" not in (await operate("token", "list")).stdout


async def test_a_name_that_is_no_text_is_named(operate: Command) -> None:
    assert r"found 'ph\udcff', must be text in UTF-8" in error_text(await operate("token", "revoke", "ph\udcff"))


def test_a_token_without_a_role_or_a_profile_is_refused() -> None:
    assert "--role" in error_text(fedlens("token", "new", "a"), status=2)
    assert "no server is given" in error_text(fedlens("token", "list", FEDLENS_ADMIN=None))
