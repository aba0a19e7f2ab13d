"""FedConcat: clients with similar labels train a model of their own; then one classifier on all their extractors.

Paper: FedConcat, section 3.3, Algorithm 1; -ID: appendix B; DP- and balanced clusters: appendix D.

    paper      here                        meaning
    K          state["clusters"]           number of clusters, given or by the elbow
    q_k        rows of `clustering`        what client k is grouped by: shares of its classes, exact, noisy or inferred
    w^j        state["cluster_<j>"]        model of cluster j; in the last phase its extractor alone
    j(k)       clients/<id>/cluster        the cluster of client k
    n_k        counts[k]                   photos that client k trained on in this round
    S          updates                     clients whose updates arrived
    C          state[GLOBAL]               the new classifier on K * d features; before, the clusters' first model
    epsilon    options.epsilon             of the Laplace noise that each client adds to its shares (DP-)

Phases: `cluster` is one round of all clients; `extract` averages inside the clusters, weighted by n_k; `concatenate`
trains C on the frozen extractors, `classifier_steps` batches a client and round, and takes the unweighted mean.

Rounds: `rounds` = 1 + `extractor_rounds` + `classifier_rounds`; one of the two may be left out and follows.

Deviations, where the paper is silent: a client that did not report in the clustering round, or whose model gave no
finite answers (-ID), has no cluster and sits `extract` out, and takes part in `concatenate` as everyone does. Clusters
are numbered by their lowest client id. With noisy labels no client evaluates, since exact results would tell what the
noise hides. The classifier of an exported bundle has room for more extractors than K; the features of absent ones are
zeros.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic import clustering, fedconcat_fitting, inferred_labels
from fedlens_server.methods.arithmetic.clustering import Rows
from fedlens_server.methods.arithmetic.weighted_mean import in_order, sent
from fedlens_server.methods.fedavg import GLOBAL, average, average_set
from fedlens_server.planning import fitting
from fedlens_server.planning.method import NothingToAggregate, Phase, State, TaskPlan, TensorSet, Tools, Update

CLUSTER, EXTRACT, CONCATENATE = "cluster", "extract", "concatenate"
COUNTS, NOISY, INFERRED = "counts", "noisy", "inferred"
ELBOW = "elbow"

OPTIONS = {
    "labels": fitting.choice(COUNTS, NOISY, INFERRED),
    "epsilon": fitting.Option(
        allowed="a number above 0",
        fits=lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf,
    ),
    "random_images": fitting.whole(1, 1_000_000),  # by default as many as in the paper
    "clusters": fitting.Option(
        allowed=f'a whole number, 1 or more, or "{ELBOW}"',
        fits=lambda value: value == ELBOW or (isinstance(value, int) and not isinstance(value, bool) and value >= 1),
        default=5,
    ),
    "balanced": fitting.flag(default=False),
    "extractor_rounds": fitting.whole(1, 1_000_000),
    "classifier_rounds": fitting.whole(1, 1_000_000),
    "classifier_steps": fitting.whole(1, 1_000_000, default=3),
    "start": fitting.choice("fresh", "clusters"),
}


def concatenate(weights: Sequence[Array], biases: Sequence[Array]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """One classifier whose logits are the sum of the clusters' logits.

    Args:
        weights: Of each cluster's classifier in cluster order, float [classes, d].
        biases: float [classes] each.

    Returns:
        Weights along the inputs, float32 [classes, K * d], and the sum of the biases, float32 [classes].

    Source: FedConcat, section 3.3, the start of the new classifier from those of the clusters.
    """
    total = np.sum([np.asarray(bias, np.float64) for bias in biases], axis=0)
    return np.concatenate([np.asarray(weight, np.float32) for weight in weights], 1), total.astype(np.float32)


def unweighted_mean(tensors: Sequence[Any]) -> NDArray[Any]:
    """`(1/|S|) sum_k w_k` of one tensor; of integers the maximum.

    Source: FedConcat, Algorithm 1, the last phase.
    """
    return average(tensors, [1] * len(tensors))


@dataclass(frozen=True, kw_only=True)
class FedConcat:
    """Cluster; average inside clusters; train one classifier on all extractors side by side."""

    labels: str
    epsilon: float | None
    random_images: int
    clusters: int | None  # None: by the elbow
    most_clusters: int  # extractors that the concatenated bundle has room for
    balanced: bool
    extractor_rounds: int
    classifier_rounds: int
    classifier_steps: int
    from_clusters: bool
    extractor: tuple[str, ...]  # names of the ordinary bundle's tensors
    weight: str
    bias: str

    @classmethod
    def for_task(cls, task: TaskPlan) -> Self:
        """The method for a task.

        Raises:
            SettingsError: An option is not allowed, missing or contradicts another; clients or room are too few for the
                clusters; or the bundles do not fit each other or the options.
        """
        options = fitting.need_options(task.settings, OPTIONS)
        fedconcat_fitting.need_fitting_bundles(task)
        fedconcat_fitting.need_labels(task, options)
        if options["labels"] == INFERRED:
            fitting.need_onnx(task)
        extractor_rounds, classifier_rounds = fedconcat_fitting.rounds(task.settings, options)
        clusters = None if options["clusters"] == ELBOW else options["clusters"]
        fedconcat_fitting.need_room(task, clusters)
        weight, bias = fedconcat_fitting.classifier_names(task)
        return cls(
            labels=options["labels"],
            epsilon=options["epsilon"],
            random_images=options["random_images"] or inferred_labels.IMAGES,
            clusters=clusters,
            most_clusters=task.concatenated[0].concatenated,
            balanced=options["balanced"],
            extractor_rounds=extractor_rounds,
            classifier_rounds=classifier_rounds,
            classifier_steps=options["classifier_steps"],
            from_clusters=options["start"] == "clusters",
            extractor=tuple(tensor.name for tensor in fitting.chosen(task, fitting.EXTRACTOR)),
            weight=weight,
            bias=bias,
        )

    def phases(self, task: TaskPlan) -> list[Phase]:
        """Clustering by all clients; training inside clusters; training the classifier on frozen extractors."""
        settings = task.settings
        downloaded = pb.SetSource(download=GLOBAL)
        # Exact results would tell what the noise hides.
        looked_at = pb.EvaluationPlan() if self.labels == NOISY else pb.EvaluationPlan(at_start=True, at_end=True)
        trained = pb.LocalPlan(
            start=[pb.StartRule(source=downloaded)],
            references=fitting.bound(task, GLOBAL, downloaded),
            stages=[settings.stage("step")],
            upload=settings.upload(GLOBAL),
            evaluation=looked_at,
        )
        counts = pb.ClientStatistic(class_counts=pb.ClassCounts())
        noisy = pb.ClientStatistic(label_distribution=pb.LabelDistribution(epsilon=self.epsilon or 0.0))
        asked = pb.LocalPlan(
            start=[pb.StartRule(source=pb.SetSource(download=INITIAL))],
            statistics=[counts if self.labels == COUNTS else noisy],
        )
        second = task.concatenated[0]
        short = settings.stage("step")
        short.steps = self.classifier_steps
        # Its objective may have fewer hyper-parameters than that of the models.
        known = {hyper.name for hyper in second.hyper_parameters}
        values = [value for value in short.hyper_values if value.name in known]
        del short.hyper_values[:]
        short.hyper_values.extend(values)
        wanted = [reference.name for reference in second.references if reference.name == GLOBAL]
        last = pb.LocalPlan(
            start=[pb.StartRule(source=downloaded)],
            references=[pb.ReferenceBinding(name=name, set=downloaded) for name in wanted],
            stages=[short],
            upload=settings.upload(GLOBAL),
            evaluation=looked_at,
            extractors=[_cluster(j) for j in range(self.most_clusters)],
        )
        size = settings.cohort_size
        return [
            Phase(name=CLUSTER, rounds=1, cohort=None, local_plan=trained if self.labels == INFERRED else asked),
            Phase(name=EXTRACT, rounds=self.extractor_rounds, cohort=size, local_plan=trained),
            Phase(name=CONCATENATE, rounds=self.classifier_rounds, cohort=size, local_plan=last, concatenated=True),
        ]

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The initial model; then a copy of it, or of the averaged one, for each cluster; then the new classifier."""
        if phase.name == CLUSTER:
            return {GLOBAL: tools.initial}
        models = [_cluster(j) for j in range(state["clusters"])]
        others = {name: value for name, value in state.items() if name not in (GLOBAL, *models)}
        if phase.name == EXTRACT:
            return {**others, **dict.fromkeys(models, state[GLOBAL])}
        extractors = {model: {name: state[model][name] for name in self.extractor} for model in models}
        return {**others, **extractors, GLOBAL: self._new_classifier([state[model] for model in models], tools)}

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The model of the client's cluster; in the last phase the classifier with all extractors."""
        if phase.name == CONCATENATE:
            return {name: state[name] for name in (GLOBAL, *map(_cluster, range(state["clusters"])))}
        if client is None:
            return None
        if phase.name == EXTRACT:
            cluster = state.get(_place(client))
            return None if cluster is None else {GLOBAL: state[_cluster(cluster)]}
        return {GLOBAL: state[GLOBAL]} if self.labels == INFERRED else {}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The clusters; the mean inside each; the unweighted mean of the classifier."""
        came = [update for update in in_order(updates) if update.num_examples > 0]
        if not came:
            raise NothingToAggregate("no client trained on any photo")
        if phase.name == CLUSTER:
            return self._clustered(state, came, tools)
        if phase.name == CONCATENATE:
            current: TensorSet = state[GLOBAL]
            return {**state, GLOBAL: {n: unweighted_mean(sent(came, n, current[n])) for n in current}}
        new = dict(state)
        for j in range(state["clusters"]):
            if members := [update for update in came if state.get(_place(update.client)) == j]:
                new[_cluster(j)] = average_set(members, state[_cluster(j)])
        return new

    def _clustered(self, state: State, updates: Sequence[Update], tools: Tools) -> State:
        rows = self._rows(updates, tools)
        usable = np.flatnonzero(np.isfinite(rows).all(1)).tolist()
        if not usable:
            raise NothingToAggregate("no client's model answers with finite numbers")
        rows, updates = rows[usable], [updates[k] for k in usable]
        most = min(self.most_clusters, len(updates))
        wanted = clustering.k_by_elbow(rows, most, tools.generator) if self.clusters is None else self.clusters
        found = clustering.k_means(rows, wanted, tools.generator, balanced=self.balanced)
        places = {_place(update.client): int(j) for update, j in zip(updates, found.labels, strict=True)}
        start = average_set(updates, state[GLOBAL]) if self.labels == INFERRED else state[GLOBAL]
        return {**state, **places, GLOBAL: start, "clusters": len(found.centres)}

    def _rows(self, updates: Sequence[Update], tools: Tools) -> Rows:
        """What the clients are grouped by, float64 [clients, classes]."""
        if self.labels == COUNTS:
            return clustering.shares(np.array([update.class_counts for update in updates]))
        if self.labels == NOISY:
            return np.array([update.label_distribution for update in updates], np.float64)
        assert tools.infer is not None  # the task's bundles have ONNX
        models = [update.tensors for update in updates]
        return inferred_labels.distributions(
            tools.infer, models, self.random_images, tools.photo_shape, tools.generator
        )

    def _new_classifier(self, models: Sequence[TensorSet], tools: Tools) -> TensorSet:
        initial = tools.initial_concatenated
        assert initial is not None  # the task has such a bundle
        if not self.from_clusters:
            return initial
        weight, bias = concatenate([model[self.weight] for model in models], [model[self.bias] for model in models])
        room = np.zeros(initial[fedconcat_fitting.WEIGHT].shape, np.float32)
        room[:, : weight.shape[1]] = weight
        return {fedconcat_fitting.WEIGHT: room, fedconcat_fitting.BIAS: bias}


def _cluster(j: int) -> str:
    return f"cluster_{j}"


def _place(client: bytes) -> str:
    return f"clients/{client.hex()}/cluster"
