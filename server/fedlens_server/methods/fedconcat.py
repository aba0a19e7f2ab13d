"""FedConcat: clients with similar labels train a model together; then all train one classifier on all extractors.

Paper: FedConcat, section 3.3, Algorithm 1; -ID: appendix B; DP- and balanced clusters: appendix D.

    paper      here                        meaning
    K          shared["clusters"]          number of clusters, given or by the elbow
    q_k        rows of `clustering`        label distribution of client k: exact, noisy or inferred
    w^j        shared["cluster_<j>"]       model of cluster j; in the last phase its extractor alone
    j(k)       clients[id]["cluster"]      cluster of client k
    n_k        counts[k]                   photos that client k trained on in this round
    S          updates                     clients whose updates arrived
    C          shared[GLOBAL]              new classifier on K * d features; before, the clusters' first model
    b_k        values["weights"]           bias of client k's classifier after the first round (-IB)
    epsilon    options.epsilon             of the Laplace noise that each client adds to its distribution (DP-)

Phases: `cluster` is one round of all clients; `extract` averages within the clusters, weighted by n_k; `concatenate`
trains C on the frozen extractors, `classifier_steps` batches per client and round, and takes the unweighted mean.

-IB (appendix D.10; labels "bias"): the clients train one round by SGD without momentum and upload the classifier; its
bias gives q_k = (b_k - b_0) / (steps * learning rate) + softmax(b_0), which is clustered as it is. `clustering` other
than "labels" has the rounds of FeSEM, IFCA or FedSoft in place of `cluster` and `extract`; their centres are the models
w^j, and a task's rounds have no 1 for `cluster`.

Rounds: `rounds` = 1 + `extractor_rounds` + `classifier_rounds`; a task may leave one of the two out.

Deviations, where the paper is silent: a client that did not report in the clustering round, or whose model gave
logits that are not finite (-ID), has no cluster; it sits `extract` out and takes part in `concatenate`. Clusters are
numbered by their lowest client id. With noisy labels no client evaluates, because exact results would reveal what the
noise hides. The classifier of an exported bundle has room for more extractors than K; absent features are zeros.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods import fedconcat_settings, fedsoft, fesem, ifca
from fedlens_server.methods.arithmetic import clustering, inferred_labels, plain_sgd
from fedlens_server.methods.arithmetic.centres import centre
from fedlens_server.methods.arithmetic.clustering import Rows
from fedlens_server.methods.arithmetic.linear_combination import with_photos
from fedlens_server.methods.fedavg import average_set, whole_model_plan
from fedlens_server.methods.fedconcat_settings import BIAS, BY_BIAS, COUNTS, ELBOW, INFERRED, LABELS, NOISY, WEIGHT
from fedlens_server.planning import bundles, options
from fedlens_server.planning.bundle_settings import BundleSettings, always, comparing
from fedlens_server.planning.local_plans import (
    CLASS_COUNTS,
    START,
    WEIGHTS,
    assemble,
    label_distribution,
    plan,
    rule,
    source,
    train,
    upload,
)
from fedlens_server.planning.method import (
    GLOBAL,
    OWN_CLUSTER,
    Method,
    MethodDefinition,
    NothingToAggregate,
    Phase,
    State,
    TaskPlan,
    TensorSet,
    Tools,
    Update,
)
from fedlens_server.planning.task_settings import SettingsError

CLUSTER, EXTRACT, CONCATENATE = "cluster", "extract", "concatenate"
CLUSTERS = "clusters"  # shared entry
CENTRES = "centres"  # shared entry: the label distribution of each cluster, float32 [clusters, classes]
CLUSTERED_BY = {
    "fesem": MethodDefinition(fesem.for_task, always(fesem.OBJECTIVE), options=fesem.OPTIONS),
    "ifca": MethodDefinition(ifca.for_task, comparing(CLUSTERS), options=ifca.OPTIONS),
    "fedsoft": MethodDefinition(fedsoft.for_task, comparing(CLUSTERS, fedsoft.OBJECTIVE), options=fedsoft.OPTIONS),
}
"""The methods that may train the clusters in place of the first two phases, by `options.clustering`."""


def concatenate(weights: Sequence[Array], biases: Sequence[Array]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """One classifier whose logits are the sum of the clusters' logits.

    Args:
        weights: The weight of each cluster's classifier in cluster order, float [classes, d].
        biases: The bias of each, float [classes].

    Returns:
        The weights side by side, float32 [classes, K * d], and the sum of the biases, float32 [classes].

    Source: FedConcat, section 3.3, the start of the new classifier from the clusters' classifiers.
    """
    total = np.sum([np.asarray(bias, np.float64) for bias in biases], axis=0)
    return np.concatenate([np.asarray(weight, np.float32) for weight in weights], 1), total.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class FedConcat:
    """The settings of the method, and its three functions."""

    labels: str = COUNTS
    random_images: int = inferred_labels.IMAGES
    clusters: int | None  # None: by the elbow
    most_clusters: int  # extractors for which the concatenated bundle has room
    balanced: bool = False
    from_clusters: bool = False
    extractor: frozenset[str] = frozenset()  # names of the ordinary bundle's tensors
    weight: str = ""
    bias: str = ""
    steps_of: Callable[[int], int] = int  # local steps of a client with so many photos
    rate: float = 1.0  # of the classifier
    clustered: Method | None = None  # takes the place of the first two phases

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The initial model; then that model, or the averaged one, for each cluster; then the new classifier."""
        if phase.name == CLUSTER:
            return State(shared={GLOBAL: tools.initial})
        entries: dict[str, TensorSet]
        if phase.name == EXTRACT and self.clustered is not None:
            return self.clustered.begin(phase, state, tools)
        if self.clustered is not None and self.clusters is not None:
            found = {_cluster(j): state.shared[centre(j)] for j in range(self.clusters)}
            state = State(shared={CLUSTERS: self.clusters, **found})
        if phase.name == EXTRACT:
            entries = {_cluster(j): state.shared[GLOBAL] for j in range(state.shared[CLUSTERS])}
            # For who comes late, and begins where the others did: labels are inferred from the initial model.
            entries |= {name: state.shared[name] for name in (CENTRES, *self._first_download)}
            if self.labels == INFERRED:
                entries[GLOBAL] = tools.initial
        else:
            models = _models(state)
            entries = {name: {key: model[key] for key in sorted(self.extractor)} for name, model in models.items()}
            entries[GLOBAL] = self._new_classifier(list(models.values()), tools)
        return replace(state, shared={CLUSTERS: state.shared[CLUSTERS], **entries})

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The model of the client's cluster; in the last phase the classifier with all extractors."""
        if phase.name == CONCATENATE:
            return {GLOBAL: state.shared[GLOBAL], **_models(state)}
        if client is None:
            return None
        if self.clustered is not None:
            return self.clustered.download(phase, state, client)
        if phase.name == EXTRACT:
            cluster = state.of(client).get(OWN_CLUSTER)
            return None if cluster is None else {GLOBAL: state.shared[_cluster(cluster)]}
        return {name: state.shared[name] for name in self._first_download}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The clusters; then the mean within each cluster; then the unweighted mean of the classifier."""
        if phase.name == EXTRACT and self.clustered is not None:
            return self.clustered.aggregate(phase, state, updates, tools)
        trained = with_photos(updates)
        if phase.name == CLUSTER:
            return self._clustered(state, trained, tools)
        if phase.name == CONCATENATE:
            alike = [replace(update, num_examples=1) for update in trained]
            return state.with_shared(**{GLOBAL: average_set(alike, state.shared[GLOBAL])})
        new = {}
        for j in range(state.shared[CLUSTERS]):
            if members := [update for update in trained if state.of(update.client).get(OWN_CLUSTER) == j]:
                new[_cluster(j)] = average_set(members, state.shared[_cluster(j)])
        return state.with_shared(**new)

    @property
    def _first_download(self) -> tuple[str, ...]:
        """The sets from which clients train whose labels are inferred."""
        return (GLOBAL,) if self.labels in (INFERRED, BY_BIAS) else ()

    def _clustered(self, state: State, updates: Sequence[Update], tools: Tools) -> State:
        rows = self._rows(updates, tools)
        usable = np.flatnonzero(np.isfinite(rows).all(1)).tolist()
        if not usable:
            raise NothingToAggregate("no client's model gives finite logits")
        rows, updates = rows[usable], [updates[k] for k in usable]
        most = min(self.most_clusters, len(updates))
        wanted = clustering.k_by_elbow(rows, most, tools.generator) if self.clusters is None else self.clusters
        found = clustering.k_means(rows, wanted, tools.generator, balanced=self.balanced)
        places = {update.client: {OWN_CLUSTER: int(j)} for update, j in zip(updates, found.labels, strict=True)}
        start = state.shared[GLOBAL]
        if self.labels == INFERRED:
            start = average_set(updates, start)
        centres = np.asarray(found.centres, np.float32)
        return state.with_clients(places).with_shared(**{GLOBAL: start, CENTRES: centres, CLUSTERS: len(centres)})

    def admit(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The state with each of these clients in the cluster whose label distribution is nearest to its own.

        Ours: the paper's clients are all there for the clustering.
        """
        rows = self._rows(updates, tools)
        usable = [(update.client, row) for update, row in zip(updates, rows, strict=True) if np.isfinite(row).all()]
        apart = {client: np.square(np.asarray(state.shared[CENTRES]) - row).sum(axis=1) for client, row in usable}
        return state.with_clients({client: {OWN_CLUSTER: int(found.argmin())} for client, found in apart.items()})

    def _rows(self, updates: Sequence[Update], tools: Tools) -> Rows:
        """The label distribution of each client, float64 [clients, classes]."""
        if self.labels == COUNTS:
            return clustering.label_distributions(np.array([update.class_counts for update in updates]))
        if self.labels == NOISY:
            return np.array([update.label_distribution for update in updates], np.float64)
        if self.labels == BY_BIAS:
            return np.array([self._from_bias(update) for update in updates])
        assert tools.infer is not None  # the task's bundles have ONNX
        models = [update.values[WEIGHTS] for update in updates]
        return inferred_labels.label_distributions(
            tools.infer, models, self.random_images, tools.photo_shape, tools.generator
        )

    def _from_bias(self, update: Update) -> Rows:
        before, after = update.sent[GLOBAL][self.bias], update.values[WEIGHTS][self.bias]
        return inferred_labels.from_bias(before, after, self.steps_of(update.num_examples), self.rate)

    def _new_classifier(self, models: Sequence[TensorSet], tools: Tools) -> TensorSet:
        initial = tools.initial
        if not self.from_clusters:
            return initial
        weight, bias = concatenate([model[self.weight] for model in models], [model[self.bias] for model in models])
        room = np.zeros(initial[WEIGHT].shape, np.float32)
        room[:, : weight.shape[1]] = weight
        return {WEIGHT: room, BIAS: bias}


