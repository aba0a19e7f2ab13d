"""Credentials: none, wrong, foreign and revoked ones, and secrets that must never reach the log."""

import logging
from hashlib import sha256

import pytest

from fedlens_proto.v1 import enrolment_pb2, error_pb2, update_pb2
from fedlens_proto.wire import frame_update
from tests.server.bundles import tiny_bundle
from tests.server.http.running import (
    ADMIN_TOKEN,
    BAN,
    EVALUATOR_TOKEN,
    TRAINER_TOKEN,
    Client,
    Server,
    creation,
    round_path,
    trained,
    update,
)

CHECK_IN = b"\x08\x01"


@pytest.mark.parametrize("header", ["", "Bearer", "Basic abc", "Bearer c2hvcnQ=", "Bearer " + "!" * 43])
async def test_a_request_without_a_readable_credential_is_401(server: Server, header: str) -> None:
    answer = await server.request("POST", f"{server.url}/v1/check-in", Authorization=header)

    assert answer.outcome == (401, "unauthorised")
    assert answer.error.retry == error_pb2.RETRY_NEVER


async def test_who_is_not_enrolled_and_has_no_valid_token_is_401(server: Server) -> None:
    stranger = Client(server, bytes(32))

    answers = [
        await stranger.send("POST", "/v1/check-in", CHECK_IN),
        *[await stranger.enrol(token) for token in ("", "wrong", ADMIN_TOKEN)],
        await stranger.enrol(client_id=sha256(b"another").digest()),
    ]

    assert [answer.outcome for answer in answers] == [(401, "unauthorised")] * 5


async def test_who_comes_to_the_address_of_the_others_is_told(server: Server) -> None:
    client = await server.request("POST", f"{server.admin_url}/v1/check-in", Authorization="Bearer " + "A" * 43)
    operator = await server.request("GET", f"{server.url}/v1/admin/tasks", Authorization=f"Bearer {ADMIN_TOKEN}")
    mistaken = await server.admin("GET", "/v1/admin/nothing")

    assert (client.outcome, operator.outcome) == ((401, "unauthorised"), (404, "unknown"))
    assert client.error.message.endswith("this address is for operators, clients have another")
    assert operator.error.message.endswith("here; this address is for clients, operators have another")
    assert mistaken.error.message == "there is no GET /v1/admin/nothing here"


async def test_a_token_that_is_used_up_or_has_expired_lets_nobody_else_in(server: Server) -> None:
    first, stranger = await server.client(1, token="once"), Client(server, bytes(32))

    answers = [await first.enrol("once"), await stranger.enrol("once"), await stranger.enrol("old")]

    assert [answer.outcome for answer in answers] == [(200, ""), (403, "forbidden"), (403, "forbidden")]


async def test_the_role_follows_from_the_token(server: Server) -> None:
    trainer = await (await server.client(1)).enrol()
    evaluator = await (await server.client(2, EVALUATOR_TOKEN)).enrol(EVALUATOR_TOKEN)

    roles = [enrolment_pb2.EnrolResponse.FromString(answer.body).role for answer in (trainer, evaluator)]
    assert roles == [enrolment_pb2.CLIENT_ROLE_TRAINER, enrolment_pb2.CLIENT_ROLE_EVALUATOR]


async def test_a_banned_client_is_403_from_the_next_request_on(server: Server) -> None:
    client = await server.client(1)

    banned = await server.admin("POST", f"/v1/admin/clients/{client.id.hex()}/ban", BAN)

    assert banned.status == 200
    assert (await client.send("POST", "/v1/check-in", CHECK_IN)).outcome == (403, "forbidden")
    assert (await client.enrol()).outcome == (403, "forbidden")


async def test_a_forgotten_client_is_unknown_and_cannot_come_back(server: Server) -> None:
    client = await server.client(1)
    request = enrolment_pb2.ForgetRequest(protocol=1).SerializeToString()

    forgotten = await client.send("DELETE", "/v1/clients/self", request)

    assert forgotten.status == 200
    assert (await client.send("POST", "/v1/check-in", CHECK_IN)).outcome == (401, "unauthorised")
    assert (await client.enrol()).outcome == (403, "forbidden")


async def test_only_a_member_sends_an_update_and_only_an_evaluator_an_evaluation(server: Server) -> None:
    trainer, assignment = await server.member()
    late, evaluator = await server.client(2), await server.client(3, EVALUATOR_TOKEN)
    evaluation = frame_update(update_pb2.UpdateHeader(protocol=1, bundle=assignment.bundle))

    answers = [
        await late.upload(assignment),
        await evaluator.upload(assignment),
        await trainer.send("PUT", f"{round_path(assignment)}/evaluation", evaluation),
    ]

    assert [answer.outcome for answer in answers] == [(403, "forbidden")] * 3


async def test_a_blob_of_another_client_is_404_as_if_it_were_not_there(server: Server) -> None:
    one, assignment = await server.member(population=2)
    other, blob = await server.client(2), trained(value=7.0)
    assert (await one.upload(assignment, update(assignment, blob))).status == 200
    digest, nowhere = sha256(blob).hexdigest(), "0" * 64

    answers = [await other.send("GET", f"/v1/blobs/{asked}") for asked in (digest, nowhere)]
    its_own = await one.send("GET", f"/v1/blobs/{digest}")

    assert [answer.outcome for answer in (*answers, its_own)] == [(404, "unknown")] * 3
    assert answers[0].error.message.replace(digest, nowhere) == answers[1].error.message


@pytest.mark.parametrize("token", ["", "wrong", TRAINER_TOKEN])
async def test_operators_need_their_own_token(server: Server, token: str) -> None:
    answers = [
        await server.admin("GET", "/v1/admin/tasks", token=token),
        await server.admin("POST", "/v1/admin/tasks", creation(tiny_bundle()), token=token),
        await server.admin("PUT", f"/v1/admin/parts/{'0' * 64}", b"x", token=token),
        await server.admin("GET", "/v1/admin/no-such-thing", token=token),
    ]

    assert {answer.outcome for answer in answers} == {(401, "unauthorised")}


async def test_the_clients_address_has_no_admin_api(server: Server) -> None:
    answer = await server.request("GET", f"{server.url}/v1/admin/tasks", Authorization=f"Bearer {ADMIN_TOKEN}")

    assert answer.outcome == (404, "unknown")


async def test_secrets_and_tokens_reach_neither_log_nor_answers(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client = Client(server, sha256(b"a secret").digest())
    wrong = "token-of-a-stranger"

    answers = [
        await client.enrol(),
        await client.enrol(wrong),
        await client.send("POST", "/v1/check-in", b"damaged"),
        await client.send("POST", "/v1/no-such-thing"),
        await server.admin("GET", "/v1/admin/tasks"),
        await server.admin("GET", "/v1/admin/tasks", token=wrong),
    ]

    said = caplog.text + repr([(answer.headers, answer.body) for answer in answers])
    spoken = [client.bearer.removeprefix("Bearer "), client.secret.hex(), TRAINER_TOKEN, ADMIN_TOKEN, wrong]
    assert [secret for secret in spoken if secret in said] == []
