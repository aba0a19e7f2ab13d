"""Tokens that let clients and operators in, and the log of what operators changed."""

from typing import Any

import pytest

from fedlens_proto.v1 import admission_pb2 as pb
from fedlens_proto.v1 import enrolment_pb2
from fedlens_server.engine import clients
from fedlens_server.engine.operators import audit, tokens
from fedlens_server.engine.operators.access import ADMIN, Operator, Origin
from fedlens_server.errors import Forbidden, Malformed, ServerError, SlowDown, TokenExists, Unknown
from tests.server.fakes import ALICE, BOB, CAPABILITIES, START, Bench, client_ids

ANN = Operator(name="ann", role=pb.TOKEN_ROLE_OPERATE)


def make(bench: Bench, name: str = "phones", role: pb.TokenRole = pb.TOKEN_ROLE_TRAINER, **values: Any) -> str:
    """The secret of a new token."""
    request = pb.CreateTokenRequest(protocol=1, name=name, role=role, **values)
    return tokens.create(bench.federation, request, ANN).result().secret


def enrol(bench: Bench, client: bytes, secret: str, origin: Origin | None = None) -> enrolment_pb2.ClientRole:
    grant = bench.federation.grants[tokens.hashed(secret)]
    return clients.enrol(bench.federation, client, grant, CAPABILITIES, origin).result()


def refused(bench: Bench, client: bytes, secret: str, origin: Origin | None = None) -> type[ServerError] | None:
    try:
        enrol(bench, client, secret, origin)
    except ServerError as error:
        return type(error)
    return None


def reopen(bench: Bench) -> None:
    bench.reopen()
    tokens.load(bench.federation)


def test_one_token_of_the_usual_kind_lets_in_a_hundred_and_no_crowd(bench: Bench) -> None:
    secret = make(bench)

    answers = [refused(bench, client, secret) for client in client_ids(300)]

    assert answers == [None] * 100 + [Forbidden] * 200


def test_a_tokens_rate_holds_over_every_minute(bench: Bench) -> None:
    secret = make(bench, max_uses=1000, per_minute=3)
    ids = iter(client_ids(20))

    burst = [refused(bench, next(ids), secret) for _ in range(5)]
    bench.clock.wind(19.9)
    early = refused(bench, next(ids), secret)
    bench.clock.wind(0.1)  # a third of a minute after the third one
    on_time = [refused(bench, next(ids), secret) for _ in range(2)]

    assert burst == [None] * 3 + [SlowDown] * 2
    assert early is SlowDown
    assert on_time == [None, SlowDown]


def test_who_comes_too_fast_is_told_when_to_come_again(bench: Bench) -> None:
    secret = make(bench, per_minute=2)
    alice, bob, carol = client_ids(3)
    enrol(bench, alice, secret)
    enrol(bench, bob, secret)
    bench.clock.wind(10)

    with pytest.raises(SlowDown, match="2 clients a minute") as caught:
        enrol(bench, carol, secret)

    # One a half minute, and ten seconds of it are over.
    assert caught.value.retry_after_ms == 20_000
    bench.clock.wind(20)
    assert enrol(bench, carol, secret) == enrolment_pb2.CLIENT_ROLE_TRAINER


def test_an_address_that_is_too_fast_uses_up_nothing_of_the_tokens_rate(bench: Bench) -> None:
    secret = make(bench, per_minute=4)
    ids = iter(client_ids(20))
    crowd, other = Origin(address="192.0.2.7", per_minute=2), Origin(address="192.0.2.8", per_minute=2)

    many = [refused(bench, next(ids), secret, crowd) for _ in range(6)]
    few = [refused(bench, next(ids), secret, other) for _ in range(2)]

    assert many == [None] * 2 + [SlowDown] * 4
    assert few == [None] * 2


def test_addresses_are_remembered_for_a_minute(bench: Bench) -> None:
    secret = make(bench, max_uses=1000, per_minute=1000)
    for index, client in enumerate(client_ids(50)):
        enrol(bench, client, secret, Origin(address=f"192.0.2.{index}", per_minute=1))

    bench.clock.wind(60)
    enrol(bench, ALICE[::-1], secret, Origin(address="192.0.2.99", per_minute=1))

    assert len(bench.federation.enrolments_due) == 2  # the address, and the token


def test_enrolling_again_is_never_too_fast(bench: Bench) -> None:
    secret = make(bench, max_uses=1, per_minute=1)

    roles = {enrol(bench, ALICE, secret) for _ in range(5)}

    assert roles == {enrolment_pb2.CLIENT_ROLE_TRAINER}


def test_what_is_known_of_a_token_outlives_the_process_but_for_its_secret(bench: Bench) -> None:
    secret = make(bench, "testers", pb.TOKEN_ROLE_EVALUATOR, max_uses=2, per_minute=7, expires_in_s=60)
    enrol(bench, ALICE, secret)

    reopen(bench)

    (found,) = tokens.listed(bench.federation).tokens
    assert found == pb.Token(
        name="testers",
        role=pb.TOKEN_ROLE_EVALUATOR,
        max_uses=2,
        uses=1,
        per_minute=7,
        created_at=START,
        expires_at=START + 60,
    )
    assert enrol(bench, BOB, secret) == enrolment_pb2.CLIENT_ROLE_EVALUATOR
    files = [path.read_bytes() for path in bench.folder.rglob("*") if path.is_file()]
    assert not any(secret.encode() in content for content in files)


