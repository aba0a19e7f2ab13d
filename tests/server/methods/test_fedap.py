import numpy as np
import pytest

from fedlens_proto.plans import counts_photos
from fedlens_proto.v1 import assignment_pb2
from fedlens_proto.v1 import manifest_pb2 as pb
from fedlens_server.methods.arithmetic.linear_combination import linear_combination
from fedlens_server.methods.fedap import distances, mixing_weights
from fedlens_server.planning.method import Method, State, Update
from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import TinyBundle, sealed
from tests.server.fakes import ALICE, BOB, CAROL, DAVE, EVE
from tests.server.methods.golden import cases
from tests.server.methods.programs import Extended, check_plans
from tests.server.methods.tasks import after, made, tools
from tests.server.networks import network, weights

STATISTICS = {"bn.running_mean": (2,), "bn.running_var": (2,)}


def normalised() -> TinyBundle:
    """The tiny network with a running variance, and the programs that recompute statistics."""
    extended = Extended()
    sums = {"bn.sum": (2,), "bn.count": ()}
    program = extended.derives("norm_sums", "norm_sums", sums, pb.SLOT_KIND_ACCUMULATOR, rows=True)
    extended.refer(program, "model")
    extended.refer(extended.derives("norm_statistics", "norm_statistics", STATISTICS), "norm_sums", sums)
    return extended.bundle()


def with_running_statistics() -> TinyBundle:
    """The tiny network with BatchNorm's running mean and variance among its tensors."""
    tensors = {**weights(0.0), "bn.running_mean": np.zeros(2, np.float32), "bn.running_var": np.ones(2, np.float32)}
    return sealed(network().parsed, tensors, network().parts[1])


def recomputing(rounds: int = 5, **options: object) -> Method:
    return made("fedap", normalised(), rounds=rounds, options={"statistics": "recomputed", **options})


def statistics(client: bytes, mean: float) -> Update:
    table = {"bn.running_mean": np.array([mean, 0], np.float32), "bn.running_var": np.array([1, 1], np.float32)}
    return Update(client=client, num_examples=0, values={"norm_statistics": table})


def model(client: bytes, value: float, photos: int = 1) -> Update:
    kept = {name: tensor for name, tensor in weights(value).items() if not name.startswith("bn")}
    return Update(client=client, num_examples=photos, values={"weights": kept})


def test_nobody_counts_photos_in_the_phase_that_trains_nothing() -> None:
    assert [counts_photos(phase.plan) for phase in recomputing().phases] == [True, False, True]


def test_the_worked_cases() -> None:
    for case in cases("fedap"):
        layers = [name.removeprefix("mean_") for name in sorted(case.inputs) if name.startswith("mean_")]
        if not layers:
            continue
        found = distances([case.inputs[f"mean_{i}"] for i in layers], [case.inputs[f"var_{i}"] for i in layers])
        mixing = mixing_weights(found, float(case.inputs["model_momentum"]))
        for name, value in (("distance", found), ("mixing", mixing)):
            if name in case.outputs:
                case.check(name, value)
        if "weight" in case.outputs:
            case.check("weight", np.array([linear_combination(list(case.inputs["weight"]), row) for row in mixing]))


def test_twins_share_all_that_others_get_and_a_single_client_has_itself() -> None:
    apart = np.array([[0.0, 0.0, 0.0, 5.0], [0.0, 0.0, 0.0, 5.0], [0.0, 0.0, 0.0, 5.0], [5.0, 5.0, 5.0, 0.0]])

    found = mixing_weights(apart, 0.4)

    np.testing.assert_allclose(found[0], [0.4, 0.3, 0.3, 0.0])
    np.testing.assert_allclose(found[3], [0.2, 0.2, 0.2, 0.4])
    np.testing.assert_array_equal(mixing_weights(np.zeros((1, 1)), 0.5), [[1.0]])


def test_a_negative_variance_counts_0() -> None:
    np.testing.assert_array_equal(distances([[[0.0], [0.0]]], [[[-1e-9], [4.0]]]), [[0.0, 2.0], [2.0, 0.0]])


