"""Operators list and show clients, shut them out and let them in again."""

from dataclasses import replace

import pytest

from fedlens_proto.v1 import admin_pb2, enrolment_pb2
from fedlens_proto.v1 import admission_pb2 as pb
from fedlens_server.engine.operators import audit, bans, client_list, tokens
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.errors import Forbidden, Malformed, Unknown
from tests.server.fakes import ALICE, BOB, CAROL, PHONE, START, TRAINERS, Bench, client_ids

LEAKED = replace(TRAINERS, name="leaked")


def ids(found: pb.ListClientsResponse) -> list[bytes]:
    return [client.id for client in found.clients]


def leak(bench: Bench) -> None:
    """Make the token `leaked`, with which Bob and Carol have enrolled."""
    request = pb.CreateTokenRequest(protocol=1, name="leaked", role=pb.TOKEN_ROLE_TRAINER)
    tokens.create(bench.federation, request, ADMIN).result()
    bench.enrol([ALICE])
    bench.enrol([BOB, CAROL], LEAKED)


def test_a_banned_client_comes_back_only_when_it_is_let_in(running: Bench) -> None:
    bans.ban(running.federation, ALICE, "noise", ADMIN).result()
    with pytest.raises(Forbidden, match="banned by an operator"):
        running.check_in(ALICE)
    running.reopen()
    (banned,) = client_list.listed(running.federation, state="banned").clients
    let_in = [bans.unban(running.federation, ALICE, ADMIN).result() for _ in range(2)]

    for _ in range(2):
        # The round that it left goes on without it.
        assert running.check_in(ALICE).HasField("wait")
        assert ids(client_list.listed(running.federation, state="banned")) == []
        running.reopen()
    assert (banned.id, banned.banned_at, banned.ban_reason) == (ALICE, START, "noise")
    assert let_in == [True, False]
    assert running.members()[ALICE].state == admin_pb2.MEMBER_STATE_LEFT


def test_a_ban_takes_all_of_a_token_and_the_token(bench: Bench) -> None:
    leak(bench)

    counts = [bans.ban_token(bench.federation, "leaked", "posted in a forum", ADMIN).result() for _ in range(2)]

    assert counts == [2, 0]
    assert ids(client_list.listed(bench.federation, state="banned")) == [BOB, CAROL]
    assert ids(client_list.listed(bench.federation, state="active")) == [ALICE]
    assert tokens.listed(bench.federation).tokens[0].revoked_at == START
    assert bans.unban_token(bench.federation, "leaked", ADMIN).result() == 2
    assert ids(client_list.listed(bench.federation, state="banned")) == []
    actions = [(entry.action, entry.subject, entry.detail) for entry in audit.listed(bench.federation, 0).entries]
    assert actions[0] == ("client unban --token", "leaked", "")
    assert ("client ban --token", "leaked", "posted in a forum") in actions


def test_more_clients_of_a_token_are_banned_than_fit_into_one_statement(bench: Bench) -> None:
    leak(bench)
    crowd = client_ids(1203)
    bench.enrol(crowd, LEAKED)

    count = bans.ban_token(bench.federation, "leaked", "", ADMIN).result()

    # Alice enrolled with another token, Bob and Carol are in the crowd.
    assert count == 1202
    bench.reopen()
    assert bench.federation.clients.count(lambda profile: profile.revoked) == 1202


def test_a_ban_is_written_down_once_with_its_reason(running: Bench) -> None:
    shut_out = [bans.ban(running.federation, ALICE, "noise", ADMIN).result() for _ in range(2)]
    bans.unban(running.federation, ALICE, ADMIN).result()

    entries = list(audit.listed(running.federation, 0).entries)[:2]

    assert shut_out == [True, False]
    assert [(entry.action, entry.subject, entry.detail) for entry in entries] == [
        ("client unban", ALICE.hex(), ""),
        ("client ban", ALICE.hex(), "noise"),
    ]


