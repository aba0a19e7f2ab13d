import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedlens_proto import plans
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.engine.operators import tasks
from fedlens_server.engine.phases import settle
from fedlens_server.errors import Unknown
from fedlens_server.methods.fedconcat import concatenate
from fedlens_server.planning.method import Method, NothingToAggregate, State, TensorSet, Update
from fedlens_server.planning.task_settings import SettingsError, TaskSettings
from tests.server.bundles import TinyBundle
from tests.server.concatenated import concatenated
from tests.server.fakes import ALICE, BOB, CAROL, DAVE, Bench, update_of
from tests.server.methods import golden
from tests.server.methods.tasks import EXTRACTOR, changed, made, tools, update, uploads
from tests.server.networks import network, weights

IDS = (ALICE, BOB, CAROL, DAVE)
SETTINGS: dict[str, Any] = {
    "method": "fedconcat",
    "rounds": 6,
    "population": 4,
    "options": {"clusters": 2, "extractor_rounds": 2, "classifier_rounds": 3},
}
NOISY = {"labels": "noisy", "epsilon": 1}
TWO_KINDS = [(9, 1), (1, 9), (8, 2), (20, 180)]  # Alice and Carol are alike, and Bob and Dave


def method(*bundles: TinyBundle, options: Mapping[str, Any] | None = None, **settings: Any) -> Method:
    """The method with these options beside the usual ones; None: left out."""
    chosen = {name: value for name, value in {**SETTINGS["options"], **(options or {})}.items() if value is not None}
    given = {**SETTINGS, **settings, "options": chosen}
    return made(given.pop("method"), *(bundles or (network(), concatenated(3))), **given)


def inferring() -> Method:
    """The method with labels inferred from ten images."""
    programs = network().parsed.programs
    for program in programs:
        program.files.add(format=manifest_pb2.PROGRAM_FORMAT_ONNX, sha256=program.files[0].sha256)
    ordinary = changed(network(), programs=programs)
    return method(ordinary, concatenated(3), options={"labels": "inferred", "random_images": 10})


def counted(counts: Mapping[bytes, tuple[int, int]]) -> list[Update]:
    return [update(client, photos=sum(found), class_counts=found) for client, found in counts.items()]


def classifier(value: float) -> dict[str, Any]:
    """Of the bundle with room for three extractors."""
    return {"classifier.bias": np.full(2, value, np.float32), "classifier.weight": np.full((2, 6), value, np.float32)}


class Run:
    """The method through its phases, as the round engine calls it."""

    def __init__(self, method: Method, infer: Any = None) -> None:
        self.method = method
        self.tools = tools(7.0, infer=infer, photo_shape=(3, 2, 2))
        self.state = method.begin(method.phases[0], State(), self.tools)

    def round(self, phase: int, updates: Sequence[Update]) -> State:
        self.state = self.method.aggregate(self.method.phases[phase], self.state, updates, self.tools)
        return self.state

    def begin(self, phase: int) -> State:
        initial = classifier(5.0) if self.method.phases[phase].plan.extractors else weights(7.0)
        given = replace(self.tools, initial=initial)
        self.state = self.method.begin(self.method.phases[phase], self.state, given)
        return self.state

    def download(self, phase: int, client: bytes | None) -> Mapping[str, TensorSet] | None:
        return self.method.download(self.method.phases[phase], self.state, client)

    def clusters(self) -> list[int | None]:
        """The cluster of each client."""
        return [self.state.of(client).get("cluster") for client in IDS]

    def clustered(self, counts: Sequence[tuple[int, int]] = TWO_KINDS) -> "Run":
        """After the first phase, in which the clients have these class counts."""
        self.round(0, counted(dict(zip(IDS, counts, strict=False))))
        self.begin(1)
        return self


def value(tensors: TensorSet) -> float:
    """Of sets of `weights`."""
    return float(tensors["conv.weight"][0, 0])


def test_the_worked_cases_of_concatenated_classifiers_come_out() -> None:
    for case in golden.cases("fedconcat_08"):
        weight, bias = concatenate(list(case.inputs["weight"]), list(case.inputs["bias"]))

        case.check("weight", weight)
        case.check("bias", bias)
        rows = np.concatenate(list(case.inputs["features"]), 1)
        case.check("logits", rows @ weight.T + bias)


