"""A leader that is killed, and the time until its standby answers clients: two processes, PostgreSQL and a bucket.

Floor: the time that was left to the lead at the kill.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import URL

from bench import prepared_requests
from bench.elsewhere import places
from bench.row import Row, Sample, against_target
from fedlens_proto import keyed_hash
from fedlens_server.init import DATA
from fedlens_server.store import Store
from tests.integration.twins import Twin
from tests.server.elsewhere import Cluster, elsewhere

ENROLLED, KILLS = 100_000, 5
_LEFT = "SELECT expires - extract(epoch FROM clock_timestamp()) FROM lead"


def measure(folder: Path) -> Iterator[Row]:
    """Five takeovers, each after `kill -9`."""
    with places() as (cluster, gateway), ExitStack() as held:
        state = elsewhere(folder / "one" / DATA, cluster, gateway)
        assert state.database is not None
        first = Twin.of(state, folder / "one", launcher=())
        with closing(Store.open(state)) as store:
            ids = [keyed_hash.client_id(prepared_requests.secret(i)) for i in range(ENROLLED)]
            prepared_requests.enrol(store, ids, last_seen=time.time() - 600)
        leader, standby = first, first.twin(folder / "two")
        for each in (leader, standby):
            held.callback(each.kill)
            each.start()
        left, took = list[float](), list[float]()
        for _ in range(KILLS):
            time.sleep(0.7 * len(took) % 2)  # at different moments between two renewals
            left.append(_left_s(cluster, state.database))
            killed = time.perf_counter()
            leader.kill()
            standby.until_it_leads()
            _connect(standby.url)
            took.append(time.perf_counter() - killed)
            leader.start()
            leader, standby = standby, leader
    yield against_target(
        f"takeover after kill -9 of the leader, {ENROLLED:,} enrolled",
        *(Sample(tuple(left)), Sample(tuple(took)), 10, "until the lead expires"),
        unit="s",
        digits=1,
        judged=max(took),
        judged_text=f"{max(took):.1f} s at most",
    )


def _left_s(cluster: Cluster, database: URL) -> float:
    assert database.database is not None
    with cluster.connect(database.database) as connection:
        (left,) = connection.execute(_LEFT).fetchone() or (0.0,)
        return float(left)


def _connect(url: str) -> None:
    """Return when a client is connected."""
    address = urlsplit(url)
    while True:
        with suppress(OSError), socket.create_connection((address.hostname, address.port or 443)):
            return
