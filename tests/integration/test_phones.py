"""2,000 phones that come and go by the hour, a third of which vanish in the middle of a round, over some days."""

import asyncio
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fedlens.compare.run.study_clock import START
from fedlens_edge_client.emulation.faults import FaultPlan, FaultRates
from fedlens_edge_client.emulation.presence import HOUR_S, PresencePlan
from fedlens_proto import wire
from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine.operators import tasks
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.engine.view import Federation
from tests.integration import records
from tests.integration.phones import phones_with_server
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.networks import network

TASKS = ("shared", "personal")
# Nobody is there from 8 to 16 o'clock; the emulation begins at 1:46.
HOURS = (*[0.25] * 6, 0.1, 0.05, *[0.0] * 8, *[0.05] * 4, 0.1, 0.1, 0.2, 0.25)
# Emulated phones train in no time, and phones are told to come by the time that training takes: so 40 % take some more.
ROUGH = FaultRates(seed=4, vanish=0.3, delay=0.4, loss=0.1, duplicate=0.1, corrupt=0.03, nan=0.02, delay_seconds=90)
# Reasons that the table of states has for a round of FedAvg; see `aggregation`.
ABANDONED = re.compile(r"valid updates: \d+; needed: \d+ \(.*\)")
# Answers to a phone that finds no work.
WAITS = {"NEXT_ROUND", "REST", "SITS_OUT"}


async def create(federation: Federation, name: str, bundle: TinyBundle, **settings: Any) -> None:
    for raw in bundle.parts:
        with federation.store.incoming() as incoming:
            incoming.write(raw)
            await asyncio.wrap_future(tasks.put_part(federation, incoming.finish()))
    usual = {"selection": "arrivals", "rounds": 10_000, "seed": sha256(name.encode()).hexdigest()}
    request = admin_pb2.CreateTaskRequest(
        protocol=wire.PROTOCOL, name=name, manifests=[bundle.manifest], settings_json=json.dumps(usual | settings)
    )
    await asyncio.wrap_future(tasks.create(federation, request, ADMIN))


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_rounds_go_on_with_two_thousand_phones_that_come_and_go(tmp_path: Path) -> None:
    plan = PresencePlan(seed=2, hours=HOURS, charging=0.8, unmetered=0.8, leaves=0.3, clock_off_s=86400.0)
    async with phones_with_server(tmp_path, 2000, plan, FaultPlan(rates=ROUGH)) as phones:
        federation = phones.service.federation
        await create(federation, "shared", tiny_bundle(), method="fedavg", goal=20, min_reports=10)
        # A fifth of its rounds is abandoned, so five in a row come now and then, which would end it.
        rarely = {"max_failures": 1, "max_consecutive_abandoned": 100}
        await create(federation, "personal", network(), method="fedper", goal=5, **rarely)
        midnight = START - START % (24 * HOUR_S)
        phones.begin()

        await phones.until(midnight + 8 * HOUR_S)
        before = [tasks.show(federation, name) for name in TASKS]
        await phones.until(midnight + 16 * HOUR_S)
        after = [tasks.show(federation, name) for name in TASKS]
        await phones.until(midnight + 48 * HOUR_S)
        shown = [tasks.show(federation, name) for name in TASKS]

    seen = phones.seen
    records.check(tmp_path / "server", {phones.client_id(i): phones.state(i) for i in seen.enrolled}, seen.receipts, 2)
    assert seen.refused.keys() == {"round-closed", "update-invalid"}
    assert len(seen.enrolled) > 1800
    # Every round has committed, or was abandoned for a reason of the table, but for the last, which waits.
    assert [found.task.state for found in shown] == [admin_pb2.TASK_STATE_RUNNING] * 2
    for found in shown:
        *ended, last = found.rounds
        assert last.state == admin_pb2.ROUND_STATE_OPEN
        assert {each.state for each in ended if not each.reason} == {admin_pb2.ROUND_STATE_COMMITTED}
        assert all(ABANDONED.fullmatch(each.reason) for each in ended if each.reason)
    assert any(each.reason for found in shown for each in found.rounds)
    # In eight hours without phones the rounds that had enough end, and the next ones wait; then both tasks go on.
    for earlier, later, last in zip(before, after, shown, strict=True):
        assert len(later.rounds) - len(earlier.rounds) <= 1
        assert later.rounds[-1].state == admin_pb2.ROUND_STATE_OPEN
        assert last.task.rounds_committed > later.task.rounds_committed > 8
    assert seen.waits.keys() <= WAITS
    # Phones asked at the time that they were told, and never had two assignments.
    assert (seen.early, seen.doubly) == (set(), set())
