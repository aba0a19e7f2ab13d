"""Servers with one database, of which one leads: no other writes, and it knows how long it may answer from memory."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from fedlens_server.errors import StoreUnusable, Unavailable
from fedlens_server.store import Candidate, StateAddress, Store, Transaction, lead, schema
from fedlens_server.store.copies.moving import move
from fedlens_server.store.lead import Lead
from tests.server.elsewhere import Cluster, Gateway, Link, elsewhere, through
from tests.server.store.test_objects import put
from tests.server.store.test_postgres import forget, forgetting, forgotten
from tests.server.telemetry.logs import logged

pytestmark = pytest.mark.usefixtures("quick_lead")


@pytest.fixture
def first(cluster: Cluster, gateway: Gateway, tmp_path: Path) -> StateAddress:
    """The address of one server's state."""
    return elsewhere(tmp_path / "first", cluster, gateway)


@pytest.fixture
def second(first: StateAddress, tmp_path: Path) -> StateAddress:
    """That of another server, with the same database and bucket."""
    return StateAddress(folder=tmp_path / "second", database=first.database, bucket=first.bucket)


@pytest.fixture
def link(cluster: Cluster) -> Iterator[Link]:
    with closing(Link(cluster.socket)) as opened:
        yield opened


@pytest.fixture
def linked(first: StateAddress, link: Link) -> Iterator[Store]:
    """The first server, which reaches its database through a link, and leads."""
    assert first.database is not None
    address = StateAddress(folder=first.folder, database=through(link, first.database), bucket=first.bucket)
    with closing(Store.open(address)) as opened:
        yield opened


