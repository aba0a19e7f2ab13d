"""The operators' requests over HTTP."""

import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_proto.blob import Blob
from fedlens_proto.v1 import admin_pb2, check_in_pb2
from tests.plugin_packages import HALF
from tests.server.bundles import tiny_bundle
from tests.server.http.running import BAN, Answer, Server, creation, running, trained, update


@pytest.mark.parametrize("content", [b"a part", bytes(3_000_000)])
async def test_a_part_is_stored_once_and_found(server: Server, content: bytes) -> None:
    digest = sha256(content).hexdigest()
    path = f"/v1/admin/parts/{digest}"

    before = await server.admin("HEAD", path)
    stored = [await server.admin("PUT", path, content) for _ in range(2)]
    after = await server.admin("HEAD", path)

    assert (before.status, [answer.status for answer in stored], after.status) == (404, [204, 204], 200)
    assert (await server.admin("GET", f"/v1/admin/blobs/{digest}")).body == content
    assert server.temporary_files() == []


async def test_a_part_that_is_refused_is_not_stored(tmp_path: Path) -> None:
    async with running(tmp_path, max_part_bytes=10) as server:
        digests = [sha256(content).hexdigest() for content in (b"a part", bytes(11))]
        paths = [f"/v1/admin/parts/{digest}" for digest in ("0" * 64, *digests)]

        other = await server.admin("PUT", paths[0], b"a part")
        compressed = await server.admin("PUT", paths[1], b"a part", Content_Encoding="gzip")
        large = await server.admin("PUT", paths[2], bytes(11))
        stored = [(await server.admin("HEAD", path)).status for path in paths]

    outcomes = [answer.outcome for answer in (other, compressed, large)]
    assert outcomes == [(400, "malformed"), (415, "wrong-media-type"), (413, "too-large")]
    assert digests[0] in other.error.message
    assert stored == [404] * 3


async def test_a_task_is_made_once_for_the_same_name_and_content(server: Server) -> None:
    bundle = tiny_bundle()

    first = await server.create(bundle)
    again = await server.create(bundle)

    assert first == again
    assert first.state == admin_pb2.TASK_STATE_WAITING
    assert list(first.bundles) == [bundle.id]


async def test_a_task_that_differs_misses_parts_or_has_a_bad_setting_or_manifest_is_refused(server: Server) -> None:
    damaged = admin_pb2.CreateTaskRequest(protocol=1, name="x", manifests=[b"\xff"], settings_json="{}")

    async def created(body: bytes) -> Answer:
        return await server.admin("POST", "/v1/admin/tasks", body)

    without_parts = await created(creation(tiny_bundle()))
    without_manifest = await created(damaged.SerializeToString())
    await server.create(tiny_bundle())
    without_rounds = await created(creation(tiny_bundle(), "other", rounds=0))
    differing = await created(creation(tiny_bundle(), rounds=4))

    for answer in (without_parts, without_manifest, without_rounds):
        assert answer.outcome == (400, "malformed")
    assert "rounds: found 0, must be" in without_rounds.error.message
    assert differing.outcome == (409, "task-differs")


async def test_tasks_are_listed_and_shown_by_name_and_id(server: Server) -> None:
    made = await server.create(tiny_bundle())

    listed = admin_pb2.ListTasksResponse.FromString((await server.admin("GET", "/v1/admin/tasks")).body)

    assert list(listed.tasks) == [made]
    assert (await server.show("demo")).task == (await server.show(str(made.id))).task == made
    assert (await server.admin("GET", "/v1/admin/tasks/other")).outcome == (404, "unknown")


async def test_a_round_is_shown_with_what_was_measured(server: Server) -> None:
    client, assignment = await server.member()
    body = update(assignment)
    await client.upload(assignment, body)
    await client.check_in(hold_ms=10_000)

    first, second = (await server.show()).rounds

    member = first.members[0]
    assert (first.state, second.state) == (admin_pb2.ROUND_STATE_COMMITTED, admin_pb2.ROUND_STATE_OPEN)
    assert (member.client_id, member.num_examples, member.bytes_received) == (client.id, 10, len(body))
    assert [(sums.count, sums.correct, sums.loss) for sums in member.evaluations] == [(4, 1, 5.0), (4, 3, 2.0)]


async def test_the_model_of_a_task_is_the_mean_of_its_updates(server: Server) -> None:
    # 10 photos with all weights 1, 30 with all weights 3: (10 * 1 + 30 * 3) / 40 = 2.5
    one, assignment = await server.member(population=2, rounds=1)
    other = await server.client(2)
    await one.upload(assignment, update(assignment, trained(value=1.0), num_examples=10))
    await other.upload(assignment, update(assignment, trained(value=3.0), num_examples=30))
    await one.check_in(hold_ms=10_000)

    answer = await server.admin("GET", "/v1/admin/tasks/demo/model")

    model = admin_pb2.TaskModelResponse.FromString(answer.body)
    blob = await server.admin("GET", f"/v1/admin/blobs/{model.blob_sha256.hex()}")
    assert (model.round, list(model.class_names), model.bundle) == (1, ["class 0", "class 1"], tiny_bundle().id)
    np.testing.assert_array_equal(Blob.from_bytes(blob.body)["fc.weight"], np.full((2, 3), 2.5, np.float32))


async def test_a_stopped_task_gives_no_more_work(server: Server) -> None:
    client, _ = await server.member()

    answers = [await server.admin("POST", "/v1/admin/tasks/demo/stop") for _ in range(2)]

    tasks = [admin_pb2.Task.FromString(answer.body) for answer in answers]
    assert [task.state for task in tasks] == [admin_pb2.TASK_STATE_STOPPED] * 2
    response: check_in_pb2.CheckInResponse = await client.check_in()
    assert response.WhichOneof("result") == "finished"


async def test_banning_what_is_no_client_is_refused(server: Server) -> None:
    malformed = await server.admin("POST", "/v1/admin/clients/xyz/ban", BAN)
    unknown = await server.admin("POST", f"/v1/admin/clients/{'0' * 64}/ban", BAN)

    assert malformed.outcome == (400, "malformed")
    assert unknown.outcome == (404, "unknown")


@pytest.mark.parametrize(("allowed", "status"), [(False, 400), (True, 200)])
async def test_a_method_in_a_module_is_imported_only_if_the_config_allows_it(
    tmp_path: Path, site: Path, allowed: bool, status: int
) -> None:
    (site / "half_way.py").write_text(HALF)
    async with running(tmp_path, allow_method_modules=allowed) as server:
        bundle = tiny_bundle()
        for digest, content in bundle.by_digest.items():
            await server.admin("PUT", f"/v1/admin/parts/{digest.hex()}", content)

        answer = await server.admin("POST", "/v1/admin/tasks", creation(bundle, method="half_way:METHOD"))

    assert answer.status == status
    assert ("half_way" in sys.modules) is allowed
