"""FedConcat's clustering of 10,000 clients by their shares of 10 classes, as the round engine calls it.

The rows are the hard case: Dirichlet(0.5) shares fall into no clear groups, so that K-means takes many turns. Floor:
scikit-learn's K-means alone on the same rows, one thread. FedLens: from class counts to a cluster for each client.
"""

from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.row import Row, in_turns
from fedlens_proto.v1 import assignment_pb2
from fedlens_server.methods.fedconcat import CLUSTER, FedConcat
from fedlens_server.planning.method import GLOBAL, Phase, State, Tools, Update

CLIENTS, CLASSES, PHOTOS = 10_000, 10, 200
K, MOST = 5, 8
REPEATS = 5
TARGET_S = 1.0


def measure(folder: Path) -> list[Row]:
    """One row for a given number of clusters and one for the elbow's."""
    generator = np.random.default_rng(0)
    counts = np.stack([generator.multinomial(PHOTOS, p) for p in generator.dirichlet([0.5] * CLASSES, CLIENTS)])
    updates = [
        Update(client=sha256(str(i).encode()).digest(), num_examples=PHOTOS, class_counts=tuple(row))
        for i, row in enumerate(counts.tolist())
    ]
    rows = counts / PHOTOS

    cluster: Any = import_module("sklearn.cluster")  # it and the next ship no types
    threads: Any = import_module("threadpoolctl")

    def floor() -> object:
        with threads.threadpool_limits(1):
            return cluster.KMeans(K, n_init=10, random_state=0).fit(rows)

    found = []
    for clusters, name in ((K, f"K = {K}"), (None, f"K by the elbow up to {MOST}")):
        alone, clustered = in_turns(REPEATS, floor, partial(_cluster, updates, clusters))
        found.append(
            Row(
                measure=f"FedConcat clustering of 10,000 label distributions, 10 classes, {name}",
                unit="s",
                digits=3,
                floor=alone,
                floor_is=f"scikit-learn's K-means, K = {K}, 10 starts",
                measured=clustered,
                judged=clustered.median,
                judged_text=f"{clustered.median:.2f} s",
                target=TARGET_S,
                target_text=f"<= {TARGET_S:g} s",
            )
        )
    return found


def _cluster(updates: list[Update], clusters: int | None) -> State:
    method = FedConcat(clusters=clusters, most_clusters=MOST)
    phase = Phase(name=CLUSTER, rounds=1, cohort=None, plan=assignment_pb2.LocalPlan())
    tools = Tools(generator=np.random.default_rng(0), population=(), initial={})
    return method.aggregate(phase, State(shared={GLOBAL: {}}), updates, tools)