def until(condition: Callable[[], bool], within_s: float = 20) -> None:
    """Return when a condition holds, which nothing announces."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it does not come to be"
        time.sleep(0.01)


def taken_over(standby: Candidate) -> Store:
    until(standby.try_lead)
    return Store(standby)


@pytest.mark.slow
def test_a_standby_leads_once_the_leader_has_stopped_and_not_before(first: StateAddress, second: StateAddress) -> None:
    leader, standby = Store.open(first), Candidate.open(second)
    began = time.monotonic()
    while time.monotonic() < began + 2 * lead.EXPIRES_S:
        assert not standby.try_lead()
        assert leader.lead.is_certain
    assert standby.lead.is_contested
    assert str(standby.lead.seen) == f"{leader.database.holder} leads, term 1"
    forget(leader, b"first")

    leader.close()
    with closing(taken_over(standby)) as store:
        assert store.lead.term == 2
        assert forgotten(store) == {b"first"}


@pytest.mark.slow
def test_a_transaction_that_computes_for_longer_than_the_lead_lasts_keeps_it(
    first: StateAddress, second: StateAddress
) -> None:
    go_on = threading.Event()

    def computing(transaction: Transaction) -> None:
        transaction.execute(insert(schema.forgotten), {"id": b"computed"})
        go_on.wait()

    with closing(Store.open(first)) as leader, closing(Candidate.open(second)) as standby:
        written = leader.submit(computing)
        began = time.monotonic()
        while time.monotonic() < began + 2 * lead.EXPIRES_S:
            assert not standby.try_lead()
        go_on.set()

        assert written.result() is None
        assert leader.lead.is_certain
        assert forgotten(leader) == {b"computed"}


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"FOR KEY SHARE", b"INSERT INTO forgotten", b"COMMIT\0"])
def test_a_leader_whose_network_stands_still_can_neither_write_nor_answer_once_another_has_followed(
    linked: Store, link: Link, second: StateAddress, sent: bytes
) -> None:
    """Idle, at the beginning and in the middle of a transaction, and between COMMIT and its answer."""
    forget(linked, b"before")
    standby = Candidate.open(second)
    link.hold_after(sent, of=b"late") if sent == b"COMMIT\0" else link.hold_after(sent) if sent else link.hold()
    late = linked.submit(forgetting(b"late"))
    if sent:
        assert link.held.wait(10)

    with closing(taken_over(standby)) as store:
        assert not linked.lead.is_certain
        is_there = b"late" in forgotten(store)
        forget(store, b"after")
        link.go_on()

        error = late.exception(30)
        with pytest.raises(Unavailable):
            linked.submit(forgetting(b"too late")).result(30)
        until(lambda: bool(linked.writing.broken))
        assert not linked.lead.is_certain
        assert forgotten(store) == {b"before", b"after"} | ({b"late"} if is_there else set())
        # The answer to a COMMIT that was done may still come; nobody is told, for the lead is not certain.
        assert isinstance(error, Unavailable) or (error is None and is_there)
        assert is_there == (sent == b"COMMIT\0")


def test_a_leader_that_nobody_has_followed_goes_on_when_its_database_is_back(linked: Store, link: Link) -> None:
    link.cut()
    until(lambda: not linked.lead.is_certain)
    link.go_on()
    until(lambda: linked.lead.is_certain)
    forget(linked, b"after")

    assert linked.lead.term == 1
    assert forgotten(linked) == {b"after"}


@pytest.mark.slow
def test_a_server_that_hangs_while_it_takes_the_lead_keeps_no_other_from_it(
    cluster: Cluster, first: StateAddress, second: StateAddress
) -> None:
    Store.open(first).close()
    hanging = first.open_database().engine(writes=True)
    with hanging.connect() as connection, closing(Candidate.open(second)) as standby:
        first.open_database().end_sessions(connection, "")  # as every transaction that takes the lead begins
        connection.execute(schema.lead.update().values(term=7, holder="hanging"))

        until(standby.try_lead)

        assert standby.lead.term == 2
        connection.invalidate()
    hanging.dispose()


def test_clocks_that_are_apart_are_told_and_change_nothing(first: StateAddress) -> None:
    Store.open(first).close()
    database = first.open_database()
    engine = database.engine(writes=True)
    with logged("human") as log, closing(Lead(database, engine, now=lambda: time.time() + 3600)) as ahead:
        assert ahead.try_take()
        assert ahead.is_certain
    engine.dispose()

    (line,) = [line for line in str(log).splitlines() if "clocks-apart" in line]
    assert line.partition("ahead_s=")[2].startswith(("3599.", "3600."))


def test_a_state_that_a_server_leads_is_neither_opened_nor_moved(
    first: StateAddress, second: StateAddress, tmp_path: Path
) -> None:
    told = r"is in use by another server: fedlens \S+ \w+ leads, term 1; stop that server first"
    with closing(Store.open(first)):
        with pytest.raises(StoreUnusable, match=told) as opening:
            Store.open(second)
        with pytest.raises(StoreUnusable, match=told):
            move(second, StateAddress(folder=tmp_path / "third"))

    assert "\n" not in str(opening.value)


def test_two_servers_of_one_folder_are_told_so(first: StateAddress) -> None:
    with closing(Store.open(first)), pytest.raises(StoreUnusable, match="first is in use by another server") as caught:
        Candidate.open(first)

    assert "\n" not in str(caught.value)


def test_a_standby_of_a_server_with_its_blobs_in_a_folder_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    address = elsewhere(tmp_path / "first", cluster, None)
    other = StateAddress(folder=tmp_path / "second", database=address.database)
    with closing(Store.open(address)), closing(Candidate.open(other)) as standby:
        with pytest.raises(StoreUnusable, match=r"leads, term 1; a standby needs server\.blobs") as caught:
            until(standby.try_lead)

    assert "\n" not in str(caught.value)


def test_a_server_whose_folder_lacks_the_blobs_of_its_database_does_not_start(cluster: Cluster, tmp_path: Path) -> None:
    address = elsewhere(tmp_path / "first", cluster, None)
    with closing(Store.open(address)) as store:
        digest = put(store, bytes(100_000)).hex()

    with pytest.raises(StoreUnusable, match=f"names blob {digest}, which is not in .*second/blobs; bring"):
        Store.open(StateAddress(folder=tmp_path / "second", database=address.database))


def test_a_server_that_was_killed_is_followed_when_its_lead_is_over(first: StateAddress, second: StateAddress) -> None:
    Store.open(first).close()
    database = first.open_database()
    engine = database.engine(writes=True)
    with engine.begin() as connection:
        later = database.clock + lead.EXPIRES_S
        connection.execute(schema.lead.update().values(term=7, holder="killed", expires=later))
    engine.dispose()
    began = time.monotonic()

    with closing(Store.open(second)) as store:
        assert store.lead.term == 8
        assert lead.EXPIRES_S / 2 < time.monotonic() - began < 10 * lead.EXPIRES_S
        assert store.read(select(schema.lead.c.holder))[0].holder == store.database.holder
