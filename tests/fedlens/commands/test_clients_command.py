"""`fedlens client list | show | ban | unban` against a server in this process."""

import json

import pytest

from tests.fedlens.commands.cli import error_text, fedlens
from tests.fedlens.commands.conftest import Command
from tests.server.bundles import tiny_bundle
from tests.server.http.running import Server


async def test_clients_are_listed_by_pages_as_one_list(administered: Server, operate: Command) -> None:
    clients = [await administered.client(index) for index in range(3)]

    listed = json.loads((await operate("client", "list", "--json")).stdout)
    table = await operate("client", "list", "--limit", 2, "--token", "trainers", "--state", "active", "--seen", "1h")
    everyone = await operate("client", "list", "--limit", 2)

    assert [each["id"] for each in listed] == sorted(client.id.hex() for client in clients)
    assert {each["token"] for each in listed} == {"trainers"}
    assert {(each["role"], each["state"]) for each in listed} == {("trainer", "active")}
    assert "trainers" not in table.stdout  # nobody has checked in
    assert "there may be more: --limit" in everyone.stdout


async def test_a_client_is_banned_with_a_reason_and_let_in_again(administered: Server, operate: Command) -> None:
    client = await administered.client(1)
    name = client.id.hex()

    banned = await operate("client", "ban", name, "--reason", "noise")
    refused = await client.send("POST", "/v1/check-in", b"\x08\x01")
    table = (await operate("client", "list", "--state", "banned")).stdout
    again = (await operate("client", "ban", name)).stdout
    unbanned = json.loads((await operate("client", "unban", name, "--json")).stdout)
    unbanned_again = await operate("client", "unban", name)

    assert banned.stdout == f"banned {name}\n"
    assert refused.outcome == (403, "forbidden")
    assert "noise" not in refused.error.message
    assert "banned since 2023-11-14 22:13:20Z: noise" in table
    assert again == f"{name} is banned already; nothing has changed\n"
    assert unbanned == {"unbanned": name, "clients": 1}
    assert unbanned_again.stdout == f"{name} is not banned; nothing has changed\n"
    assert (await client.check_in()).HasField("wait")


async def test_a_reason_of_digits_stays_text(administered: Server, operate: Command) -> None:
    client = await administered.client(1)
    await operate("client", "ban", client.id.hex(), "--reason", "42")

    (listed,) = json.loads((await operate("client", "list", "--json")).stdout)

    assert [value for value in listed.values() if value in ("42", 42)] == ["42"]


async def test_the_first_digits_of_an_id_are_enough(administered: Server, operate: Command) -> None:
    client = await administered.client(1)
    await administered.client(2)
    prefix = client.id.hex()[:13].upper()

    banned = await operate("client", "ban", prefix)
    shown = json.loads((await operate("client", "show", prefix[:12], "--json")).stdout)

    assert banned.exit_code == 0, banned.output
    assert (shown["id"], shown["state"]) == (client.id.hex(), "banned")


async def test_all_clients_of_a_token_are_banned_and_let_in_again(administered: Server, operate: Command) -> None:
    for index in range(3):
        await administered.client(index)

    banned = await operate("client", "ban", "--token", "trainers")
    unbanned = await operate("client", "unban", "--token", "trainers", "--json")

    assert banned.stdout == "banned 3 clients of token 'trainers'\n"
    assert json.loads(unbanned.stdout) == {"unbanned": "trainers", "clients": 3}


async def test_operators_see_what_clients_were_last_told(administered: Server, operate: Command) -> None:
    settings = {"selection": "arrivals", "goal": 1, "population": None, "eligible": {"num_examples": 11}}
    await administered.create(tiny_bundle(), **settings)
    client = await administered.client(1)
    await client.check_in()  # it has 10 photos

    shown = json.loads((await operate("client", "show", client.id.hex(), "--json")).stdout)
    table = (await operate("client", "show", client.id.hex())).stdout
    task = json.loads((await operate("task", "show", "demo", "--json")).stdout)

    assert (shown["answer"], shown["answer_task"]) == ("wait-not-eligible", 1)
    assert "last told wait-not-eligible about task 1 at 2023-11-14 22:13:20Z: 10 train photos to offer" in table
    assert task["answers"] == {"wait-not-eligible": 1}
    assert "last check-in was told: wait-not-eligible 1" in (await operate("task", "show", "demo")).stdout


@pytest.mark.usefixtures("administered")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "xyz"), "a client's id has 64 hexadecimal digits, of which 8 or more are needed, found 'xyz'"),
        (("ban", "0" * 7), "of which 8 or more are needed, found '0000000'"),
        (("show", "0" * 64), f"there is no client {'0' * 64}"),
        (("unban", "0" * 12), "there is no client whose id begins with 000000000000"),
        (("ban",), "name one client by its id, or a token by --token, and not both"),
        (("unban", "0" * 64, "--token", "a"), "and not both"),
        (("ban", "--token", "nobody's"), "there is no token"),
        (("list", "--bundle", "other"), "no task has a bundle 'other'"),
        (("list", "--seen", "soon"), "--seen: found 'soon'"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(operate: Command, arguments: tuple[str, ...], said: str) -> None:
    assert said in error_text(await operate("client", *arguments))


def test_without_a_command_a_client_needs_its_options() -> None:
    assert "Missing option '--server'" in error_text(fedlens("client"), status=2)
    assert "Missing option '--photos'" in error_text(fedlens("client", "--server", "https://a"), status=2)
