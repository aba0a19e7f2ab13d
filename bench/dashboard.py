"""Pages of the dashboard of a server with many clients and rounds: the time to an answer, and bytes with all files.

A page is asked for by one plain request after the other, as a browser with an empty cache would, without scripts.
"""

import http.client
import re
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from sqlalchemy import insert, update

from bench import models, prepared_requests
from bench.many_clients import HEAD
from bench.row import Row, Sample, against_target, seconds
from bench.server_process import serving
from fedlens_proto.v1 import admin_pb2
from fedlens_server.init import DATA, make_data
from fedlens_server.store import Store, Transaction, schema

CLIENTS, ROUNDS, MEMBERS = 10_000, 1_000, 10
REPEATS = 15
PAGES = {"first page": "/dashboard/", "page of a task": "/dashboard/tasks/1", "clients": "/dashboard/clients"}
CHART = "/dashboard/tasks/1/history.json"


def measure(folder: Path) -> Iterator[Row]:
    """A row for each page, and one for the chart's figures when they are asked for the first time."""
    ids = [sha256(str(index).encode()).digest() for index in range(CLIENTS)]
    make_data(folder / DATA)
    with serving(folder) as server:
        server.create_task(models.inert_bundle(HEAD, folder / "bundle"), {"rounds": 2 * ROUNDS, "population": 10**6})
    with closing(Store.open(folder / DATA)) as store:
        prepared_requests.enrol(store, ids, last_seen=time.time() - 600)
        store.submit(partial(_write_rounds, ids)).result()
    with serving(folder) as server:
        visit = _Visit(server.admin_url, (folder / "admin.token").read_text())
        name = f"dashboard with {CLIENTS:,} clients and {ROUNDS:,} rounds of {MEMBERS}"
        floor = Sample(tuple(1000 * seconds(partial(visit.get, "/healthz")) for _ in range(REPEATS)))
        chart = Sample((1000 * seconds(partial(visit.get, CHART)),))
        for title, path in PAGES.items():
            took = Sample(tuple(1000 * seconds(partial(visit.get, path)) for _ in range(REPEATS)))
            yield against_target(f"{name}: {title}", floor, took, 300, "/healthz", unit="ms", digits=1)
            kb = Sample((visit.bytes_of(path) / 1000,))
            files = f"{name}: {title}, with styles and scripts as they travel"
            yield against_target(files, Sample((0.0,)), kb, 150, "none", unit="kB", digits=0)
        first = f"{name}: figures of its charts, for the first time"
        yield against_target(first, floor, chart, 1000, "/healthz", unit="ms", digits=0)


class _Visit:
    """An operator who has logged in."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc)
        self._headers = {"Accept-Encoding": "gzip"}
        form = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
        self._connection.request("POST", "/dashboard/login", urlencode({"token": token}), form)
        answer = self._connection.getresponse()
        answer.read()
        self._headers["Cookie"] = answer.headers["Set-Cookie"].partition(";")[0]

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path, headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}")
        return body

    def bytes_of(self, path: str) -> int:
        """Of a page and the files that it names."""
        page = self.get(path)
        files = set(re.findall(r'(?:src|href)="(/dashboard/static/[^"]+)"', page.decode()))
        return len(page) + sum(len(self.get(file)) for file in files)


def _write_rounds(ids: list[bytes], transaction: Transaction) -> None:
    committed, reported = admin_pb2.ROUND_STATE_COMMITTED, admin_pb2.MEMBER_STATE_REPORTED
    began = time.time() - 60 * ROUNDS
    rounds = [
        {
            **{"task": 1, "number": number, "phase": 0, "state": committed, "reason": "", "bytes_sent": 100_000},
            **{"opened_at": began + 60 * number, "ended_at": began + 60 * number + 50, "sitting_out": "[]"},
        }
        for number in range(1, ROUNDS + 1)
    ]
    members = [
        {
            **{"task": 1, "round": number, "client": ids[(number * MEMBERS + i) % CLIENTS], "state": reported},
            **{"bundle": b"", "phase": 0, "sets": "{}", "reason": "", "bytes_received": 10_000, "num_examples": 100},
            **{"evaluations": '[["start", 20, 12, 9.5], ["trained", 20, 14, 8.5]]', "blobs": "{}"},
        }
        for number in range(1, ROUNDS + 1)
        for i in range(MEMBERS)
    ]
    transaction.execute(insert(schema.rounds), rounds)
    transaction.execute(insert(schema.members), members)
    transaction.execute(update(schema.tasks).values(committed=ROUNDS))
