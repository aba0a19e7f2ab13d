"""Enrolled clients in memory, and those of them that were seen lately."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlens_proto.v1 import enrolment_pb2
from fedlens_server.engine.arrivals.presence import Presence, StoredPresence
from fedlens_server.engine.enrolled import Enrolled, Profile
from tests.server.fakes import ALICE, BOB, CAROL

TRAINER = Profile(role=enrolment_pb2.CLIENT_ROLE_TRAINER, raw=b"")
EVALUATOR = Profile(role=enrolment_pb2.CLIENT_ROLE_EVALUATOR, raw=b"")
SEEN = st.lists(st.tuples(st.sampled_from([ALICE, BOB, CAROL]), st.floats(0, 4000)), max_size=12)


def test_clients_of_one_kind_share_a_profile_and_are_counted_without_looking_at_each() -> None:
    enrolled = Enrolled()
    enrolled.put(CAROL, Profile(role=enrolment_pb2.CLIENT_ROLE_TRAINER, raw=b""))
    enrolled.put(ALICE, TRAINER)
    enrolled.put(BOB, EVALUATOR)
    asked = list[Profile]()

    assert enrolled.count(lambda profile: asked.append(profile) or profile.is_trainer) == 2
    assert len(asked) == 2
    assert enrolled[ALICE].profile is enrolled[CAROL].profile
    assert enrolled.ids(lambda profile: profile.is_trainer) == [ALICE, CAROL]
    assert enrolled.has(lambda profile: profile.is_trainer, but_for={ALICE})
    assert not enrolled.has(lambda profile: profile.is_trainer, but_for={ALICE, CAROL})


def test_a_client_counts_with_its_latest_profile_alone() -> None:
    enrolled = Enrolled()
    enrolled.put(ALICE, TRAINER)
    enrolled.put(ALICE, EVALUATOR)
    assert enrolled.count(lambda profile: profile == TRAINER) == 0
    assert enrolled.count(lambda profile: profile == EVALUATOR) == 1

    enrolled.remove(ALICE)
    assert enrolled.count(lambda profile: True) == 0
    with pytest.raises(KeyError):
        enrolled[ALICE]


@given(SEEN, st.floats(60, 3600), st.sampled_from([Presence, StoredPresence]))
def test_the_count_of_those_present_is_that_of_a_look_at_each(
    seen: list[tuple[bytes, float]], within_s: float, kind: type[Presence]
) -> None:
    presence, last, now = kind(), dict[bytes, float](), 0.0
    for client, after_s in seen:
        now += after_s
        presence.saw(client, now)
        last[client] = now
        # Times count to the minute in which they lie.
        oldest = (now - within_s) // 60
        assert presence.count(now, within_s) == sum(when // 60 >= oldest for when in last.values())
        assert dict(presence.since(0.0)) == {client: when // 60 * 60 for client, when in last.items()}


def test_who_is_forgotten_is_not_present() -> None:
    presence = StoredPresence()
    presence.saw(ALICE, 0.0)
    assert presence.count(0.0, 60) == 1

    presence.forget(ALICE)

    assert presence.count(0.0, 60) == 0
    assert presence.take_unsaved() == {}
