"""What publishers say of a task's bundles: refused at once, sent to clients, renewed, and told when it ends."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedlens_export.signing import signed
from fedlens_proto.programs.statements import CLOCK_S, Publisher
from fedlens_proto.v1 import admin_pb2, admission_pb2, check_in_pb2
from fedlens_server.engine.operators import audit, statements
from fedlens_server.engine.operators.access import Operator
from fedlens_server.errors import Malformed, TaskDiffers
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.engine.arrivals import SETTINGS, Arrivals
from tests.server.fakes import ALICE, BOB, START
from tests.vectors.statements import KEYS, statement

KIM = Operator(name="kim", role=admission_pb2.TOKEN_ROLE_OPERATE)
BUNDLE, OTHER = tiny_bundle(), tiny_bundle(model="other")
DAY_S = 86_400
ANN = Publisher.of(KEYS["ann"].public_key())
IN_90_DAYS = int(START) + 90 * DAY_S


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    with closing(Arrivals(tmp_path / "server")) as found:
        found.enrol([ALICE, BOB])
        yield found


def said(bundle: TinyBundle = BUNDLE, key: str = "ann", **changed: Any) -> bytes:
    """What a publisher says of a bundle, for 90 days."""
    usual = {"manifest": bundle.id, "publisher": Publisher.of(KEYS[key].public_key()).id, "not_after": IN_90_DAYS}
    return signed(statement(**(usual | changed)), KEYS[key])


def make(server: Arrivals, *signed_ones: bytes, bundles: tuple[TinyBundle, ...] = (BUNDLE,)) -> admin_pb2.Task:
    made = server.create(json.dumps(SETTINGS | {"rest": 0}), bundles, "task", signed_ones)
    server.settle()
    return made


def renew(server: Arrivals, *signed_ones: bytes) -> None:
    statements.renew(server.federation, server.task, signed_ones, KIM).result()


def trusting_ann(server: Arrivals) -> Arrivals:
    server.publishers.append(ANN)
    server.reopen()
    return server


def model(server: Arrivals, client: bytes) -> check_in_pb2.CurrentModel:
    (found,) = server.check_in(client).wait.models
    return found


def test_clients_get_the_statement_with_their_work_and_their_model(server: Arrivals) -> None:
    make(server, said())
    assert server.has_place(ALICE)
    assert server.assignment(ALICE).statement == said()
    server.report(ALICE)

    assert model(server, ALICE).statement == said()
    assert list(server.show().task.statements) == [said()]


def test_a_statement_outlives_a_restart(server: Arrivals) -> None:
    make(server, said(), b"", bundles=(BUNDLE, OTHER))
    server.reopen()

    assert list(server.show().task.statements) == [said(), b""]


@pytest.mark.parametrize(
    ("signed_ones", "told"),
    [
        (
            [],
            r"manifests\[0\]: the bundle is not signed; this server takes only bundles signed by its publishers "
            rf"\({ANN.id.hex()[:12]}\); sign the bundle",
        ),
        ([b""], "the bundle is not signed"),
        ([said(key="bob")], "the bundle is published by"),
        ([said(OTHER)], "the statement is about bundle"),
        ([said()[:-1]], "no readable statement|signature"),
        ([said(not_after=int(START - CLOCK_S) - 1)], "ended 1 days ago; sign the bundle with `fedlens sign`"),
        ([said(), said()], "statements: found 2, must be one for each of 1 manifests"),
    ],
)
def test_a_bundle_that_the_servers_publishers_did_not_sign_makes_no_task(
    server: Arrivals, signed_ones: list[bytes], told: str
) -> None:
    trusting_ann(server)

    with pytest.raises(Malformed, match=told):
        make(server, *signed_ones)

    assert not server.federation.tasks


def test_a_bundle_that_one_of_them_signed_makes_one(server: Arrivals) -> None:
    make(trusting_ann(server), said())

    assert server.has_place(ALICE)
    assert server.assignment(ALICE).statement == said()


def test_a_server_without_publishers_takes_any_publisher_but_no_statement_about_another_bundle(
    server: Arrivals,
) -> None:
    with pytest.raises(Malformed, match="the statement is about bundle"):
        make(server, said(OTHER))
    make(server, said(key="bob"))

    assert server.has_place(ALICE)
    assert server.assignment(ALICE).statement == said(key="bob")


def test_the_same_task_with_a_renewed_statement_is_the_same_task(server: Arrivals) -> None:
    first = make(server, said())
    again = make(server, said(not_after=IN_90_DAYS + 1))

    assert (again.id, list(again.statements)) == (first.id, [said()])


def test_a_running_task_takes_the_newer_statement(server: Arrivals) -> None:
    make(server, said(), b"", bundles=(BUNDLE, OTHER))
    assert server.has_place(ALICE)
    newer = said(not_after=IN_90_DAYS + 1)
    renew(server, newer)

    assert server.assignment(ALICE).statement == newer
    server.report(ALICE)
    assert model(server, ALICE).statement == newer
    server.reopen()
    assert list(server.show().task.statements) == [newer, b""]
    entry = audit.listed(server.federation, 0.0).entries[0]
    assert (entry.operator, entry.action, entry.subject) == ("kim", "task renew", "task")
    renew(server, newer)
    assert len([each for each in audit.listed(server.federation, 0.0).entries if "renew" in each.action]) == 1


@pytest.mark.parametrize(
    ("signed_one", "told"),
    [
        (said(not_after=IN_90_DAYS - 1), r"statements\[0\]: it is older than the one that the task has"),
        (said(serial=6), "it is older"),
        (said(key="bob", serial=8), "the bundle is published by"),
        (b"\xff", r"statements\[0\]: no readable statement"),
    ],
)
def test_an_older_or_unusable_statement_is_refused(server: Arrivals, signed_one: bytes, told: str) -> None:
    make(trusting_ann(server), said())

    with pytest.raises(Malformed, match=told):
        renew(server, signed_one)

    assert list(server.show().task.statements) == [said()]


def test_a_renewal_needs_a_bundle_of_a_task_that_goes_on(server: Arrivals) -> None:
    make(server, said())
    with pytest.raises(Malformed, match="found none; send one about each bundle"):
        renew(server)
    with pytest.raises(TaskDiffers, match="has no bundle that statement 0 is about"):
        renew(server, said(OTHER))
    server.stop("task")
    with pytest.raises(TaskDiffers, match="has ended"):
        renew(server, said(not_after=IN_90_DAYS + 1))


def test_the_end_of_a_statement_is_told_14_days_ahead(server: Arrivals, caplog: pytest.LogCaptureFixture) -> None:
    make(server, said(), b"", bundles=(BUNDLE, OTHER))
    server.clock.wind(75 * DAY_S)
    statements.note_ends(server.federation)
    assert not server.show().task.notices
    assert not [message for message in caplog.messages if "statement-ends" in message]

    server.clock.wind(4 * DAY_S)
    (notice,) = server.show().task.notices
    about = f"the publisher's statement about bundle {BUNDLE.id.hex()[:12]}"
    assert notice == f"{about} ends in 11 days: sign the bundle anew with `fedlens sign`, then `fedlens task renew`"
    with caplog.at_level("WARNING"):
        statements.note_ends(server.federation)
    assert f"statement-ends {{'task': 'task', 'bundle': '{BUNDLE.id.hex()[:12]}', 'days': 11.0}}" in caplog.messages

    server.clock.wind(14 * DAY_S)
    assert "ended 3 days ago, so clients do not train with it" in server.show().task.notices[0]
    renew(server, said(not_after=int(server.clock.now()) + 90 * DAY_S))
    assert not server.show().task.notices