def bundle_settings(options: Mapping[str, Any]) -> BundleSettings:
    """The settings of its ordinary bundles: those of the method that clusters."""
    clustering = options["clustering"]
    return CLUSTERED_BY[clustering].bundle_settings(options) if clustering in CLUSTERED_BY else BundleSettings()


def for_task(task: TaskPlan) -> Method:
    """FedConcat for a task: clustering by all clients; training within clusters; training the common classifier.

    Raises:
        SettingsError: An option is missing or contradicts another; there are fewer clients, or places for extractors,
            than clusters; or the bundles do not fit each other or the options.
    """
    settings = task.settings
    chosen = task.options
    labels = chosen["labels"]
    fedconcat_settings.check_bundles(task)
    fedconcat_settings.check_labels(settings, chosen)
    if labels == INFERRED:
        bundles.need_onnx(task)
    if labels == BY_BIAS:
        plain_sgd.need_plain_sgd(task)
    extractor_rounds, classifier_rounds = fedconcat_settings.rounds(settings, chosen)
    clusters = None if chosen["clusters"] == ELBOW else chosen["clusters"]
    fedconcat_settings.check_clusters(task, clusters)
    weight, bias = fedconcat_settings.classifier_names(task)
    batch = plain_sgd.batch_of(task)
    method = FedConcat(
        labels=labels,
        random_images=chosen["random_images"] or inferred_labels.IMAGES,
        clusters=clusters,
        most_clusters=task.concatenated[0].concatenated,
        balanced=chosen["balanced"],
        from_clusters=chosen["start"] == "clusters",
        extractor=bundles.names(task, bundles.EXTRACTOR),
        weight=weight,
        bias=bias,
        steps_of=lambda num_examples: plain_sgd.steps_of(settings, num_examples, batch),
        rate=plain_sgd.rates(task, [bias])[bias] if labels == BY_BIAS else 1.0,
        clustered=_clustered(task, chosen, extractor_rounds),
    )
    last = _classifier_plan(task, chosen["classifier_steps"], method.most_clusters)
    size = settings.cohort_size
    classify = Phase(name=CONCATENATE, rounds=classifier_rounds, cohort=size, plan=last)
    if method.clustered is not None:
        phases: tuple[Phase, ...] = (replace(method.clustered.phases[0], name=EXTRACT), classify)
    else:
        extract = whole_model_plan(task)
        first = Phase(name=CLUSTER, rounds=1, cohort=None, plan=_first_plan(task, labels, chosen["epsilon"], extract))
        second = Phase(name=EXTRACT, rounds=extractor_rounds, cohort=size, plan=extract, intake=CLUSTER)
        phases = (first, second, classify)
    return Method(
        phases=phases,
        begin=method.begin,
        download=method.download,
        aggregate=method.aggregate,
        admit=None if method.clustered is not None else method.admit,
        per_client=True,
    )