def test_nobody_new_enrols_with_a_revoked_token(bench: Bench) -> None:
    secret = make(bench)
    enrol(bench, ALICE, secret)

    tokens.revoke(bench.federation, "phones", ANN).result()
    tokens.revoke(bench.federation, "phones", ANN).result()

    for _ in range(2):
        with pytest.raises(Forbidden, match="'phones' was revoked"):
            enrol(bench, BOB, secret)
        assert enrol(bench, ALICE, secret) == enrolment_pb2.CLIENT_ROLE_TRAINER
        reopen(bench)
    with pytest.raises(Unknown, match="no token 'other'"):
        tokens.revoke(bench.federation, "other", ANN).result()


def test_an_operators_token_lets_nobody_enrol_and_ends_when_it_is_revoked(bench: Bench) -> None:
    secret = make(bench, "bob", pb.TOKEN_ROLE_READ, expires_in_s=60)
    digest = tokens.hashed(secret)

    reopen(bench)
    known = bench.federation.operators[digest]
    is_grant = digest in bench.federation.grants
    tokens.revoke(bench.federation, "bob", ANN).result()

    assert known == Operator(name="bob", role=pb.TOKEN_ROLE_READ, expires_at=START + 60)
    assert not is_grant
    assert digest not in bench.federation.operators
    reopen(bench)
    assert digest not in bench.federation.operators


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_role_read_changes_nothing(method: str) -> None:
    onlooker = Operator(name="eve", role=pb.TOKEN_ROLE_READ)

    onlooker.check_may("GET")
    onlooker.check_may("HEAD")
    ANN.check_may(method)
    with pytest.raises(Forbidden, match="'eve' has the role read; this request needs the role operate"):
        onlooker.check_may(method)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": ""}, "name: found '', must be 1 to 100 printable characters"),
        ({"name": "x" * 101}, "name: found 'xxx"),
        ({"name": " a"}, "name: found ' a'"),
        ({"name": "a\nb"}, r"name: found 'a\\nb'"),
        ({"name": "admin"}, "not 'admin', the config's own token"),
        ({"name": ".."}, r"name: found '\.\.', must be 1 to 100 printable characters, not '\.' or '\.\.'"),
        ({"role": pb.TOKEN_ROLE_UNSPECIFIED}, "role: found 0, must be trainer, evaluator, read or operate"),
        ({"role": 77}, "role: found 77, must be"),
        ({"max_uses": 1_000_000_001}, "max_uses: found 1000000001, must be 1 to 1000000000"),
        ({"per_minute": 1_000_001}, "per_minute: found 1000001, must be 1 to 1000000"),
        ({"role": pb.TOKEN_ROLE_READ, "max_uses": 1}, "max_uses, per_minute: leave both out"),
        ({"role": pb.TOKEN_ROLE_OPERATE, "per_minute": 1}, "max_uses, per_minute: leave both out"),
        ({"expires_in_s": -1.0}, "expires_in_s: found -1, must be 0 to"),
        ({"expires_in_s": float("nan")}, "expires_in_s: found nan, must be"),
        ({"expires_in_s": float("inf")}, "expires_in_s: found inf, must be"),
    ],
)
def test_what_no_token_can_be_is_refused_by_name(bench: Bench, values: dict[str, Any], said: str) -> None:
    with pytest.raises(Malformed, match=said):
        make(bench, **values)

    assert list(tokens.listed(bench.federation).tokens) == []
    assert list(audit.listed(bench.federation, 0).entries) == []


def test_a_name_stands_for_one_token_for_ever(bench: Bench) -> None:
    make(bench)
    tokens.revoke(bench.federation, "phones", ANN).result()

    with pytest.raises(TokenExists, match="there is or was a token 'phones'"):
        make(bench)


def test_a_server_keeps_so_many_tokens_and_no_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 2)
    for number in range(2):
        make(bench, f"token {number}")

    with pytest.raises(Malformed, match="there are 2 tokens, which is the most that a server keeps"):
        make(bench, "one more")


def test_every_change_has_a_line_with_who_and_when_and_what(bench: Bench) -> None:
    make(bench, "bob", pb.TOKEN_ROLE_READ)
    bench.clock.wind(5)
    tokens.revoke(bench.federation, "bob", ADMIN).result()
    tokens.revoke(bench.federation, "bob", ADMIN).result()  # changes nothing
    bench.clock.wind(5)
    bench.make(name="photos")
    bench.stop("photos")
    bench.stop("photos")
    bench.reopen()

    entries = list(audit.listed(bench.federation, 0).entries)

    assert [(entry.at - START, entry.operator, entry.action, entry.subject, entry.detail) for entry in entries] == [
        (10, "admin", "task stop", "photos", ""),
        (10, "admin", "task create", "photos", "fedavg, rounds: 3"),
        (5, "admin", "token revoke", "bob", ""),
        (0, "ann", "token new", "bob", "read"),
    ]
    assert list(audit.listed(bench.federation, START + 6).entries) == entries[:2]
    assert list(audit.listed(bench.federation, 0, before=entries[1].id).entries) == entries[2:]


def test_the_log_of_changes_keeps_the_latest(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "KEPT", 3)

    for number in range(5):
        make(bench, f"token {number}")

    assert [entry.subject for entry in audit.listed(bench.federation, 0).entries] == ["token 4", "token 3", "token 2"]
