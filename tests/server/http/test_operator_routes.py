"""The operators' requests over HTTP."""

from hashlib import sha256
from pathlib import Path

import numpy as np

from fedlens_proto.blob import Blob
from fedlens_proto.v1 import admin_pb2, check_in_pb2
from tests.server.bundles import tiny_bundle
from tests.server.http.running import Server, creation, running, trained, update


async def test_a_part_is_stored_once_and_found(server: Server) -> None:
    content = b"a part"
    path = f"/v1/admin/parts/{sha256(content).hexdigest()}"

    before = await server.admin("HEAD", path)
    stored = [await server.admin("PUT", path, content) for _ in range(2)]
    after = await server.admin("HEAD", path)

    assert (before.status, [answer.status for answer in stored], after.status) == (404, [204, 204], 200)


async def test_a_large_part_goes_through_a_file(server: Server) -> None:
    content = bytes(3_000_000)

    answer = await server.admin("PUT", f"/v1/admin/parts/{sha256(content).hexdigest()}", content)

    fetched = await server.admin("GET", f"/v1/admin/blobs/{sha256(content).hexdigest()}")
    assert answer.status == 204
    assert fetched.body == content
    assert server.temporary_files() == []


async def test_a_part_with_another_digest_is_400_and_not_stored(server: Server) -> None:
    path = f"/v1/admin/parts/{'0' * 64}"

    answer = await server.admin("PUT", path, b"a part")

    assert answer.outcome == (400, "malformed")
    assert sha256(b"a part").hexdigest() in answer.error.message
    assert (await server.admin("HEAD", path)).status == 404


async def test_a_part_larger_than_the_limit_is_413(tmp_path: Path) -> None:
    async with running(tmp_path, max_part_bytes=10) as server:
        content = bytes(11)

        answer = await server.admin("PUT", f"/v1/admin/parts/{sha256(content).hexdigest()}", content)

        assert answer.outcome == (413, "too-large")


async def test_a_task_is_made_once_for_the_same_name_and_content(server: Server) -> None:
    bundle = tiny_bundle()

    first = await server.create(bundle)
    again = await server.create(bundle)

    assert first == again
    assert first.state == admin_pb2.TASK_STATE_WAITING
    assert list(first.bundles) == [bundle.id]


async def test_a_task_of_the_same_name_with_other_content_is_409(server: Server) -> None:
    await server.create(tiny_bundle())

    answer = await server.admin("POST", "/v1/admin/tasks", creation(tiny_bundle(), rounds=4))

    assert answer.outcome == (409, "task-differs")


async def test_a_task_whose_parts_are_not_stored_is_400(server: Server) -> None:
    answer = await server.admin("POST", "/v1/admin/tasks", creation(tiny_bundle()))

    assert answer.outcome == (400, "malformed")


async def test_a_setting_that_is_not_acceptable_is_400_and_named(server: Server) -> None:
    await server.store(tiny_bundle())

    answer = await server.admin("POST", "/v1/admin/tasks", creation(tiny_bundle(), rounds=0))

    assert answer.outcome == (400, "malformed")
    assert "rounds: found 0, must be" in answer.error.message


async def test_tasks_are_listed_and_shown_by_name_and_id(server: Server) -> None:
    made = await server.create(tiny_bundle())

    listed = admin_pb2.ListTasksResponse.FromString((await server.admin("GET", "/v1/admin/tasks")).body)

    assert list(listed.tasks) == [made]
    assert (await server.show("demo")).task == (await server.show(str(made.id))).task == made
    assert (await server.admin("GET", "/v1/admin/tasks/other")).outcome == (404, "unknown")


async def test_a_round_is_shown_with_what_was_measured(server: Server) -> None:
    await server.create(tiny_bundle(), population=1)
    client = await server.client(1)
    assignment = await client.assignment()
    body = update(assignment, trained())
    await client.upload(assignment, body)
    await client.check_in(hold_ms=10_000)

    first, second = (await server.show()).rounds

    member = first.members[0]
    assert (first.state, second.state) == (admin_pb2.ROUND_STATE_COMMITTED, admin_pb2.ROUND_STATE_OPEN)
    assert (member.client_id, member.num_examples, member.bytes_received) == (client.id, 10, len(body))
    assert [(sums.count, sums.correct, sums.loss) for sums in member.evaluations] == [(4, 1, 5.0), (4, 3, 2.0)]


async def test_the_model_of_a_task_is_the_mean_of_its_updates(server: Server) -> None:
    # 10 photos with all weights 1, 30 with all weights 3: (10 * 1 + 30 * 3) / 40 = 2.5
    await server.create(tiny_bundle(), rounds=1)
    one, other = await server.client(1), await server.client(2)
    assignment = await one.assignment()
    await one.upload(assignment, update(assignment, trained(value=1.0), num_examples=10))
    await other.upload(assignment, update(assignment, trained(value=3.0), num_examples=30))
    await one.check_in(hold_ms=10_000)

    answer = await server.admin("GET", "/v1/admin/tasks/demo/model")

    model = admin_pb2.TaskModelResponse.FromString(answer.body)
    blob = await server.admin("GET", f"/v1/admin/blobs/{model.blob_sha256.hex()}")
    assert (model.round, list(model.class_names), model.bundle) == (1, ["class 0", "class 1"], tiny_bundle().id)
    np.testing.assert_array_equal(Blob.from_bytes(blob.body)["fc.weight"], np.full((2, 3), 2.5, np.float32))


async def test_a_stopped_task_gives_no_more_work(server: Server) -> None:
    await server.create(tiny_bundle(), population=1)
    client = await server.client(1)
    await client.assignment()

    answers = [await server.admin("POST", "/v1/admin/tasks/demo/stop") for _ in range(2)]

    tasks = [admin_pb2.Task.FromString(answer.body) for answer in answers]
    assert [task.state for task in tasks] == [admin_pb2.TASK_STATE_STOPPED] * 2
    response: check_in_pb2.CheckInResponse = await client.check_in()
    assert response.WhichOneof("result") == "finished"


async def test_revoking_what_is_no_client_is_refused(server: Server) -> None:
    malformed = await server.admin("POST", "/v1/admin/clients/xyz/revoke")
    unknown = await server.admin("POST", f"/v1/admin/clients/{'0' * 64}/revoke")

    assert malformed.outcome == (400, "malformed")
    assert unknown.outcome == (404, "unknown")


async def test_a_compressed_part_is_415_and_not_stored(server: Server) -> None:
    content = b"a part"
    path = f"/v1/admin/parts/{sha256(content).hexdigest()}"

    answer = await server.admin("PUT", path, content, Content_Encoding="gzip")

    assert answer.outcome == (415, "wrong-media-type")
    assert (await server.admin("HEAD", path)).status == 404