def _clustered(task: TaskPlan, chosen: Mapping[str, Any], rounds: int) -> Method | None:
    """The method that trains the clusters in place of the first two phases; None: clusters are by labels.

    Raises:
        SettingsError: An option is for clusters by labels, or the method refuses the task.
    """
    name = chosen["clustering"]
    if name == LABELS:
        return None
    of_labels = ("labels", "epsilon", "random_images", "balanced")
    options.need_default(chosen, fedconcat_settings.OPTIONS, of_labels, f'options.clustering is "{name}"')
    if chosen["clusters"] == ELBOW:
        raise SettingsError("options.clusters", f'"{ELBOW}"', f'a number, since options.clustering is "{name}"')
    definition = CLUSTERED_BY[name]
    given = {"method": name, "rounds": rounds, "options": {"clusters": chosen["clusters"]}}
    settings = task.settings.model_copy(update=given)
    return definition.for_task(replace(task, settings=settings, options=options.read(settings, definition.options)))


def _first_plan(task: TaskPlan, labels: str, epsilon: float | None, extract: pb.LocalPlan) -> pb.LocalPlan:
    """The local plan of the clustering round."""
    if labels == INFERRED:
        return extract
    if labels != BY_BIAS:
        return _statistics_plan(labels, epsilon)
    # The momentum of the task is for all other rounds.
    others = {name: value for name, value in task.settings.hyper.items() if name != "momentum"}
    plain = replace(task, settings=task.settings.model_copy(update={"hyper": others}))
    return plan(
        assemble(START, rule(source(download=GLOBAL))),
        train(
            task.settings,
            hyper=plain_sgd.without_momentum(plain),
            bindings=bundles.bind(task.ordinary[0], GLOBAL, source(value=START)),
        ),
        uploads=[upload(task.settings, tensors=bundles.CLASSIFIER, base=GLOBAL)],
    )


