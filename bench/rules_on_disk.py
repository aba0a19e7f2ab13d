"""Rules about 50 updates of 11.2 M float32 on disk, page cache warm, against FedAvg of the same without rules.

`exclude`, `clip` and `cap` need the norms of changes, which the server computes when an update arrives: their time is
not in these rows, but in the round latency with `arrivals`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import models
from bench.fedavg_on_disk import aggregated, stored_updates
from bench.row import Row, against_floor, in_turns
from fedlens_server.methods.fedavg import with_mean
from fedlens_server.planning.method import GLOBAL, Norms, Update
from fedlens_server.planning.one_thread import use_one_thread
from fedlens_server.rules import robust
from fedlens_server.rules.krum import krum
from fedlens_server.rules.middle import middle_update
from fedlens_server.rules.robust import Tensors

CLIENTS = 50
REPEATS = 3
Rule = Callable[[list[Update]], list[Update]]


def measure(folder: Path) -> list[Row]:
    """A row for the rules that are on by default, and one for each of the others."""
    use_one_thread()
    paths = models.write_blobs(models.resnet18(), folder / "blobs", CLIENTS)
    rules: dict[str, tuple[Rule, float]] = {
        "exclude, clip and cap": (_defaults, 1.6),
        "median": (lambda updates: [middle_update(updates, lambda count: (count - 1) // 2)], 6.0),
        "trimmed mean of 10 %": (lambda updates: [middle_update(updates, lambda count: count // 10)], 6.0),
        "krum of 5": (lambda updates: krum(updates, 5), 4.0),
    }
    rows: list[Row] = []
    for name, (rule, most) in rules.items():
        plain, ruled = in_turns(REPEATS, partial(_aggregate, paths, list), partial(_aggregate, paths, rule))
        measured = f"FedAvg of 50 x 11.2 M float32 blobs on disk with {name}"
        rows.append(against_floor(measured, plain, ruled, most, "FedAvg of the same without rules", unit="s"))
    return rows


def _defaults(updates: list[Update]) -> list[Update]:
    """The rules of `arrivals` on updates of which half are clipped."""
    names = updates[0].values["weights"]
    known = [
        replace(each, norms=Norms(1.0 + i, 0.0, 0.0), bases=dict.fromkeys(names, GLOBAL))
        for i, each in enumerate(updates)
    ]
    kept, _ = robust.exclude(known)
    clipped, _ = robust.clip(kept, None, Tensors(frozenset(), frozenset()))
    return robust.cap(clipped)


def _aggregate(paths: list[Path], rule: Rule) -> object:
    with stored_updates(paths) as (current, updates):
        return aggregated(with_mean, current, rule(updates))
