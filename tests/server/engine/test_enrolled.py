"""Enrolled clients in memory, and those of them that were seen lately."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlens_proto.v1 import enrolment_pb2
from fedlens_server.engine.arrivals.presence import Presence
from fedlens_server.engine.enrolled import Enrolled, Profile
from tests.server.fakes import ALICE, BOB, CAROL

TRAINER = Profile(role=enrolment_pb2.CLIENT_ROLE_TRAINER, raw=b"")
EVALUATOR = Profile(role=enrolment_pb2.CLIENT_ROLE_EVALUATOR, raw=b"")
SEEN = st.lists(
    st.tuples(
        st.sampled_from([ALICE, BOB, CAROL]), st.sampled_from([TRAINER, EVALUATOR]), st.booleans(), st.floats(0, 4000)
    ),
    max_size=12,
)


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


@given(SEEN, st.floats(60, 3600))
def test_the_count_of_those_present_is_that_of_a_look_at_each(
    seen: list[tuple[bytes, Profile, bool, float]], within_s: float
) -> None:
    presence, last, now = Presence(), dict[bytes, tuple[float, Profile]](), 0.0
    for client, profile, comes, after_s in seen:
        now += after_s
        if comes:
            presence.saw(client, profile, now)
            last[client] = now, profile
        else:
            presence.changed(client, profile)
            if client in last:
                last[client] = last[client][0], profile
        # Times count to the minute in which they lie.
        oldest = (now - within_s) // 60
        present = [kind for when, kind in last.values() if when // 60 >= oldest]
        assert presence.count(now, within_s) == len(present)
        assert presence.count(now, within_s, is_trainer) == present.count(TRAINER)


def is_trainer(profile: Profile) -> bool:
    return profile.is_trainer


def test_who_is_forgotten_is_not_present() -> None:
    presence = Presence()
    presence.saw(ALICE, TRAINER, 0.0)
    assert presence.count(0.0, 60) == 1

    presence.forget(ALICE)

    assert presence.count(0.0, 60) == 0
    assert presence.take_unsaved() == {}
