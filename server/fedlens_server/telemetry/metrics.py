"""The metrics of one server, as Prometheus reads them.

What happens often is counted in plain numbers by the event loop or the writing thread, each its own; everything else is
looked up when it is asked for. Labels are bounded: routes, codes, states and tasks, never clients.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from fedlens_server.telemetry.events import Request
from fedlens_server.telemetry.timings import Timings

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True)
class Kind:
    """One metric: its type, its labels and its meaning. The name of a counter is exposed with `_total`."""

    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str


KINDS = {
    "fedlens_build_info": Kind("gauge", ("version",), "1; the label is the version of the server."),
    "fedlens_ready": Kind("gauge", (), "1 while requests are served and there is room on the disk, else 0."),
    "fedlens_standby": Kind("gauge", (), "1 while another server leads, or could, and this one waits; else 0."),
    "fedlens_requests": Kind(
        "counter", ("endpoint", "code"), "Requests that were answered; `code` is `ok`, or that of an error."
    ),
    "fedlens_errors": Kind(
        "counter",
        ("code",),
        "Requests that the server failed to serve, with the code `internal` or `storage-full`; counted from 0 on.",
    ),
    "fedlens_request_seconds": Kind(
        "histogram", ("endpoint",), "Time to an answer. Check-ins that were held until there was work are not in it."
    ),
    "fedlens_received_bytes": Kind("counter", ("endpoint",), "Bytes of bodies that requests announced."),
    "fedlens_sent_bytes": Kind("counter", ("endpoint",), "Bytes of bodies that responses announced."),
    "fedlens_check_ins": Kind(
        "counter", ("answer",), "Check-ins by answer: `assignment`, `finished`, or the reason of a wait."
    ),
    "fedlens_told_pause_seconds": Kind("histogram", (), "Pauses that waiting clients were told to make."),
    "fedlens_connections": Kind("gauge", ("side",), "Open connections of `clients` and of `operators`."),
    "fedlens_held_polls": Kind("gauge", (), "Check-ins that are held until there is work."),
    "fedlens_uploads": Kind("gauge", (), "Updates above 64 KiB that are being received."),
    "fedlens_clients": Kind("gauge", ("role",), "Enrolled clients by role, without those that are shut out."),
    "fedlens_present_clients": Kind("gauge", (), "Clients that were seen in the last two hours."),
    "fedlens_tasks": Kind("gauge", ("task", "state"), "1 for each task, with its state."),
    "fedlens_rounds": Kind(
        "counter", ("task", "state"), "Rounds that have ended: `committed`, undone since or not, or `abandoned`."
    ),
    "fedlens_last_commit_timestamp_seconds": Kind(
        "gauge",
        ("task",),
        "When the last round was committed, undone since or not, in seconds since the epoch; 0: none yet.",
    ),
    "fedlens_first_round_timestamp_seconds": Kind(
        "gauge", ("task",), "When the first round was opened, in seconds since the epoch; missing: not yet."
    ),
    "fedlens_round": Kind("gauge", ("task",), "Number of the round that is under way."),
    "fedlens_round_seconds": Kind("gauge", ("task",), "Time since the first place of the round under way was given."),
    "fedlens_round_overdue": Kind("gauge", ("task",), "1 while a round waits for updates after its deadline, else 0."),
    "fedlens_round_members": Kind("gauge", ("task", "state"), "Members of the round under way, by state."),
    "fedlens_members": Kind(
        "counter",
        ("task", "state"),
        "Members of rounds since the server's start: `given` a place, those of them that rested (`resting`) because "
        "nobody else came for it, and how that ended.",
    ),
    "fedlens_aggregation_seconds": Kind(
        "histogram", (), "Time from the freezing of a round's updates to the next model, before that is stored."
    ),
    "fedlens_write_queue": Kind("gauge", (), "Operations that wait for the writing thread."),
    "fedlens_write_wait_seconds": Kind("histogram", (), "Time for which an operation waited for the writing thread."),
    "fedlens_commit_seconds": Kind("histogram", (), "Time for the operations that share a commit, and the commit."),
    "fedlens_disk_free_bytes": Kind("gauge", (), "Free bytes of the file system that `server.data` is on."),
    "fedlens_disk_size_bytes": Kind("gauge", (), "Size of that file system."),
    "fedlens_database_bytes": Kind("gauge", (), "Size of the database's file."),
    "fedlens_blob_bytes": Kind("gauge", (), "Size of all stored blobs together."),
    "fedlens_last_backup_timestamp_seconds": Kind(
        "gauge",
        (),
        "When the last backup was made, in seconds since the epoch; 0: none yet; missing without `server.backups`.",
    ),
    "fedlens_certificate_expiry_timestamp_seconds": Kind(
        "gauge", (), "When the certificate in use expires, in seconds since the epoch; missing without TLS."
    ),
}
"""Every metric of our own, by name."""
FAILURES = ("internal", "storage-full")
"""The codes of requests that the server failed to serve."""


class Sample(NamedTuple):
    """One value of a metric, with the values of its labels."""

    name: str
    labels: tuple[str, ...]
    value: float | Timings


class Served:
    """The requests of one endpoint."""

    __slots__ = ("codes", "received", "seconds", "sent")

    def __init__(self) -> None:
        """None yet."""
        self.codes: dict[str, int] = {}
        self.seconds = Timings()
        self.received = 0
        self.sent = 0

    def add(self, request: Request, seconds: float, received: int, sent: int) -> None:
        """Count one, with the bytes of its bodies."""
        self.codes[request.code] = self.codes.get(request.code, 0) + 1
        self.received += received
        self.sent += sent
        if not request.held:
            self.seconds.add(seconds)


class Metrics(Collector):
    """The counts of one server, and the sources of what is looked up."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.served: defaultdict[str, Served] = defaultdict(Served)
        self.answers: Counter[str] = Counter()
        self.pauses = Timings((1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600))
        self._sources: list[Callable[[], Iterable[Sample]]] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def add(self, source: Callable[[], Iterable[Sample]]) -> None:
        """Ask `source` too, in any thread, whenever the metrics are read."""
        self._sources.append(source)

    def page(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics of our own; called by the registry."""
        found: dict[str, list[Sample]] = defaultdict(list)
        for source in (self._counted, *self._sources):
            for sample in source():
                found[sample.name].append(sample)
        for name, kind in KINDS.items():
            if name in found:
                yield _family(name, kind, found[name])

    def _counted(self) -> Iterator[Sample]:
        endpoints = self.served.copy()
        # From zero on, so that Prometheus sees the first one as an increase.
        for code in FAILURES:
            yield Sample("fedlens_errors", (code,), sum(served.codes.get(code, 0) for served in endpoints.values()))
        for where, served in endpoints.items():
            yield from (Sample("fedlens_requests", (where, code), n) for code, n in served.codes.copy().items())
            yield Sample("fedlens_request_seconds", (where,), served.seconds)
            yield Sample("fedlens_received_bytes", (where,), served.received)
            yield Sample("fedlens_sent_bytes", (where,), served.sent)
        yield from (Sample("fedlens_check_ins", (answer,), n) for answer, n in self.answers.copy().items())
        yield Sample("fedlens_told_pause_seconds", (), self.pauses)


def _family(name: str, kind: Kind, samples: Iterable[Sample]) -> Metric:
    if kind.type == "histogram":
        histogram = HistogramMetricFamily(name, kind.meaning, labels=kind.labels)
        for sample in samples:
            assert isinstance(sample.value, Timings)
            buckets = [("+Inf" if bound == inf else str(bound), count) for bound, count in sample.value.cumulative()]
            histogram.add_metric(sample.labels, buckets, sample.value.seconds)
        return histogram
    family = (CounterMetricFamily if kind.type == "counter" else GaugeMetricFamily)(
        name, kind.meaning, labels=kind.labels
    )
    for sample in samples:
        assert not isinstance(sample.value, Timings)
        family.add_metric(sample.labels, sample.value)
    return family
