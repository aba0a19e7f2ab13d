from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest

from fedlens_edge_client import FolderAlbum, Policy
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_edge_client.training.label_distribution import NoisyAnswers, noisy_shares, private_generator
from fedlens_proto.plan_check import is_usable
from fedlens_proto.v1 import assignment_pb2, update_pb2
from tests.edge_client.fakes import fedavg_plan
from tests.edge_client.federation import Federation

CLASSES = ("cat", "dog")
DIGITS = ("0", "1")


def asking(epsilon: float) -> assignment_pb2.LocalPlan:
    """Asks for nothing but the noisy distribution."""
    plan = assignment_pb2.LocalPlan(format=1)
    plan.statistics.add().label_distribution.epsilon = epsilon
    return plan


@pytest.fixture
def states(tmp_path: Path) -> Iterator[list[StateFolder]]:
    """Two state folders."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(StateFolder.open(tmp_path / name, "http://a"))) for name in ("a", "b")]


@pytest.fixture
def state(states: list[StateFolder]) -> StateFolder:
    return states[0]


def test_the_noise_has_the_moments_of_a_laplace_distribution() -> None:
    # Laplace(0, b = 1/2): mean 0, variance 2 b^2 = 0.5, mean of |x| = b = 0.5, and half of them below 0.
    noise = np.array(noisy_shares([0] * 20_000 + [1], 2.0, Random(1)))[:-1]

    # Standard errors: of the mean sqrt(0.5 / 20000) = 0.005, of |x| 0.0035, of the variance about 0.008.
    assert abs(noise.mean()) < 0.02
    assert abs(np.abs(noise).mean() - 0.5) < 0.015
    assert abs(noise.var() - 0.5) < 0.03
    assert abs((noise < 0).mean() - 0.5) < 0.015


def test_shares_are_neither_clipped_nor_normalised() -> None:
    # The expected noise is drawn in the same order: two exponentials of rate 0.1 for each class.
    generator = Random(3)
    noise = [generator.expovariate(0.1) - generator.expovariate(0.1) for _ in range(2)]
    shares = noisy_shares([3, 1], 0.1, Random(3))

    assert shares == (0.75 + noise[0], 0.25 + noise[1])
    assert min(shares) < 0 or max(shares) > 1


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf"), 1e-310])
def test_an_epsilon_without_finite_noise_is_none(epsilon: float) -> None:
    assert not is_usable(epsilon)


def test_one_clients_private_noise_is_the_same_again_and_anothers_differs() -> None:
    draws = [private_generator(secret, b"names").random() for secret in (bytes(32), bytes(32), b"1" * 32)]

    assert draws[0] == draws[1] != draws[2]


def test_private_noise_for_a_list_of_classes_does_not_depend_on_what_was_answered_before(
    states: list[StateFolder],
) -> None:
    given = []
    for state, asked in zip(states, ([CLASSES, DIGITS], [DIGITS]), strict=True):
        answers = NoisyAnswers(state, partial(private_generator, bytes(32)))
        given.append([answers.answer(names, [1, 1], 1.0) for names in asked])

    assert given[0][1] == given[1][0]
    assert given[0][0] != given[0][1]


def test_without_a_private_generator_two_clients_draw_other_noise(states: list[StateFolder]) -> None:
    answers = [NoisyAnswers(state).answer(CLASSES, [1, 1], 1.0) for state in states]

    assert answers[0] != answers[1]


def test_the_first_answer_is_given_again_whatever_is_asked_later(state: StateFolder) -> None:
    answers = NoisyAnswers(state)
    first = answers.answer(CLASSES, [3, 1], 1.0)

    assert answers.answer(CLASSES, [0, 9], 50.0) == first
    assert NoisyAnswers(state, lambda names: Random(5)).answer(CLASSES, [3, 1], 1.0) == first


def test_other_class_names_get_an_answer_of_their_own(state: StateFolder) -> None:
    answers = NoisyAnswers(state)

    assert answers.answer(CLASSES, [3, 1], 1.0) != answers.answer(("dog", "cat"), [3, 1], 1.0)
    # Names are told apart by where they end.
    assert answers.answer(("a", "bc"), [3, 1], 1.0) != answers.answer(("ab", "c"), [3, 1], 1.0)


def test_a_kept_answer_outlives_a_server_that_forgets_the_client_and_the_identity(state: StateFolder) -> None:
    first = NoisyAnswers(state).answer(CLASSES, [3, 1], 1.0)
    state.reset()
    state.erase()

    assert NoisyAnswers(state).answer(CLASSES, [3, 1], 1.0) == first


async def test_the_answer_is_sent_again_byte_for_byte_after_a_restart_and_in_the_next_task(
    federation: Federation, photos: Path
) -> None:
    async with federation.server(asking(1.0), rounds=3) as server:
        await federation.one_round(server)
        train = [photo for photo in FolderAlbum(photos).photos(0).photos if not photo.is_test]
        train[0].path.unlink()
        server.plan = asking(8.0)
        await federation.one_round(server)
        server.task = 8
        await federation.one_round(server)

    headers = [server.header(number) for number in (1, 2, 3)]
    sent = [np.array(header.label_distribution) for header in headers]
    assert sent[0].shape == (2,)
    assert sent[0].tobytes() == sent[1].tobytes() == sent[2].tobytes()
    # What was asked for besides: only how many photos there are.
    assert [header.num_examples for header in headers] == [16, 15, 15]
    assert not headers[0].class_counts and not headers[0].evaluations


async def test_after_the_noisy_answer_counts_and_confusion_are_refused_in_every_task(federation: Federation) -> None:
    counting, confusing = fedavg_plan(asking="class_counts"), fedavg_plan(asking="confusion")
    async with federation.joined(counting, rounds=5) as (server, client):
        await client.run_once()
        for task, plan in enumerate([asking(1.0), counting, confusing, fedavg_plan()], start=8):
            server.task, server.plan = task, plan
            await client.run_once()

    # Before it counts are told, and after it what is not asked about classes.
    assert sum(server.header(1).class_counts) == 16
    assert list(server.updates) == [1, 2, 5]
    assert [(number, failure.reason, failure.detail) for number, failure in server.failures.items()] == [
        (
            number,
            update_pb2.FAILURE_REASON_POLICY,
            f"this client's policy: {what} are not answered to a server that has a label distribution of the same "
            "classes, whose noise they would undo",
        )
        for number, what in ((3, "class counts"), (4, "confusion matrices"))
    ]


async def test_an_owner_may_allow_exact_answers_after_noisy_ones(federation: Federation) -> None:
    policy = Policy(answer_exactly_after_noise=True)
    async with federation.joined(asking(1.0), rounds=2, policy=policy) as (server, client):
        await client.run_once()
        server.plan = fedavg_plan(asking="class_counts")
        await client.run_once()

    assert sum(server.header(2).class_counts) == 16


async def test_an_injected_generator_makes_the_answer_a_function_of_the_client(
    federation: Federation, tmp_path: Path
) -> None:
    one, two = [
        await federation.run(asking(1.0), state=tmp_path / name, private_generator=lambda names: Random(7))
        for name in ("one", "two")
    ]

    assert one.header(1).label_distribution == two.header(1).label_distribution != []


async def test_without_photos_there_is_no_distribution_to_tell(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    server = await federation.run(asking(1.0), album=FolderAlbum(tmp_path / "empty"))

    assert server.failures[1].detail == "there is no labelled train photo"