def test_the_phases_and_what_each_sends() -> None:
    method = recomputing(rounds=6)

    check_plans(method, normalised())
    assert [(each.name, each.rounds, each.cohort) for each in method.phases] == [
        ("warm-up", 2, None),
        ("statistics", 1, None),
        ("personalise", 3, None),
    ]
    assert [[u.name for u in each.plan.uploads] for each in method.phases] == [
        ["weights"],
        ["norm_statistics"],
        ["weights"],
    ]


def personalised(method: Method) -> State:
    """Warm-up by Alice and Bob, statistics of Alice, Bob and Carol."""
    state = method.begin(method.phases[0], State(), tools())
    state = after(method, state, [model(ALICE, 1.0), model(BOB, 4.0, 2)])
    # Distances: Alice to Bob 1, Alice to Carol 3, Bob to Carol 2.
    found = [statistics(ALICE, 0.0), statistics(BOB, 1.0), statistics(CAROL, 3.0)]
    return after(method, state, found, phase=1)


def bias(method: Method, state: State, client: bytes) -> float:
    sent = method.download(method.phases[2], state, client) or {}
    assert "bn.weight" not in sent["personal"]
    return float(sent["personal"]["fc.bias"][0])


def test_each_client_gets_its_own_sum_of_the_last_uploads() -> None:
    method = recomputing()
    state = personalised(method)

    # Warm-up's mean is (1 + 8) / 3 = 3, which stands in for Carol's. Alice: 0.5 * 1 + 0.5 * (3/4 * 4 + 1/4 * 3).
    assert bias(method, state, ALICE) == pytest.approx(0.5 + 0.5 * 3.75, rel=1e-6)
    # Carol: 0.5 * 3 + 0.5 * (2/5 * 1 + 3/5 * 4)
    assert bias(method, state, CAROL) == pytest.approx(1.5 + 0.5 * 2.8, rel=1e-6)
    later = after(method, state, [model(CAROL, 7.0)], phase=2)
    assert bias(method, later, ALICE) == pytest.approx(0.5 + 0.5 * 4.75, rel=1e-6)
    assert method.download(method.phases[2], state, None) is None


def test_a_client_without_statistics_has_its_own_model_alone() -> None:
    method = recomputing()
    state = personalised(method)
    assert bias(method, state, DAVE) == 3.0

    later = after(method, state, [model(DAVE, 9.0)], phase=2)

    assert bias(method, later, DAVE) == 9.0
    assert bias(method, later, ALICE) == bias(method, state, ALICE)


def test_a_forgotten_client_is_in_no_sum_and_the_other_weights_are_divided_by_their_sum() -> None:
    method = recomputing()
    state = personalised(method)
    without_bob = State(shared=state.shared, clients={c: own for c, own in state.clients.items() if c != BOB})

    # Alice: 0.5 of her own and 0.125 of Carol's, which is the global model, 3.
    assert bias(method, without_bob, ALICE) == pytest.approx((0.5 + 0.125 * 3) / 0.625, rel=1e-6)
    alone = State(shared=state.shared, clients={ALICE: state.clients[ALICE]})
    assert bias(method, alone, ALICE) == 1.0


def coming_late() -> Method:
    """The method of a task that selects by arrival."""
    arrivals = {"selection": "arrivals", "goal": 2}
    return made("fedap", normalised(), rounds=5, options={"statistics": "recomputed"}, **arrivals)


def admitted(method: Method, state: State, means: dict[bytes, float]) -> State:
    """The state with these clients, whose statistics have these means."""
    assert method.admit is not None
    return method.admit(method.phases[2], state, [statistics(*each) for each in means.items()], tools())


