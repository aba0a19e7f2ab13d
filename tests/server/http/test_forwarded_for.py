"""Clients behind a proxy: their own addresses are in the log, and are limited."""

from pathlib import Path

from tests.server.http.running import TRAINER_TOKEN, Client, Server, enrolment, running
from tests.server.telemetry.logs import logged

ALICE, PROXY = "203.0.113.7", "127.0.0.1"


async def enrol(server: Server, index: int, forwarded_for: str) -> tuple[int, str]:
    client = Client(server, index.to_bytes(32))
    body = enrolment(TRAINER_TOKEN, client.id)
    return (await client.send("POST", "/v1/clients", body, X_Forwarded_For=forwarded_for)).outcome


async def test_a_trusted_proxy_is_believed_whom_it_speaks_for(tmp_path: Path) -> None:
    async with running(tmp_path, trusted_proxies=[PROXY]) as server:
        with logged("human") as log:
            await enrol(server, 1, f"198.51.100.1, {ALICE}")

    assert f" address={ALICE}\n" in str(log)


async def test_nobody_else_is_believed(tmp_path: Path) -> None:
    async with running(tmp_path, trusted_proxies=["10.0.0.0/8"]) as server:
        with logged("human") as log:
            await enrol(server, 1, ALICE)

    assert f" address={PROXY}\n" in str(log)
    assert ALICE not in str(log)


async def test_one_address_enrols_so_many_clients_a_minute_and_others_still_can(tmp_path: Path) -> None:
    async with running(tmp_path, trusted_proxies=[PROXY], enrolments_per_address=3) as server:
        many = [await enrol(server, index, ALICE) for index in range(5)]
        again = await enrol(server, 1, ALICE)
        neighbours = [await enrol(server, 10 + index, f"2001:db8:1:2::{index}") for index in range(4)]
        other = await enrol(server, 20, "2001:db8:1:3::1")
        server.clock.wind(60)
        later = await enrol(server, 3, ALICE)

    assert many == [(200, "")] * 3 + [(429, "slow-down")] * 2
    assert again == (200, "")  # it has enrolled
    assert neighbours == [(200, "")] * 3 + [(429, "slow-down")]
    assert (other, later) == ((200, ""), (200, ""))


async def test_a_whole_fleet_enrols_from_this_machine(tmp_path: Path) -> None:
    async with running(tmp_path, enrolments_per_address=1) as server:
        outcomes = [await enrol(server, index, "") for index in range(3)]

    assert outcomes == [(200, "")] * 3
