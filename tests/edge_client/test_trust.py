"""Clients that run what publishers signed, and nothing else."""

import sqlite3
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client.client.clock import SystemClock
from fedlens_edge_client.client.events import RoundFailed, RoundReported
from fedlens_edge_client.errors import AssignmentFailed, StateError
from fedlens_edge_client.storage.floors import Floors
from fedlens_edge_client.trust import Trust
from fedlens_export.signing import signed
from fedlens_proto.manifest import Bundle
from fedlens_proto.programs.statements import CLOCK_S, Publisher
from fedlens_proto.v1 import assignment_pb2, enrolment_pb2, update_pb2
from tests.edge_client.fakes import FakeServer, evaluation_plan, fedavg_plan
from tests.edge_client.federation import Federation
from tests.vectors.statements import BUNDLE, CAMERA, ENDS, KEYS, NOTES, OTHER, statement

ANN, BOB = (Publisher.of(KEYS[name].public_key()) for name in ("ann", "bob"))
LATER = ENDS + CLOCK_S + 1  # the statement has ended, however wrong the clock
EVALUATION: Mapping[str, Any] = {
    "answer": assignment_pb2.ANSWER_EVALUATION,
    "role": enrolment_pb2.CLIENT_ROLE_EVALUATOR,
}


@dataclass
class At(SystemClock):
    """A clock that is set by hand."""

    seconds: float = ENDS

    def now(self) -> float:
        return self.seconds


def said(bundle: bytes = BUNDLE, key: str = "ann", **changed: Any) -> bytes:
    publisher = Publisher.of(KEYS[key].public_key()).id
    return signed(statement(**{"manifest": bundle, "publisher": publisher, **changed}), KEYS[key])


def trust_of(folder: Path, *publishers: Publisher, now: float = ENDS) -> Trust:
    floors = Floors(folder / "floors.sqlite3")
    return Trust(
        publishers=publishers or (ANN,), audience=frozenset({CAMERA, "me"}), floors=floors, clock=At(seconds=now)
    )


def refusal(trust: Trust, signed_one: bytes, *, trains: bool = True, bundle: bytes = BUNDLE) -> str:
    with pytest.raises(AssignmentFailed) as refused:
        trust.check(bundle, signed_one, trains=trains)
    assert refused.value.reason == update_pb2.FAILURE_REASON_POLICY
    return str(refused.value)


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    ("signed_one", "told"),
    [
        (b"", "nobody has signed bundle"),
        (said()[:-1], "signed: "),
        (said(key="bob"), "published by"),
        (said(OTHER), "the statement is about bundle"),
        (said(audience=[NOTES]), f"the bundle is for {NOTES}; this client is me, {CAMERA}"),
        (said(serial=6, floor=6), "serial 6; its publisher withdrew those below 7"),
        (said(not_after=int(ENDS - CLOCK_S - 1)), "ended 1 days ago"),
    ],
    ids=["unsigned", "damaged", "another-publisher", "another-bundle", "another-app", "withdrawn", "ended"],
)
def test_a_bundle_is_refused_for_every_use(tmp_path: Path, signed_one: bytes, told: str, trains: bool) -> None:
    trust = trust_of(tmp_path)
    trust.check(OTHER, said(OTHER, serial=7, floor=7), trains=True)

    assert told in refusal(trust, signed_one, trains=trains)


def test_the_greatest_floor_counts_by_publisher_and_name(tmp_path: Path) -> None:
    trust = trust_of(tmp_path, ANN, BOB)
    trust.check(BUNDLE, said(serial=20, floor=20), trains=True)
    trust.check(BUNDLE, said(serial=21, floor=9), trains=True)

    assert "withdrew those below 20" in refusal(trust_of(tmp_path), said(serial=19, floor=9))
    trust.check(BUNDLE, said(serial=20, floor=9), trains=True)  # a canary may go back, as far as the floor
    trust.check(BUNDLE, said(name="letters"), trains=True)
    trust.check(BUNDLE, said(key="bob"), trains=True)


def test_a_floor_for_another_app_is_not_taken(tmp_path: Path) -> None:
    trust = trust_of(tmp_path)
    refusal(trust, said(serial=20, floor=20, audience=[NOTES]))

    trust.check(BUNDLE, said(), trains=True)


def test_a_statement_that_has_ended_still_withdraws_others(tmp_path: Path) -> None:
    refusal(trust_of(tmp_path, now=LATER), said(serial=20, floor=20))

    assert "withdrew" in refusal(trust_of(tmp_path), said())


def test_after_its_end_a_bundle_that_was_used_before_still_predicts(tmp_path: Path) -> None:
    trust_of(tmp_path).check(BUNDLE, said(), trains=False)
    later = trust_of(tmp_path, now=LATER)

    later.check(BUNDLE, said(), trains=False)
    assert "ended 1 days ago" in refusal(later, said(), trains=True)
    assert "ended 1 days ago" in refusal(later, said(OTHER), trains=False, bundle=OTHER)
    later.check(BUNDLE, said(not_after=int(LATER)), trains=True)