def _statistics_plan(labels: str, epsilon: float | None) -> pb.LocalPlan:
    """The local plan that only reports the client's labels."""
    statistic = CLASS_COUNTS if labels == COUNTS else label_distribution(epsilon or 0.0)
    return plan(statistics=[statistic], evaluations=())


def _classifier_plan(task: TaskPlan, steps: int, extractors: int) -> pb.LocalPlan:
    """The local plan that trains the common classifier on frozen extractors."""
    manifest = task.concatenated[0]
    # Its objective may have fewer hyper-parameters than the models' objective.
    known = {hyper.name for hyper in manifest.hyper_parameters}
    hyper = {name: value for name, value in task.settings.hyper.items() if name in known}
    bindings = bundles.bind(manifest, GLOBAL, source(value=START))
    return plan(
        assemble(START, rule(source(download=GLOBAL))),
        train(task.settings, steps=steps, hyper=hyper, bindings=bindings),
        uploads=[upload(task.settings, base=GLOBAL)],
        extractors=[_cluster(j) for j in range(extractors)],
    )


def _cluster(j: int) -> str:
    return f"cluster_{j}"


def _models(state: State) -> dict[str, TensorSet]:
    """The model of each cluster, by name of its entry."""
    return {_cluster(j): state.shared[_cluster(j)] for j in range(state.shared[CLUSTERS])}
