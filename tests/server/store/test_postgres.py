"""A database that is killed, cut off, full, or not there."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Integer, insert, select, text

from fedlens_server.errors import StorageFull, StoreUnusable, Unavailable
from fedlens_server.store import Candidate, StateAddress, Store, Transaction, schema
from fedlens_server.store.dialects import INTEGER
from tests.server.elsewhere import Cluster, Link, running_cluster, through

_FORGET = insert(schema.forgotten)


def forgetting(client: bytes):
    def operation(transaction: Transaction) -> None:
        transaction.later(_FORGET, {"id": client})

    return operation


def forget(store: Store, client: bytes) -> None:
    store.submit(forgetting(client)).result()


def forgotten(store: Store) -> set[bytes]:
    return {row.id for row in store.read(select(schema.forgotten))}


@pytest.fixture
def address(cluster: Cluster, folder: Path) -> StateAddress:
    return StateAddress(folder=folder, database=cluster.create())


@pytest.fixture
def store(address: StateAddress) -> Iterator[Store]:
    with closing(Store.open(address)) as opened:
        yield opened


@pytest.fixture
def link(cluster: Cluster) -> Iterator[Link]:
    with closing(Link(cluster.socket)) as opened:
        yield opened


@pytest.fixture
def linked(address: StateAddress, link: Link) -> Iterator[Store]:
    """A store that reaches its database through a link."""
    assert address.database is not None
    by_link = StateAddress(folder=address.folder, database=through(link, address.database))
    with closing(Store.open(by_link)) as opened:
        yield opened


@pytest.mark.slow
def test_what_was_acknowledged_survives_when_the_database_is_killed(folder: Path) -> None:
    sent: set[bytes] = set()
    acknowledged: set[bytes] = set()
    with running_cluster() as cluster:
        address = StateAddress(folder=folder, database=cluster.create())
        for kill in range(5):
            with closing(Store.open(address)) as store:
                clients = [bytes([kill, *divmod(i, 256)]) for i in range(3000)]
                futures = {client: store.submit(forgetting(client), [client]) for client in clients}
                sent |= futures.keys()
                futures[clients[300 * kill]].result()  # some commits are done, others on their way
                cluster.kill()
                done = {client for client, future in futures.items() if future.exception() is None}
            acknowledged |= done
            cluster.start()
            assert {type(future.exception()) for future in futures.values()} <= {type(None)} | _unavailable()
        with closing(Store.open(address)) as store:
            found = forgotten(store)

    assert acknowledged <= found <= sent


def _unavailable(root: type[Unavailable] = Unavailable) -> set[type]:
    return {root}.union(*(_unavailable(each) for each in root.__subclasses__()))


def test_a_store_goes_on_when_its_database_is_back(linked: Store, link: Link) -> None:
    forget(linked, b"before")

    link.cut()
    with pytest.raises(Unavailable, match="cannot be reached"):
        forget(linked, b"cut off")
    with pytest.raises(Unavailable, match="cannot be reached"):
        forgotten(linked)
    link.go_on()
    forget(linked, b"after")

    assert forgotten(linked) == {b"before", b"after"}


def test_a_database_that_goes_away_while_the_state_is_read_is_told_in_one_line(
    address: StateAddress, link: Link
) -> None:
    assert address.database is not None
    candidate = Candidate.open(StateAddress(folder=address.folder, database=through(link, address.database)))
    candidate.lead.take()
    link.cut_after(b"FROM blobs")

    with pytest.raises(StoreUnusable, match=r"^postgresql://.*: the server's database cannot be reached") as caught:
        Store(candidate)

    assert "\n" not in str(caught.value)
    Store.open(address).close()


def test_a_slow_network_delays_and_loses_nothing(linked: Store, link: Link) -> None:
    link.hold()
    waiting = linked.submit(forgetting(b"slow"))
    assert not waiting.done()
    link.go_on()

    assert waiting.result() is None
    assert forgotten(linked) == {b"slow"}


@pytest.mark.usefixtures("quick_lead")
def test_a_server_whose_commit_got_no_answer_ends_and_the_commit_is_done_once(
    linked: Store, link: Link, address: StateAddress, tmp_path: Path
) -> None:
    link.cut_after(b"COMMIT\0", of=b"uncertain")
    uncertain = linked.submit(forgetting(b"uncertain"))

    with pytest.raises(Unavailable, match="send the request again"):
        uncertain.result()
    assert link.swallowed.wait(10)  # which it is after the cut
    with pytest.raises(Unavailable):
        linked.submit(forgetting(b"next"))
    assert "database was lost" in linked.writing.broken
    with closing(Store.open(StateAddress(folder=tmp_path / "other", database=address.database))) as reopened:
        assert forgotten(reopened) == {b"uncertain"}


def test_a_full_disk_of_the_database_is_told_and_the_next_commit_works(store: Store, address: StateAddress) -> None:
    refusing = (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON forgotten EXECUTE FUNCTION refuse()",
    )
    for statement in refusing:
        store.submit(lambda transaction, statement=statement: transaction.execute(text(statement)).close()).result()

    with pytest.raises(StorageFull, match="disk is full"):
        forget(store, b"no room")
    store.submit(lambda transaction: transaction.execute(text("DROP TRIGGER refuse ON forgotten")).close()).result()
    forget(store, b"room")

    assert forgotten(store) == {b"room"}


def test_a_text_with_nul_spoils_no_commit(store: Store) -> None:
    row = {"token": "a\0b", "uses": 1}
    store.submit(lambda transaction: transaction.execute(insert(schema.token_uses), row).close()).result()

    assert [found.token for found in store.read(select(schema.token_uses))] == ["a\N{REPLACEMENT CHARACTER}b"]


def test_counts_may_exceed_32_bits(store: Store) -> None:
    row = {"token": "many", "uses": 1 << 40}
    store.submit(lambda transaction: transaction.execute(insert(schema.token_uses), row).close()).result()

    assert [found.uses for found in store.read(select(schema.token_uses))] == [1 << 40]
    columns = [column for table in schema.metadata.sorted_tables for column in table.columns]
    assert [column for column in columns if isinstance(column.type, Integer) and column.type is not INTEGER] == []


def test_a_database_that_is_not_there_or_may_not_be_used_is_named_in_one_line(
    cluster: Cluster, address: StateAddress, folder: Path
) -> None:
    assert address.database is not None
    with cluster.connect("postgres") as connection:
        connection.execute("CREATE ROLE guest LOGIN")
    wrong = {
        'database "nothing" does not exist': address.database.set(database="nothing"),
        "permission denied for schema public": address.database.set(username="guest"),
        'role "nobody" does not exist': address.database.set(username="nobody"),
        "No such file or directory": address.database.set(query={"host": "/nowhere"}),
        "Connection refused": address.database.set(host="127.0.0.1", port=1, query={}),
    }

    for reason, url in wrong.items():
        with pytest.raises(StoreUnusable, match=f"cannot be used as a database: .*{reason}") as caught:
            Store.open(StateAddress(folder=folder, database=url))
        assert "\n" not in str(caught.value)