def test_the_phases_are_the_papers() -> None:
    cluster, extract, last = method(cohort=3).phases

    assert [(p.name, p.rounds, p.cohort, len(p.plan.extractors)) for p in (cluster, extract, last)] == [
        ("cluster", 1, None, 0),
        ("extract", 2, 3, 0),
        ("concatenate", 3, 3, 3),
    ]
    assert not cluster.plan.instructions and not cluster.plan.uploads
    assert [ask.WhichOneof("kind") for ask in cluster.plan.statistics] == ["class_counts"]
    assert [each.train.epochs for each in extract.plan.instructions[1:]] == [1]
    assert [each.train.steps for each in last.plan.instructions[1:]] == [3]
    assert list(last.plan.extractors) == ["cluster_0", "cluster_1", "cluster_2"]
    assert not extract.plan.statistics and not last.plan.statistics


def test_the_last_phase_leaves_out_what_its_bundle_has_no_hyper_parameter_for() -> None:
    fewer = changed(concatenated(3), hyper_parameters=concatenated(3).parsed.hyper_parameters[:1])

    phases = method(network(), fewer, hyper={"lr_classifier": 0.5, "momentum": 0.25}).phases

    names = [[value.name for value in phase.plan.instructions[1].train.hyper_values] for phase in phases[1:]]
    assert names == [["lr_classifier", "momentum"], ["lr_classifier"]]


def test_noisy_labels_are_asked_for_with_epsilon_and_nothing_exact_beside_them() -> None:
    noisy = method(options={"labels": "noisy", "epsilon": 2}).phases
    phases = settle(TaskSettings.model_validate(SETTINGS), noisy, 2)

    assert [ask.label_distribution.epsilon for ask in phases[0].plan.statistics] == [2.0]
    assert not any(p.plan.evaluations or plans.asks(p.plan, "class_counts") for p in phases)


def test_inferring_trains_and_uploads_in_the_first_round_and_asks_nothing() -> None:
    first = inferring().phases[0].plan

    assert len(first.instructions) == 2 and first.uploads and not first.statistics


@pytest.mark.parametrize(
    ("options", "counts", "expected"),
    [
        ({}, TWO_KINDS, [0, 1, 0, 1]),
        ({"clusters": "elbow"}, TWO_KINDS, [0, 1, 0, 1]),
        ({}, [(5, 5)] * 4, [0, 0, 0, 0]),  # fewer kinds of clients than clusters
        # max(ceil(4/2), int(2.4)) = 2: of three alike, the one nearest to Dave joins him.
        ({"balanced": True}, [(10, 0), (10, 0), (8, 2), (0, 10)], [0, 0, 1, 1]),
    ],
)
def test_clients_with_like_labels_share_a_cluster_which_starts_from_the_initial_model(
    options: dict[str, Any], counts: list[tuple[int, int]], expected: list[int]
) -> None:
    run = Run(method(options=options)).clustered(counts)

    assert (run.clusters(), run.state.shared["clusters"]) == (expected, max(expected) + 1)
    assert [value(run.state.shared[f"cluster_{j}"]) for j in set(expected)] == [7.0] * len(set(expected))
    assert "global" not in run.state.shared


def test_noisy_rows_are_clustered_as_they_come() -> None:
    run = Run(method(options=NOISY))
    noisy = {ALICE: (1.9, -0.8), BOB: (-0.7, 1.4), CAROL: (1.7, -0.9), DAVE: (-0.6, 1.2)}

    run.round(0, [update(client, label_distribution=found) for client, found in noisy.items()])

    assert run.clusters() == [0, 1, 0, 1]


def sure_of(tensors: TensorSet, photos: np.ndarray) -> np.ndarray:
    """Logits of a model that answers with its own classifier's bias, whatever the photo."""
    return np.tile(np.asarray(tensors["fc.bias"]), (len(photos), 1)).astype(np.float32)


def biased(number: float, *bias: float) -> dict[str, Any]:
    return {**weights(number), "fc.bias": np.float32(bias)}


def test_clients_are_grouped_by_how_their_models_answer_and_all_clusters_start_from_their_mean() -> None:
    run = Run(inferring(), sure_of)
    sent = [(ALICE, 10, biased(1, 3, 0)), (BOB, 10, biased(2, 0, 3)), (CAROL, 10, biased(3, 3, 1))]

    run.round(0, [update(client, found, photos) for client, photos, found in (*sent, (DAVE, 30, biased(4, 0, 2)))])
    run.begin(1)

    assert run.clusters() == [0, 1, 0, 1]
    # (10 * 1 + 10 * 2 + 10 * 3 + 30 * 4) / 60 = 3
    assert [value(run.state.shared[f"cluster_{j}"]) for j in range(2)] == [3.0, 3.0]
    # Who comes late trains from the initial model, as the others did.
    assert value((run.method.download(run.method.phases[0], run.state, b"late") or {})["global"]) == 7.0