def test_a_client_that_comes_late_gets_a_row_and_the_rows_of_the_others_stay() -> None:
    method = coming_late()
    state = personalised(method)
    assert (method.phases[2].intake, method.download(method.phases[2], state, DAVE)) == ("statistics", None)
    assert (method.download(method.phases[1], state, DAVE) or {}).keys() == {"global"}

    later = admitted(method, state, {DAVE: -1.0})

    # Distances to Alice, Bob and Carol: 1, 2 and 4. Weights 4/7, 2/7 and 1/7 of 0.5; nothing of Carol and Dave came: 3.
    assert bias(method, later, DAVE) == pytest.approx(1.5 + 0.5 * (4 / 7 * 1 + 2 / 7 * 4 + 1 / 7 * 3), rel=1e-6)
    trained = after(method, later, [model(DAVE, 9.0)], phase=2)
    assert bias(method, trained, DAVE) == pytest.approx(4.5 + 0.5 * (4 / 7 * 1 + 2 / 7 * 4 + 1 / 7 * 3), rel=1e-6)
    assert [bias(method, trained, each) for each in (ALICE, BOB)] == [
        bias(method, state, each) for each in (ALICE, BOB)
    ]


def test_clients_that_come_late_get_the_rows_that_they_had_got_in_time() -> None:
    method = coming_late()
    means = {ALICE: 0.0, BOB: 1.0, CAROL: 3.0, DAVE: -1.0, EVE: 0.5}
    expected = mixing_weights(distances([[[mean, 0.0] for mean in means.values()]], [np.ones((5, 2))]), 0.5)

    state = admitted(method, personalised(method), {DAVE: -1.0, EVE: 0.5})

    slots = [state.of(client)["slot"] for client in means]
    found = state.shared["mixing"][np.ix_(slots, slots)]
    np.testing.assert_array_equal(found[3:], expected[3:].astype(np.float32))
    np.testing.assert_array_equal(found[:3, 3:], 0)
    # One after the other, the first has no weight for the second, who was not there yet.
    single = admitted(method, admitted(method, personalised(method), {DAVE: -1.0}), {EVE: 0.5})
    assert bias(method, single, EVE) == bias(method, state, EVE)
    assert bias(method, single, DAVE) != bias(method, state, DAVE)


def test_who_comes_late_takes_the_row_of_a_forgotten_client_and_none_of_its_weights() -> None:
    method = coming_late()
    state = personalised(method)
    without_bob = State(shared=state.shared, clients={c: own for c, own in state.clients.items() if c != BOB})

    later = admitted(method, without_bob, {DAVE: 1.0})
    trained = after(method, later, [model(DAVE, 9.0)], phase=2)

    assert later.of(DAVE)["slot"] == state.of(BOB)["slot"]
    assert bias(method, trained, ALICE) == bias(method, without_bob, ALICE)
    # Distances to Alice and Carol: 1 and 2.
    assert bias(method, trained, DAVE) == pytest.approx(4.5 + 0.5 * (2 / 3 * 1 + 1 / 3 * 3), rel=1e-6)


def test_drawn_clients_that_come_late_keep_no_statistics_and_catch_up_with_nothing() -> None:
    method = recomputing()

    state = personalised(method)

    assert method.admit is None
    assert not any(phase.intake for phase in method.phases)
    assert not any("statistics" in entries for entries in state.clients.values())


def test_running_statistics_are_uploaded_exactly_as_they_are_kept() -> None:
    bundle = with_running_statistics()
    method = made("fedap", bundle, codec="int8")

    check_plans(method, bundle)
    (upload,) = next(phase for phase in method.phases if phase.name == "statistics").plan.uploads
    assert (upload.value, list(upload.tensors.kinds)) == ("start", [pb.TENSOR_KIND_BUFFER])
    assert upload.codec == assignment_pb2.CODEC_FLOAT32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"statistics": "recomputed"}}, r"without program 'norm_sums', must be .* --program norm_sums"),
        ({}, "without statistics of BatchNorm"),
        ({"rounds": 1}, "rounds: found 1, must be more"),
        ({"batch_norm": "local"}, "batch_norm: found .*, must be left out"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, object], message: str) -> None:
    bundle = network() if "norm_sums" in message or "statistics of" in message else normalised()
    given = {"options": {"statistics": "recomputed"}, **settings} if bundle.parsed.programs[2:] else settings
    with pytest.raises(SettingsError, match=message):
        made("fedap", bundle, **given)