def test_nobody_bans_what_is_not_there_or_for_a_reason_without_end(running: Bench) -> None:
    federation = running.federation
    for missing in (
        bans.ban(federation, CAROL, "", ADMIN),
        bans.unban(federation, CAROL, ADMIN),
        bans.ban_token(federation, "nobody's", "", ADMIN),
        bans.unban_token(federation, "nobody's", ADMIN),
    ):
        with pytest.raises(Unknown, match="there is no"):
            missing.result()
    with pytest.raises(Malformed, match="reason: found 501 characters, must be at most 500"):
        bans.ban(federation, ALICE, "x" * 501, ADMIN).result()
    assert running.assignment(ALICE).round == 1


def test_clients_are_listed_by_pages_in_the_order_of_their_ids(bench: Bench) -> None:
    crowd = client_ids(7)
    bench.enrol(crowd[::-1])

    pages = [client_list.listed(bench.federation, after, limit=3) for after in (b"", crowd[2], crowd[5])]

    assert [ids(page) for page in pages] == [crowd[:3], crowd[3:6], crowd[6:]]
    assert [page.has_more for page in pages] == [True, True, False]


def test_clients_are_chosen_by_token_bundle_and_when_they_were_seen(bench: Bench) -> None:
    leak(bench)
    bench.make(population=9)
    bench.enrol([BOB], capabilities=PHONE)
    bench.clock.wind(3600)
    bench.check_in(CAROL)

    chosen = {
        "token": client_list.listed(bench.federation, token="leaked"),
        "bundle": client_list.listed(bench.federation, bundle=bench.task.bundles[0].id.hex()[:8]),
        "model": client_list.listed(bench.federation, bundle=bench.task.bundles[0].manifest.model),
        "seen": client_list.listed(bench.federation, seen_within_s=120),
        "both": client_list.listed(bench.federation, token="leaked", bundle=bench.task.bundles[0].id.hex()),
    }

    assert {name: ids(found) for name, found in chosen.items()} == {
        "token": [BOB, CAROL],
        "bundle": [ALICE, CAROL],
        "model": [ALICE, CAROL],
        "seen": [CAROL],
        "both": [CAROL],
    }
    with pytest.raises(Unknown, match="no task has a bundle 'other'"):
        client_list.listed(bench.federation, bundle="other")
    with pytest.raises(Malformed, match="state: found 'gone', must be one of active, banned, sits-out"):
        client_list.listed(bench.federation, state="gone")


def test_first_digits_that_several_ids_share_are_refused_with_their_number(bench: Bench) -> None:
    first, second, third = (bytes.fromhex(digits.ljust(64, "0")) for digits in ("abcdef0123", "abcdef0124", "abcdef02"))
    bench.enrol([third, second, first])

    found = [client_list.find(bench.federation, digits) for digits in ("abcdef0123", "abcdef02", third.hex())]

    assert found == [first, third, third]
    for digits in ("abcdef01", "abcdef012"):
        with pytest.raises(Malformed, match=f"the ids of 2 clients begin with {digits}; give more digits"):
            client_list.find(bench.federation, digits)


def test_a_client_is_never_seen_before_it_enrolled_or_was_answered(bench: Bench) -> None:
    bench.make(population=9)
    bench.clock.wind(30)
    bench.enrol([CAROL])
    bench.check_in(CAROL)
    first = client_list.show(bench.federation, CAROL).client
    bench.clock.wind(100)
    bench.check_in(CAROL)
    second = client_list.show(bench.federation, CAROL)

    assert first.last_seen >= first.enrolled_at
    assert second.client.last_seen >= second.answered_at
    assert second.client.last_seen <= bench.clock.now()


def test_a_client_is_shown_with_its_enrolment_and_its_tasks(running: Bench) -> None:
    shown = client_list.show(running.federation, ALICE)

    assert shown.client == pb.EnrolledClient(
        id=ALICE,
        role=enrolment_pb2.CLIENT_ROLE_TRAINER,
        token="trainers",
        enrolled_at=START,
        state=pb.CLIENT_STATE_ACTIVE,
    )
    assert list(shown.tasks) == [pb.ClientInTask(task=1, name="task", suits=True)]
    assert shown.capabilities.plan_format > 0
    with pytest.raises(Unknown, match="there is no client"):
        client_list.show(running.federation, CAROL)