def test_a_client_whose_model_answers_with_infinities_has_no_cluster_and_counts_nowhere() -> None:
    run = Run(inferring(), sure_of)
    sent = {ALICE: biased(1, 3, 0), BOB: biased(2, np.inf, 3), CAROL: biased(3, 0, 3)}

    run.round(0, uploads(sent))
    run.begin(1)

    assert run.clusters() == [0, None, 1, None]
    # (1 + 3) / 2
    assert [value(run.state.shared[f"cluster_{j}"]) for j in range(2)] == [2.0, 2.0]


def test_no_clusters_come_of_infinities_alone() -> None:
    run = Run(inferring(), sure_of)

    with pytest.raises(NothingToAggregate, match="no client's model gives finite logits"):
        run.round(0, [update(ALICE, biased(1, np.nan, 0))])


def test_a_cluster_averages_its_own_by_photos_and_one_without_participants_keeps_its_model() -> None:
    run = Run(method()).clustered()
    before = run.state.shared["cluster_1"]

    run.round(1, [update(CAROL, weights(4.0), photos=30), update(ALICE, weights(8.0), photos=10)])

    # (30 * 4 + 10 * 8) / 40 = 5
    assert value(run.state.shared["cluster_0"]) == 5.0
    assert run.state.shared["cluster_1"] is before


def test_order_of_arrival_changes_nothing() -> None:
    sent = [update(client, weights(1.0 + 0.1 * i), photos=3 + i) for i, client in enumerate(IDS)]
    asked = counted(dict(zip(IDS, TWO_KINDS, strict=True)))
    runs = [Run(method(options={"start": "clusters"})) for _ in range(2)]

    for run, order in zip(runs, (1, -1), strict=True):
        run.round(0, asked[::order])
        run.begin(1)
        run.round(1, sent[::order])
        run.begin(2)

    one, other = (run.state.shared["global"]["classifier.weight"] for run in runs)
    np.testing.assert_array_equal(one, other)
    assert runs[0].clusters() == runs[1].clusters()


def test_clients_download_the_model_of_their_cluster_and_there_is_no_global_one() -> None:
    run = Run(method()).clustered()
    run.round(1, uploads({ALICE: weights(1.0), BOB: weights(2.0)}))

    assert [value((run.download(1, client) or {})["global"]) for client in IDS] == [1.0, 2.0, 1.0, 2.0]
    assert run.download(1, None) is None


def test_a_client_without_a_cluster_sits_extract_out_and_joins_in_the_last_phase() -> None:
    run = Run(method()).clustered(TWO_KINDS[:3])

    late = run.download(1, DAVE)
    run.begin(2)

    assert late is None
    assert (run.download(2, DAVE) or {}).keys() == {"global", "cluster_0", "cluster_1"}


def test_the_last_phase_freezes_extractors_alone_and_starts_afresh() -> None:
    run = Run(method()).clustered()
    run.round(1, uploads({ALICE: weights(1.0), BOB: weights(2.0)}))

    state = run.begin(2)

    assert sorted(state.shared["cluster_0"]) == EXTRACTOR
    assert [value(state.shared[f"cluster_{j}"]) for j in range(2)] == [1.0, 2.0]
    np.testing.assert_array_equal(state.shared["global"]["classifier.weight"], np.full((2, 6), 5))
    assert (run.download(2, None) or {}).keys() == (run.download(2, ALICE) or {}).keys()


def test_the_last_phase_may_start_from_the_clusters_classifiers() -> None:
    run = Run(method(options={"start": "clusters"})).clustered()
    sent = {ALICE: weights(1.0, fc=((1, 2), (3, 4))), BOB: weights(2.0, fc=((5, 6), (7, 8)))}
    run.round(1, uploads(sent))

    classifier = run.begin(2).shared["global"]

    # There is room for a third extractor, whose features are zeros.
    np.testing.assert_array_equal(classifier["classifier.weight"], [[1, 2, 5, 6, 0, 0], [3, 4, 7, 8, 0, 0]])
    np.testing.assert_array_equal(classifier["classifier.bias"], [3, 3])
    assert {tensor.dtype for tensor in classifier.values()} == {np.dtype(np.float32)}


def test_the_classifier_becomes_the_unweighted_mean() -> None:
    run = Run(method()).clustered()
    run.begin(2)

    run.round(2, [update(ALICE, classifier(1.0), photos=1000), update(BOB, classifier(2.0), photos=1)])

    np.testing.assert_array_equal(run.state.shared["global"]["classifier.bias"], [1.5, 1.5])
    assert run.state.shared["cluster_0"] is not None


def test_a_client_without_photos_counts_nowhere() -> None:
    run = Run(method())
    run.round(0, [*counted({ALICE: (9, 1), BOB: (1, 9)}), update(CAROL, photos=0, class_counts=(0, 0))])
    assert CAROL not in run.state.clients

    run.begin(1)
    with pytest.raises(NothingToAggregate, match="no client trained on any photo"):
        run.round(1, [update(ALICE, weights(1.0), photos=0)])