def test_a_clock_may_be_a_day_off(tmp_path: Path) -> None:
    trust_of(tmp_path, now=LATER - 1).check(BUNDLE, said(), trains=True)


def test_keys_are_read_before_each_use(tmp_path: Path) -> None:
    keys = [ANN]
    floors, clock = Floors(tmp_path / "floors.sqlite3"), At()
    trust = Trust(publishers=keys, audience=frozenset({CAMERA}), floors=floors, clock=clock)
    trust.check(BUNDLE, said(), trains=True)
    keys[:] = [BOB]

    assert "published by" in refusal(trust, said(), trains=False)
    trust.check(BUNDLE, said(key="bob"), trains=True)


def test_of_two_floors_at_a_time_the_greater_one_stays(tmp_path: Path) -> None:
    floors = [Floors(tmp_path / "floors.sqlite3") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(floors[i % 8].raise_to, b"ann", "digits", i) for i in range(64)]:
            each.result()

    assert floors[0].of(b"ann", "digits") == 63


def test_a_file_that_cannot_be_used_refuses_everything(tmp_path: Path) -> None:
    (tmp_path / "floors.sqlite3").write_bytes(b"no database" * 100)

    with pytest.raises(StateError, match="which says what publishers withdrew, cannot be used"):
        trust_of(tmp_path).check(BUNDLE, said(), trains=True)


def test_what_withdrew_nothing_and_was_used_before_writes_nothing(tmp_path: Path) -> None:
    trust = trust_of(tmp_path)
    trust.check(BUNDLE, said(), trains=True)
    with sqlite3.connect(tmp_path / "floors.sqlite3") as database:
        before = database.execute("PRAGMA data_version").fetchall()
        trust.check(BUNDLE, said(), trains=True)
        after = database.execute("PRAGMA data_version").fetchall()
    database.close()

    assert before == after


async def outcome_of(federation: Federation, server: FakeServer, **others: Any) -> object:
    usual = {"publishers": [ANN], "audience": [CAMERA], "clock": At(), "floors": federation.state.parent / "floors"}
    return await federation.one_round(server, **{**usual, **others})


async def test_a_client_trains_with_what_its_publisher_signed(federation: Federation, bundle: Bundle) -> None:
    async with federation.server() as server:
        server.statement = said(bundle.id)
        outcome = await outcome_of(federation, server)

    assert isinstance(outcome, RoundReported)


@pytest.mark.parametrize("answer", ["update", "evaluation"])
async def test_nothing_is_fetched_of_a_bundle_that_nobody_signed(
    bundle: Bundle, federation: Federation, answer: str
) -> None:
    evaluates = answer == "evaluation"
    given = EVALUATION if evaluates else {}
    async with FakeServer(bundle, evaluation_plan() if evaluates else fedavg_plan(), **given) as server:
        outcome = await outcome_of(federation, server)

    assert isinstance(outcome, RoundFailed)
    assert outcome.reason == "policy"
    assert server.failures[1].detail.endswith(
        f"nobody has signed bundle {bundle.id.hex()[:12]}; its publisher must, with `fedlens sign`"
    )
    assert server.calls["blob"] == 0


async def test_a_floor_holds_with_another_server(federation: Federation, bundle: Bundle, tmp_path: Path) -> None:
    async with federation.server() as one, federation.server() as other:
        one.statement, other.statement = said(bundle.id, serial=9, floor=9), said(bundle.id, serial=8)
        assert isinstance(await outcome_of(federation, one), RoundReported)
        refused = await outcome_of(federation, other, state=tmp_path / "other")

    assert isinstance(refused, RoundFailed)
    assert "withdrew those below 9" in other.failures[1].detail


async def test_a_model_whose_statement_has_ended_predicts_and_does_not_train(
    federation: Federation, bundle: Bundle, cat: Path
) -> None:
    clock = At()
    usual = {"publishers": [ANN], "audience": [CAMERA], "clock": clock}
    async with federation.server(rounds=2) as server, federation.client(server, **usual) as client:
        server.statement = said(bundle.id)
        await client.run_once()
        clock.seconds = LATER
        outcome = await client.run_once()
        found = await client.predict(cat)

    assert isinstance(outcome, RoundFailed)
    assert "ended 1 days ago" in server.failures[2].detail
    assert sum(found.values()) == pytest.approx(1)


async def test_a_key_that_was_left_out_ends_predictions_too(federation: Federation, bundle: Bundle, cat: Path) -> None:
    keys = [ANN]
    usual = {"publishers": keys, "audience": [CAMERA], "clock": At()}
    async with federation.server() as server, federation.client(server, **usual) as client:
        server.statement = said(bundle.id)
        await client.run()
        await client.predict(cat)
        keys.clear()
        with pytest.raises(AssignmentFailed, match="trusted is nobody"):
            await client.predict(cat)