@pytest.mark.parametrize(("given", "expected"), [((2, None), (2, 3)), ((None, 1), (4, 1)), ((1, 4), (1, 4))])
def test_rounds_that_are_left_out_follow_from_the_others(
    given: tuple[int | None, int | None], expected: tuple[int, int]
) -> None:
    _, extract, last = method(options={"extractor_rounds": given[0], "classifier_rounds": given[1]}).phases

    assert (extract.rounds, last.rounds) == expected


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"options": {"clusters": 5}}, "options.clusters: found 5, must be at most the population, 4"),
        ({"options": {"clusters": 4}}, "options.clusters: found 4, must be at most 3, the extractors that"),
        ({"options": {"clusters": 0}}, 'options.clusters: found 0, must be a whole number, 1 or more, or "elbow"'),
        ({"options": {"clusters": "knee"}}, "options.clusters: found 'knee'"),
        ({"options": {"clusters": True}}, "options.clusters: found True"),
        ({"options": {"labels": "true"}}, 'options.labels: found \'true\', must be "counts", "noisy", "inf'),
        ({"options": {"labels": "noisy"}}, "options.epsilon: found nothing, must be a number above 0"),
        ({"options": {"labels": "noisy", "epsilon": 0}}, "options.epsilon: found 0, must be a number above 0"),
        ({"options": {"epsilon": 1}}, 'options.epsilon: found 1, must be left out, since options.labels is "counts"'),
        ({"options": NOISY, "confusion": True}, "confusion: found true, must be false"),
        ({"options": NOISY, "personal_evaluation": True}, "personal_evaluation: found true, must be false"),
        ({"options": {"random_images": 5}}, "options.random_images: found 5, must be left out"),
        ({"options": {"labels": "inferred"}}, r"manifests\[0\]: found program 'predict' without ONNX"),
        ({"rounds": 7}, r"rounds: found 7, must be 1 for .* with extractor_rounds 2 and classifier_rounds 3"),
        ({"rounds": 3, "options": {"classifier_rounds": None}}, "rounds: found 3, must be 1 for clustering"),
        (
            {"options": {"extractor_rounds": None, "classifier_rounds": None}},
            "options.extractor_rounds: found nothing, must be set, or options.classifier_rounds",
        ),
        ({"options": {"classifier_steps": 0}}, "options.classifier_steps: found 0"),
        ({"options": {"start": "warm"}}, "options.start: found 'warm'"),
        ({"options": {"k": 3}}, "options.k: found set, must be left out: the options of fedconcat are balanced, "),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_by_name(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        method(**settings)


@pytest.mark.parametrize(
    ("bundles", "reason"),
    [
        ([network()], "manifests: found no bundle that concatenates extractors"),
        ([concatenated(3)], "manifests: found only bundles that concatenate"),
        ([network(), network(width=4), concatenated(3)], r"manifests\[1\]: found a bundle with other tensors"),
        ([network(), concatenated(3, width=4)], r"manifests\[1\]: found a bundle that concatenates other extract"),
        (
            [network(), concatenated(3), concatenated(3, fill=0.25)],
            r"manifests\[2\]: found a bundle with another",
        ),
    ],
)
def test_bundles_that_do_not_fit_are_refused(bundles: list[TinyBundle], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        method(*bundles)


def test_the_model_is_the_classifier_with_the_extractors_that_it_stands_on(bench: Bench) -> None:
    settings = {**SETTINGS, "population": 2, "rounds": 3}
    settings["options"] = {"clusters": 2, "extractor_rounds": 1, "classifier_rounds": 1}
    bench.create(json.dumps(settings), [network(), concatenated(3)])
    bench.enrol([ALICE, BOB])
    for client, counts in ((ALICE, (9, 1)), (BOB, (1, 9))):
        assignment = bench.assignment(client)
        bench.send(client, assignment, *update_of(assignment, None, class_counts=counts))
    bench.advance()
    with pytest.raises(Unknown, match="task 'task' has no global model"):
        bench.model()

    for client in (ALICE, BOB):
        bench.report(client)
    bench.advance()

    # The bundle takes three extractors, of which two clusters leave one out.
    assert sorted(bench.model()) == ["classifier.bias", "classifier.weight"]
    extractors = tasks.model(bench.federation, "task").extractors
    assert [extractor.name for extractor in extractors] == ["cluster_0", "cluster_1", "cluster_2"]
    first, second, absent = (extractor.blob_sha256 for extractor in extractors)
    assert sorted(bench.store.tensors(first)) == sorted(bench.store.tensors(second)) == EXTRACTOR
    assert not absent
